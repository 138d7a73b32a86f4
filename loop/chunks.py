"""Truncated backpropagation through time: a batch of sequences in chunks along time."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from strictstep.loop.device import tensors_in, walked
from strictstep.loop.errors import LoopError


def chunks(batch: Any, steps: int, dim: int) -> Iterator[Any]:
    """The chunks of a batch, in order: each tensor that has the dimension is cut, everything else goes whole to each.

    Args:
        batch: tensors, in lists, tuples and dicts.
        steps: time steps of a chunk; the last one may be shorter.
        dim: the dimension of time.

    Raises:
        LoopError: `tbptt_dimension`, if no tensor has the dimension, or if they disagree on its size.

    Example:
        >>> import torch
        >>> batch = {"text": torch.zeros(8, 10), "label": torch.zeros(8)}
        >>> [(list(chunk["text"].shape), list(chunk["label"].shape)) for chunk in chunks(batch, 6, 1)]
        [([8, 6], [8]), ([8, 4], [8])]
    """
    length = _length(batch, dim)
    for start in range(0, length, steps):
        yield walked(batch, _Cut(dim, start, min(steps, length - start)))


class _Cut:
    """Cuts a tensor along a dimension, as a view; leaves anything else as it is."""

    def __init__(self, dim: int, start: int, length: int) -> None:
        self._span = dim, start, length

    def __call__(self, leaf: Any) -> Any:
        is_cut = issubclass(type(leaf), Tensor) and leaf.dim() > self._span[0]
        return leaf.narrow(*self._span) if is_cut else leaf


def _length(batch: Any, dim: int) -> int:
    sizes = {tensor.shape[dim] for tensor in tensors_in(batch) if tensor.dim() > dim}
    if len(sizes) == 1 and 0 not in sizes:
        return sizes.pop()
    got = f"sizes {', '.join(map(str, sorted(sizes)))}" if sizes else "no tensor that has it"
    message = f"expected one size of dimension {dim} in the tensors of a batch, to cut it in chunks of time, got {got}"
    help = "the second number of `tbptt` is the dimension of time; give tensors without time fewer dimensions"
    raise LoopError("tbptt_dimension", message, help)
