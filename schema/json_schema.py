"""JSON Schema, draft 2020-12, of output models: of what a step may return, and of how that is recorded.

`Model.model_json_schema()` describes the return: its tensors have no JSON type, their contract stands in `x-tensor`
and in words. `Model.model_json_schema(mode="serialization")` is the schema of `output.model_dump_json()`.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema
from torch import Tensor

from strictstep.schema.contracts import (
    ANY_TENSOR,
    FREE_FORMS,
    NAMES_FORM,
    OUR_FORM,
    Form,
    JsonSchema,
    in_form,
    shaped,
    words,
)
from strictstep.schema.json_types import TAGGED_FLOAT, TAGGED_INT, Number, TaggedDict, TaggedTensor, Value

# What `json_form` writes as its type says; values of any other type may be written as objects are.
_WRITTEN_AS_TYPED = frozenset(
    {"any", "none", "bool", "int", "float", "str", "literal", "list", "tuple", "dict", "typed-dict", "typed-dict-field"}
    | {"nullable", "union", "tagged-union", "default", "chain", "definitions", "definition-ref", "is-instance"}
    | {"function-before", "function-after", "function-wrap", "model", "model-fields", "model-field", "custom-error"}
)


class StepJsonSchema(GenerateJsonSchema):
    """pydantic's generator, which knows tensors and the JSON form of an output."""

    _in_our_form = False

    def generate(self, schema: Any, mode: JsonSchemaMode = "validation") -> JsonSchemaValue:
        """Generate a schema, with every tensor's contract in words besides."""
        generated = super().generate(schema, mode)
        _put_into_words(generated)
        return generated

    def build_schema_type_to_method(self) -> dict[Any, Callable[[Any], JsonSchemaValue]]:
        """Record as free values what `json_form` does not write the way pydantic would."""
        methods = super().build_schema_type_to_method()
        return {
            kind: method if kind in _WRITTEN_AS_TYPED else self._recorded_freely(method)
            for kind, method in methods.items()
        }

    def _recorded_freely(self, method: Callable[[Any], JsonSchemaValue]) -> Callable[[Any], JsonSchemaValue]:
        return lambda schema: self._form_of(Value) if self._of_users_types else method(schema)

    @property
    def _of_users_types(self) -> bool:
        """Whether a user's annotation is described as it is recorded."""
        return self.mode == "serialization" and not self._in_our_form

    def chain_schema(self, schema: core_schema.ChainSchema) -> JsonSchemaValue:
        """Take the types of a form as they are."""
        outside, self._in_our_form = self._in_our_form, self._in_our_form or schema.get("metadata") == OUR_FORM
        generated = super().chain_schema(schema)
        self._in_our_form = outside
        return generated

    def _form_of(self, annotation: Any) -> JsonSchemaValue:
        return self.generate_inner(in_form(annotation))

    def any_schema(self, schema: core_schema.AnySchema) -> JsonSchemaValue:
        """Record anything in its JSON form."""
        return self._form_of(Value) if self._of_users_types else super().any_schema(schema)

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        """Record NaN and infinities with a tag."""
        number = super().float_schema(schema)
        return {"anyOf": [number, TAGGED_FLOAT]} if self._of_users_types else number

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        """Record integers of thousands of digits with a tag."""
        number = super().int_schema(schema)
        return {"anyOf": [number, TAGGED_INT]} if self._of_users_types else number

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """Record a dict whose keys are not plain text with a tag."""
        if not self._of_users_types:
            return super().dict_schema(schema)
        return {"anyOf": [super().dict_schema(schema), self._form_of(TaggedDict)]}

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Record a model of the user's own within an output as an object, as it is written."""
        is_foreign = not any(base.__module__.startswith("strictstep.") for base in schema["cls"].__mro__)
        return self._form_of(Value) if is_foreign and self._of_users_types else super().model_schema(schema)

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        """Record the members of an enum as objects, not by their values."""
        is_plain = all(type(value) in (str, int, bool, NoneType) for value in schema["expected"])
        return super().literal_schema(schema) if is_plain or not self._of_users_types else self._form_of(Value)

    def handle_invalid_for_json_schema(self, schema: core_schema.CoreSchema, error_info: str) -> JsonSchemaValue:
        """Describe what has no JSON type, such as a function, as anything."""
        return self._form_of(Value) if self._of_users_types else {}

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        """Say that no name is accepted but the listed ones; pydantic says so only from version 2.12 on."""
        if self._of_users_types and any(name.startswith("$") for name in schema["fields"]):
            return self._form_of(Value)  # which is written with a tag
        extras = schema.get("config", {}).get("extra_fields_behavior")
        closed = {"additionalProperties": False} if extras == "forbid" else {}
        return {**closed, **super().typed_dict_schema(schema)}

    def is_instance_schema(self, schema: core_schema.IsInstanceSchema) -> JsonSchemaValue:
        """Describe a tensor by its contract, and another object by its type."""
        contract = _contract(schema["cls"])
        if contract is None:
            recorded = self._form_of(Value) if self._of_users_types else {}
            return {**recorded, "description": f"An object of type `{schema['cls'].__qualname__}`."}
        if not self._of_users_types:
            return {"title": "tensor", "x-tensor": contract}
        recorded = self._form_of(TaggedTensor if contract.get("rank") else TaggedTensor | Number)
        return {**recorded, "x-tensor": contract}

    def field_is_required(self, field: Any, total: bool) -> bool:
        """Require every field of a record, but of a TypedDict only the names that it requires."""
        if field["type"] == "typed-dict-field":
            return bool(field.get("required", total))
        return super().field_is_required(field, total)

    def ser_schema(self, schema: Any) -> JsonSchemaValue | None:
        """Look past the serializer of a field: what it writes is described by the field's annotation."""
        if schema["type"] == "function-plain" and schema.get("return_schema", {}).get("type") == "any":
            return None
        return super().ser_schema(schema)


def with_contracts(
    model: type,
    schema: JsonSchemaValue,
    handler: GetJsonSchemaHandler,
    loss: Form,
    narrowed: Mapping[str, bool],
    docs: Mapping[str, str | None],
) -> JsonSchemaValue:
    """Complete what pydantic made of an output model: its prose, and the contract of each field.

    Args:
        model: the output model.
        schema: what pydantic made of it.
        handler: makes the schemas of the forms.
        loss: the form of its `loss`.
        narrowed: the fields that it annotates with types of its own, and whether their default is still ours.
        docs: for each field, what to say of it where the model does not.
    """
    resolved = handler.resolve_ref_schema(schema)
    resolved["description"] = prose(model)
    if handler.mode == "serialization" and not narrowed:
        resolved.setdefault("examples", [loss.example])
    fields = resolved["properties"]
    for name, form in {"loss": loss, **FREE_FORMS}.items():
        field = {"description": docs.get(name), **fields[name]}
        fields[name] = field if name in narrowed else _in_form(field, form, handler)
    if handler.mode == "validation":
        needed = [name for name, by_us in narrowed.items() if by_us and _needs_value(fields[name], handler)]
        resolved["required"] = [*resolved.get("required", ()), *needed]
    if "progress_bar" in narrowed and handler.mode == "validation":
        fields["progress_bar"] = _or_names(fields["progress_bar"], handler)
    return schema


def prose(model: type) -> str:
    """The docstring of a model up to its first section (`Example:`, `Raises:`), in paragraphs."""
    doc = inspect.getdoc(model) or ""
    return re.split(r"^[A-Z]\w+:$", doc, maxsplit=1, flags=re.MULTILINE)[0].strip()


def _in_form(field: JsonSchema, form: Form, handler: GetJsonSchemaHandler) -> JsonSchema:
    described = _paragraphs(field["description"], form.words)
    contract = {"x-tensor": form.contract} if form.contract else {}
    kept: JsonSchema = {key: field[key] for key in ("title", "default", "examples") if key in field}
    return {**form.schema(handler), **kept, "description": described, **contract}


def _or_names(field: JsonSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
    """A narrowed progress bar, which may also be given as names of `log` values."""
    outside: JsonSchema = {key: field.pop(key) for key in ("title", "description", "default") if key in field}
    return {**outside, "anyOf": [field, NAMES_FORM.schema(handler)]}


def _needs_value(field: JsonSchema, handler: GetJsonSchemaHandler) -> bool:
    """Tell whether our default, an empty dict or `None`, does not fit an annotation."""
    defined = handler.resolve_ref_schema(field)
    return bool(defined.get("required")) or defined.get("type") == "array" or "dims" in defined.get("x-tensor", ())


def _contract(kind: Any) -> JsonSchema | None:
    if hasattr(kind, "dim_str"):
        return shaped(kind) if kind.array_type is Tensor else None
    return ANY_TENSOR if issubclass(kind, Tensor) else None


def _put_into_words(schema: Any) -> None:
    if type(schema) is list:
        for item in schema:
            _put_into_words(item)
    elif type(schema) is dict:
        named: JsonSchema = schema
        if "x-tensor" in named:
            named["description"] = _paragraphs(named.get("description"), words(named["x-tensor"]))
        for inner in named.values():
            _put_into_words(inner)


def _paragraphs(*texts: str | None) -> str:
    return "\n\n".join(filter(None, texts))
