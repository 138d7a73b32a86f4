"""Where in a Lightning run a step is: what the headline of an error says."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from lightning.pytorch import LightningModule, Trainer

from strictstep.schema.errors import Stage, StepOutputError


class Place(NamedTuple):
    """One call of a step: whose it is, and when; the numbers are `None` where no trainer knows them."""

    step_name: str
    stage: Stage
    epoch: int | None
    batch_idx: int | None
    rank: int | None

    def error(self, found: StepOutputError) -> StepOutputError:
        """The same error, at this place."""
        return StepOutputError(
            found.problems, self.stage, self.step_name, found.where, self.epoch, self.batch_idx, self.rank
        )

    def __str__(self) -> str:
        """The place in words, for errors about a step that returned nothing wrong.

        Example:
            >>> str(Place("Digits.training_step", "training", 0, 3, 1))
            'training step `Digits.training_step` at epoch 0, batch 3'
        """
        return f"{self.stage} step `{self.step_name}` at epoch {self.epoch}, batch {self.batch_idx}"


def place_of(
    module: LightningModule, step: Callable[..., object], stage: Stage, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Place:
    """The place of a call of the module's step."""
    trainer = trainer_of(module)
    method = "test_step" if stage == "test" else "validation_step" if stage == "validation" else "training_step"
    name = f"{type(module).__name__}.{method}"
    if trainer is None:
        return Place(name, stage, None, _given(step, args, kwargs), None)
    batch_idx = _given(step, args, kwargs)
    batch_idx = _counted(trainer, stage) if batch_idx is None else batch_idx
    return Place(name, stage, trainer.current_epoch, batch_idx, trainer.global_rank)


def trainer_of(module: LightningModule) -> Trainer | None:
    """The trainer that a module is attached to; Fabric's stand-in for one is none."""
    try:
        trainer = module.trainer
    except RuntimeError:
        return None
    return trainer if isinstance(trainer, Trainer) else None


def _given(step: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The `batch_idx` that the step was called with."""
    try:
        given = inspect.signature(step).bind(*args, **kwargs).arguments.get("batch_idx")
    except (TypeError, ValueError):
        return None
    return given if type(given) is int else None


def _counted(trainer: Trainer, stage: Stage) -> int:
    """The number of the batch by the trainer's own count, for steps that name no `batch_idx`."""
    loop = trainer.fit_loop.epoch_loop if stage in ("training", "manual") else trainer._evaluation_loop
    return int(loop.batch_progress.current.ready) - 1
