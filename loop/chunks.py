"""Truncated backpropagation through time: a batch of sequences in chunks along time."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from strictstep.loop.device import tensors_in, walked
from strictstep.loop.errors import LoopError
from strictstep.schema.describe import describe


def chunks(batch: Any, steps: int, dim: int) -> Iterator[Any]:
    """The chunks of a batch, in order: each tensor that has the dimension is cut, everything else goes whole to each.

    Args:
        batch: tensors, in lists, tuples and dicts.
        steps: time steps of a chunk; the last one may be shorter.
        dim: the dimension of time.

    Raises:
        LoopError: `tbptt_dimension`, if no tensor has the dimension, if they disagree on its size, or if one is in a
            container that cannot be cut (a TensorDict, a `PackedSequence`).

    Example:
        >>> import torch
        >>> batch = {"text": torch.zeros(8, 10), "label": torch.zeros(8)}
        >>> [(list(chunk["text"].shape), list(chunk["label"].shape)) for chunk in chunks(batch, 6, 1)]
        [([8, 6], [8]), ([8, 4], [8])]
    """
    tensors = [tensor for tensor in tensors_in(batch) if tensor.dim() > dim]
    length = _length(tensors, dim)
    for start in range(0, length, steps):
        cut = _Cut(dim, start, min(steps, length - start))
        chunk = walked(batch, cut)
        if cut.tensors < len(tensors):
            raise _uncut(batch)
        yield chunk


class _Cut:
    """Cuts a tensor along a dimension, as a view; leaves anything else as it is."""

    def __init__(self, dim: int, start: int, length: int) -> None:
        self._span = dim, start, length
        self.tensors = 0

    def __call__(self, leaf: Any) -> Any:
        if not issubclass(type(leaf), Tensor) or leaf.dim() <= self._span[0]:
            return leaf
        self.tensors += 1
        return leaf.narrow(*self._span)


def _uncut(batch: Any) -> LoopError:
    message = f"expected tensors in dicts, lists and tuples, to cut them in chunks of time, got {describe(batch)}"
    return LoopError("tbptt_dimension", message, "give a plain dict of its tensors, in the loader's `collate_fn`")


def _length(tensors: Sequence[Tensor], dim: int) -> int:
    sizes = {tensor.shape[dim] for tensor in tensors}
    if len(sizes) == 1 and 0 not in sizes:
        return sizes.pop()
    got = f"sizes {', '.join(map(str, sorted(sizes)))}" if sizes else "no tensor that has it"
    message = f"expected one size of dimension {dim} in the tensors of a batch, to cut it in chunks of time, got {got}"
    help = "the second number of `tbptt` is the dimension of time; give tensors without time fewer dimensions"
    raise LoopError("tbptt_dimension", message, help)
