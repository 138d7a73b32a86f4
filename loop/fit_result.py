"""What came of training."""

from dataclasses import dataclass
from typing import Literal

Stopped = Literal["max_epochs", "max_steps", "early_stopping", "interrupted"]


@dataclass(frozen=True, slots=True)
class FitResult:
    """What came of training.

    Attributes:
        history: one dict for each epoch, names to values: those of training as they were returned, each reduced over
            the epoch (`loss` by the weighted mean), `lr` where there is a scheduler, `skipped` where micro-batches
            were, and those of validation with `val_` in front.
        global_step: how many optimizer steps were taken, in all.
        stopped: why training ended: `"max_epochs"`, `"max_steps"`, `"early_stopping"` or `"interrupted"`.

    Example:
        >>> FitResult([{"loss": 0.5, "val_loss": 0.6}], 120, "max_epochs").history[-1]["val_loss"]
        0.6
    """

    history: list[dict[str, float]]
    global_step: int
    stopped: Stopped
