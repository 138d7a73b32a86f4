"""One window of micro-batches: evaluated as a whole, each time alike, so that every evaluation has its full gradient.

    clear gradients ──▶ step ──▶ check ──▶ backward ──▶ step ──▶ check ──▶ backward ──▶ ... ──▶ unscale, clip

The gradient is the weighted mean over the micro-batches that contribute. The total of the weights is known before the
first backward, which of them are skipped only at the end: then the gradients are rescaled, once.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor

from strictstep.loop.backward import backward
from strictstep.loop.device import moved, versions
from strictstep.loop.errors import LoopError
from strictstep.loop.finite import Origin, non_finite_norm
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
        "_skipped",
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
        self._contributing: Sequence[int] | None = None  # all, until it is known which
        self._outputs: tuple[AnyOutput, ...] = ()
        self._weights: tuple[float, ...] = ()
        self._skipped = 0
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
        setup.gradients.clear()
        loss = self._went_backward(0, ()) if len(self._batches) == 1 else self._all_went_backward()
        if loss is None:
            raise self._nothing()
        if before is not None and versions((self._batches, self._hiddens)) != before:
            raise _changed(setup.checked_step.step.name)
        setup.gradients.require_some()
        if setup.adjusts:
            self._adjust_gradients()
        if self.evaluations == 0:
            self._loss = loss
        self.evaluations += 1
        return loss if setup.optimizer_step.is_torchs else loss.clone()

    def _all_went_backward(self) -> Tensor | None:
        """Take each micro-batch forward and backward; the mean of the losses, `None` where all were skipped."""
        gradients = self._setup.gradients
        losses: dict[int, Tensor] = {}
        noted: Sequence[tuple[Tensor, int]] = ()
        contributing = range(len(self._batches)) if self._contributing is None else self._contributing
        for index in contributing:
            loss = self._went_backward(index, noted)
            if loss is not None:
                losses[index] = loss
                noted = gradients.note()
        if losses and len(losses) < len(contributing):
            self._leave_out_others(list(losses))
        return weighted_mean([*losses.values()], [self._weights[index] for index in losses]) if losses else None

    def _went_backward(self, index: int, noted: Sequence[tuple[Tensor, int]]) -> Tensor | None:
        """Take one micro-batch forward and backward; its loss, detached, or `None` where it was skipped."""
        self._index = index
        setup = self._setup
        checked_step = setup.checked_step
        named = self._named(index) if checked_step.step.names else _NOTHING
        own, loss = checked_step.run(self._batches[index], named, self._origin)
        engine = setup.engine
        output: Any = own if engine is None else engine.agree(own)
        if loss is None or output is not own:  # nearly every outcome need not be asked what it is
            if isinstance(output, Exception):
                raise output
            loss = None if output.loss is None else loss
        if self.evaluations == 0:
            self._outputs += (output,)
        if noted:
            setup.gradients.require_noted(noted)
        else:
            setup.gradients.require_none()
        if loss is None:
            self._refuse_later_skip(output)
            return None
        backward(setup, loss, self._weights[index] / self._total)
        return cast(Tensor, output.loss)

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
        add_place(error, self._setup.checked_step.step.name, *self._origin().numbers)

    def _weigh(self) -> None:
        """Read the weights, once: later evaluations are given the same batches."""
        setup, engine = self._setup, self._setup.engine
        weights: tuple[float, ...] = ()
        try:
            for batch in self._batches:
                weights += (setup.weights.of(batch),)
        except Exception as error:
            if engine is not None:
                engine.total_weight(error)  # which tells the other ranks
            raise
        self._weights = weights
        self._total = sum(weights) if engine is None else engine.total_weight(weights)

    def _origin(self) -> Origin:
        """Where the micro-batch is that is being evaluated."""
        batch_idx = None if self._batch_idx is None else self._batch_idx + self._index
        return self._setup.checked_step.origin(self._epoch, batch_idx, self.evaluations)

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

    def _leave_out_others(self, contributing: list[int]) -> None:
        """Replay only those that contribute from now on, and give them the whole of the gradient."""
        engine = self._setup.engine
        self._contributing = contributing
        self._skipped = len(self._batches) - len(contributing)
        weights = tuple(self._weights[index] for index in contributing)
        contributed = sum(weights) if engine is None else engine.total_weight(weights)
        self._setup.gradients.rescale(self._total / contributed)
        self._total = contributed

    def _nothing(self) -> NothingContributed:
        """What is raised where no micro-batch contributes."""
        self._batches = ()  # for an optimizer that calls again: it gets the same
        self._skipped = len(self._outputs)
        self.evaluations += 1
        return NothingContributed()

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
        watch = self._setup.checked_step.watch
        if not watch.reads(norm):
            watch.wait(norm, "grad_norm", self._origin())
        elif not math.isfinite(number := norm.item()):
            if watch.policy == "error" or self.evaluations:
                raise non_finite_norm(number, self._origin())
            raise self._skipped_all(f"the gradient norm is {number}")

    def _skipped_all(self, reason: str) -> NothingContributed:
        """Skip the window: a norm does not say which of the micro-batches is to blame."""
        skip = SkippedStep(reason=reason)
        self._outputs = tuple(output if output.loss is None else skip for output in self._outputs)
        return self._nothing()


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
