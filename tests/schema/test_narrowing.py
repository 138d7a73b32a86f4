"""A team's own models: names and shapes that a schema lists, reductions, and what is refused at the definition."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NotRequired, Optional, Required

import annotated_types
import pytest
import torch
from pydantic import ConfigDict, Field
from torch import Tensor
from typing_extensions import TypedDict

from strictstep.schema import (
    EvaluationOutput,
    Hiddens,
    Loss,
    ManualOutput,
    Reduce,
    Scalar,
    StepOutputError,
    TrainingOutput,
    coerce,
)


class Log(TypedDict):
    accuracy: Scalar
    images: Annotated[Scalar, Reduce("sum")]
    lr: NotRequired[Annotated[Scalar, Reduce("last")]]


class Bar(TypedDict, total=False):
    accuracy: Scalar


class Numbers(TypedDict, total=False):
    share: float
    count: Annotated[int, annotated_types.Ge(0)]
    flag: bool
    worst: Annotated[float, Reduce("max")]
    anything: Any


class ByOverride(TrainingOutput):
    """A class override instead of type parameters."""

    log: Log  # type: ignore[assignment]


class Derived(TrainingOutput[Log, Numbers, Any, Bar]):
    """All four type parameters, in the documented order: log, metrics, hiddens, progress_bar."""


def a_loss() -> Tensor:
    """A loss that an operation of a graph made."""
    return (torch.ones(4, requires_grad=True) * 2).mean()


def make_typed_dict(annotation: Any) -> Any:
    """A TypedDict of the name `x`; made in a way that type checkers do not follow."""
    make: Any = TypedDict
    return make("typed_dict", {"x": annotation})


def problems_of(schema: Any, **fields: Any) -> list[tuple[str, str]]:
    """Codes and paths of what is wrong with an output of a schema."""
    stage: Any = "training" if issubclass(schema, TrainingOutput) else "test"
    with pytest.raises(StepOutputError, match=r"returned an invalid output") as caught:
        coerce({"loss": a_loss(), **fields}, schema=schema, stage=stage)
    return [(problem.code, problem.path) for problem in caught.value.problems]


NARROWED: dict[str, Any] = {"parameter": TrainingOutput[Log], "override": ByOverride, "all four": Derived}
spellings = pytest.mark.parametrize("schema", NARROWED.values(), ids=NARROWED.keys())


@spellings
def test_the_listed_names_are_required(schema: Any) -> None:
    output = coerce({"loss": a_loss(), "log": {"images": 8, "accuracy": torch.tensor([0.5])}}, schema=schema)
    assert type(output) is schema
    assert output.log["images"] == 8
    assert output.log["accuracy"].shape == ()
    full = {"images": 8, "accuracy": 0.5, "lr": 0.1}
    assert coerce({"loss": a_loss(), "log": full}, schema=schema).log == full


@spellings
def test_missing_and_unknown_names_are_named(schema: Any) -> None:
    with pytest.raises(StepOutputError, match="key_missing") as caught:
        coerce({"loss": a_loss(), "log": {"acuracy": 0.5, "images": 8, "zzz": 1}}, schema=schema)
    assert [(problem.code, problem.path, problem.message, problem.help) for problem in caught.value.problems] == [
        (
            "key_missing",
            "log.accuracy",
            "expected the name `accuracy`, got `acuracy`, `images`, `zzz`",
            "rename `acuracy` to `accuracy`",
        ),
        (
            "key_unknown",
            "log.acuracy",
            "expected one of the names that the schema lists (`accuracy`, `images`, `lr`), got `acuracy`",
            "rename it to `accuracy`",
        ),
        (
            "key_unknown",
            "log.zzz",
            "expected one of the names that the schema lists (`accuracy`, `images`, `lr`), got `zzz`",
            "add it to the schema, or leave it out",
        ),
    ]


@spellings
def test_a_log_that_is_left_out_lacks_its_names(schema: Any) -> None:
    assert problems_of(schema) == [("key_missing", "log.accuracy"), ("key_missing", "log.images")]
    with pytest.raises(StepOutputError, match="key_missing") as caught:
        schema(loss=a_loss())
    assert caught.value.problems[0].message == "expected the name `accuracy`, got no names"
    assert caught.value.problems[0].help == "the schema requires it: add `accuracy`, or make it `NotRequired`"


@spellings
def test_values_of_listed_names_are_checked_as_all_scalars(schema: Any) -> None:
    assert problems_of(schema, log={"accuracy": "x", "images": torch.ones(2)}) == [
        ("scalar_wrong_type", "log.accuracy"),
        ("scalar_not_single", "log.images"),
    ]


def test_the_progress_bar_is_narrowed_too() -> None:
    log = {"accuracy": 0.5, "images": 8}
    assert coerce({"loss": a_loss(), "log": log, "progress_bar": ["accuracy"]}, schema=Derived).progress_bar == {
        "accuracy": 0.5
    }
    assert problems_of(Derived, log=log, progress_bar=["images"]) == [("key_unknown", "progress_bar.images")]


def test_an_output_of_the_stages_model_is_checked_against_the_schema() -> None:
    loss = a_loss()
    plain = TrainingOutput(loss=loss, log={"accuracy": 1, "images": 2})
    narrowed = coerce(plain, schema=ByOverride)
    assert type(narrowed) is ByOverride
    assert narrowed.loss is loss
    with pytest.raises(StepOutputError, match="key_missing"):
        coerce(TrainingOutput(loss=a_loss()), schema=ByOverride)


def test_names_beyond_the_five_must_be_listed_in_narrowed_metrics() -> None:
    assert problems_of(Derived, log={"accuracy": 1, "images": 2}, other=3) == [("key_unknown", "metrics.other")]


def test_an_inner_typed_dict_lists_its_own_names() -> None:
    class Inner(TypedDict):
        a: int

    class Outer(TypedDict):
        inner: Inner

    with pytest.raises(StepOutputError, match="key_unknown") as caught:
        coerce({"metrics": {"inner": {"a": 1, "b": 2}}}, schema=EvaluationOutput[Any, Outer], stage="test")
    (problem,) = caught.value.problems
    assert problem.path == "metrics.inner.b"
    assert problem.message == "expected one of the names that the schema lists, got `b`"


# -- reductions


def test_reductions_are_told_by_field_and_name() -> None:
    assert Derived.reductions() == {
        "log": {"accuracy": "mean", "images": "sum", "lr": "last"},
        "progress_bar": {"accuracy": "mean"},
        "metrics": {"share": "mean", "count": "mean", "flag": "mean", "worst": "max", "anything": "mean"},
    }
    assert TrainingOutput.reductions() == {}
    assert ByOverride.reductions() == {"log": {"accuracy": "mean", "images": "sum", "lr": "last"}}


def test_an_unknown_reduction_is_refused_where_it_is_written() -> None:
    assert Reduce().op == "mean"
    with pytest.raises(ValueError, match=r"^expected one of mean, sum, min, max, last as reduction, got 'median'$"):
        Reduce("median")  # type: ignore[arg-type]


# -- what is refused at the definition

# annotations by which pydantic would read a tensor's value
BY_VALUE: dict[str, Any] = {
    "float": float,
    "int": int,
    "bool": bool,
    "optional float": Optional[float],  # noqa: UP045  # the older spelling, which users write too
    "bounds": Annotated[Scalar, Field(gt=0)],
    "bounds on float": Annotated[float, Field(ge=0, le=1)],
    "annotated-types": Annotated[Scalar, annotated_types.Gt(0)],
    "str": str,
    "required float": Required[float],
    "a reduction without `Reduce`": Annotated[Scalar, "sum"],
    "another name": Annotated[Scalar, Field(alias="y")],
}


@pytest.mark.parametrize("name", BY_VALUE)
@pytest.mark.parametrize("field", ["log", "progress_bar"])
def test_annotations_by_value_are_refused_at_the_definition(name: str, field: str) -> None:
    typed_dict: Any = make_typed_dict(BY_VALUE[name])
    with pytest.raises(TypeError, match=rf"^Team: expected `Scalar` for `{field}.x`, got .*\n  help: write `Scalar`"):
        type("Team", (TrainingOutput,), {"__annotations__": {field: typed_dict}})


@pytest.mark.parametrize("annotation", [dict[str, float], Mapping[str, int], float], ids=str)
def test_mappings_of_numbers_are_refused_too(annotation: Any) -> None:
    with pytest.raises(TypeError, match=r"expected `Scalar` for `log\.\*`"):
        type("Team", (EvaluationOutput,), {"__annotations__": {"log": annotation}})


# annotations that say no more than a scalar
FINE: dict[str, Any] = {
    "scalar": Scalar,
    "reduced": Annotated[Scalar, Reduce("min")],
    "described": Annotated[Scalar, Field(description="share of right answers")],
    "documented": Annotated[Scalar, "a note"],
    "tensor": Tensor,
    "any": Any,
}


@pytest.mark.parametrize("name", FINE)
def test_annotations_that_read_no_value_are_accepted(name: str) -> None:
    typed_dict: Any = make_typed_dict(FINE[name])
    team: Any = type("Team", (EvaluationOutput,), {"__annotations__": {"log": typed_dict}})
    assert team(log={"x": torch.ones(1)}).log == {"x": torch.ones(())}


def more_fields() -> None:
    class Team(TrainingOutput):
        accuracy: Scalar


def more_extras() -> None:
    class Team(TrainingOutput):
        model_config = ConfigDict(extra="allow")


def not_frozen() -> None:
    class Team(ManualOutput):
        model_config = ConfigDict(frozen=False)


def not_strict() -> None:
    class Team(EvaluationOutput):
        model_config = ConfigDict(strict=False)


def no_loss_required() -> None:
    class Team(TrainingOutput):
        loss: Tensor | None = None  # type: ignore[assignment]


def upper_case() -> None:
    class Team(EvaluationOutput):
        model_config = ConfigDict(alias_generator=str.upper)


def another_name() -> None:
    class Team(TrainingOutput):
        loss: Loss = Field(alias="total")


def another_name_to_read() -> None:
    class Team(TrainingOutput):
        hiddens: Hiddens = Field(None, validation_alias="state")


def another_name_to_write() -> None:
    class Team(TrainingOutput):
        log: Annotated[Log, Field(serialization_alias="logs")]  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (more_fields, "expected no fields but the five, got `accuracy`"),
        (more_extras, "expected the configuration of its base, got another `extra`"),
        (not_frozen, "expected the configuration of its base, got another `frozen`"),
        (not_strict, "expected the configuration of its base, got another `strict`"),
        (upper_case, "expected the configuration of its base, got another `alias_generator`"),
        (another_name, "expected the fields under their own names, got an alias for `loss`"),
        (another_name_to_read, "expected the fields under their own names, got an alias for `hiddens`"),
        (another_name_to_write, "expected the fields under their own names, got an alias for `log`"),
        (no_loss_required, "expected a required `loss` as in its base, got a default for it"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_less_rigid_model_is_refused_at_the_definition(define: Callable[[], None], message: str) -> None:
    with pytest.raises(TypeError, match=rf"^`Team`: {message}\n  help: "):
        define()


def test_the_annotated_types_stand_in_a_class_too() -> None:
    class Team(TrainingOutput):
        loss: Loss
        hiddens: Hiddens = None

    loss = a_loss()
    assert Team(loss=loss, hiddens=[None]).loss is loss
    assert problems_of(Team, hiddens="x") == [("hiddens_not_tensor", "hiddens")]
    assert problems_of(Team, loss=0.5) == [("loss_not_tensor", "loss")]


def test_wrong_names_are_reported_beside_a_wrong_value_of_the_same_field() -> None:
    class Log(TypedDict):
        accuracy: Scalar
        images: Scalar
        note: NotRequired[Scalar]

    loss = torch.ones((), requires_grad=True) * 2
    with pytest.raises(StepOutputError) as caught:
        coerce({"loss": loss, "log": {"acuracy": 0.5, "images": [1]}}, schema=TrainingOutput[Log])
    assert {(problem.code, problem.path) for problem in caught.value.problems} == {
        ("scalar_wrong_type", "log.images"),
        ("key_unknown", "log.acuracy"),
        ("key_missing", "log.accuracy"),
    }
