"""What a pass over batches gives: values read, reduced, and handed to the loggers step by step."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from torch import Tensor

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
Row = tuple[dict[str, Any], float, Ops]
OnStep = Callable[[dict[str, Any], int], None]


class EpochValues:
    """Collects the named values of one pass, and keeps none of them longer than it takes to read it.

    Values of the host and of the CPU are read at once; those of an accelerator wait, and are read many at a time.

    Args:
        stage: of the outputs.
        ops: how names are reduced where an output's own model does not say.
        epoch_end: gets the `metrics` that are no scalars.
        read_every: after how many steps values that wait are read.
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
        self._log_names: set[str] | None = None
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
        waits = bool(self._waiting)
        rows: list[Row] = []
        for output, weight in zip(outputs, weights, strict=True):
            numbers = self._named(output)
            if extra:
                if not extra.keys() <= self._ops.keys():
                    self._ops = {**dict.fromkeys(extra, "last"), **self._ops}
                    self._ops_by_model.clear()
                numbers = {**numbers, **{name: value for name, value in extra.items() if name not in numbers}}
            for name, value in numbers.items():
                if isinstance(value, Tensor):
                    if value.is_cpu:
                        numbers[name] = value.item()
                    else:
                        waits = True
            rows.append((numbers, weight, self._ops_of(type(output))))
        if not waits:
            self._take(rows, step)
            return
        self._waiting.append((rows, step))
        if len(self._waiting) >= self._read_every:
            self.read()

    def read(self) -> None:
        """Read what waits on a device, in one transfer for each dtype."""
        waiting, self._waiting = self._waiting, []
        rows = [row for step_rows, _ in waiting for row in step_rows]
        flat = {(index, name): value for index, row in enumerate(rows) for name, value in row[0].items()}
        for (index, name), number in host_values(flat).items():
            rows[index][0][name] = number
        for step_rows, step in waiting:
            self._take(step_rows, step)

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

    def _ops_of(self, model: type[AnyOutput]) -> Ops:
        """How the names of an output are reduced: as its own model says, and else as the schema of the run."""
        ops = self._ops_by_model.get(model)
        if ops is None:
            ops = self._ops_by_model[model] = {**self._ops, **ops_of(model)}
        return ops

    def _named(self, output: AnyOutput) -> dict[str, Any]:
        """The scalars of an output by name; where a name stands twice, in this order: loss, log, bar, metrics."""
        log: Mapping[str, Any] = output.log
        if self._log_names is None or log.keys() != self._log_names:
            self._look_for_drift(output)
        loss, bar, metrics = output.loss, output.progress_bar, output.metrics
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
        for numbers, weight, ops in rows:
            self._aggregate.add(numbers, weight, ops)
        if self._on_step is not None and step is not None:
            self._on_step(_reduced(rows), step)

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


def _reduced(rows: list[Row]) -> dict[str, Any]:
    """The numbers of one optimizer step from those of its micro-batches."""
    if len(rows) == 1:
        return rows[0][0]
    window = Aggregate()
    for numbers, weight, ops in rows:
        window.add(numbers, weight, ops)
    return window.values()


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
