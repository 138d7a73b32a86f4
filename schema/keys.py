"""Keys of mappings as names: text alone, and what to say of any other."""

import enum
from typing import Any

from strictstep.schema.faults import fault


def key_text(key: object) -> str:
    """Return a key as a plain `str`; a subclass of it (a StrEnum, `numpy.str_`) gives its text."""
    if issubclass(type(key), str):
        return str.__str__(key)
    raise fault("key_not_string", "a name (str) as key", key, _help_key(type(key)))


def _help_key(kind: type) -> str:
    if issubclass(kind, (dict, list, set)):  # none of them is a key: it stands in a list of names
        return "a list of names holds no containers: return one dict of names to values in its place"
    for kinds, text in _TEXTS_OF_KEYS:
        if issubclass(kind, kinds):
            return f"use text for keys, for example `{text}`"
    return "use text for keys"


# `str` of the first three is no name: 'K.LOSS', "b'loss'", "('a', 'b')"
_TEXTS_OF_KEYS: tuple[tuple[Any, str], ...] = (
    (enum.Enum, "key.value"),
    (bytes, "key.decode()"),
    (tuple, '"/".join(key)'),
    ((int, float), "str(key)"),
)
