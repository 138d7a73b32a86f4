"""What is promised of each field, for documents: of its tensors as data (`x-tensor`) and in words, and its two forms.

A field has one form as a step returns it, and one as it is recorded in JSON. Both are written as types, from which
pydantic makes the JSON Schema.
"""

from typing import Annotated, Any, NamedTuple

from pydantic import Field, GetJsonSchemaHandler, TypeAdapter, WithJsonSchema
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypeAliasType

from strictstep.schema.json_types import Number, RealNumber, Value

JsonSchema = dict[str, Any]

ATTACHED_SCALAR: JsonSchema = {"rank": 0, "dtype": "real floating", "gradient": "required", "device": "kept"}
FLOATING_SCALAR: JsonSchema = {**ATTACHED_SCALAR, "gradient": "detached"}
REAL_SCALAR: JsonSchema = {**FLOATING_SCALAR, "dtype": "real"}
ANY_TENSOR: JsonSchema = {"dtype": "any", "gradient": "detached", "device": "kept"}

_GRADIENT = {"required": "made by an operation of a graph, and kept as it is", "detached": "detached"}


def shaped(annotation: Any) -> JsonSchema:
    """The contract of a jaxtyping annotation such as `Float[Tensor, "batch 3"]`."""
    rank = {} if annotation.index_variadic is not None else {"rank": len(annotation.dims)}
    dtype = annotation.__name__.partition("[")[0].lower()
    return {**rank, "dims": annotation.dim_str, **ANY_TENSOR, "dtype": dtype}


def words(contract: JsonSchema) -> str:
    """A tensor's contract in a sentence.

    Example:
        >>> words(ANY_TENSOR)
        'Tensor of any shape; any dtype; detached; stays on its device.'
    """
    return (
        f"Tensor of {_shape_words(contract)}; {contract['dtype']} dtype; {_GRADIENT[contract['gradient']]}; "
        "stays on its device."
    )


def _shape_words(contract: JsonSchema) -> str:
    if contract.get("dims"):
        return f"shape `[{', '.join(contract['dims'].split())}]` (one name is one size within one output)"
    if contract.get("rank") == 0:
        return "shape `[]` (one element in another shape is viewed as `[]`)"
    return "any shape"


OUR_FORM = {"strictstep": "form"}


def in_form(annotation: Any) -> CoreSchema:
    """The core schema of a form, marked so that the generator takes its types as they are."""
    return core_schema.chain_schema([TypeAdapter(annotation).core_schema], metadata=OUR_FORM)


class Form(NamedTuple):
    """How a field, or a named value in one, is documented.

    Attributes:
        returned: the type of what a step returns there.
        recorded: the type of its JSON form.
        words: what is accepted besides tensors.
        contract: of its tensors, where the field itself may be one.
        example: of a `loss`, an output with it in its JSON form.
    """

    returned: Any
    recorded: Any
    words: str = ""
    contract: JsonSchema | None = None
    example: JsonSchema | None = None

    def schema(self, handler: GetJsonSchemaHandler) -> JsonSchema:
        """The JSON Schema in the handler's mode."""
        annotation = self.returned if handler.mode == "validation" else self.recorded
        return handler(in_form(annotation))


def _tensor(contract: JsonSchema) -> Any:
    """The type of a tensor as it is returned: JSON has no type for it, so its schema has none."""
    return Annotated[Any, WithJsonSchema({"title": "tensor", "x-tensor": contract})]


Scalar: Any = TypeAliasType("Scalar", _tensor(REAL_SCALAR) | float | bool)
_Names = Annotated[list[str], Field(title="names", description="Names of `log` values: a list, tuple or set.")]
_OR_NUMBER = "Or a Python or numpy number."


def _recorded(loss: float | None, **fields: Any) -> JsonSchema:
    return {"loss": loss, "log": {}, "progress_bar": {}, "hiddens": None, "metrics": {}, **fields}


TRAINING_LOSS = Form(
    _tensor(ATTACHED_SCALAR),
    RealNumber,
    contract=ATTACHED_SCALAR,
    example=_recorded(
        0.3125,
        log={"accuracy": 0.875, "images": 32},
        progress_bar={"accuracy": 0.875},
        metrics={"confusion": {"$tensor": {"shape": [10, 10], "dtype": "int64", "device": "cpu"}}},
    ),
)
MANUAL_LOSS = Form(
    _tensor(FLOATING_SCALAR) | None,
    RealNumber | None,
    "Or `None`.",
    FLOATING_SCALAR,
    _recorded(None, log={"loss_generator": 0.6875, "loss_critic": {"$float": "inf"}}),
)
EVALUATION_LOSS = Form(
    Scalar | None,
    Number | None,
    f"{_OR_NUMBER} Or `None`.",
    REAL_SCALAR,
    _recorded(0.25, metrics={"texts": ["a cat", "a dog"]}),
)
NO_LOSS = Form(None, None, example=_recorded(None, log={"boxes": 0}, reason="no boxes"))

SCALAR_FORM = Form(Scalar, Number, _OR_NUMBER, REAL_SCALAR)
SCALARS_FORM = Form(
    dict[str, Scalar],
    dict[str, Number],
    "Each value is one real number: a tensor with one element (detached, on its device), or a Python or numpy number.",
)
BAR_FORM = SCALARS_FORM._replace(returned=Annotated[dict[str, Scalar], Field(title="values")] | _Names)
HIDDENS_FORM = Form(
    _tensor(ANY_TENSOR),
    Value,
    "Or a nesting of list, tuple, namedtuple and dict, with tensors or `None` at its ends.",
    ANY_TENSOR,
)
METRICS_FORM = Form(dict[str, Any], dict[str, Value], "Values may be anything; tensors in them may have any shape.")
NAMES_FORM = Form(_Names, _Names)
TEXT_FORM = Form(str, str)

FREE_FORMS = {"log": SCALARS_FORM, "progress_bar": BAR_FORM, "hiddens": HIDDENS_FORM, "metrics": METRICS_FORM}
"""The forms of the fields that a model does not narrow."""
