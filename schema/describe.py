"""A value in a few words, for messages: never its contents, never a device sync, and nothing it does can raise.

What an object is, is decided by `type(value)`: `__class__`, `__repr__` and `__len__` are the object's own and may lie.
"""

import enum
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from strictstep.schema.names import looks_like_ascii

Location = tuple[str | int, ...]

TEXT_WIDTH = 40
PATH_WIDTH = 100  # a path is what one searches for: cut later
NAMES_SHOWN = 12

_FACTS: Any = tuple(getattr(torch._C.TensorBase, name) for name in ("is_nested", "dtype", "layout", "device"))


def describe(value: object) -> str:
    """Say what a value is: `float32[8, 2] tensor on cpu`, `str 'warm'`, `tuple[Tensor, dict]`.

    Example:
        >>> import torch
        >>> describe(torch.zeros(8, 2)), describe(0.27), describe((1, "a"))
        ('float32[8, 2] tensor on cpu', 'float 0.27', 'tuple[int, str]')
    """
    try:
        return _describe(value)
    except Exception:  # a subclass may raise from any attribute; its type is always known
        return f"{type_name(type(value))} object"


def type_name(kind: type) -> str:
    """Name of a type, also where its metaclass lies about it."""
    qualname: str = vars(type)["__qualname__"].__get__(kind)
    return printable(str.__str__(qualname).rpartition("<locals>.")[2])


def name_of(step: Any) -> str | None:
    """The `__name__` of a step, where it has one that can be read."""
    try:
        name = step.__name__
    except Exception:
        return None
    return printable(str.__str__(name)) if issubclass(type(name), str) else None


def path_text(location: Location) -> str:
    """Write a location as one would in code.

    Example:
        >>> path_text(("log", "acc")), path_text(("log", "top 1")), path_text(("hiddens", 1, "h"))
        ('log.acc', "log['top 1']", 'hiddens[1].h')
    """
    return "".join(_step_text(step) for step in location).removeprefix(".")


def names_text(names: Iterable[str]) -> str:
    """A list of names for a message, cut where it gets long.

    Example:
        >>> names_text(["logits", "labels"])
        '`logits`, `labels`'
    """
    listed = list(names)
    shown = ", ".join(f"`{printable(name)}`" for name in listed[:NAMES_SHOWN])
    return shown if len(listed) <= NAMES_SHOWN else f"{shown} and {len(listed) - NAMES_SHOWN} more"


def _step_text(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    cut = _cut(step, PATH_WIDTH)
    return f".{cut}" if step.isidentifier() and step.isprintable() else f"[{cut!r}]"


def printable(name: str) -> str:
    """A name as it may stand in a message: short, on one line, and in characters that any terminal can show."""
    name = _cut(name)
    return name if name.isprintable() and not looks_like_ascii(name) else _cut(ascii(name)[1:-1])


def _cut(text: str, width: int = TEXT_WIDTH) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def numpy_type(name: str) -> Any:
    """A class of numpy for `issubclass`; empty while numpy is not imported, since then no value can be of it."""
    numpy: Any = sys.modules.get("numpy")
    return getattr(numpy, name, ())


def _describe(value: Any) -> str:
    if issubclass(type(value), numpy_type("generic")):
        return f"numpy.{type_name(type(value))}"
    if issubclass(type(value), numpy_type("ndarray")):
        kind = numpy_type("ndarray")
        return f"{_cut(str(kind.dtype.__get__(value)))}{list(kind.shape.__get__(value))} array"
    for kinds, words in _WORDS:
        if issubclass(type(value), kinds):
            return words(value)
    return f"{type_name(type(value))} object"


def _tensor(value: Tensor) -> str:
    with torch._C.DisableTorchFunctionSubclass():  # a subclass may raise, or never end, when it is asked
        is_nested, dtype, layout, device = (fact.__get__(value) for fact in _FACTS)
        form = "nested " if is_nested else _layout(layout)
        shape = "" if is_nested else str(list(Tensor.size(value)))
    subclass = "" if type(value) is Tensor else f"{type_name(type(value))} "
    return f"{subclass}{form}{str(dtype).removeprefix('torch.')}{shape} tensor on {device}"


def _layout(layout: torch.layout) -> str:
    name = str(layout).removeprefix("torch.")
    return "" if name == "strided" else f"{name.removeprefix('_')} "


def _int(value: int) -> str:
    name = type_name(type(value))
    if int.bit_length(value) > 64:  # the text of a huge int may raise, and is no use to anybody
        return f"{name} of {int.bit_length(value)} bits"
    return f"{name} {int.__pos__(value)}"


def _float_text(value: float) -> str:
    text = f"{value:.6g}"
    return f"{text}.0" if text.lstrip("-").isdigit() else text  # `float 5` would read like an int


def _text(value: str) -> str:
    text = _cut(str.__str__(value))
    return f"{type_name(type(value))} {ascii(text) if looks_like_ascii(text) else repr(text)}"


def _sequence(value: tuple[object, ...] | list[object]) -> str:
    kind: Any = tuple if issubclass(type(value), tuple) else list
    length = kind.__len__(value)
    if 0 < length <= 4:
        return f"{type_name(type(value))}[{', '.join(type_name(type(item)) for item in kind.__iter__(value))}]"
    return f"{type_name(type(value))} of length {length}"


def _sized(length: Callable[[Any], int]) -> Callable[[Any], str]:
    return lambda value: f"{type_name(type(value))} of length {length(value)}"


def _named(value: object) -> str:
    kind = "class" if issubclass(type(value), type) else type_name(type(value)).removeprefix("builtin_")
    return f"{kind} '{printable(str(getattr(value, '__name__', '?')))}'"


_WORDS: tuple[tuple[type | tuple[type, ...], Callable[[Any], str]], ...] = (
    (Tensor, _tensor),
    (types.NoneType, lambda value: "None"),
    (bool, lambda value: f"bool {value}"),
    (int, _int),
    (float, lambda value: f"{type_name(type(value))} {_float_text(float.__pos__(value))}"),
    (complex, lambda value: f"{type_name(type(value))} {complex.__pos__(value):.6g}"),
    (str, _text),
    (enum.Enum, lambda value: f"{type_name(type(value))}.{printable(str.__str__(value._name_))}"),
    ((tuple, list), _sequence),
    (dict, _sized(dict.__len__)),
    (set, _sized(set.__len__)),
    (frozenset, _sized(frozenset.__len__)),
    (bytes, _sized(bytes.__len__)),
    ((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), lambda value: type_name(type(value))),
    ((type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType), _named),
)
