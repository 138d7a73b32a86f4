"""Automatic optimization: one optimizer, one closure, one report for each of its steps."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from strictstep.loop.closure import StepClosure
from strictstep.loop.engine import Engine
from strictstep.loop.errors import LoopError
from strictstep.loop.finite import OnNonFinite
from strictstep.loop.optimization import Optimization
from strictstep.loop.precision import PrecisionName, step_scaled
from strictstep.loop.report import StepReport
from strictstep.loop.setup import Setup
from strictstep.loop.step import stop_iteration
from strictstep.loop.weights import Weight, Weights
from strictstep.loop.window import NothingContributed, refuse_no_window
from strictstep.schema.base import AnyOutput
from strictstep.schema.coerce import OnNone

_new: Any = object.__new__


class AutomaticOptimization(Optimization):
    """Takes optimizer steps on checked outputs, with any optimizer that follows torch's protocol.

    Args:
        model: the module that the step trains.
        training_step: `training_step(model, batch)`, or the bound method `model.training_step(batch)`. It gets those
            of `batch_idx`, `epoch`, `global_step`, `evaluation`, `hiddens`, `optimizers` that its signature names.
        optimizer: of `torch.optim` or like it. One without a `closure` parameter gets its closure run first.
        schema: a `TrainingOutput` of your own.
        strict: make names beyond the five fields an error.
        on_none: `None` skips the micro-batch (`"skip"`) or is an error (`"error"`).
        on_non_finite: a loss that is not finite is an error (`"error"`), skips its micro-batch (`"skip"`, which reads
            every loss at once), or trains on (`"keep"`). On an accelerator the error comes up to 50 steps later, when
            the losses are read; `read_waiting()` reads them now.
        max_grad_norm: clip the optimizer's gradients to this norm, at the end of each evaluation.
        precision: `"fp32"`, `"bf16-mixed"` or `"fp16-mixed"`; the last not with an optimizer that demands a closure.
        weight: how much a micro-batch counts: a number, or a function of the batch; without it, its examples. A
            `Weights` object is used as it is.
        device: where batches are moved, each at its turn; `None` leaves them where they are.
        engine: runs the step and its backward, on several ranks; `None` for a single process.

    Attributes:
        global_step: how many optimizer steps have been taken.
        batches_seen: how many micro-batches have been given; a step that names `batch_idx` gets this count where
            the caller gives no number.
        scaler: the `GradScaler` of `"fp16-mixed"`, else `None`.

    Raises:
        LoopError: for a wrong option, a step that cannot be called, or an optimizer with nothing to train.
        TypeError, ValueError: for a `schema` that is none, or is of another stage.

    Example:
        >>> model = torch.nn.Linear(4, 1)
        >>> def training_step(model, batch):
        ...     return {"loss": model(batch).pow(2).mean(), "log": {"examples": len(batch)}}
        >>> optimization = AutomaticOptimization(model, training_step, torch.optim.SGD(model.parameters(), lr=0.1))
        >>> report = optimization.step(torch.ones(8, 4))
        >>> report.stepped, report.output.log, optimization.global_step
        (True, {'examples': 8}, 1)
    """

    def __init__(
        self,
        model: nn.Module,
        training_step: Callable[..., object],
        optimizer: Optimizer,
        *,
        schema: type[AnyOutput] | None = None,
        strict: bool = False,
        on_none: OnNone = "skip",
        on_non_finite: OnNonFinite = "error",
        max_grad_norm: float | None = None,
        precision: PrecisionName = "fp32",
        weight: Weight | Weights | None = None,
        device: torch.device | str | int | None = None,
        engine: Engine | None = None,
    ) -> None:
        """Check everything that can be checked before the first batch."""
        super().__init__(
            model,
            training_step,
            "training",
            (optimizer,),
            schema=schema,
            strict=strict,
            on_none=on_none,
            on_non_finite=on_non_finite,
            precision=precision,
            weight=weight,
            device=device,
            engine=engine,
        )
        self._setup = Setup(
            model, optimizer, self._checked_step, self._precision, self._engine, self._weights, max_grad_norm
        )

    def step(
        self, batch: Any, *, hiddens: Any = None, batch_idx: int | None = None, epoch: int | None = None
    ) -> StepReport:
        """Take one optimizer step on one batch.

        Args:
            batch: whatever the step takes.
            hiddens: for a step that names it: what the chunk before returned.
            batch_idx: for a step that names it, and for reports.
            epoch: likewise; a step that names it gets 0 where it is not given.

        Raises:
            StepOutputError: for what the step returned wrongly; nothing has moved, unless the error's notes say so.
            LoopError: where the step or the optimizer breaks a rule.
        """
        return self._taken((batch,), hiddens, batch_idx, epoch)

    def step_window(
        self,
        batches: Sequence[Any],
        *,
        hiddens: Any = None,
        batch_idx: int | None = None,
        epoch: int | None = None,
    ) -> StepReport:
        """Take one optimizer step on a window of micro-batches, each counting by its weight.

        `batch_idx` is the number of the first. Otherwise as `step`.
        """
        refuse_no_window(batches, hiddens)
        return self._taken(batches, hiddens, batch_idx, epoch)

    def _taken(self, batches: Sequence[Any], hiddens: Any, batch_idx: int | None, epoch: int | None) -> StepReport:
        setup = self._setup
        closure = _new(StepClosure)  # calling the class would leave the interpreter and enter it again
        closure.__init__(setup, batches, hiddens, epoch, batch_idx, self.batches_seen, self.global_step)
        try:
            report: StepReport = closure.take(self._take_step(closure))
        except BaseException:
            closure.close()
            raise
        finally:
            setup.gradients.clear()
        self.batches_seen += len(batches)
        self.global_step += report.stepped
        return report

    def closure(
        self,
        batches: Sequence[Any],
        *,
        hiddens: Any = None,
        batch_idx: int | None = None,
        epoch: int | None = None,
    ) -> StepClosure:
        """The closure of a window, for a loop that calls `optimizer.step` itself; the counters are then its own."""
        refuse_no_window(batches, hiddens)
        return StepClosure(self._setup, batches, hiddens, epoch, batch_idx, self.batches_seen, self.global_step)

    def _take_step(self, closure: StepClosure) -> bool:
        """Let the optimizer step; tell whether it did."""
        optimizer_step, scaler = self._setup.optimizer_step, self._setup.precision.scaler
        try:
            if scaler is not None:
                return step_scaled(scaler, optimizer_step.optimizer, closure)
            optimizer_step.take(closure.__call__)  # a method is called more cheaply than an object
        except NothingContributed:
            return False
        except StopIteration as error:
            raise stop_iteration(f"`{optimizer_step.name}.step`", error) from error
        except Exception as error:
            if closure.evaluations == 0 and closure.raised is None and _misses_gradients(error):
                raise _before_closure(optimizer_step.name, error) from error
            if closure.raised is None:  # the optimizer's own
                closure.add_place(error)
            raise
        return True


def _misses_gradients(error: Exception) -> bool:
    """Whether an optimizer that fails before its closure looked for gradients; what else it says is its own error."""
    return any(word in str(error) for word in ("NoneType", "grad", "empty"))


def _before_closure(optimizer_name: str, error: Exception) -> LoopError:
    message = (
        f"expected `{optimizer_name}.step` to call its closure before it uses gradients, "
        f"got {type(error).__name__} before the first call: {error}"
    )
    help = "gradients of an earlier step are never served: call `closure()` at the start of `step`"
    return LoopError("gradients_before_closure", message, help)
