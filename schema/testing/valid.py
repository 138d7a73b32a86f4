"""A hypothesis strategy for what a step may return."""

from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from strictstep.schema.base import AnyOutput
from strictstep.schema.coerce import coerce
from strictstep.schema.errors import Stage, StepOutputError
from strictstep.schema.narrowing import CHECKED
from strictstep.schema.outputs import SkippedStep
from strictstep.schema.stages import MODELS, model_of
from strictstep.schema.testing.drawn import NAMES, Draw, Sizes, losses, scalars, trees, value

FREE: dict[str, SearchStrategy[Any]] = {
    "log": st.dictionaries(NAMES, scalars(), max_size=3),
    "progress_bar": st.dictionaries(NAMES, scalars(), max_size=3),
    "hiddens": trees(),
    "metrics": st.dictionaries(NAMES, scalars() | trees() | st.text(), max_size=3),
}


def valid_returns(
    schema: type[AnyOutput] | None = None, *, stage: Stage | None = None, **fields: SearchStrategy[Any]
) -> SearchStrategy[Any]:
    """Returns that the check accepts without a warning: a bare loss, mappings, objects, models, a `SkippedStep`.

    Args:
        schema: a model of your own; its listed names, shapes and bounds are kept to.
        stage: by default the one that `schema` is for, else `"training"`.
        **fields: strategies of your own for single fields, for what a validator of the schema demands besides.

    Raises:
        TypeError: if `schema` is no output model, or a field is none of the five.
        ValueError: if `stage` is unknown, or `schema` is of another stage.

    Example:
        >>> from hypothesis import given
        >>> from strictstep.schema import EvaluationOutput
        >>> @given(valid_returns(EvaluationOutput))
        ... def test_every_output_is_reported(returned): ...
    """
    stage = stage_of(schema, stage)
    model = model_of(stage, schema)
    refuse_unknown(fields)
    whole = st.builds(
        lambda drawn, form: form(model, drawn), valid_fields(model, stage, fields), st.sampled_from(_FORMS)
    )
    others = st.builds(SkippedStep, reason=st.text()) if stage == "training" else st.none()
    return st.one_of(whole, whole, whole, others).filter(lambda returned: is_accepted(returned, model, stage))


def stage_of(schema: type[AnyOutput] | None, stage: Stage | None) -> Stage:
    """The stage that was asked for, else that of the schema, else training."""
    if stage is not None or not isinstance(schema, type):
        return stage or "training"
    stages: Any = [name for name, model in MODELS.items() if issubclass(schema, model)]
    return stages[0] if stages else "training"


def is_accepted(returned: object, model: type[AnyOutput], stage: Stage) -> bool:
    """Tell whether the check lets a return pass."""
    try:
        coerce(returned, schema=model, stage=stage)
    except StepOutputError:
        return False
    return True


def is_free(model: type[AnyOutput], field: str) -> bool:
    """Tell whether a model leaves a field as its base has it."""
    info = model.model_fields[field]
    return CHECKED in info.metadata or isinstance(info.annotation, TypeVar)


@st.composite
def valid_fields(
    draw: Draw, model: type[AnyOutput], stage: Stage, own: dict[str, SearchStrategy[Any]]
) -> dict[str, Any]:
    """The fields of a valid return, by name; free ones may be left out."""
    sizes: Sizes = {}
    fields = {"loss": draw(own.get("loss", losses(stage)))}
    for field, free in FREE.items():
        if field in own:
            fields[field] = draw(own[field])
        elif not is_free(model, field):
            fields[field] = value(draw, model.model_fields[field].annotation, sizes)
        elif draw(st.booleans()):
            fields[field] = draw(free)
    return fields


def refuse_unknown(own: dict[str, SearchStrategy[Any]]) -> None:
    """Refuse strategies for what is none of the five fields.

    Raises:
        TypeError: naming the first of them.
    """
    unknown = sorted(own.keys() - {"loss", *FREE})
    if unknown:
        raise TypeError(f"expected strategies for the five fields, got `{unknown[0]}`")


def _bare_loss(model: type[AnyOutput], fields: dict[str, Any]) -> Any:
    return fields["loss"] if isinstance(fields["loss"], Tensor) else fields


_FORMS: tuple[Callable[[type[AnyOutput], dict[str, Any]], Any], ...] = (
    lambda model, fields: fields,
    lambda model, fields: OrderedDict(fields),
    lambda model, fields: UserDict(fields),
    lambda model, fields: MappingProxyType(fields),
    lambda model, fields: SimpleNamespace(**fields),
    lambda model, fields: namedtuple("Step", fields)(**fields),
    lambda model, fields: model(**fields),
    _bare_loss,
)
