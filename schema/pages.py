"""Readable pages in Markdown: one for each model, one for each error code, the coercion table, an index.

A model's page is written from its JSON Schema alone, so that it says what the schema says.
"""

import json
from collections.abc import Iterable
from typing import Any, get_args

from strictstep.schema.codes import EXPLANATIONS
from strictstep.schema.contracts import JsonSchema
from strictstep.schema.errors import ErrorCode

COERCION_TABLE = """\
| returned | training | manual | validation, test |
|---|---|---|---|
| an output model of that stage | itself, its `loss` checked again | itself | itself |
| a one-element tensor | `loss` | `loss`, detached | `loss`, detached |
| another tensor | error at `loss` | error at `loss` | error at `loss`: put it in `metrics` |
| a mapping (dict, `UserDict`, `TensorDict`, `ModelOutput`, ...) | by key | by key | by key |
| a dataclass, namedtuple, pydantic or attrs object, an object with a `loss` | by field | by field | by field |
| keys beyond the five | moved to `metrics`, named once in a warning; `strict=True`: error | same | same |
| a key both beyond the five and in `metrics` | error | error | error |
| no `loss` key | error `loss_missing` | fine | fine |
| `{"loss": None, ...}` | error `loss_none` | fine: the other fields are kept | fine |
| `None` | skipped, with one warning; `on_none="error"`: error | empty output | empty output |
| `SkippedStep(reason=...)` | itself | itself | itself |
| a number | error: return the tensor | error | `loss` |
| text, array, list, tuple, set, generator, coroutine, class, function | error with a help of its own | same | same |
"""


def error_page(code: ErrorCode) -> str:
    """The page of one error code: cause, a step that triggers it, the cure."""
    page = EXPLANATIONS[code]
    return f"# {code}\n\n{page.cause}\n\n```python\n{page.example}\n```\n\n**Cure.** {page.cure}\n"


def errors_page() -> str:
    """The list of all error codes, each with its first sentence."""
    rows = (f"- [`{code}`](errors/{code}.md): {first_sentence(code)}" for code in get_args(ErrorCode))
    return _page("# Error codes", "Each problem in a `StepOutputError` has a stable `code`.", "\n".join(rows))


def first_sentence(code: ErrorCode) -> str:
    """The cause of an error, in its first sentence."""
    return EXPLANATIONS[code].cause.partition(". ")[0].partition(": ")[0].rstrip(".") + "."


def coercion_page() -> str:
    """What a step may return, and what becomes of it."""
    intro = "What a step may return, stage by stage, and what becomes of it. Nothing is read from a tensor or copied."
    return _page("# What a step may return", intro, COERCION_TABLE.rstrip())


def index_page(classes: Iterable[tuple[str, JsonSchema]], with_rest: bool) -> str:
    """The list of the pages.

    Args:
        classes: the name and the schema of each class.
        with_rest: list the coercion table and the error codes too.
    """
    rows = [f"- [`{name}`]({name}.md): {_first(schema['description'])}" for name, schema in classes]
    rest = [
        "- [What a step may return](returns.md), stage by stage",
        "- [Error codes](errors.md): cause, example, cure",
    ]
    return _page("# What the steps return", "\n".join(rows + (rest if with_rest else [])))


def class_page(name: str, returned: JsonSchema, recorded: JsonSchema | None) -> str:
    """The page of one class: its prose, a table of its fields, and a table for each of the types in them.

    Args:
        name: the name of its files.
        returned: the schema of what a step returns, or of a record.
        recorded: the schema of its JSON form, where that is another.
    """
    parts = [f"# {returned['title']}", returned["description"], _fields_table(returned)]
    for title, definition in returned.get("$defs", {}).items():
        parts.append(f"## {title}\n\n{_definition(definition)}")
    return _page(*parts, class_notes(name, recorded))


def class_notes(name: str, recorded: JsonSchema | None) -> str:
    """What stands at the end of a class's page: how it is recorded, and the schema files."""
    examples = [
        f"## As it is recorded\n\n```json\n{_json(_in_order(example, recorded))}\n```"
        for example in (recorded or {}).get("examples", ())
    ]
    files = [f"{name}.schema.json", *([f"{name}.record.schema.json"] if recorded else [])]
    return "\n\n".join([*examples, f"JSON Schema: {', '.join(f'[`{file}`]({file})' for file in files)}"])


def type_words(schema: JsonSchema) -> str:
    """The type of a value in a few words; of a tensor, its shape and dtype.

    Example:
        >>> type_words({"anyOf": [{"type": "integer"}, {"type": "null"}]})
        'integer or null'
        >>> type_words({"x-tensor": {"dims": "classes classes", "dtype": "float"}})
        'tensor float[classes, classes]'
    """
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(dict.fromkeys(map(type_words, schema.get("anyOf") or schema["oneOf"])))
    if "x-tensor" in schema:
        return _tensor_words(schema["x-tensor"])
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    return _plain_words(schema)


def _tensor_words(contract: JsonSchema) -> str:
    dims = contract.get("dims", "" if contract.get("rank") == 0 else None)
    return "tensor" if dims is None else f"tensor {contract['dtype']}[{', '.join(dims.split())}]"


def _plain_words(schema: JsonSchema) -> str:
    kind = schema.get("type", "anything")
    if "properties" in schema:
        return f"object with {', '.join(f'`{name}`' for name in schema['properties'])}"
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{_json(value)}`" for value in schema.get("enum", [schema.get("const")]))
    if kind == "array":
        items = schema.get("prefixItems") or [schema.get("items", {})]
        return f"array of {', '.join(type_words(item) for item in items)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {type_words(schema['additionalProperties'])}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _fields_table(schema: JsonSchema) -> str:
    rows = [
        f"| `{name}` | {type_words(field)}{_reduced(field)} | {'yes' if name in schema.get('required', ()) else 'no'} "
        f"| {_cell(field.get('description', ''))} |"
        for name, field in schema["properties"].items()
    ]
    return "\n".join(["| name | type | required | what |", "|---|---|---|---|", *rows])


def _definition(schema: JsonSchema) -> str:
    parts = [schema.get("description"), _fields_table(schema) if "properties" in schema else type_words(schema)]
    return "\n\n".join(part for part in parts if part)


def _reduced(field: JsonSchema) -> str:
    return f", reduced by {field['x-reduce']}" if "x-reduce" in field else ""


def _cell(text: str) -> str:
    return text.replace("\n\n", " ").replace("\n", " ").replace("|", "\\|")


def _first(text: str) -> str:
    return text.partition("\n\n")[0].replace("\n", " ")


def _in_order(example: JsonSchema, schema: JsonSchema | None) -> JsonSchema:
    """An example with its names as the fields stand in the schema; pydantic sorts them by the alphabet."""
    return {name: example[name] for name in (schema or {}).get("properties", example) if name in example}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _page(*parts: str) -> str:
    return "\n\n".join(parts) + "\n"
