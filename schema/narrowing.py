"""What a team's own model may narrow, and what it may not: type parameters, defaults, and the refusals."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo
from typing_extensions import TypeVar

from strictstep.schema.describe import names_text
from strictstep.schema.fields import Checked, has_alias
from strictstep.schema.missing import FIELDS
from strictstep.schema.scalars import ScalarValue

CHECKED = Checked()  # the field's own check has run before: the annotation adds nothing

LogT = TypeVar(
    "LogT",
    bound=Mapping[str, object],
    default=Annotated[Mapping[str, ScalarValue], CHECKED],
    covariant=True,
)
MetricsT = TypeVar(
    "MetricsT",
    bound=Mapping[str, object],
    default=Annotated[Mapping[str, Any], CHECKED],
    covariant=True,
)
HiddensT = TypeVar("HiddensT", default=Annotated[Any, CHECKED], covariant=True)
BarT = TypeVar(
    "BarT",
    bound=Mapping[str, object],
    default=Annotated[Mapping[str, ScalarValue], CHECKED],
    covariant=True,
)


NO_HIDDENS: Any = None  # typed so that it may be the default of a type parameter
NO_NAMES: Any = dict


DEFAULTS: dict[str, Callable[[], Any]] = {
    "log": NO_NAMES,
    "progress_bar": NO_NAMES,
    "hiddens": type(None),
    "metrics": NO_NAMES,
}


def is_narrowed(info: FieldInfo) -> bool:
    """Tell whether a field's annotation says more than the base's."""
    extras = (*info.metadata, *get_args(info.annotation))  # before pydantic 2.12, a parameter's own stay inside it
    return CHECKED not in extras and not isinstance(info.annotation, TypeVar)


def _requires_loss(model: type) -> bool:
    fields: dict[str, FieldInfo] = getattr(model, "__pydantic_fields__", {})
    return "loss" in fields and fields["loss"].is_required()


RIGID: ConfigDict = {"extra": "forbid", "frozen": True, "strict": True}


def refuse_less_rigid(model: type[BaseModel]) -> None:
    """Refuse a model that adds or renames fields, accepts more than its base, or makes a required loss optional.

    Raises:
        TypeError: naming what is less rigid.
    """
    added = model.__pydantic_fields__.keys() - {*FIELDS, "reason"}
    if added:
        raise TypeError(
            f"`{model.__name__}`: expected no fields but the five, got {names_text(sorted(added))}\n"
            "  help: list names of your own in a TypedDict for `log` or `metrics`"
        )
    kept = ("extra", "frozen", "strict", "alias_generator")
    loosened = [key for key in kept if model.model_config.get(key) != RIGID.get(key)]
    if loosened:
        raise TypeError(
            f"`{model.__name__}`: expected the configuration of its base, got another {names_text(loosened)}\n"
            "  help: leave `extra`, `frozen`, `strict` and `alias_generator` as they are"
        )
    renamed = [name for name, info in model.__pydantic_fields__.items() if has_alias(info)]
    if renamed:
        raise TypeError(
            f"`{model.__name__}`: expected the fields under their own names, got an alias for {names_text(renamed)}\n"
            "  help: leave the alias out: a step returns the five fields by their names"
        )
    if any(map(_requires_loss, model.__mro__)) and not _requires_loss(model):
        raise TypeError(
            f"`{model.__name__}`: expected a required `loss` as in its base, got a default for it\n"
            "  help: for a batch without a loss, return `SkippedStep(reason=...)`"
        )


def in_one_shape_scope(value: Any, validate: Callable[[Any], Any]) -> Any:
    """Let dimensions of one name agree within one output, and be forgotten after it."""
    import jaxtyping

    with jaxtyping.jaxtyped("context"):
        return validate(value)
