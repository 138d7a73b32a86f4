"""The `metrics` that are no scalars: torchmetrics objects, and whatever an `epoch_end` function wants to have."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor

from strictstep.loop.calls import called
from strictstep.loop.errors import LoopError, LoopWarning
from strictstep.loop.host_values import host_values
from strictstep.schema.coerce import coerce
from strictstep.schema.describe import describe, names_text
from strictstep.schema.errors import Stage
from strictstep.schema.scalars import REAL, host_number

EpochEnd = Callable[..., Mapping[str, Any] | None]


def split_metrics(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The scalars among `metrics`, and the others.

    Example:
        >>> import torch
        >>> split_metrics({"f1": torch.tensor(0.5), "ids": ["a", "b"]})
        ({'f1': tensor(0.5000)}, {'ids': ['a', 'b']})
    """
    scalars: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in metrics.items():
        if type(value) is Tensor and value.dim() == 0 and value.dtype in REAL:
            scalars[name] = value
        elif (number := host_number(value)) is not None:
            scalars[name] = number
        else:
            others[name] = value
    return scalars, others


class KeptMetrics:
    """Keeps what comes at the end of a pass: of a torchmetrics object the object, of others every value, if wanted.

    Args:
        epoch_end: `epoch_end(outputs)`, called with a dict of lists, one value for each micro-batch that returned the
            name; it gets `stage` and `epoch` if its signature names them, and may return scalars by name.
        stage: `"training"`, `"manual"`, `"validation"` or `"test"`.
    """

    def __init__(self, epoch_end: EpochEnd | None, stage: Stage) -> None:
        """Start empty."""
        self._epoch_end = epoch_end
        self._stage = stage
        self._outputs: dict[str, list[Any]] = {}
        self._objects: dict[str, Any] = {}
        self._dropped: set[str] = set()

    def __bool__(self) -> bool:
        """Whether anything is kept that only the end of the pass will use up."""
        return bool(self._outputs or self._objects)

    def __enter__(self) -> None:
        """Begin a pass."""

    def __exit__(self, *_: object) -> None:
        """Let go of what a pass that failed or was interrupted has left: a metric may go on to another."""
        self.clear()

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Take in those of one micro-batch that are no scalars."""
        for name, value in metrics.items():
            if is_torchmetrics(value):
                self._objects[name] = value
            elif self._epoch_end is not None:
                self._outputs.setdefault(name, []).append(value)
        if self._epoch_end is None and not self._dropped.issuperset(metrics):
            self._warn_of_dropped({name for name in metrics if name not in self._objects})

    def close(self, epoch: int) -> dict[str, Any]:
        """The scalars that the pass ends with; nothing is kept from then on, and each object is reset."""
        computed: dict[str, Any] = {}
        for name, metric in self._objects.items():
            computed.update(_named(name, called(f"metric `{name}`", f"epoch {epoch}", metric.compute)))
        for metric in self._objects.values():
            metric.reset()
        self._objects = {}
        scalars, others = split_metrics(computed)
        self.add(others)
        outputs, self._outputs = self._outputs, {}
        return host_values({**scalars, **self._end(outputs, epoch)})

    def clear(self) -> None:
        """Keep nothing, and reset each object."""
        for metric in self._objects.values():
            with suppress(Exception):  # it would hide why the pass was left
                metric.reset()
        self._outputs, self._objects = {}, {}

    def _end(self, outputs: dict[str, list[Any]], epoch: int) -> Mapping[str, Any]:
        if self._epoch_end is None:
            return {}
        known = {"stage": self._stage, "epoch": epoch}
        asked = inspect.signature(self._epoch_end).parameters
        named = {name: value for name, value in known.items() if name in asked}
        returned = called("epoch_end function", f"epoch {epoch}", self._epoch_end, outputs, **named)
        if returned is None:
            return {}
        if not isinstance(returned, Mapping):
            message = (
                f"expected names and scalars from the epoch_end function at epoch {epoch}, got {describe(returned)}"
            )
            raise LoopError("epoch_end_return", message, 'return a dict, `{"accuracy": accuracy}`, or nothing')
        return coerce({"log": returned}, stage="validation", step=self._epoch_end, epoch=epoch).log

    def _warn_of_dropped(self, names: set[str]) -> None:
        new = sorted(names - self._dropped)
        self._dropped |= names
        if new:
            message = (
                f"{names_text(new)} in `metrics`: dropped, since only an `epoch_end` function takes what is no scalar"
            )
            warnings.warn(message, LoopWarning, 2)


def is_torchmetrics(value: Any) -> bool:
    """Whether a value is a metric of torchmetrics, or of a class derived from one; the library is not imported."""
    return any(kind.__module__.partition(".")[0] == "torchmetrics" for kind in type(value).__mro__)


def _named(name: str, computed: Any) -> dict[str, Any]:
    """What a metric computed, by name; a collection computes several values, which are told apart by theirs."""
    if isinstance(computed, Mapping):
        return {f"{name}_{key}": value for key, value in computed.items()}
    return {name: computed}
