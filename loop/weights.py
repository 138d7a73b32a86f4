"""How much a micro-batch counts: one notion for accumulation and for means.

Without `weight=` it is the number of examples: the size that all tensors of the batch share in dimension 0.
"""

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor

from strictstep.loop.device import tensors_in
from strictstep.loop.errors import LoopError, LoopWarning
from strictstep.loop.step import name_of, stop_iteration
from strictstep.schema.describe import describe
from strictstep.schema.scalars import host_number

Weight = float | Callable[[Any], float]

MOST = 1e100  # a sum of such is finite, too


class Weights:
    """Reads the weight of each batch, in one way throughout, which the first batch decides.

    Args:
        weight: a positive number, or a function of the batch (as the loader gave it) that returns one, such as
            `count_tokens`; `None` for the number of examples.
        dim: the dimension of the examples; 1 where dimension 0 is time.

    Attributes:
        by_examples: whether the number of examples is read; `None` before the first batch. `False` where the first
            batch had none to read: then each batch has the weight 1, and one warning has said so.

    Example:
        >>> import torch
        >>> Weights().of((torch.zeros(8, 2), torch.zeros(8)))
        8
        >>> Weights(lambda batch: batch["tokens"]).of({"tokens": 512})
        512
    """

    __slots__ = ("_dim", "_weight", "by_examples")

    def __init__(self, weight: Weight | None = None, dim: int = 0) -> None:
        """Check a fixed number at once."""
        self._weight = weight if weight is None or callable(weight) else _positive(weight, "`weight`")
        self._dim = dim
        self.by_examples: bool | None = None

    def of(self, batch: Any) -> float:
        """The weight of one batch.

        Raises:
            LoopError: `weight_not_positive` for anything but a positive, finite number of the host;
                `weight_unreadable` for a batch without a number of examples, if the first had one;
                `stop_iteration` for a function that raises `StopIteration`.
        """
        if self._weight is not None:
            return self._given(batch)
        if self.by_examples:
            return _common_size(batch, self._dim) or self._examples(batch)
        return 1 if self.by_examples is False else self._examples(batch)

    def _given(self, batch: Any) -> float:
        weight = self._weight
        if not callable(weight):
            return weight  # type: ignore[return-value]  # not `None` here
        try:
            number = weight(batch)
        except StopIteration as error:
            raise stop_iteration(f"weight function `{name_of(weight)}`", error) from error
        return _positive(number, f"`{name_of(weight)}(batch)`")

    def _examples(self, batch: Any) -> float:
        sizes = _sizes(batch, self._dim)
        if len(sizes) != 1:
            return self._without_examples(sizes)
        self.by_examples = True
        return _positive(sizes.pop(), "the number of examples")

    def _without_examples(self, sizes: set[int]) -> float:
        if self.by_examples:
            raise _unreadable(sizes, self._dim)
        self.by_examples = False
        warnings.warn(f"{_what_was_read(sizes, self._dim)}: each batch counts as 1; or pass `weight=`", LoopWarning, 2)
        return 1


def _common_size(batch: Any, dim: int) -> int:
    """The size in `dim` of all tensors of a plain tuple or list of tensors; 0 where it is not that simple."""
    if type(batch) is not tuple and type(batch) is not list:
        return 0
    common: int | None = None
    try:
        for tensor in batch:
            if type(tensor) is not Tensor or ((size := tensor.shape[dim]) != common and common is not None):
                return 0
            common = size
    except (IndexError, RuntimeError):  # a tensor without the dimension, or a nested one
        return 0
    return common or 0


def _sizes(batch: Any, dim: int) -> set[int]:
    """The sizes that the tensors of a batch have in `dim`; those without that dimension have none."""
    return {tensor.shape[dim] for tensor in tensors_in(batch) if not tensor.is_nested and tensor.dim() > dim}


def _positive(number: Any, what: str) -> float:
    host = None if type(number) is bool else host_number(number)
    if host is None or not 0 < host <= MOST:
        message = f"expected a positive, finite number as weight, got {describe(number)} from {what}"
        help = "read it on the host: `.item()`" if issubclass(type(number), Tensor) else "skip empty batches beforehand"
        raise LoopError("weight_not_positive", message, help)
    return host


def _unreadable(sizes: set[int], dim: int) -> LoopError:
    message = f"expected a batch of as many examples in each tensor, got one where {_what_was_read(sizes, dim)}"
    return LoopError("weight_unreadable", message, "pass `weight=`: a number, or a function of the batch")


def _what_was_read(sizes: set[int], dim: int) -> str:
    if not sizes:
        return f"no tensor has a dimension {dim}"
    return f"tensors disagree on the size of dimension {dim} ({', '.join(map(str, sorted(sizes)))})"
