"""The accepted forms of a return, read into fields. `coerce` is the only caller: behind it nobody looks at dicts.

A form by name (a mapping, a dataclass, a namedtuple, an attrs or pydantic object, a plain object with a `loss`) becomes
a new dict of the five fields; other names move to `metrics`. What an object is, is decided by its type alone.
"""

import dataclasses
import itertools
import types
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel
from torch import Tensor, nn

from strictstep.schema.containers import items_of, listed, values_in
from strictstep.schema.describe import describe, numpy_type, printable, type_name
from strictstep.schema.errors import Stage
from strictstep.schema.faults import faults_of, words_of
from strictstep.schema.keys import key_text
from strictstep.schema.missing import FIELDS
from strictstep.schema.scalars import host_number, scalar
from strictstep.schema.translate import Found, unknown_key

EVALUATION = ("validation", "test")


class Reading(NamedTuple):
    """What was read of a return: the five fields, the values under the names that came, and what is wrong with them."""

    fields: dict[str, Any]
    received: dict[str, Any]
    moved: tuple[str, ...] = ()
    found: tuple[Found, ...] = ()


def read(returned: Any, stage: Stage, strict: bool) -> Reading | None:
    """Read any accepted form but an output model and `None`; nothing where the form is not accepted."""
    kind = type(returned)
    if issubclass(kind, Tensor):
        return Reading({"loss": returned}, {})
    if stage in EVALUATION and (number := host_number(returned)) is not None:
        return Reading({"loss": number}, {})
    named = _named_values(returned)
    return None if named is None else _sorted_into_fields(named, strict)


def not_accepted(returned: Any, stage: Stage) -> Found:
    """The problem of a return that has no accepted form."""
    number = "a number, " if stage in EVALUATION else ""
    message = f"expected a tensor, {number}a mapping, an output model or None, got {describe(returned)}"
    return Found("wrong_return_type", (), message, _help_form(returned), type(returned))


def unreadable_form(returned: Any, error: BaseException) -> Found:
    """The problem of a return that raised while it was read."""
    message = f"expected a return that can be read, got {describe(returned)} that raised {type_name(type(error))}"
    return Found("unreadable", (), message, "return a plain dict of the five fields", type(returned))


def names_in(returned: Any) -> tuple[str, ...] | None:
    """The names in a form by name, for finding the `return` that fits it."""
    try:
        named = _named_values(returned)
        return None if named is None else tuple(str.__str__(name) for name, _ in named if issubclass(type(name), str))
    except Exception:
        return None


def length_of(returned: Any) -> int | None:
    """The length of a tuple or list, for finding the `return` that fits it."""
    kind = type(returned)
    return (
        tuple.__len__(returned)
        if issubclass(kind, tuple)
        else list.__len__(returned)
        if issubclass(kind, list)
        else None
    )


def _named_values(returned: Any) -> Iterable[tuple[Any, Any]] | None:
    kind = type(returned)
    if issubclass(kind, Mapping):
        return items_of(returned)
    names = _declared_names(kind, returned)
    if names is not None:
        return [(name, getattr(returned, name)) for name in listed(names) if hasattr(returned, name)]
    return _attributes(returned)


def _declared_names(kind: type, returned: Any) -> Iterable[str] | None:
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    if issubclass(kind, BaseModel):
        return itertools.chain(kind.model_fields, returned.model_extra or ())
    if hasattr(kind, "__attrs_attrs__"):
        return [attribute.name for attribute in kind.__attrs_attrs__]
    return kind._fields if issubclass(kind, tuple) and hasattr(kind, "_fields") else None


def _attributes(returned: Any) -> Iterable[tuple[str, Any]] | None:
    if callable(returned) or issubclass(type(returned), (type, types.ModuleType)):
        return None
    try:
        attributes = object.__getattribute__(returned, "__dict__")
    except AttributeError:
        return None
    public = [(name, value) for name, value in dict(attributes).items() if not str(name).startswith("_")]
    return public if any(name == "loss" for name, _ in public) else None


def _sorted_into_fields(named: Iterable[tuple[Any, Any]], strict: bool) -> Reading:
    received, found = _by_name(named)
    fields = {name: value for name, value in received.items() if name in FIELDS}
    extras = {name: value for name, value in received.items() if name not in FIELDS}
    if strict:
        found += [unknown_key(name, FIELDS, (name,)) for name in extras]
    own = fields.get("metrics", {})
    if extras and issubclass(type(own), Mapping):  # otherwise `metrics` itself is wrong, and that is reported
        metrics = dict(items_of(own))
        found += [_twice(name, ("metrics", name)) for name in extras if name in metrics]
        fields["metrics"] = {**metrics, **extras}
    return Reading(fields, received, tuple(extras), tuple(found))


def _by_name(named: Iterable[tuple[Any, Any]]) -> tuple[dict[str, Any], list[Found]]:
    received: dict[str, Any] = {}
    found: list[Found] = []
    for key, value in named:
        wrong = [Found("key_not_string", (), *words_of(fault)) for _, fault in faults_of(key_text, key)]
        found += wrong
        if not wrong:
            name = key_text(key)
            found += [_twice(name, (name,))] if name in received else []
            received[name] = value
    return received, found


def _twice(name: str, location: tuple[str, ...]) -> Found:
    where = "at the top level and in `metrics`" if len(location) > 1 else "twice"
    message = f"expected each name once, got `{printable(name)}` {where}"
    return Found("key_twice", location, message, "rename one of them, or leave it out")


def _help_form(returned: Any) -> str:
    kind = type(returned)
    for kinds, help in _HELP_BY_KIND:
        if issubclass(kind, kinds):
            return help
    if issubclass(kind, (tuple, list)):
        return _help_sequence(returned)
    if callable(returned):
        return "call it, and return what it gives"
    return 'return the loss tensor, or a mapping such as `{"loss": loss, "log": {...}}`'


def _help_sequence(returned: Any) -> str:
    items = list(values_in(returned))
    if len(items) == 2 and issubclass(type(items[0]), Tensor):
        return f'positions are not guessed: return `{{"loss": loss, {_second(items[1])}}}`'
    return 'positions are not guessed: return a mapping such as `{"loss": loss, "log": {...}}`'


def _second(value: Any) -> str:
    if issubclass(type(value), Mapping):
        return '"log": {...}'
    if any(faults_of(scalar, value)):
        return '"metrics": {"logits": logits}'
    return '"log": {"acc": acc}'


_HELP_BY_KIND: tuple[tuple[Any, str], ...] = (
    ((int, float, complex, numpy_type("generic")), "return the loss tensor itself, without `.item()`"),
    (str, "text is never parsed: return the loss tensor, or a mapping with `loss`"),
    (numpy_type("ndarray"), "return the loss tensor itself, without `.numpy()`"),
    ((set, frozenset), 'a set has no names: return a mapping such as `{"loss": loss}`'),
    (types.GeneratorType, "a step returns once: replace `yield` by `return`"),
    (types.AsyncGeneratorType, "a step is a plain function: replace `async def` by `def`, and `yield` by `return`"),
    (types.CoroutineType, "a step is a plain function: replace `async def` by `def`, since nothing awaits it"),
    (type, "that is the class: return an instance of it"),
    (types.ModuleType, "that is the module: return what one of its functions gives"),
    (nn.Module, "that is the model: call it, and return the loss of what it gives"),
)
