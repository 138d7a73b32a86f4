"""One window of micro-batches: evaluated as a whole, each time alike, so that every evaluation has its full gradient.

    step ──▶ check ──▶ clear gradients (before the first backward) ──▶ backward ──▶ ... ──▶ unscale, clip

The gradient is the weighted mean over the micro-batches that contribute. The total of the weights is known before the
first backward, which of them are skipped only at the end: then the gradients are rescaled, once.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from strictstep.loop.backward import backward
from strictstep.loop.checked_step import Outcome
from strictstep.loop.device import versions
from strictstep.loop.errors import LoopError
from strictstep.loop.finite import non_finite_norm
from strictstep.loop.notes import add_place
from strictstep.loop.report import StepReport, weighted_mean
from strictstep.loop.setup import Setup
from strictstep.schema.base import AnyOutput
from strictstep.schema.outputs import SkippedStep

_NOTHING: dict[str, Any] = {}


class NothingContributed(BaseException):
    """Leaves `optimizer.step` when every micro-batch was skipped: some optimizers move without gradients."""


class Window:
    """The micro-batches of one optimizer step, and what their first evaluation gave.

    Args:
        setup: what stays the same from window to window.
        batches: the micro-batches, as the loader gave them.
        given: the values for the keyword arguments that the step names, but for `batch_idx` and `evaluation`.
        epoch: the number of the epoch for reports; `None` where it is not known.
        batch_idx: the number of the first micro-batch, likewise.
        first_idx: what the step gets as `batch_idx` for the first micro-batch.
    """

    __slots__ = (
        "_batch_idx",
        "_batches",
        "_contributing",
        "_epoch",
        "_first_idx",
        "_given",
        "_grad_norm",
        "_index",
        "_outputs",
        "_setup",
        "_total",
        "_weights",
        "evaluations",
    )

    def __init__(
        self,
        setup: Setup,
        batches: Sequence[Any],
        given: dict[str, Any],
        epoch: int | None,
        batch_idx: int | None,
        first_idx: int,
    ) -> None:
        """Hold the micro-batches; nothing is run yet."""
        self._setup = setup
        self._batches = batches
        self._given = given
        self._epoch = epoch
        self._batch_idx = batch_idx
        self._first_idx = first_idx
        self._contributing: Sequence[int] = range(len(batches))
        self._weights: list[float] = []
        self._outputs: list[AnyOutput] = []
        self._grad_norm: Tensor | None = None
        self._total = 0.0
        self._index = 0
        self.evaluations = 0

    @property
    def optimizer_name(self) -> str:
        """The class of the optimizer, for messages."""
        return self._setup.optimizer_step.name

    def evaluate(self) -> Tensor:
        """Run every micro-batch that contributes, and leave the window's gradient in the parameters.

        Returns:
            The weighted mean of the losses, detached, shape `[]`.
        """
        if self.evaluations == 0:
            self._total = self._setup.engine.total_weight(self._weighed())
        losses: list[Tensor] = []
        contributing: list[int] = []
        for index in self._contributing:
            loss = self._contribution(index, is_first=not losses)
            if loss is not None:
                losses.append(loss)
                contributing.append(index)
        if self.evaluations == 0:
            self._fix(contributing)
        self._finish_gradients()
        self.evaluations += 1
        return weighted_mean(losses, [self._weights[index] for index in contributing])

    def report(self, stepped: bool) -> StepReport:
        """What came of the first evaluation."""
        skipped = len(self._outputs) - len(self._contributing)
        return StepReport(
            tuple(self._outputs), tuple(self._weights), stepped, skipped, self.evaluations, self._grad_norm
        )

    def add_notes(self, error: Exception) -> None:
        """Say on an error where it happened, and that parameters may have moved."""
        batch_idx = None if self._batch_idx is None else self._batch_idx + self._index
        add_place(error, self._setup.checked_step.step.name, self._epoch, batch_idx)
        if self.evaluations:
            error.add_note(
                f"in evaluation {self.evaluations + 1} of one optimizer step: "
                f"the parameters stand where `{self.optimizer_name}` put them"
            )

    def _weighed(self) -> list[float] | Exception:
        weigh = self._setup.weights.of
        try:
            self._weights = [weigh(batch) for batch in self._batches]
        except Exception as error:
            return error
        return self._weights

    def _contribution(self, index: int, is_first: bool) -> Tensor | None:
        """Run one micro-batch and its backward; return its loss, detached, or `None` for a skip."""
        self._index = index
        setup = self._setup
        outcome, loss = self._outcome(index)
        outcome = setup.engine.agree(outcome)
        if isinstance(outcome, Exception):
            raise outcome
        if self.evaluations == 0:
            self._outputs.append(outcome)
        if loss is None or isinstance(outcome, SkippedStep):
            return self._skipped(outcome)
        if is_first:
            setup.gradients.clear()
        backward(setup, loss, self._weights[index] / self._total)
        return outcome.loss  # type: ignore[return-value]

    def _outcome(self, index: int) -> Outcome:
        step = self._setup.checked_step
        numbers = self._epoch, None if self._batch_idx is None else self._batch_idx + index, self.evaluations
        batch, named = self._batches[index], self._named(index) if step.step.names else _NOTHING
        if self.evaluations == 0:
            return step(batch, named, *numbers)
        before = versions(batch)
        outcome = step(batch, named, *numbers)
        # The evaluation before this one was given another batch: it can no longer be compared with this one.
        return outcome if versions(batch) == before else (_changed(step.step.name), None)

    def _named(self, index: int) -> dict[str, Any]:
        values = {**self._given, "batch_idx": self._first_idx + index, "evaluation": self.evaluations}
        return {name: values[name] for name in self._setup.checked_step.step.names}

    def _skipped(self, outcome: AnyOutput) -> None:
        if self.evaluations:
            reason = getattr(outcome, "reason", "another rank skipped it")
            message = f"expected a loss from every evaluation of a micro-batch, got a skip of a later one ({reason})"
            help = f"skip by the batch, not by its outcome: `{self.optimizer_name}` compares evaluations of one window"
            raise LoopError("skipped_later", message, help)

    def _fix(self, contributing: list[int]) -> None:
        """Replay only those from now on, and give them the whole of the gradient."""
        everything, self._contributing = len(self._contributing), contributing
        if not contributing:
            self.evaluations += 1
            raise NothingContributed
        if len(contributing) < everything:
            contributed = self._setup.engine.total_weight([self._weights[index] for index in contributing])
            self._setup.gradients.rescale(self._total / contributed)
            self._total = contributed

    def _finish_gradients(self) -> None:
        setup = self._setup
        setup.gradients.require_some(setup.checked_step.step.name)
        setup.precision.unscale(setup.optimizer_step.optimizer)
        if setup.max_grad_norm is not None:
            norm = setup.gradients.clip(setup.max_grad_norm)
            if self.evaluations == 0:
                self._grad_norm = norm
            if setup.precision.scaler is None:  # which else meets infinite gradients now and then, and skips them
                self._check_norm(norm)

    def _check_norm(self, norm: Tensor) -> None:
        watch, origin = self._setup.checked_step.watch, self._setup.checked_step.origin
        where = origin(self._epoch, self._batch_idx, self.evaluations)
        if not watch.reads(norm):
            watch.wait(norm, "grad_norm", where)
        elif not math.isfinite(number := norm.item()):
            if watch.policy == "error" or self.evaluations:
                raise non_finite_norm(number, where)
            self._skip_all(f"the gradient norm is {number}")

    def _skip_all(self, reason: str) -> None:
        """Skip the window: a norm does not say which of the micro-batches is to blame."""
        skip = SkippedStep(reason=reason)
        self._outputs = [skip if index in self._contributing else output for index, output in enumerate(self._outputs)]
        self._fix([])


def _changed(step_name: str) -> LoopError:
    message = f"expected `{step_name}` to leave its batch as it is, got one that it changed in place"
    help = "the optimizer evaluates the window again, on the same batch: change a copy, `x = x + noise`"
    return LoopError("window_changed", message, help)
