"""Every row of the coercion table of the contract, for every stage; the values of fields are tested beside this."""

import types
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import attrs
import pydantic
import pytest
import torch
from tensordict import TensorDict, tensorclass
from torch import Tensor
from transformers.utils.generic import ModelOutput
from typing_extensions import TypedDict

from strictstep.schema import (
    EvaluationOutput,
    ManualOutput,
    SkippedStep,
    StepOutput,
    StepOutputError,
    StepOutputWarning,
    TrainingOutput,
    coerce,
)

STAGES: tuple[Any, ...] = ("training", "manual", "validation", "test")
MODELS: dict[str, type[StepOutput]] = {
    "training": TrainingOutput,
    "manual": ManualOutput,
    "validation": EvaluationOutput,
    "test": EvaluationOutput,
}


def a_loss() -> Tensor:
    """A loss that an operation of a graph made."""
    return (torch.ones(4, requires_grad=True) * 2).mean()


def refused(returned: object, stage: Any = "training", **options: Any) -> list[tuple[str, str]]:
    """The codes and paths of the error that a return gives."""
    with pytest.raises(StepOutputError, match=r"returned an invalid output") as caught:
        coerce(returned, stage=stage, **options)
    return [(problem.code, problem.path) for problem in caught.value.problems]


class Row(Mapping[str, Any]):
    """A mapping that has only what `Mapping` demands: no `.copy()`."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@dataclass
class DataStep:
    loss: Tensor
    log: dict[str, Any] = field(default_factory=dict)


class NamedStep(NamedTuple):
    loss: Tensor
    log: dict[str, Any]


class TypedStep(TypedDict):
    loss: Tensor
    log: dict[str, Any]


@attrs.define
class AttrsStep:
    loss: Tensor
    log: dict[str, Any]


class PydanticStep(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True, extra="allow")
    loss: Tensor


class PlainStep:
    def __init__(self, loss: Tensor, log: dict[str, Any]) -> None:
        self.loss = loss
        self.log = log
        self._private = 3


@dataclass
class HuggingStep(ModelOutput):
    loss: Tensor | None = None
    log: Any = None


def filled(container: Any, **values: Any) -> Any:
    """A container that has no constructor from keywords."""
    container.update(values)
    return container


UntypedStep = namedtuple("UntypedStep", "loss log")  # the untyped one is a form of its own

FORMS: dict[str, Callable[[Tensor, dict[str, Any]], Any]] = {
    "dict": lambda loss, log: {"loss": loss, "log": log},
    "UserDict": lambda loss, log: UserDict(loss=loss, log=log),
    "mappingproxy": lambda loss, log: types.MappingProxyType({"loss": loss, "log": log}),
    "Mapping without copy": lambda loss, log: Row(loss=loss, log=log),
    "OrderedDict": lambda loss, log: OrderedDict(loss=loss, log=log),
    "defaultdict": lambda loss, log: filled(defaultdict(list), loss=loss, log=log),
    "TypedDict": lambda loss, log: TypedStep(loss=loss, log=log),
    "ModelOutput": lambda loss, log: HuggingStep(loss=loss, log=log),
    "dataclass": DataStep,
    "namedtuple": UntypedStep,
    "NamedTuple": NamedStep,
    "attrs": AttrsStep,
    "pydantic": lambda loss, log: PydanticStep.model_validate({"loss": loss, "log": log}),
    "SimpleNamespace": lambda loss, log: types.SimpleNamespace(loss=loss, log=log),
    "plain object": PlainStep,
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("form", FORMS)
def test_a_form_by_name_is_read_by_name(form: str, stage: Any) -> None:
    loss, log = a_loss(), {"acc": 0.5}
    output = coerce(FORMS[form](loss, log), stage=stage)
    assert type(output) is MODELS[stage]
    assert output.log == {"acc": 0.5}
    assert output.log is not log
    assert isinstance(output.loss, Tensor)
    assert (output.loss is loss) == (stage == "training")
    assert output.loss.requires_grad == (stage == "training")
    assert output.loss.data_ptr() == loss.data_ptr()


@pytest.mark.parametrize("stage", STAGES)
def test_a_tensordict_is_read_by_name(stage: Any) -> None:
    loss = a_loss()
    output = coerce(TensorDict({"loss": loss, "log": TensorDict({"acc": torch.tensor(0.5)})}), stage=stage)
    assert isinstance(output.loss, Tensor)
    assert output.loss.data_ptr() == loss.data_ptr()
    assert output.log == {"acc": torch.tensor(0.5)}


def test_a_tensorclass_is_read_by_name() -> None:
    @tensorclass
    class ClassStep:
        loss: Tensor

    loss = a_loss()
    output = coerce(ClassStep(loss=loss, batch_size=[]))  # type: ignore[call-arg]
    assert isinstance(output.loss, Tensor)
    assert output.loss.data_ptr() == loss.data_ptr()
    assert output.loss.grad_fn is not None


@pytest.mark.parametrize("stage", STAGES)
def test_a_one_element_tensor_is_the_loss(stage: Any) -> None:
    loss = a_loss()
    output = coerce(loss, stage=stage)
    assert type(output) is MODELS[stage]
    assert isinstance(output.loss, Tensor)
    assert (output.loss is loss) == (stage == "training")
    assert output.loss.requires_grad == (stage == "training")


@pytest.mark.parametrize("stage", STAGES)
def test_another_tensor_is_an_error_at_loss(stage: Any) -> None:
    with pytest.raises(StepOutputError, match="loss_not_scalar") as caught:
        coerce(torch.ones(8, requires_grad=True) * 2, stage=stage)
    (problem,) = caught.value.problems
    assert problem.path == "loss"
    assert ("put values of another shape in `metrics`" in problem.help) == (stage != "training")


@pytest.mark.parametrize("stage", STAGES)
def test_an_output_of_the_stage_is_itself(stage: Any) -> None:
    output = MODELS[stage](loss=a_loss(), log={"acc": 1})
    assert coerce(output, stage=stage) is output


@pytest.mark.parametrize("stage", STAGES)
def test_a_skipped_step_is_itself(stage: Any) -> None:
    skipped = SkippedStep(reason="no boxes", log={"boxes": 0})
    assert coerce(skipped, stage=stage, on_none="error") is skipped


@pytest.mark.parametrize(
    ("output", "stage"),
    [
        (EvaluationOutput(loss=0.1), "training"),
        (ManualOutput(), "training"),
        (ManualOutput(), "validation"),
        (EvaluationOutput(), "manual"),
        (TrainingOutput(loss=a_loss()), "test"),
        (StepOutput(), "validation"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_output_of_another_stage_is_refused(output: StepOutput, stage: Any) -> None:
    assert refused(output, stage) == [("wrong_stage", "")]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("form", ["dict", "dataclass"])
def test_names_beyond_the_five_move_to_metrics_with_a_warning(stage: Any, form: str) -> None:
    @dataclass
    class Wide:
        loss: Tensor
        acc: float
        metrics: dict[str, Any]

    def step() -> None: ...

    values: dict[str, Any] = {"loss": a_loss(), "acc": 0.5, "metrics": {"own": 1}}
    returned = values if form == "dict" else Wide(**values)
    with pytest.warns(StepOutputWarning, match=r"^step `step` returned a name that is none of the five fields, moved"):
        output = coerce(returned, stage=stage, step=step)
    assert output.metrics == {"own": 1, "acc": 0.5}
    assert values["metrics"] == {"own": 1}
    assert refused(returned, stage, strict=True) == [("key_unknown", "acc")]


@pytest.mark.parametrize("stage", STAGES)
def test_a_name_both_beyond_the_five_and_in_metrics_is_an_error(stage: Any) -> None:
    returned = {"loss": a_loss(), "acc": 1, "metrics": {"acc": 2}}
    assert refused(returned, stage) == [("key_twice", "metrics.acc")]


@pytest.mark.parametrize("returned", [{}, {"log": {"a": 1}}, {"hiddens": None}], ids=["empty", "log", "hiddens"])
def test_no_loss_key_is_an_error_in_training_only(returned: dict[str, Any]) -> None:
    assert refused(returned) == [("loss_missing", "loss")]
    for stage in STAGES[1:]:
        assert coerce(returned, stage=stage).loss is None


def test_loss_none_is_an_error_in_training_only_and_keeps_the_other_fields() -> None:
    returned = {"loss": None, "log": {"a": 1}}
    assert refused(returned) == [("loss_none", "loss")]
    for stage in STAGES[1:]:
        output = coerce(returned, stage=stage)
        assert (output.loss, output.log) == (None, {"a": 1})


def test_none_in_training_is_a_skip_and_one_warning() -> None:
    def step() -> None: ...

    asked = r"was a `return` forgotten\? \(an error with `on_none='error'`\)"
    with pytest.warns(StepOutputWarning, match=rf"^step `step` returned None, .*: {asked}$"):
        output = coerce(None, step=step)
    assert output == SkippedStep(reason="returned None")
    coerce(None, step=step)  # no second warning, which would be an error here
    assert refused(None, on_none="error") == [("returned_none", "")]


@pytest.mark.parametrize("on_none", ["skip", "error"])
@pytest.mark.parametrize("stage", STAGES[1:])
def test_none_in_other_stages_is_an_empty_output(stage: Any, on_none: Any) -> None:
    assert coerce(None, stage=stage, on_none=on_none) == MODELS[stage]()
