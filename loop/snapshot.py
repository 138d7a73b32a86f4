"""The detached record of an output: what a report holds after the graph is gone."""

from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from strictstep.schema.base import AnyOutput

_FIELDS = ("log", "progress_bar", "metrics")


class Snapshots:
    """Makes records of outputs that keep their values when the optimizer steps.

    A logged parameter (a temperature, a loss weight) shares its storage with the parameter: without a copy the
    record would show the value after the step, and a logged buffer that of a later evaluation.
    """

    __slots__ = ("_at", "_model", "_optimizers", "_probe", "_storages")

    def __init__(self, model: nn.Module, *optimizers: Optimizer) -> None:
        """Keep where the moving values are found."""
        self._model = model
        self._optimizers = optimizers
        self._probe = next(model.parameters(), None)
        self._at: int | None = None
        self._storages: frozenset[int] = frozenset()

    def record(self, output: AnyOutput, loss: Tensor | None, is_users: bool) -> AnyOutput:
        """The output with a detached loss, and with copies of those values that share a storage with the model.

        Args:
            output: the checked output.
            loss: its loss, attached or not.
            is_users: whether the user made the object, and may keep it: then it is copied, not changed.
        """
        self._refresh()
        changes: dict[str, Any] = {"loss": None if loss is None else self._still(loss.detach())}
        for field in _FIELDS:
            for value in output.__dict__[field].values():
                if isinstance(value, Tensor) and self._moves(value):
                    changes[field] = {name: self._still(each) for name, each in output.__dict__[field].items()}
                    break
        if is_users:
            return output.model_copy(update=changes)
        output.__dict__.update(changes)
        return output

    def _still(self, value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) and self._moves(value) else value

    def _moves(self, value: Tensor) -> bool:
        try:
            return value.untyped_storage().data_ptr() in self._storages
        except RuntimeError:  # a tensor subclass without a storage: a copy too many is no harm
            return True

    def _refresh(self) -> None:
        """Look again where the storages are, once and whenever the model has been moved."""
        at = -1 if self._probe is None else self._probe.data_ptr()
        if at != self._at:
            self._at = at
            self._storages = frozenset(self._read_storages())

    def _read_storages(self) -> set[int]:
        groups = chain.from_iterable(optimizer.param_groups for optimizer in self._optimizers)
        trained = chain.from_iterable(group["params"] for group in groups)
        moving = chain(self._model.parameters(), self._model.buffers(), trained)
        return {tensor.untyped_storage().data_ptr() for tensor in moving if tensor.is_floating_point()}
