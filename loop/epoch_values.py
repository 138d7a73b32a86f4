"""What a pass over batches gives: values read, reduced, and handed to the loggers step by step."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from strictstep.loop.aggregate import Aggregate
from strictstep.loop.errors import LoopWarning
from strictstep.loop.host_values import host_values
from strictstep.loop.kept_metrics import EpochEnd, KeptMetrics, split_metrics
from strictstep.schema.base import AnyOutput
from strictstep.schema.describe import names_text
from strictstep.schema.errors import Stage
from strictstep.schema.fields import ReduceOp
from strictstep.schema.outputs import SkippedStep

Ops = Mapping[str, ReduceOp]
Row = tuple[dict[str, Any], float, type[AnyOutput]]
OnStep = Callable[[dict[str, Any], int], None]


class EpochValues:
    """Collects the named values of one pass, and keeps no tensor longer than it takes to read it.

    Values of the host and of the CPU are read at once; those of an accelerator wait, and are read many at a time.
    Numbers are reduced many at a time too, where no logger wants to know them at once: between two steps, which leave
    no cache warm, it costs three times as much.

    Args:
        stage: of the outputs.
        ops: how names are reduced where an output's own model does not say.
        epoch_end: gets the `metrics` that are no scalars.
        read_every: after how many steps what waits is read and reduced.
        on_step: gets the numbers of each optimizer step, and its `global_step`.

    Attributes:
        kept: the `metrics` that are no scalars.
    """

    def __init__(
        self,
        stage: Stage,
        ops: Ops,
        epoch_end: EpochEnd | None = None,
        read_every: int = 50,
        on_step: OnStep | None = None,
    ) -> None:
        """Start empty."""
        self.kept = KeptMetrics(epoch_end, stage)
        self._ops: Ops = ops
        self._read_every = read_every
        self._on_step = on_step
        self._aggregate = Aggregate()
        self._waiting: list[tuple[list[Row], int | None]] = []
        self._is_on_device = False
        self._log_names: set[str] | None = None
        self._last_names: tuple[str, ...] | None = None
        self._ops_by_model: dict[type[AnyOutput], Ops] = {}
        self._drifted: set[str] = set()

    def add(
        self,
        outputs: Sequence[AnyOutput],
        weights: Sequence[float],
        step: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Take in the outputs of one window.

        Args:
            outputs: one for each micro-batch.
            weights: their weights.
            step: the number of the optimizer step, if one was taken and the loggers shall know of it.
            extra: values of the step itself, such as the learning rate; reduced by the last.
        """
        rows: list[Row] = []
        for index, output in enumerate(outputs):
            numbers = self._named(output)
            if extra:
                numbers = self._with_extra(numbers, extra)
            for name, value in numbers.items():
                if not isinstance(value, (float, int)):  # `isinstance(value, Tensor)` would ask torch's metaclass
                    if value.is_cpu:
                        numbers[name] = value.item()
                    else:
                        self._is_on_device = True
            rows.append((numbers, weights[index], type(output)))
        self._waiting.append((rows, step))
        tells_at_once = self._on_step is not None and not self._is_on_device
        if tells_at_once or len(self._waiting) >= self._read_every:
            self.read()

    def read(self) -> None:
        """Read what waits on a device, in one transfer for each dtype, and reduce it."""
        waiting, self._waiting = self._waiting, []
        if self._is_on_device:
            self._is_on_device = False
            _read_all([numbers for rows, _ in waiting for numbers, _, _ in rows])
        for rows, step in waiting:
            self._take(rows, step)

    def close(self, epoch: int) -> dict[str, Any]:
        """The values of the whole pass, by name: reduced, computed, and what the `epoch_end` function returned."""
        self.read()
        values = self._aggregate.values()
        self._aggregate = Aggregate()
        return {**values, **self.kept.close(epoch)}

    @property
    def has_output(self) -> bool:
        """Whether an output has been taken in that was no skip: only such a one shows which names there are."""
        return self._log_names is not None

    def names(self) -> list[str]:
        """The names so far, of values that wait too."""
        waiting = [name for rows, _ in self._waiting for numbers, _, _ in rows for name in numbers]
        return list(dict.fromkeys([*self._aggregate.values(), *waiting]))

    def state_dict(self) -> dict[str, Any]:
        """The running sums, for a checkpoint in the middle of an epoch; what waits is read before."""
        self.read()
        return self._aggregate.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the sums of a checkpoint."""
        self._aggregate.load_state_dict(state)

    def restarted(self) -> Self:
        """The same, emptied of what a pass that was left behind may have left in it."""
        self._aggregate, self._waiting = Aggregate(), []
        return self

    def _with_extra(self, numbers: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
        if not extra.keys() <= self._ops.keys():
            self._ops = {**dict.fromkeys(extra, "last"), **self._ops}
            self._ops_by_model.clear()
        return {**numbers, **{name: value for name, value in extra.items() if name not in numbers}}

    def _ops_of(self, model: type[AnyOutput]) -> Ops:
        """How the names of an output are reduced: as its own model says, and else as the schema of the run."""
        ops = self._ops_by_model.get(model)
        if ops is None:
            ops = self._ops_by_model[model] = {**self._ops, **ops_of(model)}
        return ops

    def _named(self, output: AnyOutput) -> dict[str, Any]:
        """The scalars of an output by name; where a name stands twice, in this order: loss, log, bar, metrics."""
        fields = output.__dict__  # pydantic's attribute access costs three times as much
        loss, log, bar, metrics = fields["loss"], fields["log"], fields["progress_bar"], fields["metrics"]
        names = tuple(log)
        if names != self._last_names:  # cheaper than a comparison of sets
            self._last_names = names
            self._look_for_drift(output)
        named = dict(log) if loss is None else {"loss": loss, **log}
        if loss is not None:
            named["loss"] = loss
        for name, value in bar.items():
            named.setdefault(name, value)
        if metrics:
            scalars, others = split_metrics(metrics)
            self.kept.add(others)
            for name, value in scalars.items():
                named.setdefault(name, value)
        return named

    def _take(self, rows: list[Row], step: int | None) -> None:
        self._add_to(self._aggregate, rows)
        if self._on_step is None or step is None:
            return
        if len(rows) == 1:
            self._on_step(rows[0][0], step)
            return
        window = Aggregate()
        self._add_to(window, rows)
        self._on_step(window.values(), step)

    def _add_to(self, aggregate: Aggregate, rows: list[Row]) -> None:
        for numbers, weight, model in rows:
            aggregate.add(numbers, weight, self._ops_of(model))

    def _look_for_drift(self, output: AnyOutput) -> None:
        """Warn of `log` keys that come or go between steps, of each once; a skipped micro-batch shows nothing."""
        if issubclass(type(output), SkippedStep):
            return
        keys = set(output.log)
        known = self._log_names
        if known is None:
            self._log_names = keys
            return
        drifted = (keys ^ known) - self._drifted
        self._drifted |= drifted
        for verb, names in (("appeared", drifted - known), ("is missing", drifted & known)):
            for name in sorted(names):
                message = f"`log`: {names_text([name])} {verb} in mid-epoch: its value covers the steps that have it"
                warnings.warn(message, LoopWarning, 2)


def _read_all(rows: list[dict[str, Any]]) -> None:
    flat = {(index, name): value for index, row in enumerate(rows) for name, value in row.items()}
    for (index, name), number in host_values(flat).items():
        rows[index][name] = number


def ops_of(model: type[AnyOutput]) -> Ops:
    """How a model's names are reduced; where a name is listed twice, as for `log`.

    Example:
        >>> from strictstep.schema import TrainingOutput
        >>> ops_of(TrainingOutput)
        {}
    """
    by_field = model.reductions()
    fields = [by_field.get(field, {}) for field in ("metrics", "progress_bar", "log")]
    return {name: op for field in fields for name, op in field.items()} | ({"loss": "mean"} if by_field else {})
