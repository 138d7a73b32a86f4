"""The base of all models: five fields, frozen, nothing else.

Each field has one check, inherited by every subclass; what a subclass annotates comes after it and only narrows.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, NoReturn, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SerializationInfo,
    ValidationInfo,
    field_serializer,
    field_validator,
)
from pydantic.json_schema import DEFAULT_REF_TEMPLATE, GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import CoreSchema, ValidationError, core_schema, from_json
from torch import Tensor

from strictstep.schema.contracts import EVALUATION_LOSS, Form
from strictstep.schema.errors import StepOutputError
from strictstep.schema.faults import STOPS, is_of_values, unreadable, words_of
from strictstep.schema.fields import (
    ReduceOp,
    has_shapes,
    names_and_annotations,
    reduction,
    refuse_unchecked_scalars,
)
from strictstep.schema.host_numbers import mentions_numbers, refuse_numbers_or_tensors, with_host_numbers
from strictstep.schema.json_form import json_form, named_forms, scalar_form, tensor_values_asked
from strictstep.schema.json_schema import StepJsonSchema, with_contracts
from strictstep.schema.loss import evaluation_loss
from strictstep.schema.missing import FIELDS
from strictstep.schema.narrowing import (
    CHECKED,
    DEFAULTS,
    NO_HIDDENS,
    NO_NAMES,
    BarT,
    HiddensT,
    LogT,
    MetricsT,
    in_one_shape_scope,
    is_narrowed,
    refuse_less_rigid,
)
from strictstep.schema.records import Brief, detached_record, same
from strictstep.schema.report import report_of_call
from strictstep.schema.scalars import ScalarValue, bar_scalars, scalars
from strictstep.schema.translate import Found, problems_found
from strictstep.schema.trees import check_hiddens, check_metrics


def _outcome(
    model: Any,
    validate: Callable[..., Any],
    given: Any,
    read: Callable[[Any], Any] = lambda fields: fields,
    **options: Any,
) -> Any:
    try:
        return validate(given, **options)
    except ValidationError as invalid:
        fields = read(given)
        found = problems_found(invalid, fields if type(fields) is dict else {}, model.listed_names())
    except STOPS:
        raise
    except BaseException as error:
        if not is_of_values(error, given if type(given) is dict else ()):
            raise
        found = [Found("unreadable", (), *words_of(unreadable(given, error)))]
    return report_of_call(model.__name__, found)


def _read_json(json_data: str | bytes | bytearray) -> Any:
    try:
        return from_json(json_data)
    except ValueError:
        return None


def _blank(origin: Any, parameters: tuple[Any, ...]) -> Any:
    """An output without fields, to be filled by unpickling; pydantic keeps no parametrised model where pickle looks."""
    model = origin[parameters]
    return model.__new__(model)


def _by_place(model: Any, count: int) -> TypeError:
    first = "reason" if "reason" in model.__pydantic_fields__ else "loss"
    message = f"expected the fields of `{model.__name__}` by name, got {count} by place"
    return TypeError(f"{message}\n  help: write `{model.__name__}({first}=...)`")


class StepOutput(BaseModel, Generic[LogT, MetricsT, HiddensT, BarT]):
    """What a step returns, checked; base of the models of each stage.

    A team's own model narrows the fields by type parameters, in the order `log`, `metrics`, `hiddens`,
    `progress_bar`: `class DigitsOutput(TrainingOutput[DigitsLog]): ...`. A TypedDict names the keys; jaxtyping
    annotations give tensor shapes in `metrics` and `hiddens`.

    Raises:
        StepOutputError: where a model is called with invalid values; every problem at once.
        TypeError: at the definition of a subclass that adds fields, accepts more, or annotates scalars by value.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,  # in `metrics` pydantic would else parse strings, and read a tensor's value for a `float`
        arbitrary_types_allowed=True,
        hide_input_in_errors=True,
        json_schema_serialization_defaults_required=True,
    )

    loss: Annotated[Tensor | float | int | bool | None, CHECKED] = Field(
        default=NO_HIDDENS, description="The loss of the batch, in the loss function's own unit."
    )

    log: LogT = Field(
        default_factory=NO_NAMES, description="Names to scalars for the loggers, each detached and on its device."
    )

    progress_bar: BarT = Field(
        default_factory=NO_NAMES,
        description="Names to scalars for the progress bar; also a list, tuple or set of names of `log` values.",
    )

    hiddens: HiddensT = Field(
        default=NO_HIDDENS,
        description="State for the next chunk of a sequence: a tensor or a nesting of tensors, each detached.",
    )

    metrics: MetricsT = Field(
        default_factory=NO_NAMES,
        description="Names to anything that is collated over the epoch; tensors are detached.",
    )

    _metrics_with_numbers: ClassVar[Any] = None
    _loss_form: ClassVar[Form] = EVALUATION_LOSS

    _check_loss: ClassVar[Any] = field_validator("loss", mode="before")(evaluation_loss)
    _check_log = field_validator("log", mode="before")(scalars)
    _check_hiddens = field_validator("hiddens", mode="before")(check_hiddens)

    @field_validator("progress_bar", mode="before")
    @staticmethod
    def _check_progress_bar(value: Any, info: ValidationInfo) -> dict[str, ScalarValue]:
        return scalars(value) if type(value) is dict else bar_scalars(value, info.data.get("log"))

    @field_validator("metrics", mode="before")
    @classmethod
    def _check_metrics(cls, value: Any) -> dict[str, Any]:
        checked = check_metrics(value)
        if cls._metrics_with_numbers is None:
            return checked
        converted: dict[str, Any] = with_host_numbers(cls._metrics_with_numbers, checked)
        return converted

    if not TYPE_CHECKING:

        def __init__(self, /, *placed: Any, **fields: Any) -> None:
            if placed:
                raise _by_place(type(self), len(placed))
            outcome = _outcome(type(self), self.__pydantic_validator__.validate_python, fields, self_instance=self)
            del fields  # a kept error keeps this frame, and with it everything that the frame holds
            if isinstance(outcome, StepOutputError):
                raise outcome.at()

        __init__.__signature__ = inspect.signature(lambda self, /, **fields: None)  # for `help`, and pydantic's own
        # pydantic's own mark: without it pydantic-core would build every output through the method above.
        __init__.__pydantic_base_init__ = True

        @classmethod
        def model_validate(cls, obj: Any, **options: Any) -> Self:
            """Validate a dict of the fields, as calling the model does."""
            outcome = _outcome(cls, super().model_validate, obj, **options)
            del obj
            if isinstance(outcome, StepOutputError):
                raise outcome.at()
            return outcome

        @classmethod
        def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
            """Validate JSON; it can hold no tensor, so this is for evaluation outputs of plain numbers."""
            outcome = _outcome(cls, super().model_validate_json, json_data, _read_json, **options)
            if isinstance(outcome, StepOutputError):
                raise outcome.at()
            return outcome

        @classmethod
        def model_validate_strings(cls, obj: Any, **options: Any) -> Self:
            """Refuse texts as values, by the same error: strings are never parsed."""
            outcome = _outcome(cls, super().model_validate_strings, obj, **options)
            if isinstance(outcome, StepOutputError):
                raise outcome.at()
            return outcome

        def __setattr__(self, name: str, value: Any) -> None:
            """Refuse: a checked output stays as it was checked. Private attributes of a subclass are its own."""
            if not name.startswith("_"):
                raise self._frozen(name)
            super().__setattr__(name, value)

        def __delattr__(self, name: str) -> None:
            """Refuse, as setting an attribute."""
            if not name.startswith("_"):
                raise self._frozen(name)
            super().__delattr__(name)

    def _frozen(self, name: str) -> AttributeError:
        return AttributeError(
            f"`{type(self).__name__}` is frozen: `{name}` cannot be changed\n"
            "  help: return what belongs there, or make another output"
        )

    @field_serializer("loss", when_used="json")
    def _written_scalar(self, value: Any) -> Any:
        return scalar_form(value)

    @field_serializer("log", "progress_bar", when_used="json")
    def _written_scalars(self, values: dict[str, Any]) -> Any:
        return named_forms(values, scalar_form)

    @field_serializer("hiddens", when_used="json")
    def _written_tree(self, value: Any, info: SerializationInfo) -> Any:
        return json_form(value, tensor_values_asked(info.context))

    @field_serializer("metrics", when_used="json")
    def _written_trees(self, values: dict[str, Any], info: SerializationInfo) -> Any:
        max_values = tensor_values_asked(info.context)
        return named_forms(values, lambda value: json_form(value, max_values))

    @classmethod
    def model_json_schema(
        cls,
        by_alias: bool | None = None,
        ref_template: str = DEFAULT_REF_TEMPLATE,
        schema_generator: type[GenerateJsonSchema] = StepJsonSchema,
        mode: JsonSchemaMode = "validation",
        **options: Any,
    ) -> dict[str, Any]:
        """JSON Schema of what a step may return, or (`mode="serialization"`) of what `model_dump_json` writes."""
        return super().model_json_schema(by_alias is not False, ref_template, schema_generator, mode, **options)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Document each field by its contract."""
        fields = cls.__pydantic_fields__
        narrowed = {
            field: fields[field].default_factory is DEFAULTS.get(field)
            for field in FIELDS
            if is_narrowed(fields[field])
        }
        docs = {field: StepOutput.__pydantic_fields__[field].description for field in FIELDS}
        return with_contracts(cls, handler(schema), handler, cls._loss_form, narrowed, docs)

    @classmethod
    def listed_names(cls) -> dict[str, dict[str, bool]]:
        """The names that a schema lists, by field, and whether each is required; fields that list none are left out."""
        annotations: dict[str, Any] = {field: cls.model_fields[field].annotation for field in FIELDS}
        return {
            field: {name: name in annotation.__required_keys__ for name in names}
            for field, annotation in annotations.items()
            if (names := names_and_annotations(annotation))
        }

    @classmethod
    def reductions(cls) -> dict[str, dict[str, ReduceOp]]:
        """How the listed values are reduced over batches and ranks, by field and name.

        Names that no schema lists are reduced by the weighted mean.

        Example:
            >>> from typing_extensions import TypedDict
            >>> from strictstep.schema import Reduce, Scalar, TrainingOutput
            >>> class Log(TypedDict):
            ...     accuracy: Scalar
            ...     images: Annotated[Scalar, Reduce("sum")]
            >>> TrainingOutput[Log].reductions()
            {'log': {'accuracy': 'mean', 'images': 'sum'}}
        """
        named = {
            field: names_and_annotations(cls.model_fields[field].annotation)
            for field in ("log", "progress_bar", "metrics")
        }
        return {
            field: {name: reduction(hint) for name, hint in names.items()} for field, names in named.items() if names
        }

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """Name a parametrised model by the parameters that were written: `TrainingOutput[DigitsLog]`."""
        written = [getattr(param, "__name__", str(param)) for param in params if CHECKED not in get_args(param)]
        return f"{cls.__name__}[{', '.join(written)}]"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the defaults of narrowed fields too, and let the named dimensions of one output agree."""
        for field, default in DEFAULTS.items():
            info = cls.__pydantic_fields__[field]
            if is_narrowed(info):
                info.validate_default = True
                info.default_factory = info.default_factory or default
        schema = handler(source)
        if not any(has_shapes(info.annotation) for info in cls.__pydantic_fields__.values()):
            return schema
        return core_schema.no_info_wrap_validator_function(in_one_shape_scope, schema)

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Refuse a subclass that is less rigid than its base."""
        super().__pydantic_init_subclass__(**options)
        refuse_less_rigid(cls)
        if cls.__pydantic_complete__:
            cls._read_annotations()

    @classmethod
    def _read_annotations(cls) -> None:
        """Refuse annotations of scalars by value, and note those of numbers; once no name in them is unknown."""
        for field in ("log", "progress_bar"):
            if is_narrowed(cls.__pydantic_fields__[field]):
                refuse_unchecked_scalars(cls.__name__, field, cls.__pydantic_fields__[field].annotation)
        metrics = cls.__pydantic_fields__["metrics"].annotation
        refuse_numbers_or_tensors(cls.__name__, metrics)
        cls._metrics_with_numbers = metrics if mentions_numbers(metrics) else None

    @classmethod
    def model_rebuild(
        cls,
        *,
        force: bool = False,
        raise_errors: bool = True,
        _parent_namespace_depth: int = 2,
        _types_namespace: Mapping[str, Any] | None = None,
    ) -> bool | None:
        """Resolve names that were unknown when the class was defined; what is refused at a definition, is here too."""
        rebuilt = super().model_rebuild(
            force=force,
            raise_errors=raise_errors,
            _parent_namespace_depth=_parent_namespace_depth + 1,  # one frame for this method
            _types_namespace=_types_namespace,
        )
        if cls.__pydantic_complete__:
            cls._read_annotations()
        return rebuilt

    def __eq__(self, other: object) -> bool:
        """Same class, and the same dtypes, devices and values, NaN equal to NaN. Reads the values of tensors."""
        return type(self) is type(other) and same(self.__dict__, other.__dict__)

    def __hash__(self) -> NoReturn:
        """Refuse: equality reads tensors, and a hash of them would too."""
        raise TypeError(f"`{type(self).__name__}` holds tensors and has no hash\n  help: key by `id(output)` instead")

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """A record of the output, its loss detached: torch copies no tensor that is inside a graph."""
        record = type(self).__new__(type(self))
        record.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return record

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a parametrised model by its parameters."""
        made = type(self).__pydantic_generic_metadata__
        if made["origin"] is None:
            return super().__reduce_ex__(protocol)
        written = tuple(parameter for parameter in made["args"] if CHECKED not in get_args(parameter))
        return _blank, (made["origin"], written), self.__getstate__()

    def __getstate__(self) -> dict[Any, Any]:
        """The state for pickling: a record of the output, its loss detached."""
        state = super().__getstate__()
        return {**state, "__dict__": detached_record(state["__dict__"])}

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """The fields in a few words each, without contents of tensors."""
        return ((name, Brief(value)) for name, value in self.__dict__.items() if value is not None and value != {})


if TYPE_CHECKING:
    AnyOutput = StepOutput[Any, Any, Any, Any]
else:
    AnyOutput = StepOutput
