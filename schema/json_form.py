r"""The JSON form of what an output holds: what `output.model_dump_json()` writes, whatever the annotations are.

    value                          JSON
    number, tensor of shape []     a number; `{"$float": "nan"}`, `{"$float": "inf"}`, `{"$float": "-inf"}`;
                                   `{"$int": "0x..."}` for an int of thousands of digits, which no reader takes
    text, None                     itself; a lone surrogate, which JSON cannot carry, as the six characters `\udc80`
    list, tuple, namedtuple        an array
    dict                           an object; `{"$dict": [[key, value], ...]}` if a key is not text or begins with `$`
    any other tensor               `{"$tensor": {"shape": [8, 2], "dtype": "float32", "device": "cpu"}}`
    anything else                  `{"$object": "module.Class"}`

So a `$` at the start of an object's key is always a tag, and no user's dict or string is taken for a tensor or a NaN.
Values of a tensor are written on request, up to a number of elements: `model_dump_json(context={"tensor_values": 64})`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from strictstep.schema.containers import is_container, values_in
from strictstep.schema.describe import describe
from strictstep.schema.scalars import REAL, host_number

MAX_WRITTEN = 1_000_000  # values in one field; forty lists, each twice in the next, would be a billion
MAX_INT_BITS = 14_000  # Python, and the reader in pydantic, refuse ints of more than 4300 digits


def json_form(value: Any, max_values: int = 0) -> Any:
    """The JSON form of any value.

    Args:
        value: what an output holds; nothing of it is changed.
        max_values: write the values of tensors of up to so many elements; reads them from their device.

    Raises:
        ValueError: if there is more to write than any reader takes, as of containers that are shared many times over.

    Example:
        >>> json_form({"names": ("a", "b"), "worst": float("-inf"), 3: torch.zeros(8, 2)})["$dict"][1]
        ['worst', {'$float': '-inf'}]
        >>> json_form(torch.zeros(8, 2))
        {'$tensor': {'shape': [8, 2], 'dtype': 'float32', 'device': 'cpu'}}
    """
    if _count(value, {}) > MAX_WRITTEN:
        raise ValueError(f"expected at most {MAX_WRITTEN} values in JSON, got more: keep them in a tensor")
    return _form(value, max_values)


def named_forms(values: Mapping[str, Any], form: Callable[[Any], Any]) -> dict[str, Any]:
    """The JSON form of a field that is a mapping: always an object, whatever its names begin with.

    Args:
        values: the field.
        form: makes the JSON form of one value.

    Raises:
        ValueError: if two names differ only in lone surrogates.
    """
    forms = {text_form(name): form(value) for name, value in values.items()}
    if len(forms) != len(values):
        raise ValueError("expected names that differ in JSON, got two that differ only in how a surrogate is written")
    return forms


def scalar_form(value: Any) -> Any:
    """The JSON form of a checked scalar or of `None`, never a tag of a tensor: it is read from its device.

    Raises:
        RuntimeError: if the tensor has no values, as on the device `meta`.
    """
    return number_form(value.item() if issubclass(type(value), Tensor) else value)


def number_form(number: float | int | bool) -> Any:
    """The JSON form of a Python number, exact; what JSON has no number for gets a tag."""
    if type(number) is float and not math.isfinite(number):
        return {"$float": str(number)}
    if type(number) is int and number.bit_length() > MAX_INT_BITS:
        return {"$int": hex(number)}
    return number


def text_form(text: str) -> str:
    r"""The text itself, with lone surrogates escaped.

    Example:
        >>> text_form("caf\udce9")
        'caf\\udce9'
    """
    return str.__str__(text).encode("utf-8", "backslashreplace").decode("utf-8")


def _form(value: Any, max_values: int) -> Any:
    kind = type(value)
    if value is None:
        return None
    if issubclass(kind, Tensor):
        return _tensor_form(value, max_values)
    if issubclass(kind, str):
        return text_form(value)
    number = host_number(value)
    if number is not None:
        return number_form(number)
    if not is_container(kind):
        return {"$object": _full_name(kind)}
    if issubclass(kind, dict):
        return _dict_form(value, max_values)
    return [_form(item, max_values) for item in values_in(value)]


def _count(value: Any, known: dict[int, int]) -> int:
    """How many values are written; one that is shared is written, and counted, at each of its places."""
    if not is_container(type(value)):
        return 1
    if id(value) not in known:
        known[id(value)] = 1 + sum(_count(child, known) for child in values_in(value))
    return known[id(value)]


def _dict_form(values: dict[Any, Any], max_values: int) -> dict[str, Any]:
    if all(type(key) is str and not key.startswith("$") and text_form(key) == key for key in values):
        return {key: _form(value, max_values) for key, value in values.items()}
    return {"$dict": [[_form(key, 0), _form(value, max_values)] for key, value in values.items()]}


def _tensor_form(value: Any, max_values: int) -> Any:
    try:
        if value.dim() == 0 and value.layout is torch.strided and value.dtype in REAL and not value.is_meta:
            return scalar_form(value)
        return {"$tensor": _summary(value, max_values)}
    except Exception:  # a subclass may raise from any attribute; its type is always known
        return {"$object": _full_name(type(value))}


def _summary(value: Any, max_values: int) -> dict[str, Any]:
    summary = {
        "shape": None if value.is_nested else list(value.shape),
        "dtype": str(value.dtype).removeprefix("torch."),
        "device": str(value.device),
    }
    if max_values and value.numel() <= max_values and _has_values(value):
        summary["values"] = _number_forms(_numbers(value))
    return summary


def _has_values(value: Any) -> bool:
    dense = not value.is_nested and value.layout is torch.strided and not value.is_meta
    return dense and (value.dtype in REAL or value.is_complex())


def _numbers(value: Any) -> Any:
    """Nested lists of numbers; of a complex number, its real and imaginary part."""
    plain = value.detach().resolve_conj()
    return (torch.view_as_real(plain) if plain.is_complex() else plain).tolist()


def _number_forms(numbers: Any) -> Any:
    return list(map(_number_forms, numbers)) if type(numbers) is list else number_form(numbers)


def _full_name(kind: type) -> str:
    module = type.__getattribute__(kind, "__module__")
    return text_form(f"{module}.{type.__getattribute__(kind, '__qualname__')}")


def tensor_values_asked(context: Any) -> int:
    """How many elements of a tensor are written, as asked by `context={"tensor_values": 64}`; none if not asked.

    Raises:
        ValueError: if it is not a count.
    """
    asked = context.get("tensor_values", 0) if issubclass(type(context), Mapping) else 0
    if type(asked) is not int or asked < 0:
        raise ValueError(f"expected a count of elements as `tensor_values`, got {describe(asked)}")
    return asked
