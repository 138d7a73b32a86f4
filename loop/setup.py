"""What stays the same from window to window, put together and checked once."""

import math
import sys
from typing import Any

from torch import nn
from torch.optim import Optimizer

from strictstep.loop.checked_step import CheckedStep
from strictstep.loop.engine import Engine
from strictstep.loop.errors import LoopError
from strictstep.loop.gradients import Gradients
from strictstep.loop.optimizers import OptimizerStep
from strictstep.loop.precision import Precision, refuse_closure_demanded
from strictstep.loop.weights import Weights
from strictstep.schema.describe import describe


class Setup:
    """The parts that evaluate a window: the step, the optimizer, its gradients, the precision, the engine if any.

    Raises:
        LoopError: for an optimizer with nothing to train, or one that cannot be stepped in this precision.
    """

    __slots__ = (
        "adjusts",
        "checked_step",
        "engine",
        "gradients",
        "max_grad_norm",
        "optimizer_step",
        "precision",
        "weights",
    )

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        checked_step: CheckedStep,
        precision: Precision,
        engine: Engine | None,
        weights: Weights,
        max_grad_norm: float | None,
    ) -> None:
        """Read what the optimizer's class says, and find its parameters."""
        self.checked_step = checked_step
        self.optimizer_step = OptimizerStep(optimizer)
        self.gradients = Gradients(model, optimizer, checked_step.step)
        self.precision = precision
        self.engine = engine
        self.weights = weights
        self.max_grad_norm = max_grad_norm if max_grad_norm is None else positive_norm(max_grad_norm)
        self.adjusts = max_grad_norm is not None or precision.scaler is not None
        if precision.scaler is not None and self.optimizer_step.demands_closure:
            raise refuse_closure_demanded(self.optimizer_step.name)


def positive_norm(value: Any) -> float:
    """A clipping norm: a positive number; infinity measures without clipping.

    Raises:
        LoopError: with the code `option`, for anything else.
    """
    if type(value) in (int, float) and value > 0:
        return float(value) if value < sys.float_info.max else math.inf
    help = "infinity measures the norm without clipping; `None` does neither"
    raise LoopError("option", f"expected a positive number as `max_grad_norm`, got {describe(value)}", help)
