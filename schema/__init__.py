"""What a PyTorch training step returns, as a checked thing: five fields, errors people can read, JSON Schema.

    any return ── coerce ──▶ TrainingOutput | ManualOutput | EvaluationOutput | SkippedStep
                       └───▶ StepOutputError: what arrived, where, what was expected, how to mend it

`validate_step` does the same as a decorator, in anybody's loop.
"""

if __name__ == "schema":
    raise ImportError("import `strictstep.schema`, not `schema`: a second copy would have classes of its own")

from strictstep.schema.base import StepOutput
from strictstep.schema.coerce import coerce
from strictstep.schema.errors import Problem, StepOutputError, StepOutputWarning
from strictstep.schema.fields import Hiddens, Loss, Reduce, Scalar
from strictstep.schema.outputs import EvaluationOutput, ManualOutput, SkippedStep, TrainingOutput
from strictstep.schema.step_record import HistoryRecord, StepRecord
from strictstep.schema.validate import validate_step

__all__ = [
    "EvaluationOutput",
    "Hiddens",
    "HistoryRecord",
    "Loss",
    "ManualOutput",
    "Problem",
    "Reduce",
    "Scalar",
    "SkippedStep",
    "StepOutput",
    "StepOutputError",
    "StepOutputWarning",
    "StepRecord",
    "TrainingOutput",
    "coerce",
    "validate_step",
]
