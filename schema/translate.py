"""From what pydantic gathered to problems in one voice, with nothing of pydantic's left.

Faults of our own carry their message. pydantic's built-in errors, which the annotations of users' own models can
raise, are given a code and the same form of words: what was expected, what arrived.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, cast, get_args

from pydantic_core import ErrorDetails, ValidationError

from strictstep.schema.describe import Location, describe, names_text
from strictstep.schema.errors import ErrorCode
from strictstep.schema.missing import FIELDS, loss_missing_help, loss_missing_message
from strictstep.schema.names import nearest

OWN_CODES = frozenset(get_args(ErrorCode))


class Found(NamedTuple):
    """A problem before its place is written out: where it is, and the type that arrived there."""

    code: ErrorCode
    location: Location
    message: str
    help: str
    got: type | None = None


def problems_found(
    error: ValidationError,
    fields: Mapping[str, Any],
    listed: Mapping[str, Collection[str]],
    received: Mapping[str, Any] | None = None,
) -> list[Found]:
    """Translate every line of a pydantic error.

    Args:
        error: what pydantic gathered.
        fields: the values that were validated, by field.
        listed: for each field that a schema narrows, the names that it lists.
        received: the values under the names that came, where names were moved.
    """
    lines = error.errors(include_url=False)
    found = [_found(line, fields, listed, fields if received is None else received) for line in lines]
    # A union reports each of its members: one problem at one place is enough.
    return list({(one.code, one.location): one for one in reversed(found)}.values())[::-1]


def unknown_key(name: str, known: Collection[str], location: Location) -> Found:
    """The problem of a key that has no place, with the nearest name that has one."""
    in_field = len(location) > 1
    expected = f"one of the names that the schema lists ({names_text(known)})" if in_field else "one of the five fields"
    near = nearest(name, known)
    elsewhere = "add it to the schema, or leave it out" if in_field else "put it in `metrics`"
    help = f"rename it to `{near}`" if near else elsewhere
    return Found("key_unknown", location, f"expected {expected}, got {names_text([name])}", help)


def _found(
    line: ErrorDetails,
    fields: Mapping[str, Any],
    listed: Mapping[str, Collection[str]],
    received: Mapping[str, Any],
) -> Found:
    kind, context, location = line["type"], line.get("ctx", {}), line["loc"]
    if kind in OWN_CODES:
        return Found(cast(ErrorCode, kind), location, context["message"], context["help"], context["got"])
    if kind == "missing":
        return _missing(location, line["input"], received)
    if kind == "extra_forbidden":
        known = FIELDS if len(location) == 1 else listed.get(str(location[0]), ())
        return unknown_key(str(location[-1]), known, location)
    if kind in ("value_error", "assertion_error"):
        help = "the check is the schema's own: see its validators"
        return Found("own_check_failed", location, str(context["error"]), help, type(line["input"]))
    return _annotation_mismatch(line, _resolved(location, fields))


def _missing(location: Location, siblings: Any, received: Mapping[str, Any]) -> Found:
    if location == ("loss",):
        return Found("loss_missing", location, loss_missing_message(received), loss_missing_help(received))
    if location == ("reason",):
        help = 'say why the batch is skipped: `SkippedStep(reason="no boxes")`'
        return Found("reason_not_string", location, "expected a `reason` (str), got none", help)
    name, names = str(location[-1]), siblings if isinstance(siblings, dict) else {}
    near = nearest(name, names)
    help = f"rename `{near}` to `{name}`" if near else f"the schema requires it: add `{name}`, or make it `NotRequired`"
    return Found("key_missing", location, f"expected the name `{name}`, got {names_text(names) or 'no names'}", help)


def _annotation_mismatch(line: ErrorDetails, location: Location) -> Found:
    expected = line["msg"].removeprefix("Input should be ")
    if expected == line["msg"]:  # "String should have at least 3 characters"
        expected = f"a value that fits its annotation ({line['msg'][:1].lower()}{line['msg'][1:]})"
    message = f"expected {expected}, got {describe(line['input'])}"
    help = "return what the schema annotates; dimensions of one name must agree within one output"
    return Found("annotation_mismatch", location, message, help, type(line["input"]))


def _resolved(location: Location, fields: Mapping[str, Any]) -> Location:
    """Cut off what pydantic adds to a location below a union: the names of its members."""
    value: Any = fields
    for depth, step in enumerate(location):
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return location[:depth]
    return location
