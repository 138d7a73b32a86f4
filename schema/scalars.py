"""The check of a scalar: one real number on the host, or one in a tensor, which stays on its device and is not read."""

import itertools
from collections.abc import Iterable, Mapping, Set
from typing import Any, cast

import torch
from torch import Tensor

from strictstep.schema.containers import checked_mapping, detached, listed
from strictstep.schema.describe import describe, names_text, numpy_type, printable
from strictstep.schema.faults import fault, fault_saying, faults_of, gathered, guarded
from strictstep.schema.keys import key_text
from strictstep.schema.names import nearest

ScalarValue = Tensor | float | int | bool

FLOATING = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16}
    | {torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}
    | {getattr(torch, "float8_e8m0fnu", torch.float32)}  # since torch 2.7
)
REAL = FLOATING | {
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
}
MOST_SEARCHES = 20  # the search for a nearest name may take milliseconds, and there may be 100,000 wrong names
STRIDED = torch.strided


def scalar(value: Any) -> Any:
    """Return a tensor with one element as a detached one of shape `[]`, and a number as a Python number.

    The tensor shares its storage with the one that came; ints stay ints.

    Raises:
        PydanticCustomError: `scalar_wrong_type`, `scalar_not_single`, `scalar_complex` or `scalar_not_strided`.
    """
    kind = type(value)
    if kind is Tensor and value.ndim == 0 and value.layout is STRIDED and value.dtype in REAL:
        return value.detach() if value.requires_grad else value
    if kind is float or kind is int or kind is bool:
        return value
    if issubclass(kind, Tensor):
        return _one_element(value)
    number = host_number(value)
    if number is None:
        raise _not_a_scalar(value)
    return number


def scalars(values: Any) -> dict[str, ScalarValue]:
    """Return a new dict of the checked scalars, under the same names and in the same order."""
    if type(values) is not dict:
        return checked_mapping(values, scalar)
    checked: dict[str, ScalarValue] = {}
    for name, value in values.items():
        # What nearly every value is, written out: a call of `scalar` for each would be half the cost.
        kind = type(value)
        if type(name) is not str:
            return checked_mapping(values, scalar)
        if kind is Tensor and value.ndim == 0 and value.layout is STRIDED and value.dtype in REAL:
            checked[name] = value.detach() if value.requires_grad else value
        elif kind is float or kind is int or kind is bool:
            checked[name] = value
        else:
            return checked_mapping(values, scalar)
    return checked


def host_number(value: Any) -> float | int | bool | None:
    """The Python number that a number, a numpy scalar or a 0-d array stands for; `None` for anything else."""
    kind = type(value)
    if issubclass(kind, numpy_type("ndarray")) and value.ndim == 0:
        inner = value[()]  # an array again where it is masked, or holds an array: maybe itself
        return None if issubclass(type(inner), numpy_type("ndarray")) else host_number(inner)
    for numpy_name, python_type in (("bool_", bool), ("integer", int), ("floating", float)):
        if issubclass(kind, numpy_type(numpy_name)) and not issubclass(kind, numpy_type("timedelta64")):
            return cast(float, python_type(value))
    if kind is bool:
        return bool(value)
    # As int and float make it, not as a subclass (an IntEnum) may.
    return int.__pos__(value) if issubclass(kind, int) else float.__pos__(value) if issubclass(kind, float) else None


def bar_scalars(values: Any, log: dict[str, ScalarValue] | None) -> dict[str, Any]:
    """Return the scalars of the progress bar, given by value or as names of `log` values.

    `log` is `None` where it was itself invalid: then names cannot be looked up, and nothing is said about them.
    """
    if guarded(_is_names, values):
        return _named_in_log(guarded(listed, values), log)
    if not guarded(_is_mapping, values):
        expected = "a mapping of names to values, or a list of names of `log`"
        raise fault("field_not_mapping", expected, values, _help_bar(values))
    return scalars(values)


def _is_names(values: Any) -> bool:
    return issubclass(type(values), (list, tuple, Set))


def _is_mapping(values: Any) -> bool:
    return issubclass(type(values), Mapping)


def _help_bar(values: Any) -> str:
    if values is None:
        return "leave the field out when there is nothing to say"
    if type(values) is str:
        return f"return a list of names: `[{describe(values).removeprefix('str ')}]`"
    return "return a list of names, for example `list(log)` for all of them"


def _named_in_log(names: list[Any], log: dict[str, ScalarValue] | None) -> dict[str, Any]:
    known = names_text(log or ()) or "no values"
    searches = itertools.count()

    def known_name(name: Any) -> None:
        text = key_text(name)
        if log is not None and text not in log:
            raise _unknown_name(text, known, nearest(text, log) if next(searches) < MOST_SEARCHES else None)

    faults = [found for position, name in enumerate(names) for found in faults_of(known_name, name, (position,))]
    if faults:
        raise gathered(faults, names)
    chosen = {key_text(name) for name in names}
    return {name: value for name, value in (log or {}).items() if name in chosen}


def _unknown_name(name: str, known: str, near: str | None) -> Exception:
    message = f"expected the name of a `log` value, got {describe(name)}; `log` has {known}"
    help = (
        f"write `{printable(near)}`" if near else "put the value into `log`, or give `progress_bar` a dict of its own"
    )
    return fault_saying("progress_bar_unknown_name", message, name, help)


def _one_element(value: Tensor) -> Tensor:
    if value.is_nested or value.layout is not STRIDED:
        raise fault("scalar_not_strided", "a dense scalar", value, "make it dense first, for example `x.to_dense()`")
    if value.dtype.is_complex:
        raise fault("scalar_complex", "a real scalar", value, "log `x.real`, `x.imag` or `x.abs()`")
    if value.numel() != 1:
        raise fault("scalar_not_single", "a scalar", value, _help_reduce(value))
    if value.dtype not in REAL:
        raise fault("scalar_wrong_type", "a scalar of a real dtype", value, "convert it, for example `x.dequantize()`")
    return detached(value).view(())


def _help_reduce(value: Tensor) -> str:
    if value.numel() == 0:
        return "it has no elements: leave the name out when there is nothing to log"
    return "reduce it first, for example `x.mean()`, or return it in `metrics`"


def _not_a_scalar(value: Any) -> Exception:
    kind = type(value)
    if issubclass(kind, complex) or issubclass(kind, numpy_type("complexfloating")):
        return fault("scalar_complex", "a real scalar", value, "log its real part, or `abs(x)`")
    if issubclass(kind, numpy_type("ndarray")):
        return _not_a_number(value)
    return fault("scalar_wrong_type", "a scalar", value, _help_wrong_type(value))


def _not_a_number(array: Any) -> Exception:
    if array.ndim == 0 and array[()] is numpy_type("ma").masked:
        message = f"expected a scalar, got {describe(array)} that is masked and has no value"
        return fault_saying("scalar_wrong_type", message, array, "leave the name out when there is nothing to log")
    return fault("scalar_not_single", "a scalar", array, "reduce it first, for example `float(x.mean())`")


def _help_wrong_type(value: Any) -> str:
    kind = type(value)
    if value is None:
        return "leave the name out when there is nothing to log"
    if issubclass(kind, str):
        return "strings are never parsed: log numbers, and return text in `metrics`"
    if issubclass(kind, Mapping):
        return "nested dicts have no place here: flatten the names, for example `loss/box`"
    if hasattr(kind, "compute"):  # of torchmetrics, whose classes have an `__iter__` that raises
        return "log what it computes, for example `x.compute()`, or return it in `metrics`"
    if issubclass(kind, Iterable):
        return "reduce it to one number, give each value a name of its own, or return it in `metrics`"
    if not hasattr(kind, "__float__"):
        return "log a number in its place, or return it in `metrics`"
    return "convert it to a number, for example `float(x)`, or return it in `metrics`"
