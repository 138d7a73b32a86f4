"""What automatic and manual optimization share: the checked step, the weights, the counters."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from strictstep.loop.checked_step import CheckedStep, call_for, device_of, device_type_of, refuse_no_model
from strictstep.loop.engine import Engine
from strictstep.loop.errors import LoopError
from strictstep.loop.finite import FiniteWatch, OnNonFinite
from strictstep.loop.precision import Precision, PrecisionName
from strictstep.loop.snapshot import Snapshots
from strictstep.loop.step import Step
from strictstep.loop.weights import Weight, Weights
from strictstep.schema.base import AnyOutput
from strictstep.schema.coerce import OnNone
from strictstep.schema.describe import names_text


class Optimization:
    """The base of `AutomaticOptimization` and `ManualOptimization`.

    Attributes:
        global_step: how many optimizer steps have been taken.
        batches_seen: how many micro-batches have been given.
    """

    def __init__(
        self,
        model: nn.Module,
        training_step: Callable[..., object],
        stage: Literal["training", "manual"],
        optimizers: tuple[Optimizer, ...],
        *,
        schema: type[AnyOutput] | None,
        strict: bool,
        on_none: OnNone,
        on_non_finite: OnNonFinite,
        precision: PrecisionName,
        weight: Weight | Weights | None,
        device: torch.device | str | int | None,
        engine: Engine | None,
    ) -> None:
        """Check everything that can be checked before the first batch."""
        refuse_no_model(model)
        place = device_of(device)
        step = Step(model, training_step)
        call = call_for(stage, step, schema, strict, on_none)
        self._precision = Precision(precision, device_type_of(model, place))
        self._engine = engine
        self._weights = weight if isinstance(weight, Weights) else Weights(weight)
        self._watch = FiniteWatch(on_non_finite)
        snapshots = Snapshots(model, *optimizers)
        self._checked_step = CheckedStep(step, call, self._precision, self._engine, self._watch, snapshots, place)
        self.global_step = 0
        self.batches_seen = 0

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The scaler of `"fp16-mixed"`, else `None`."""
        return self._precision.scaler

    def read_waiting(self) -> None:
        """Read the losses and gradient norms of an accelerator that wait for it, in one transfer.

        Raises:
            StepOutputError: for the first loss that is not finite, with its epoch and batch.
            LoopError: `grad_norm_non_finite`, if a gradient norm comes first.
        """
        self._watch.read()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs besides model and optimizers: the counters, the scaler, how weights are read."""
        return {
            "global_step": self.global_step,
            "batches_seen": self.batches_seen,
            "weight_by_examples": self._weights.by_examples,
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the state of a checkpoint.

        Raises:
            LoopError: with the code `checkpoint_differs`, for a state that `state_dict` did not make.
        """
        if missing := self.state_dict().keys() - state.keys():
            message = f"expected a state that `state_dict` made, got one without {names_text(sorted(missing))}"
            raise LoopError("checkpoint_differs", message, "keep what `state_dict()` returned as it is")
        self.global_step, self.batches_seen = state["global_step"], state["batches_seen"]
        self._weights.by_examples = state["weight_by_examples"]
        if self.scaler is not None and state["scaler"] is not None:
            self.scaler.load_state_dict(state["scaler"])
