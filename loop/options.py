"""The options of `fit`, and what they stand for."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from strictstep.loop.automatic import AutomaticOptimization
from strictstep.loop.checkpoint import Checkpoint
from strictstep.loop.early_stopping import EarlyStopping
from strictstep.loop.engine import Engine
from strictstep.loop.finite import OnNonFinite
from strictstep.loop.kept_metrics import EpochEnd
from strictstep.loop.manual import ManualOptimization, Optimizers
from strictstep.loop.precision import PrecisionName
from strictstep.loop.report import StepReport
from strictstep.loop.schedule import Interval
from strictstep.loop.weights import Weight, Weights
from strictstep.schema.base import AnyOutput
from strictstep.schema.coerce import OnNone

PathLike: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `fit`, as they were given."""

    model: nn.Module
    training_step: Callable[..., object]
    train_batches: Iterable[Any]
    optimizer: Optimizers
    max_epochs: int | None
    max_steps: int | None
    gradient_accumulation_steps: int
    max_grad_norm: float | None
    precision: PrecisionName
    scheduler: Any
    scheduler_interval: Interval
    scheduler_monitor: str | None
    validation_step: Callable[..., object] | None
    validation_batches: Iterable[Any] | None
    validate_every: int
    schema: type[AnyOutput] | None
    strict: bool
    on_none: OnNone
    on_non_finite: OnNonFinite
    tbptt: tuple[int, int] | None
    carry_hiddens: bool
    weight: Weight | None
    device: torch.device | str | int | None
    after_step: Callable[[StepReport], object] | None
    epoch_end: EpochEnd | None
    loggers: Sequence[Any]
    log_every: int
    progress_bar: bool
    checkpoint: Checkpoint | PathLike | None
    resume: PathLike | bool | None
    early_stopping: EarlyStopping | None
    seed: int | None
    engine: Engine | None

    @property
    def rule(self) -> Checkpoint | None:
        """Where and when checkpoints are written, if at all."""
        given = self.checkpoint
        return given if given is None or isinstance(given, Checkpoint) else Checkpoint(given)

    @property
    def is_manual(self) -> bool:
        """Whether the step uses its optimizers itself: they were given as several, or in a list of one."""
        return isinstance(self.optimizer, Iterable) and not isinstance(self.optimizer, str)

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers, one or several; none of an iterator, which would be used up."""
        given: Any = self.optimizer
        if isinstance(given, Iterator):
            return []
        if not self.is_manual:
            return [given]
        return list(given.values() if isinstance(given, Mapping) else given)

    @property
    def optimizer_names(self) -> list[str]:
        """The classes of the optimizers, each under its name where it has one."""
        classes = [type(optimizer).__name__ for optimizer in self.optimizers]
        given = self.optimizer
        return (
            [f"{name}: {c}" for name, c in zip(given, classes, strict=True)] if isinstance(given, Mapping) else classes
        )

    def weights(self) -> Weights:
        """What reads the weights of batches, whose examples lie in dimension 1 where dimension 0 is time."""
        pair: Any = self.tbptt
        return Weights(self.weight, dim=int(is_steps_and_dim(pair) and pair[1] == 0))

    @property
    def listed_loggers(self) -> list[Any]:
        """The loggers: none, one or several."""
        return list(self.loggers) if isinstance(self.loggers, (list, tuple)) else [self.loggers]

    @property
    def schedulers(self) -> list[Any]:
        """The schedulers: none, one or several."""
        if self.scheduler is None:
            return []
        given = self.scheduler.values() if isinstance(self.scheduler, Mapping) else self.scheduler
        return [given] if given is self.scheduler and not isinstance(given, (list, tuple)) else list(given)

    def optimization(self) -> AutomaticOptimization | ManualOptimization:
        """The optimization that the options ask for."""
        common: dict[str, Any] = {
            "schema": self.schema,
            "strict": self.strict,
            "on_none": self.on_none,
            "on_non_finite": self.on_non_finite,
            "precision": self.precision,
            "weight": self.weights(),
            "device": self.device,
        }
        if self.is_manual:
            return ManualOptimization(self.model, self.training_step, self.optimizer, **common)
        one: Any = self.optimizer
        common.update(max_grad_norm=self.max_grad_norm, engine=self.engine)
        return AutomaticOptimization(self.model, self.training_step, one, **common)


def is_steps_and_dim(pair: Any) -> bool:
    """Whether a value can be `tbptt`."""
    is_ints = type(pair) in (tuple, list) and len(pair) == 2 and all(type(number) is int for number in pair)
    return is_ints and pair[0] >= 1 and pair[1] >= 0
