"""A batch at its device, and each evaluation's own containers: a step may `pop` from its batch."""

import copy
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

_DICTS = (dict, OrderedDict)


def moved(batch: Any, device: torch.device | None) -> Any:
    """The batch with its tensors on `device`, in lists and dicts of its own.

    Lists, tuples, namedtuples and dicts (a `defaultdict` and a `UserDict` too) are walked; an object that has a `to`
    method (a `BatchEncoding`, a `PackedSequence`, a TensorDict) moves itself; anything else is passed on as it is.
    Copies from pinned memory to an accelerator are `non_blocking`. With `device=None` nothing moves, and only lists and
    dicts are made anew, since a step may change its batch and another evaluation of the window is given it again.

    Example:
        >>> batch = {"image": torch.zeros(8, 3), "name": ["a", "b"]}
        >>> fresh = moved(batch, torch.device("cpu"))
        >>> fresh["image"] is batch["image"], fresh is batch
        (True, False)
    """
    if device is None:
        return batch if _is_tuple_of_tensors(batch) else walked(batch, _as_it_is)
    # Only towards an accelerator: a copy to the host must be complete before it is read.
    non_blocking = device.type != "cpu"
    return walked(batch, lambda leaf: _to(leaf, device, non_blocking), opens_movable=False)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of a batch, in mappings, lists and tuples.

    Example:
        >>> [len(tensor) for tensor in tensors_in({"x": torch.zeros(8), "more": [torch.zeros(3), "name"]})]
        [8, 3]
    """
    if issubclass(type(value), Tensor):
        yield value
    elif issubclass(type(value), Mapping):
        for child in value.values():
            yield from tensors_in(child)
    elif issubclass(type(value), (tuple, list)):
        for child in value:
            yield from tensors_in(child)


def versions(batch: Any) -> list[int]:
    """How often each tensor of a batch has been changed in place; those of inference mode are not counted."""
    return [tensor._version for tensor in tensors_in(batch) if not tensor.is_inference()]


def walked(value: Any, leaf: Callable[[Any], Any], opens_movable: bool = True) -> Any:
    """The same lists, tuples and dicts, made anew, with `leaf(x)` for everything else.

    A dict that has a `to` method (a `BatchEncoding`) is such a dict too, but a leaf without `opens_movable`; a tuple
    that has one (a `PackedSequence`) is always a leaf.

    Example:
        >>> walked({"x": [1, 2]}, lambda leaf: leaf + 1)
        {'x': [2, 3]}
    """
    kind: Any = type(value)
    if kind is Tensor:
        return leaf(value)
    if kind is tuple:
        return tuple([walked(child, leaf, opens_movable) for child in value])
    if kind is list:
        return [walked(child, leaf, opens_movable) for child in value]
    if kind in _DICTS:
        return kind((key, walked(child, leaf, opens_movable)) for key, child in value.items())
    if issubclass(kind, (dict, UserDict)) and (opens_movable or not hasattr(kind, "to")):
        return _like(value, leaf, opens_movable)
    if issubclass(kind, tuple) and hasattr(kind, "_fields") and not hasattr(kind, "to"):
        return kind._make(walked(child, leaf, opens_movable) for child in value)
    return leaf(value)


def _like(mapping: Any, leaf: Callable[[Any], Any], opens_movable: bool) -> Any:
    """A mapping of its own kind: a `defaultdict` keeps its factory."""
    try:
        fresh = copy.copy(mapping)
        for key in mapping:
            fresh[key] = walked(mapping[key], leaf, opens_movable)
    except TypeError:  # it takes no items: then nothing can be taken out of it either
        return leaf(mapping)
    return fresh


def _is_tuple_of_tensors(batch: Any) -> bool:
    """Whether there is nothing that could be taken out of a batch, as out of nearly every one."""
    if type(batch) is not tuple:
        return False
    for part in batch:  # noqa: SIM110  # for two or three parts cheaper than `all(...)`
        if type(part) is not Tensor:
            return False
    return True


def _as_it_is(leaf: Any) -> Any:
    return leaf


def _to(leaf: Any, device: torch.device, non_blocking: bool) -> Any:
    if issubclass(type(leaf), Tensor):
        return leaf.to(device, non_blocking=non_blocking)
    move = getattr(leaf, "to", None)
    return move(device) if callable(move) and not isinstance(leaf, type) else leaf
