"""The types of the JSON form: they read it back, and they are where its JSON Schema comes from."""

from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from pydantic import ConfigDict, Discriminator, Field, PlainSerializer, PlainValidator, Tag, WithJsonSchema, with_config
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType, TypedDict

from strictstep.schema.describe import describe, names_text
from strictstep.schema.json_form import number_form

NON_FINITE = ("nan", "inf", "-inf")

TAGGED_FLOAT: dict[str, Any] = {
    "description": "A number that JSON has no text for.",
    "type": "object",
    "properties": {"$float": {"enum": list(NON_FINITE)}},
    "required": ["$float"],
    "additionalProperties": False,
}
TAGGED_INT: dict[str, Any] = {
    "description": "An integer of thousands of digits, in hexadecimal.",
    "type": "object",
    "properties": {"$int": {"type": "string", "pattern": "^-?0x[0-9a-f]+$"}},
    "required": ["$int"],
    "additionalProperties": False,
}
REAL_NUMBER = {"anyOf": [{"type": "number"}, TAGGED_FLOAT]}
ANY_NUMBER = {"anyOf": [{"type": ["number", "boolean"]}, TAGGED_FLOAT, TAGGED_INT]}

_NUMBERS = (float, int, bool)
_TAGS = {"$tensor": "tensor", "$object": "object", "$dict": "dict", "$float": "number", "$int": "number"}


def _number(value: Any) -> Any:
    if type(value) in _NUMBERS:
        return value
    number = _untagged(value) if type(value) is dict and len(value) == 1 else None
    if number is None:
        got = {"got": describe(value)}
        raise PydanticCustomError("number", 'expected a number (a NaN is `{"$float": "nan"}`), got {got}', got)
    return number


def _untagged(value: dict[str, Any]) -> float | int | None:
    text = value.get("$float", value.get("$int"))
    if text in NON_FINITE and "$float" in value:
        return float(text)
    try:
        return int(text, 16) if type(text) is str and "$int" in value else None
    except ValueError:
        return None


def _kind(value: Any) -> str | None:
    """Which form a value has; `None` where it has none, such as an unknown tag."""
    if type(value) is dict:
        tags: list[Any] = [name for name in value if type(name) is str and name.startswith("$")]
        return _TAGS.get(tags[0]) if tags else "mapping"
    if type(value) is list:
        return "list"
    if value is None or type(value) is str:
        return "text"
    return "number" if type(value) in _NUMBERS else None


if TYPE_CHECKING:  # type checkers cannot follow annotated aliases that contain themselves
    RealNumber = float | int
    Number = float | int | bool
    Value = Any
    TaggedTensor = TaggedDict = Any
else:
    _read_and_written = (PlainValidator(_number), PlainSerializer(number_form, when_used="json"))
    _closed = with_config(ConfigDict(extra="forbid", strict=True))

    RealNumber = TypeAliasType("RealNumber", Annotated[float | int, *_read_and_written, WithJsonSchema(REAL_NUMBER)])
    Number = TypeAliasType("Number", Annotated[float | int | bool, *_read_and_written, WithJsonSchema(ANY_NUMBER)])

    # The values of a tensor, row by row.
    Values = TypeAliasType(
        "Values",
        Annotated[
            Annotated[RealNumber | bool, Tag("number")] | Annotated[list["Values"], Tag("list")],
            Discriminator(lambda value: "list" if type(value) is list else "number"),
        ],
    )

    @_closed
    class TensorSummary(TypedDict):
        """What is kept of a tensor: its form, and its values where they were asked for."""

        shape: list[int] | None
        dtype: str
        device: str
        values: NotRequired[Values]

    # Written as calls, since `$tensor` is no name in Python.
    TaggedTensor = _closed(TypedDict("TaggedTensor", {"$tensor": TensorSummary}))
    TaggedObject = _closed(TypedDict("TaggedObject", {"$object": str}))
    TaggedDict = _closed(TypedDict("TaggedDict", {"$dict": list[tuple["Value", "Value"]]}))

    # Anything, in its JSON form.
    Value = TypeAliasType(
        "Value",
        Annotated[
            Annotated[Number, Tag("number")]
            | Annotated[str | None, Tag("text")]
            | Annotated[list["Value"], Tag("list")]
            | Annotated[
                dict[str, "Value"], Field(json_schema_extra={"propertyNames": {"pattern": r"^(?!\$)"}}), Tag("mapping")
            ]
            | Annotated[TaggedTensor, Tag("tensor")]
            | Annotated[TaggedObject, Tag("object")]
            | Annotated[TaggedDict, Tag("dict")],
            Discriminator(_kind, "value", f"expected a JSON value whose tag, if any, is one of {names_text(_TAGS)}"),
        ],
    )
