"""A team's own checks, and schemas that `coerce` cannot use."""

from typing import Any

import pydantic
import pytest
import torch
from pydantic import field_validator
from pydantic_core import PydanticCustomError
from torch import Tensor
from typing_extensions import TypedDict

from strictstep.schema import (
    EvaluationOutput,
    Scalar,
    SkippedStep,
    StepOutput,
    StepOutputError,
    TrainingOutput,
    coerce,
)


def a_loss() -> Tensor:
    """A loss that an operation of a graph made."""
    return (torch.ones(4, requires_grad=True) * 2).mean()


class OwnCheck(EvaluationOutput):
    """A team's own rules."""

    @field_validator("metrics")
    @classmethod
    def _check_score(cls, metrics: dict[str, Any]) -> dict[str, Any]:
        if metrics.get("score") == "value":
            raise ValueError("the score is no score")
        assert metrics.get("score") != "assertion", "score must not be so"
        if metrics.get("score") == "custom":
            raise PydanticCustomError("score", "the score {what}", {"what": "is odd"})
        if metrics.get("score") == "ours":  # a code of ours without what our faults carry
            raise PydanticCustomError("loss_none", "not this one")
        if metrics.get("score") == "bug":
            raise ConnectionError("no server")
        return metrics


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ("value", "the score is no score"),
        ("assertion", "score must not be so"),
        ("custom", "the score is odd"),
        ("ours", "not this one"),
    ],
)
def test_an_own_check_that_refuses_is_a_problem_of_its_own(score: str, message: str) -> None:
    with pytest.raises(StepOutputError, match="own_check_failed") as caught:
        coerce({"metrics": {"score": score}}, schema=OwnCheck, stage="validation")
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("own_check_failed", "metrics")
    assert problem.message.split("\n")[0] == message
    assert problem.help == "the check is the schema's own: see its validators"


def test_an_own_check_that_breaks_propagates() -> None:
    for returned in ({"metrics": {"score": "bug"}}, EvaluationOutput(metrics={"score": "bug"})):
        with pytest.raises(ConnectionError, match=r"^no server$"):
            coerce(returned, schema=OwnCheck, stage="validation")
    with pytest.raises(ConnectionError, match=r"^no server$"):
        OwnCheck(metrics={"score": "bug"})


# -- arguments of `coerce`


def test_a_schema_of_another_stage_is_a_value_error() -> None:
    with pytest.raises(
        ValueError, match=r"^expected a subclass of `TrainingOutput` for the stage 'training', got `Own"
    ):
        coerce(None, schema=OwnCheck)
    with pytest.raises(ValueError, match=r"help: derive it from `TrainingOutput`$"):
        coerce(None, schema=StepOutput)


@pytest.mark.parametrize("schema", [dict, 3, "TrainingOutput", pydantic.BaseModel, EvaluationOutput()], ids=str)
def test_what_is_no_output_model_is_a_type_error(schema: Any) -> None:
    with pytest.raises(TypeError, match=r"^expected a subclass of `TrainingOutput` as `schema`, got "):
        coerce(None, schema=schema)


def test_unknown_options_are_value_errors() -> None:
    with pytest.raises(ValueError, match=r"^expected a stage \(training, manual, .*, got str 'train'$"):
        coerce(None, stage="train")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"got str 'Validation'\n  help: write 'validation'$"):
        coerce(None, stage="Validation")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"^expected a stage .*, got int 3$"):
        coerce(None, stage=3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"^expected 'skip' or 'error' as `on_none`, got str 'warn'$"):
        coerce(None, on_none="warn")  # type: ignore[call-overload]


class Unresolved(TrainingOutput):
    """An annotation that nothing defines."""

    log: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


class Early(TrainingOutput):
    """An annotation that is defined below."""

    log: "Late"  # type: ignore[assignment]


class EarlyAndWrong(TrainingOutput):
    """An annotation that is defined below, and reads values."""

    log: "LateAndWrong"  # type: ignore[assignment]


class Late(TypedDict):
    acc: Scalar


class LateAndWrong(TypedDict):
    acc: float


def test_an_unresolved_schema_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"whose annotations can be resolved, got `Unresolved` with an unknown name"):
        coerce(None, schema=Unresolved)


def test_an_annotation_that_is_defined_later_narrows_as_any_other() -> None:
    output = coerce({"loss": a_loss(), "log": {"acc": 1}}, schema=Early)
    assert output.log == {"acc": 1}
    with pytest.raises(StepOutputError, match="key_missing"):
        coerce(a_loss(), schema=Early)
    with pytest.raises(TypeError, match=r"^EarlyAndWrong: expected `Scalar` for `log.acc`"):
        coerce(a_loss(), schema=EarlyAndWrong)


@pytest.mark.parametrize(
    ("model", "placed", "field"), [(SkippedStep, ("no boxes",), "reason"), (TrainingOutput, (1,), "loss")]
)
def test_fields_by_place_are_refused(model: Any, placed: Any, field: str) -> None:
    name = model.__name__
    with pytest.raises(TypeError) as caught:
        model(*placed)
    assert str(caught.value) == (
        f"expected the fields of `{name}` by name, got 1 by place\n  help: write `{name}({field}=...)`"
    )
