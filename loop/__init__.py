"""The training loop of strictstep: it consumes only outputs that `strictstep.schema` has checked.

    window of micro-batches ── StepClosure ──▶ optimizer.step(closure) ──▶ StepReport

One closure serves every optimizer that follows torch's protocol, in anybody's own loop:

    optimization = AutomaticOptimization(model, training_step, optimizer)
    for batch in batches:
        report = optimization.step(batch)
"""

if __name__ == "loop":
    raise ImportError("import `strictstep.loop`, not `loop`: a second copy would have classes of its own")

from strictstep.loop.automatic import AutomaticOptimization
from strictstep.loop.closure import StepClosure
from strictstep.loop.errors import ClosureNotCalledError, LoopError
from strictstep.loop.manual import ManualOptimization
from strictstep.loop.report import StepReport

__all__ = [
    "AutomaticOptimization",
    "ClosureNotCalledError",
    "LoopError",
    "ManualOptimization",
    "StepClosure",
    "StepReport",
]
