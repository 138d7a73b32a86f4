"""An output as a record: compared, copied, pickled and shown, without its graph."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from strictstep.schema.describe import describe

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
    """The fields with every scalar tensor detached and cloned: a view would take its whole storage into a pickle."""
    scalars = {name: _cloned(fields[name]) for name in ("loss",) if name in fields}
    mappings = {
        name: {key: _cloned(value) for key, value in fields[name].items()}
        for name in ("log", "progress_bar")
        if type(fields.get(name)) is dict
    }
    return {**fields, **scalars, **mappings}


def same(left: Any, right: Any) -> bool:
    """Tell whether two values are equal in type, dtype, device and value, NaN equal to NaN."""
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if issubclass(type(left), Tensor):
        return _same_tensors(left, right)
    if issubclass(type(left), dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if issubclass(type(left), (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return _same_objects(left, right)


def _same_tensors(left: Tensor, right: Tensor) -> bool:
    try:
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
    except (AssertionError, NotImplementedError, RuntimeError, ValueError, TypeError):  # `meta` tensors have no values
        return False
    return True


def _same_objects(left: Any, right: Any) -> bool:
    try:
        equal = left == right
        return bool(equal.all() if hasattr(equal, "all") else equal) or (left != left and right != right)
    except Exception:  # an object whose `==` gives no truth value is equal only to itself
        return False


def _cloned(value: Any) -> Any:
    return value.detach().clone() if issubclass(type(value), Tensor) else value


def _words(value: Any) -> str:
    if type(value) is not dict:
        return describe(value)
    shown = ", ".join(f"{name}: {describe(value[name])}" for name in list(value)[:NAMES_SHOWN])
    return f"{{{shown}{', ...' if len(value) > NAMES_SHOWN else ''}}}"
