"""Running values of `log` between two reports of a loop, reduced as the schema declares."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from strictstep.schema.fields import ReduceOp

Kept = dict[str, tuple[int, Any]]  # by name: the weight of the values, and what they are combined to

_COMBINED: dict[ReduceOp, Callable[[Any, Any], Any]] = {
    "mean": lambda kept, value: kept + value,
    "sum": lambda kept, value: kept + value,
    "min": lambda kept, value: torch.minimum(torch.as_tensor(kept), torch.as_tensor(value)),
    "max": lambda kept, value: torch.maximum(torch.as_tensor(kept), torch.as_tensor(value)),
    "last": lambda kept, value: value,
}


class LogTerms:
    """The values of `log` since they were last taken; tensors stay on their device until then.

    Example:
        >>> terms = LogTerms({"images": "sum"})
        >>> terms.add({"accuracy": 0.25, "images": 8})
        >>> terms.add({"accuracy": 0.75, "images": 8})
        >>> terms.combined([terms.take()])
        {'accuracy': 0.5, 'images': 16}
    """

    def __init__(self, reductions: Mapping[str, ReduceOp]) -> None:
        """Reduce by the mean what `reductions` does not name."""
        self._reductions = reductions
        self._kept: Kept = {}

    def add(self, log: Mapping[str, Any], weight: int = 1) -> None:
        """Take the values of one step in; in a mean they count by its weight."""
        for name, value in log.items():
            factor = weight if self._is_mean(name) else 1
            self._include(self._kept, name, weight, _widened(value) * factor)

    def take(self) -> Kept:
        """Hand over what was kept, as Python numbers, and forget it."""
        kept, self._kept = self._kept, {}
        return {name: (weight, _on_host(value)) for name, (weight, value) in kept.items()}

    def combined(self, of_ranks: Iterable[Kept]) -> dict[str, float]:
        """The reduced values by name, over what several processes took; a process may lack names."""
        together: Kept = {}
        for kept in of_ranks:
            for name, (weight, value) in kept.items():
                self._include(together, name, weight, value)
        return {
            name: _on_host(value) / weight if self._is_mean(name) else _on_host(value)
            for name, (weight, value) in together.items()
        }

    def _include(self, kept: Kept, name: str, weight: int, value: Any) -> None:
        before, so_far = kept.get(name, (0, None))
        combine = _COMBINED[self._reductions.get(name, "mean")]
        kept[name] = before + weight, combine(so_far, value) if before else value

    def _is_mean(self, name: str) -> bool:
        return self._reductions.get(name, "mean") == "mean"


def _widened(value: Any) -> Any:
    """A copy that can be added to: an optimizer changes a logged parameter in place, and True + True is 2."""
    if not isinstance(value, Tensor):
        return value
    dtype = torch.promote_types(value.dtype, torch.float32) if value.is_floating_point() else torch.int64
    return value.to(dtype, copy=True)


def _on_host(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value
