"""The detached record of an output: what a report holds after the graph is gone."""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from strictstep.schema.base import AnyOutput

_NUMBERS = frozenset({float, int, bool})
_FIELDS = ("log", "progress_bar", "metrics")


class Snapshots:
    """Makes records of outputs that keep their values when the optimizer steps.

    A logged parameter (a temperature, a loss weight) shares its storage with the parameter: without a copy the
    record would show the value after the step, and a logged buffer that of a later evaluation. A scalar that has been
    changed in place (`seen += len(batch)`) may be changed so again.
    """

    __slots__ = ("_at", "_ends", "_model", "_optimizers", "_probe", "_starts")

    def __init__(self, model: nn.Module, *optimizers: Optimizer) -> None:
        """Keep where the moving values are found."""
        self._model = model
        self._optimizers = optimizers
        self._probe = next(self._moving(), None)
        self._at: int | None = None
        self._starts: list[int] = []
        self._ends: list[int] = [0]

    def record(self, output: AnyOutput, loss: Tensor | None, is_users: bool) -> AnyOutput:
        """The output with a detached loss, and with copies of those values that may change later.

        Args:
            output: the checked output.
            loss: its loss, attached or not.
            is_users: whether the user made the object, and may keep it: then it is copied, not changed.
        """
        probe = self._probe
        if probe is not None and probe.data_ptr() != self._at:
            self._look(probe)
        record = output.model_copy() if is_users else output
        fields, starts, ends = record.__dict__, self._starts, self._ends
        if loss is not None:
            at = loss.data_ptr()
            detached = fields["log"].get("loss")  # which the check has made, where the loss is logged too
            if type(detached) is not Tensor or detached.data_ptr() != at or detached.dtype is not loss.dtype:
                detached = loss.detach()
            fields["loss"] = detached if at >= ends[bisect_right(starts, at)] else detached.clone()
        for name in _FIELDS:
            values = fields[name]
            if values and self._may_change(values):
                fields[name] = {key: _still(value) for key, value in values.items()}
        return record

    def _may_change(self, values: dict[str, Any]) -> bool:
        starts, ends = self._starts, self._ends
        try:
            for value in values.values():
                kind = type(value)  # `isinstance` of what is no tensor asks torch's metaclass
                if (kind is Tensor or (kind not in _NUMBERS and issubclass(kind, Tensor))) and (
                    (at := value.data_ptr()) < ends[bisect_right(starts, at)] or (value._version and value.ndim == 0)
                ):
                    return True
        except RuntimeError:  # a tensor of inference mode counts no changes
            return True
        return False

    def _look(self, probe: Tensor) -> None:
        """See where the storages are: at first, and when the model has been moved."""
        self._at = probe.data_ptr()
        spans = sorted(_span(tensor) for tensor in self._moving())
        self._starts = [start for start, _ in spans]
        self._ends = [0, *(end for _, end in spans)]  # at `bisect_right`: where the storage ends that starts before

    def _moving(self) -> Iterator[Tensor]:
        groups = chain.from_iterable(optimizer.param_groups for optimizer in self._optimizers)
        trained = chain.from_iterable(group["params"] for group in groups)
        return chain(self._model.parameters(), self._model.buffers(), trained)


def _span(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor's storage lies; nowhere, if it has none (a subclass, a lazy parameter)."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    except (RuntimeError, NotImplementedError, ValueError):
        return 0, 0


def _still(value: Any) -> Any:
    """A copy of a tensor; its neighbours in the same dict may be copied too, which is no harm."""
    return value.clone() if isinstance(value, Tensor) else value
