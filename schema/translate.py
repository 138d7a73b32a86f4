"""From what pydantic gathered to problems in one voice, with nothing of pydantic's left.

Faults of our own carry their message. pydantic's built-in errors, which the annotations of users' own models can
raise, are given a code and the same form of words: what was expected, what arrived.
"""

import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, cast, get_args

from pydantic_core import ErrorDetails, ValidationError
from pydantic_core.core_schema import ErrorType

from strictstep.schema.describe import Location, describe, names_text, printable
from strictstep.schema.errors import ErrorCode
from strictstep.schema.missing import FIELDS, loss_missing_help, loss_missing_message
from strictstep.schema.names import nearest

OWN_CODES = frozenset(get_args(ErrorCode))
BUILT_IN = frozenset(get_args(ErrorType))
MOST_EXPECTED = 200  # characters; a `Literal` of 500 names would be a page
OF_OWN_CHECKS = ("value_error", "assertion_error")  # what pydantic makes of the exceptions of users' validators


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
    listed: Mapping[str, Mapping[str, bool]],
    received: Mapping[str, Any] | None = None,
) -> list[Found]:
    """Translate every line of a pydantic error.

    Args:
        error: what pydantic gathered.
        fields: the values that were validated, by field.
        listed: for each field that a schema narrows, the names that it lists, and whether each is required.
        received: the values under the names that came, where names were moved.
    """
    lines = error.errors(include_url=False)
    found = [_found(line, fields, listed, fields if received is None else received) for line in lines]
    found += _names_not_reached(found, fields, listed)
    if received is not None and "log" not in fields:
        found = [_with_log_renamed(one, received) for one in found]
    return list({_identity(one): one for one in reversed(found)}.values())[::-1]


def _with_log_renamed(found: Found, received: Mapping[str, Any]) -> Found:
    """Where the bar names values of a `log` that came under a near name, that name is the mistake."""
    near = nearest("log", [name for name in received if name not in FIELDS])
    if found.code != "progress_bar_unknown_name" or near is None:
        return found
    return found._replace(help=f"rename `{printable(near)}` to `log`")


def _names_not_reached(
    found: Sequence[Found], fields: Mapping[str, Any], listed: Mapping[str, Mapping[str, bool]]
) -> list[Found]:
    """The problems of names in fields of which a value is wrong: pydantic ends there, before it compares names."""
    more: list[Found] = []
    for field, names in listed.items():
        codes = {one.code for one in found if one.location[:1] == (field,)}
        values = fields.get(field)
        if type(values) is dict and codes and not codes & {"key_missing", "key_unknown"}:
            received = {key: None for key in values if type(key) is str}
            more += [unknown_key(name, names, (field, name)) for name in received if name not in names]
            missing = (name for name, required in names.items() if required and name not in received)
            more += [_missing((field, name), received, {}) for name in missing]
    return more


def _identity(found: Found) -> tuple[object, ...]:
    # A union reports each of its members: one problem at one place is enough.
    return found.code, found.location, "" if found.code == "annotation_mismatch" else found.message


def unknown_key(name: str, known: Collection[str], location: Location) -> Found:
    """The problem of a key that has no place, with the nearest name that has one."""
    in_field = len(location) > 1
    listed = f"one of the names that the schema lists{f' ({names_text(known)})' if known else ''}"
    expected = listed if in_field else "one of the five fields"
    near = nearest(name, known)
    elsewhere = "add it to the schema, or leave it out" if in_field else "put it in `metrics`"
    help = f"rename it to `{printable(near)}`" if near else elsewhere
    return Found("key_unknown", location, f"expected {expected}, got {names_text([name])}", help)


def _found(
    line: ErrorDetails,
    fields: Mapping[str, Any],
    listed: Mapping[str, Collection[str]],
    received: Mapping[str, Any],
) -> Found:
    kind, context, location = line["type"], line.get("ctx", {}), line["loc"]
    if kind in OWN_CODES and context.keys() >= {"message", "help", "got"}:
        return Found(cast(ErrorCode, kind), location, context["message"], context["help"], context["got"].kind)
    if kind == "missing":
        return _missing(location, line["input"], received)
    if kind == "extra_forbidden":
        # What a TypedDict inside another one lists is not known here.
        known = (FIELDS, listed.get(str(location[0]), ()), ())[min(len(location), 3) - 1]
        return unknown_key(str(location[-1]), known, location)
    if kind in OF_OWN_CHECKS or kind not in BUILT_IN:
        help = "the check is the schema's own: see its validators"
        return Found("own_check_failed", location, _own_words(line), help, type(line["input"]))
    return _annotation_mismatch(line, _resolved(location, fields))


def _missing(location: Location, siblings: Any, received: Mapping[str, Any]) -> Found:
    if location == ("loss",):
        named = _by_text(received)
        return Found("loss_missing", location, loss_missing_message(named), loss_missing_help(named))
    if location == ("reason",):
        help = 'say why the batch is skipped: `SkippedStep(reason="no boxes")`'
        return Found("reason_not_string", location, "expected a `reason` (str), got none", help)
    name, names = printable(str(location[-1])), _by_text(siblings)
    near = nearest(name, names)
    help = f"the schema requires it: add `{name}`, or make it `NotRequired`"
    if near:
        help = f"rename `{printable(near)}` to `{name}`"
    return Found("key_missing", location, f"expected the name `{name}`, got {names_text(names) or 'no names'}", help)


def _by_text(values: Any) -> dict[str, Any]:
    """What stands under names; a key of another type is a problem of its own."""
    items = dict.items(values) if issubclass(type(values), dict) else ()
    return {str.__str__(key): value for key, value in items if issubclass(type(key), str)}


def _annotation_mismatch(line: ErrorDetails, location: Location) -> Found:
    words = _expected_tag(line) if line["type"] == "union_tag_invalid" else _expected(line["msg"])
    message = f"expected {textwrap.shorten(words, MOST_EXPECTED, placeholder=' ...')}, got {describe(line['input'])}"
    help = "return what the schema annotates; dimensions of one name must agree within one output"
    return Found("annotation_mismatch", location, message, help, type(line["input"]))


def _expected(words: str) -> str:
    """From "Input should be a valid list" to `a valid list`, and so on."""
    for start, ours in _STARTS:
        if found := re.match(start, words):
            return ours + words[found.end() :]
    first = words[:1] if words[1:2].isupper() else words[:1].lower()  # `UUID version 4 expected`
    return f"a value that fits its annotation ({first}{words[1:]})"


def _expected_tag(line: ErrorDetails) -> str:
    """Say which tags there are; pydantic's words have the one that arrived in them, which may be a tensor."""
    context = line.get("ctx", {})
    return f"a value whose tag {context['discriminator']} is one of {context['expected_tags']}"


_STARTS = (
    (r"(\w+ i|I)nput should be ", ""),  # `URL input should be a string or URL` too
    (r"(\w+ i|I)nput should ", "a value that should "),
    (r"Input ", "a value that "),
)


def _own_words(line: ErrorDetails) -> str:
    return str(line.get("ctx", {})["error"]) if line["type"] in OF_OWN_CHECKS else line["msg"]


def _resolved(location: Location, fields: Mapping[str, Any]) -> Location:
    """Cut off what pydantic adds to a location below a union: the names of its members."""
    value: Any = fields
    for depth, step in enumerate(location):
        try:
            value = _entry(value, step)
        except Exception:  # `value` may be anything at all
            return location[: max(depth, 1)]  # a field that was left out is still the field
    return location


def _entry(value: Any, step: str | int) -> Any:
    """What stands in a container; a tensor would be indexed, and a `defaultdict` of the user's would grow."""
    kind = type(value)
    is_held = step in value if issubclass(kind, dict) else issubclass(kind, (Mapping, list, tuple))
    if not is_held:
        raise LookupError
    return value[step]
