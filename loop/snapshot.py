"""The detached record of an output: what a report holds after the graph is gone."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from strictstep.schema.base import AnyOutput

_FIELDS = ("log", "progress_bar", "metrics")
_SMALLEST = 6  # pages of 64 bytes
_MOST_PAGES = 4096


class Snapshots:
    """Makes records of outputs that keep their values when the optimizer steps.

    A logged parameter (a temperature, a loss weight) shares its storage with the parameter: without a copy the
    record would show the value after the step, and a logged buffer that of a later evaluation. A scalar that has been
    changed in place (`seen += len(batch)`) may be changed so again.
    """

    __slots__ = ("_at", "_model", "_optimizers", "_pages", "_probe", "_shift")

    def __init__(self, model: nn.Module, *optimizers: Optimizer) -> None:
        """Keep where the moving values are found."""
        self._model = model
        self._optimizers = optimizers
        self._probe = next(self._moving(), None)
        self._at: int | None = None
        self._shift = 0
        self._pages: set[int] = set()

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
        fields = record.__dict__
        if loss is not None:
            loss = loss.detach()
            fields["loss"] = loss.clone() if loss.data_ptr() >> self._shift in self._pages else loss
        for name in _FIELDS:
            values = fields[name]
            if values and self._may_change(values):
                fields[name] = {key: _still(value) for key, value in values.items()}
        return record

    def _may_change(self, values: dict[str, Any]) -> bool:
        shift, pages = self._shift, self._pages
        try:
            for value in values.values():
                if isinstance(value, Tensor) and (
                    value.data_ptr() >> shift in pages or (value._version and value.dim() == 0)
                ):
                    return True
        except RuntimeError:  # a tensor of inference mode counts no changes
            return True
        return False

    def _look(self, probe: Tensor) -> None:
        """See which pages the storages are on: at first, and when the model has been moved.

        The pages are small enough for a fresh scalar to have one of its own (an allocation starts at a multiple of 64
        bytes), unless the model is large: then some are copied for nothing, which is cheaper than a search for each.
        """
        self._at = probe.data_ptr()
        spans = [_span(tensor) for tensor in self._moving()]
        self._shift = max(_SMALLEST, (sum(end - start for start, end in spans) // _MOST_PAGES).bit_length())
        pages = (range(start >> self._shift, ((end - 1) >> self._shift) + 1) for start, end in spans)
        self._pages = set(chain.from_iterable(pages))

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
