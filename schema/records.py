"""An output as a record: compared, copied, pickled and shown, without its graph."""

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from strictstep.schema.containers import rebuilt, values_in
from strictstep.schema.describe import describe, numpy_type, printable

NAMES_SHOWN = 8


class Brief:
    """A value whose `repr` is a few words."""

    def __init__(self, value: object) -> None:
        """Write the words at once; the value is not kept."""
        self._words = _words(value)

    def __repr__(self) -> str:
        """The words."""
        return self._words


def detached_record(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with every tensor detached, and cloned where it is a view: a pickle would take its whole storage."""
    compacted: dict[int, Tensor] = {}

    def record(value: Any) -> Any:
        if not issubclass(type(value), Tensor):
            return value
        # One clone for one tensor: what is shared stays shared.
        return compacted.setdefault(id(value), _compact(value))

    return {name: rebuilt(value, record) for name, value in fields.items()}


def same(left: Any, right: Any) -> bool:
    """Tell whether two values are equal in type, dtype, device and value, NaN equal to NaN."""
    return _same(left, right, set())


def _same(left: Any, right: Any, known: set[tuple[int, int]]) -> bool:
    # Containers may be shared many times over: each pair is compared once.
    if left is right or (id(left), id(right)) in known:
        return True
    if type(left) is not type(right):
        return False
    if issubclass(type(left), Tensor):
        return _same_tensors(left, right)
    if not issubclass(type(left), (dict, list, tuple)):
        return _same_objects(left, right)
    if issubclass(type(left), dict):
        equal = left.keys() == right.keys() and all(_same(left[key], right[key], known) for key in left)
    else:
        lefts, rights = list(values_in(left)), list(values_in(right))
        equal = len(lefts) == len(rights) and all(map(_same, lefts, rights, itertools.repeat(known)))
    if equal:
        known.add((id(left), id(right)))
    return equal


def _same_tensors(left: Tensor, right: Tensor) -> bool:
    if left.is_nested and right.is_nested:
        return same(left.unbind(), right.unbind())
    try:
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
    except (AssertionError, NotImplementedError, RuntimeError, ValueError, TypeError):  # `meta` tensors have no values
        return False
    return True


def _same_objects(left: Any, right: Any) -> bool:
    try:
        if issubclass(type(left), numpy_type("ndarray")):
            return _same_arrays(left, right)
        return bool(left == right) or bool(left != left and right != right)
    except Exception:  # an object whose `==` gives no truth value is equal only to itself
        return False


def _same_arrays(left: Any, right: Any) -> bool:
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return bool(((left == right) | ((left != left) & (right != right))).all())


def _compact(value: Tensor) -> Tensor:
    detached = value.detach() if value.requires_grad else value
    if type(detached) is not Tensor or detached.is_nested or detached.layout is not torch.strided:
        return detached
    is_view = detached.untyped_storage().nbytes() > detached.numel() * detached.element_size()
    return detached.clone() if is_view else detached


def _words(value: Any) -> str:
    if type(value) is not dict:
        return describe(value)
    shown = ", ".join(f"{_name(name)}: {describe(value[name])}" for name in list(value)[:NAMES_SHOWN])
    return f"{{{shown}{', ...' if len(value) > NAMES_SHOWN else ''}}}"


def _name(key: object) -> str:
    return printable(key) if type(key) is str else describe(key)  # in `hiddens` a key may be anything
