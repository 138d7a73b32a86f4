"""One pass over the training batches: windows taken, values collected, hiddens handed on, skips counted."""

from collections import OrderedDict
from typing import Any

from strictstep.loop.automatic import AutomaticOptimization
from strictstep.loop.epoch_values import EpochValues
from strictstep.loop.errors import LoopError
from strictstep.loop.manual import ManualOptimization
from strictstep.loop.report import StepReport
from strictstep.loop.schedule import Schedule
from strictstep.loop.windows import Windows
from strictstep.schema.outputs import SkippedStep

NONE_SKIP = "returned None"


class TrainingPass:
    """The state of an epoch of training, between two of its steps.

    Args:
        optimization: takes the steps.
        windows: what they are taken on.
        values: collects what they give.
        schedule: the learning rates that are logged.
        keeps_hiddens: whether a step gets the hiddens of the one before.
        carries: whether it gets them also where a new sequence begins.

    Attributes:
        stepped: how many optimizer steps this epoch has had.
        skipped: how many micro-batches of this epoch were skipped.
        outputs: how many micro-batches of this epoch have been taken, skipped ones included.
    """

    def __init__(
        self,
        optimization: AutomaticOptimization | ManualOptimization,
        windows: Windows,
        values: EpochValues,
        schedule: Schedule,
        keeps_hiddens: bool,
        carries: bool,
    ) -> None:
        """Put the parts together; no epoch has begun."""
        self.optimization = optimization
        self.windows = windows
        self.values = values
        self._schedule = schedule
        self._keeps_hiddens = keeps_hiddens
        self._carries = carries
        self._begin(0)

    def _begin(self, epoch: int) -> None:
        self.epoch = epoch
        self.stepped = self.skipped = self.outputs = 0
        self._nones = 0
        self._hiddens: Any = None

    def start(self, epoch: int) -> None:
        """Begin an epoch."""
        self._begin(epoch)
        self.windows.start(epoch)

    def step(self) -> StepReport | None:
        """Take a step on the next window; `None` at the end of the epoch."""
        batches = self.windows.next()
        if not batches:
            self._hiddens = None
            return None
        rates = None if self._schedule.is_empty else self._schedule.rates()
        report = self._taken(batches)
        self.stepped += report.stepped
        self.outputs += len(report.outputs)
        if report.skipped:
            self._count_skips(report)
        step = self.optimization.global_step if report.stepped else None
        self.values.add(report.outputs, report.weights, step, rates)
        return report

    def close(self) -> dict[str, Any]:
        """The values of the epoch.

        Raises:
            LoopError: with the code `all_returned_none`, if nothing was ever returned; with `nothing_stepped`, if the
                step of manual optimization never stepped an optimizer.
        """
        self.windows.loader.stop()
        self.optimization.read_waiting()
        if self.outputs and self._nones == self.outputs:
            message = f"expected something to train on in epoch {self.epoch}, got None from each of {self._nones} steps"
            raise LoopError("all_returned_none", message, "was a `return` forgotten in the training step?")
        self._refuse_idle_optimizers()
        values = self.values.close(self.epoch)
        return {**values, "skipped": self.skipped} if self.skipped and "skipped" not in values else values

    @property
    def has_skipped_all(self) -> bool:
        """Whether every micro-batch of the epoch was skipped."""
        return 0 < self.skipped == self.outputs

    def _refuse_idle_optimizers(self) -> None:
        trained_on = self.outputs - self.skipped
        if trained_on and not self.stepped and isinstance(self.optimization, ManualOptimization):
            message = f"expected an optimizer step in epoch {self.epoch}, got none in {trained_on} batches"
            help = "optimizers in a list or a dict are the step's own: name `optimizers` in it, and call their `step()`"
            if self.optimization.has_one_optimizer:
                help += "; or pass the optimizer alone, to have it stepped"
            raise LoopError("nothing_stepped", message, help)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint in the middle of the epoch needs.

        Raises:
            LoopError: with the code `checkpoint_unsavable`, for hiddens in containers that only pickle could load.
        """
        counts = {"stepped": self.stepped, "skipped": self.skipped, "outputs": self.outputs, "nones": self._nones}
        require_plain(self._hiddens)
        return {"counts": counts, "values": self.values.state_dict(), "hiddens": self._hiddens}

    def resume(self, epoch: int, position: dict[str, Any], state: dict[str, Any]) -> None:
        """Go on in the middle of an epoch."""
        self._begin(epoch)
        counts = state["counts"]
        self.stepped, self.skipped = counts["stepped"], counts["skipped"]
        self.outputs, self._nones = counts["outputs"], counts["nones"]
        self.values.load_state_dict(state["values"])
        self.windows.start(epoch, position)
        self._hiddens = state["hiddens"]

    def _taken(self, batches: list[Any]) -> StepReport:
        optimization, first = self.optimization, self.windows.first
        if not self._keeps_hiddens:
            if len(batches) > 1 and isinstance(optimization, AutomaticOptimization):
                return optimization.step_window(batches, batch_idx=first, epoch=self.epoch)
            return optimization.step(batches[0], batch_idx=first, epoch=self.epoch)
        if self.windows.begins_sequence and not self._carries:
            self._hiddens = None
        report = optimization.step(batches[0], hiddens=self._hiddens, batch_idx=first, epoch=self.epoch)
        if not isinstance(report.output, SkippedStep):  # after a skip the next chunk gets what the skipped one got
            self._hiddens = report.output.hiddens
        return report

    def _count_skips(self, report: StepReport) -> None:
        skips = [output for output in report.outputs if isinstance(output, SkippedStep)]
        self.skipped += len(skips)
        self._nones += sum(skip.reason == NONE_SKIP for skip in skips)


def require_plain(hiddens: Any) -> None:
    """Raise for hiddens that a checkpoint could not load without pickle.

    Raises:
        LoopError: with the code `checkpoint_unsavable`.

    Example:
        >>> require_plain({"h": None, "more": []})
    """
    kind = type(hiddens)
    if kind in (dict, OrderedDict, list, tuple):
        for child in hiddens.values() if kind in (dict, OrderedDict) else hiddens:
            require_plain(child)
    elif isinstance(hiddens, tuple):
        message = f"expected `hiddens` of tensors in dicts, lists and tuples for a checkpoint, got a `{kind.__name__}`"
        raise LoopError("checkpoint_unsavable", message, "return a plain tuple, and build the other in the step")
