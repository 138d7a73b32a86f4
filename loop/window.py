"""One window of micro-batches: evaluated as a whole, each time alike, so that every evaluation has its full gradient.

    clear gradients ──▶ step ──▶ check ──▶ backward ──▶ step ──▶ check ──▶ backward ──▶ ... ──▶ unscale, clip

The gradient is the weighted mean over the micro-batches that contribute. The total of the weights is known before the
first backward, which of them are skipped only at the end: then the gradients are rescaled, once.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from strictstep.loop.backward import backward
from strictstep.loop.device import moved, versions
from strictstep.loop.errors import LoopError
from strictstep.loop.finite import non_finite_norm
from strictstep.loop.notes import add_place
from strictstep.loop.report import weighted_mean
from strictstep.loop.setup import Setup
from strictstep.schema.base import AnyOutput
from strictstep.schema.describe import describe
from strictstep.schema.outputs import SkippedStep

_NOTHING: dict[str, Any] = {}


class NothingContributed(BaseException):
    """Leaves `optimizer.step` when every micro-batch was skipped: some optimizers move without gradients.

    Not an `Exception`, so that no `except Exception` of an optimizer holds it up.
    """


class Window:
    """The micro-batches of one optimizer step, and what their first evaluation gave.

    Args:
        setup: what stays the same from window to window.
        batches: the micro-batches, as the loader gave them.
        hiddens: for a step that names it.
        epoch: for reports, and for a step that names it (0 where it is not known).
        batch_idx: the number of the first micro-batch, for reports; `None` where it is not known.
        batches_seen: what a step that names `batch_idx` gets for the first micro-batch where that is not known.
        global_step: for a step that names it.
    """

    __slots__ = (
        "_batch_idx",
        "_batches",
        "_batches_seen",
        "_contributing",
        "_epoch",
        "_global_step",
        "_grad_norm",
        "_hiddens",
        "_index",
        "_loss",
        "_outputs",
        "_setup",
        "_total",
        "_weights",
        "evaluations",
        "raised",
    )

    def __init__(
        self,
        setup: Setup,
        batches: Sequence[Any],
        hiddens: Any,
        epoch: int | None,
        batch_idx: int | None,
        batches_seen: int,
        global_step: int,
    ) -> None:
        """Hold the micro-batches; nothing is run yet."""
        self._setup = setup
        self._batches = batches
        self._hiddens = hiddens
        self._epoch = epoch
        self._batch_idx = batch_idx
        self._batches_seen = batches_seen
        self._global_step = global_step
        self._contributing: Sequence[int] = range(len(batches))
        self._outputs: list[AnyOutput] = []
        self._weights: list[float] = []
        self._loss: Tensor | None = None
        self._grad_norm: Tensor | None = None
        self._index = 0
        self.evaluations = 0
        self.raised: BaseException | None = None

    def evaluate(self) -> Tensor:
        """Run every micro-batch that contributes, and leave the window's gradient in the parameters.

        Returns:
            The weighted mean of the losses, detached, shape `[]`.
        """
        setup = self._setup
        if self.evaluations == 0:
            self._weigh()
        before = versions((self._batches, self._hiddens)) if self.evaluations else None
        losses = self._went_backward()
        if before is not None and versions((self._batches, self._hiddens)) != before:
            raise _changed(setup.checked_step.step.name)
        setup.gradients.require_some()
        if setup.adjusts:
            self._adjust_gradients()
        loss = losses[0] if len(losses) == 1 else self._mean(losses)
        if self.evaluations == 0:
            self._loss = loss
        self.evaluations += 1
        return loss if setup.optimizer_step.is_torchs else loss.clone()

    def _mean(self, losses: Sequence[Tensor]) -> Tensor:
        return weighted_mean(losses, [self._weights[index] for index in self._contributing])

    def _went_backward(self) -> list[Tensor]:
        """Take each micro-batch forward and backward; the losses of those that contribute, detached."""
        setup = self._setup
        checked_step = setup.checked_step
        losses: list[Any] = []
        setup.gradients.clear()
        noted: list[tuple[Tensor, int]] = []
        for index in self._contributing:
            self._index = index
            named = self._named(index) if checked_step.step.names else _NOTHING
            batch_idx = None if self._batch_idx is None else self._batch_idx + index
            own, loss = checked_step.run(self._batches[index], named, self._epoch, batch_idx, self.evaluations)
            outcome = setup.engine.agree(own)
            # An error of this rank comes without a loss: nearly every outcome need not be asked what it is.
            if (loss is None or outcome is not own) and isinstance(outcome, Exception):
                raise outcome
            output: Any = outcome
            if self.evaluations == 0:
                self._outputs.append(output)
            setup.gradients.require_noted(noted)
            if loss is None or (detached := output.loss) is None:
                self._refuse_later_skip(output)
                continue
            backward(setup, loss, self._weights[index] / self._total)
            losses.append(detached)
            if len(self._contributing) > 1:
                noted = setup.gradients.note()
        if len(losses) < len(self._contributing):
            self._leave_out([index for index in self._contributing if self._outputs[index].loss is not None])
        return losses

    def add_notes(self, error: Exception) -> None:
        """Say on an error of an evaluation where it happened, and that parameters may have moved."""
        self.add_place(error)
        if self.evaluations:
            error.add_note(
                f"in evaluation {self.evaluations + 1} of one optimizer step: "
                f"the parameters stand where `{self._setup.optimizer_step.name}` put them"
            )

    def add_place(self, error: Exception) -> None:
        """Say on an error where it happened."""
        add_place(error, self._setup.checked_step.step.name, self._epoch, self._number(self._index))

    def _weigh(self) -> None:
        """Read the weights, once: later evaluations are given the same batches."""
        setup = self._setup
        weights: list[float] = []
        try:
            for batch in self._batches:
                weights.append(setup.weights.of(batch))
        except Exception as error:
            setup.engine.total_weight(error)  # which tells the other ranks
            raise
        self._weights = weights
        self._total = setup.engine.total_weight(weights)

    def _number(self, index: int) -> int | None:
        return None if self._batch_idx is None else self._batch_idx + index

    def _named(self, index: int) -> dict[str, Any]:
        values = {
            "batch_idx": (self._batches_seen if self._batch_idx is None else self._batch_idx) + index,
            "epoch": self._epoch or 0,
            "evaluation": self.evaluations,
            "global_step": self._global_step,
            "hiddens": moved(self._hiddens, None),
            "optimizers": self._setup.optimizer_step.optimizer,
        }
        return {name: values[name] for name in self._setup.checked_step.step.names}

    def _refuse_later_skip(self, outcome: AnyOutput) -> None:
        if self.evaluations:
            name = self._setup.optimizer_step.name
            reason = getattr(outcome, "reason", "another rank skipped it")
            message = f"expected a loss from every evaluation of a micro-batch, got a skip of a later one ({reason})"
            help = f"skip by what is in the batch: `{name}` compares evaluations of one and the same window"
            raise LoopError("skipped_later", message, help)

    def _leave_out(self, contributing: list[int]) -> None:
        """Replay only those that contribute from now on, and give them the whole of the gradient."""
        self._contributing = contributing
        if not contributing:
            self.evaluations += 1
            raise NothingContributed
        contributed = self._setup.engine.total_weight([self._weights[index] for index in contributing])
        self._setup.gradients.rescale(self._total / contributed)
        self._total = contributed

    def _adjust_gradients(self) -> None:
        setup = self._setup
        scaler = setup.precision.scaler
        if scaler is not None:
            scaler.unscale_(setup.optimizer_step.optimizer)
        if setup.max_grad_norm is not None:
            norm = setup.gradients.clip(setup.max_grad_norm)
            if self.evaluations == 0:
                self._grad_norm = norm
            if scaler is None:  # which else meets infinite gradients now and then, and skips their step
                self._check_norm(norm)

    def _check_norm(self, norm: Tensor) -> None:
        checked_step = self._setup.checked_step
        watch = checked_step.watch
        origin = checked_step.origin(self._epoch, self._number(self._index), self.evaluations)
        if not watch.reads(norm):
            watch.wait(norm, "grad_norm", origin)
        elif not math.isfinite(number := norm.item()):
            if watch.policy == "error" or self.evaluations:
                raise non_finite_norm(number, origin)
            self._skip_all(f"the gradient norm is {number}")

    def _skip_all(self, reason: str) -> None:
        """Skip the window: a norm does not say which of the micro-batches is to blame."""
        skip = SkippedStep(reason=reason)
        self._outputs = [skip if index in self._contributing else output for index, output in enumerate(self._outputs)]
        self._leave_out([])


def refuse_no_window(batches: Sequence[Any], hiddens: Any) -> None:
    """Raise for what is no window, for one of no batch, and for a chunk's hiddens in a window of several."""
    if isinstance(batches, (Tensor, str)) or not isinstance(batches, Sequence):
        message = f"expected a list of batches as window, got {describe(batches)}"
        raise LoopError("window_empty", message, "for one batch, call `step(batch)`, or pass `[batch]`")
    if len(batches) == 0:
        message = "expected a window of at least one batch, got none"
        raise LoopError("window_empty", message, "leave out the step where there is no batch")
    if hiddens is not None and len(batches) > 1:
        message = f"expected `hiddens` for a window of one chunk, got a window of {len(batches)} micro-batches"
        raise LoopError("hiddens_with_accumulation", message, "step on each chunk: a chunk is a micro-batch")


def _changed(step_name: str) -> LoopError:
    message = f"expected `{step_name}` to leave its batch and hiddens as they are, got some that it changed in place"
    help = "the optimizer evaluates the window again, on the same ones: change a copy, `x = x + noise`"
    return LoopError("window_changed", message, help)
