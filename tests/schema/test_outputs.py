"""The models themselves: frozen and closed, compared, copied, pickled, shown; and what they are worth afterwards."""

import copy
import inspect
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from strictstep.schema import (
    EvaluationOutput,
    ManualOutput,
    SkippedStep,
    StepOutput,
    StepOutputError,
    TrainingOutput,
)

MODELS: list[type[StepOutput]] = [TrainingOutput, ManualOutput, EvaluationOutput]


def named(value: Any) -> str:
    """The name of a model or function, for the id of a test."""
    return getattr(value, "__name__", str(value))


def a_loss() -> Tensor:
    """A loss that an operation of a graph made."""
    return (torch.ones(4, requires_grad=True) * 2).mean()


def full(model: Any = TrainingOutput) -> Any:
    """An output with all five fields."""
    loss = a_loss()
    return model(
        loss=loss,
        log={"acc": torch.tensor([0.5]), "n": 3},
        progress_bar=["n"],
        hiddens=(loss.view(1), None),
        metrics={"logits": torch.ones(2, 3), "names": ["a"]},
    )


# -- closed and frozen


@pytest.mark.parametrize("model", [*MODELS, StepOutput], ids=named)
def test_a_model_has_the_five_fields_and_no_more(model: type[StepOutput]) -> None:
    assert list(model.model_fields) == ["loss", "log", "progress_bar", "hiddens", "metrics"]
    with pytest.raises(StepOutputError, match="key_unknown") as caught:
        model.model_validate({"loss": a_loss(), "logs": {}})
    (problem,) = caught.value.problems
    assert (problem.path, problem.help) == ("logs", "rename it to `log`")


@pytest.mark.parametrize("model", MODELS, ids=named)
@pytest.mark.parametrize("name", ["loss", "log", "anything"], ids=named)
def test_a_model_is_frozen(model: type[StepOutput], name: str) -> None:
    output = full(model)
    with pytest.raises(AttributeError, match=rf"^`{model.__name__}` is frozen: `{name}` cannot be changed"):
        setattr(output, name, 1)
    with pytest.raises(AttributeError, match=r"is frozen"):
        delattr(output, name)


def test_a_subclass_may_keep_private_attributes() -> None:
    class Team(EvaluationOutput):
        _seen: int = 0

    output = Team()
    output._seen = 3
    assert output._seen == 3
    del output._seen


def test_defaults_are_empty_and_each_outputs_own() -> None:
    output, other = ManualOutput(), ManualOutput()
    assert (output.loss, output.log, output.progress_bar, output.hiddens, output.metrics) == (None, {}, {}, None, {})
    assert output.log is not other.log


# -- called directly: the same errors, at the user's own line


def called(loss: Any) -> Any:
    return TrainingOutput(loss=loss)


def validated(loss: Any) -> Any:
    return TrainingOutput.model_validate({"loss": loss})


def read_from_json(loss: Any) -> Any:
    return TrainingOutput.model_validate_json(json.dumps({"loss": loss}))


def read_from_strings(loss: Any) -> Any:
    return TrainingOutput.model_validate_strings({"loss": str(loss)})


@pytest.mark.parametrize("make", [called, validated, read_from_json, read_from_strings], ids=named)
def test_every_way_to_make_a_model_raises_our_error_at_the_users_line(make: Callable[[Any], Any]) -> None:
    with pytest.raises(StepOutputError, match="loss_not_tensor") as caught:
        make(0.27)
    error = caught.value
    line = inspect.getsourcelines(make)[1] + 1
    assert error.where is not None
    assert error.where.endswith(f"test_outputs.py:{line}, in `{make.__name__}`")
    assert (error.stage, error.step_name) == (None, "TrainingOutput(...)")
    assert str(error).startswith("`TrainingOutput(...)` was given invalid values (1 problem)\n  --> ")
    assert error.__cause__ is None
    assert error.__context__ is None


def test_json_gives_evaluation_outputs_and_names_what_came() -> None:
    output = EvaluationOutput.model_validate_json('{"loss": 0.5, "log": {"n": 3}}')
    assert (output.loss, output.log) == (0.5, {"n": 3})
    with pytest.raises(StepOutputError, match=r"expected the key `loss`, got the key `los`  \[loss_missing\]"):
        TrainingOutput.model_validate_json('{"los": 1}')
    with pytest.raises(StepOutputError, match=r"invalid JSON"):
        TrainingOutput.model_validate_json("{")


@pytest.mark.parametrize("value", [3, "x", [1], None], ids=repr)
def test_what_is_no_dict_of_fields_is_refused(value: Any) -> None:
    with pytest.raises(StepOutputError, match=r"expected a valid dictionary or instance of TrainingOutput, got "):
        TrainingOutput.model_validate(value)


def test_all_problems_are_gathered_in_the_order_of_the_fields() -> None:
    with pytest.raises(StepOutputError, match=r"was given invalid values \(4 problems\)") as caught:
        TrainingOutput.model_validate({"loss": 0.1, "log": {"a": "x"}, "hiddens": "x", "metrics": {1: 2}})
    assert [problem.path for problem in caught.value.problems] == ["loss", "log.a", "hiddens", "metrics"]


# -- skipped steps


def test_a_skipped_step_has_a_reason_and_may_log() -> None:
    skipped = SkippedStep(reason="no boxes", log={"boxes": 0}, hiddens=[None], metrics={"ids": [1]})
    assert (skipped.loss, skipped.reason) == (None, "no boxes")
    assert (skipped.log, skipped.hiddens, skipped.metrics) == ({"boxes": 0}, [None], {"ids": [1]})
    assert isinstance(skipped, StepOutput)


@pytest.mark.parametrize("reason", [None, 3, b"x", ["x"]], ids=repr)
def test_a_reason_is_text(reason: Any) -> None:
    with pytest.raises(StepOutputError, match=r"expected a `reason` \(str\), got .*  \[reason_not_string\]"):
        SkippedStep(reason=reason)


def test_a_skipped_step_without_a_reason_is_refused() -> None:
    with pytest.raises(StepOutputError, match=r"reason: expected a `reason` \(str\), got none  \[reason_not_string\]"):
        SkippedStep()  # type: ignore[call-arg]


# -- equality


def with_metric(value: Any) -> EvaluationOutput:
    return EvaluationOutput(metrics={"x": value})


def nested() -> Tensor:
    """A nested tensor of two rows."""
    rows: Tensor = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    return rows


NAN = float("nan")
# two values that are equal
EQUAL: dict[str, tuple[Any, Any]] = {
    "numbers": (3, 3),
    "nan": (NAN, float("nan")),
    "tensors": (torch.ones(3), torch.ones(3)),
    "nan in tensors": (torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN])),
    "meta": (torch.ones(3, device="meta"), torch.ones(3, device="meta")),
    "bool tensors": (torch.tensor([True]), torch.tensor([True])),
    "uint16": (torch.ones(2, dtype=torch.uint16), torch.ones(2, dtype=torch.uint16)),
    "float8": (torch.ones(2).to(torch.float8_e5m2), torch.ones(2).to(torch.float8_e5m2)),
    "sparse": (torch.eye(2).to_sparse(), torch.eye(2).to_sparse()),
    "nested": (nested(), nested()),
    "arrays": (np.array([1.0, NAN]), np.array([1.0, NAN])),
    "containers": ([{"a": (1, torch.ones(1))}], [{"a": (1, torch.ones(1))}]),
    "text": ("a", "a"),
}
# two values that differ in one thing
UNEQUAL: dict[str, tuple[Any, Any]] = {
    "numbers": (3, 4),
    "int and float": (3, 3.0),
    "int and bool": (1, True),
    "dtypes": (torch.ones(3), torch.ones(3, dtype=torch.float64)),
    "devices": (torch.ones(3), torch.ones(3, device="meta")),
    "values": (torch.ones(3), torch.zeros(3)),
    "tiny difference": (torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64) + 2**-52),
    "shapes": (torch.ones(3), torch.ones(1)),
    "shapes on meta": (torch.ones(3, device="meta"), torch.ones(1, device="meta")),
    "layouts": (torch.eye(2), torch.eye(2).to_sparse()),
    "nan and number": (torch.tensor([NAN]), torch.ones(1)),
    "shapes of arrays": (np.ones(3), np.ones(1)),
    "dtypes of arrays": (np.ones(3), np.ones(3, dtype=np.float32)),
    "lengths": ([1], [1, 2]),
    "kinds": ([1], (1,)),
    "keys": ({"a": 1}, {"b": 1}),
    "objects": (object(), object()),
}


@pytest.mark.parametrize("name", EQUAL)
def test_outputs_of_equal_values_are_equal(name: str) -> None:
    left, right = EQUAL[name]
    assert with_metric(left) == with_metric(right)


@pytest.mark.parametrize("name", UNEQUAL)
def test_outputs_that_differ_are_unequal(name: str) -> None:
    left, right = UNEQUAL[name]
    assert with_metric(left) != with_metric(right)
    assert with_metric(left) == with_metric(left)


def test_objects_whose_equality_raises_are_equal_to_themselves_only() -> None:
    class Raising:
        def __eq__(self, other: object) -> bool:
            raise ConnectionError("no")

    one = Raising()
    assert with_metric(one) == with_metric(one)
    assert with_metric(one) != with_metric(Raising())


def test_outputs_of_different_classes_are_unequal() -> None:
    assert ManualOutput() != EvaluationOutput()
    assert ManualOutput() != 3
    assert EvaluationOutput() == EvaluationOutput()


def test_attached_losses_are_compared_by_value() -> None:
    assert TrainingOutput(loss=a_loss()) == TrainingOutput(loss=a_loss())
    assert TrainingOutput(loss=a_loss()) != TrainingOutput(loss=a_loss() + 1)


def test_a_wide_web_of_sharing_is_compared_once() -> None:
    web: Any = [torch.ones(1)]
    for _ in range(50):
        web = [web, web]
    output = ManualOutput(hiddens=web)
    assert copy.deepcopy(output) == copy.deepcopy(output)


@pytest.mark.parametrize("model", MODELS, ids=named)
def test_a_hash_is_refused(model: type[StepOutput]) -> None:
    with pytest.raises(TypeError, match=rf"^`{model.__name__}` holds tensors and has no hash"):
        hash(full(model))


def test_what_is_valid_may_be_validated_from_a_dict_and_from_no_strings() -> None:
    loss = a_loss()
    assert TrainingOutput.model_validate({"loss": loss}).loss is loss
    assert EvaluationOutput.model_validate_strings({}) == EvaluationOutput()
