"""The training loop of strictstep: it consumes only outputs that `strictstep.schema` has checked.

    window of micro-batches ── StepClosure ──▶ optimizer.step(closure) ──▶ StepReport

`fit` goes around it: loader ─▶ windows ─▶ reports ─▶ values of the epoch ─▶ history, bar, loggers, checkpoints.

One closure serves every optimizer that follows torch's protocol, in anybody's own loop:

    optimization = AutomaticOptimization(model, training_step, optimizer)
    for batch in batches:
        report = optimization.step(batch)
"""

if __name__ == "loop":
    raise ImportError("import `strictstep.loop`, not `loop`: a second copy would have classes of its own")

from strictstep.loop.automatic import AutomaticOptimization
from strictstep.loop.checkpoint import Checkpoint
from strictstep.loop.closure import StepClosure
from strictstep.loop.early_stopping import EarlyStopping
from strictstep.loop.errors import ClosureNotCalledError, LoopError, LoopWarning
from strictstep.loop.evaluate import evaluate
from strictstep.loop.fit import fit
from strictstep.loop.fit_result import FitResult
from strictstep.loop.loggers import JSONLLogger, TensorBoardLogger
from strictstep.loop.manual import ManualOptimization
from strictstep.loop.report import StepReport

__all__ = [
    "AutomaticOptimization",
    "Checkpoint",
    "ClosureNotCalledError",
    "EarlyStopping",
    "FitResult",
    "JSONLLogger",
    "LoopError",
    "LoopWarning",
    "ManualOptimization",
    "StepClosure",
    "StepReport",
    "TensorBoardLogger",
    "evaluate",
    "fit",
]
