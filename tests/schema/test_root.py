"""What is refused at the root, each by its name and with a help of its own; and the seven formats of manual steps."""

import functools
import gc
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typing_extensions import TypedDict

from strictstep.schema import (
    ManualOutput,
    Scalar,
    SkippedStep,
    StepOutputError,
    StepOutputWarning,
    TrainingOutput,
    coerce,
)

STAGES: tuple[Any, ...] = ("training", "manual", "validation", "test")
ROOT = "expected a tensor, a mapping, an output model or None, got "


def a_loss() -> Tensor:
    """A loss that an operation of a graph made."""
    return (torch.ones(4, requires_grad=True) * 2).mean()


def a_generator() -> Iterator[int]:
    yield 1


async def a_coroutine() -> int:
    return 1


# what arrived: (value, how the message names it, a part of its own help)
ODD: dict[str, tuple[Callable[[], Any], str, str]] = {
    "str": (lambda: "0.3", "str '0.3'", "text is never parsed"),
    "array": (lambda: np.zeros(3), "float64[3] array", "without `.numpy()`"),
    "list": (lambda: [1, 2], "list[int, int]", "positions are not guessed"),
    "tuple": (lambda: (a_loss(), {"acc": 1}), "tuple[Tensor, dict]", '`{"loss": loss, "log": {...}}`'),
    "tuple with logits": (lambda: (a_loss(), torch.ones(2)), "tuple[Tensor, Tensor]", '"metrics": {"logits": logits}'),
    "tuple with acc": (lambda: (a_loss(), 0.5), "tuple[Tensor, float]", '"log": {"acc": acc}'),
    "set": (lambda: {1}, "set of length 1", "a set has no names"),
    "frozenset": (lambda: frozenset({1}), "frozenset of length 1", "a set has no names"),
    "generator": (a_generator, "generator", "replace `yield` by `return`"),
    "coroutine": (a_coroutine, "coroutine", "replace `async def` by `def`"),
    "class": (lambda: Tensor, "class 'Tensor'", "return an instance"),
    "function": (lambda: a_loss, "function 'a_loss'", "call it"),
    "bound method": (lambda: [].append, "function_or_method 'append'", "call it"),
    "module": (lambda: sys, "module 'sys'", "that is the module"),
    "nn.Module": (lambda: nn.Linear(1, 1), "Linear object", "that is the model"),
    "object without loss": (lambda: types.SimpleNamespace(log=1), "SimpleNamespace object", "return the loss tensor"),
    "slots": (object, "object object", "return the loss tensor"),
    "bytes": (lambda: b"x", "bytes of length 1", "return the loss tensor"),
    "complex": (lambda: 1j, "complex 0+1j", "without `.item()`"),
}
NUMBERS = {"float": 0.25, "int": 3, "bool": True, "numpy": np.float32(0.25)}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", ODD)
def test_anything_else_is_an_error_at_the_root_with_a_help_of_its_own(name: str, stage: Any) -> None:
    make, got, help = ODD[name]
    with pytest.raises(StepOutputError, match="wrong_return_type") as caught:
        coerce(make(), stage=stage)
    (problem,) = caught.value.problems
    number = "a number, " if stage in ("validation", "test") else ""
    assert problem.message == f"{ROOT.replace('a mapping', number + 'a mapping')}{got}"
    assert help in problem.help
    assert problem.path == ""


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_the_loss_in_evaluation_only(name: str) -> None:
    number = NUMBERS[name]
    for stage in STAGES[:2]:
        with pytest.raises(StepOutputError, match="wrong_return_type") as caught:
            coerce(number, stage=stage)
        assert [problem.path for problem in caught.value.problems] == [""]
    for stage in STAGES[2:]:
        loss = coerce(number, stage=stage).loss
        assert type(loss) is type(number) if name != "numpy" else type(loss) is float
        assert loss == number


def test_a_coroutine_is_closed() -> None:
    returned = a_coroutine()
    with pytest.raises(StepOutputError, match="wrong_return_type"):
        coerce(returned)
    assert inspect.getcoroutinestate(returned) == inspect.CORO_CLOSED
    del returned
    gc.collect()  # "never awaited" would be an error here


# the formats that steps of manual optimization return: (returned, loss, hiddens, metrics)
MANUAL: dict[str, tuple[Callable[[Tensor], Any], bool, Any, dict[str, Any]]] = {
    "None": (lambda t: None, False, None, {}),
    "a tensor": (lambda t: t, True, None, {}),
    "loss": (lambda t: {"loss": t}, True, None, {}),
    "loss and anything": (lambda t: {"loss": t, "anything": 3}, True, None, {"anything": 3}),
    "loss None and anything": (lambda t: {"loss": None, "anything": 3}, False, None, {"anything": 3}),
    "loss and hiddens": (lambda t: {"loss": t, "hiddens": [None]}, True, [None], {}),
    "loss None and hiddens": (lambda t: {"loss": None, "hiddens": [None]}, False, [None], {}),
}


@pytest.mark.parametrize("name", MANUAL)
def test_the_seven_manual_formats_work(name: str) -> None:
    def step() -> None: ...

    make, has_loss, hiddens, metrics = MANUAL[name]
    loss = a_loss()
    if metrics:
        with pytest.warns(StepOutputWarning, match="`anything`"):
            output = coerce(make(loss), stage="manual", step=step)
    else:
        output = coerce(make(loss), stage="manual", step=step)
    assert type(output) is ManualOutput
    assert (output.hiddens, output.metrics) == (hiddens, metrics)
    assert (output.loss is not None) == has_loss
    if output.loss is not None:
        assert output.loss.data_ptr() == loss.data_ptr()
        assert not output.loss.requires_grad


class Liar:
    """An object that says it is a dict."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return dict

    def keys(self) -> list[str]:
        return ["loss"]


class RaisingDim(Tensor):
    """A tensor that does not tell its dimensions."""

    def dim(self) -> int:
        raise ConnectionError("no")


# objects that raise or lie: (value, code, path)
HOSTILE: dict[str, tuple[Callable[[], Any], str, str]] = {
    "lies about its class": (Liar, "wrong_return_type", ""),
    "raises in a tuple": (lambda: (a_loss(), torch.ones(2).as_subclass(RaisingDim)), "wrong_return_type", ""),
    "a key too long to print": (lambda: {"stats": {10**5000: a_loss()}}, "loss_missing", "loss"),
    "a key that is no text": (lambda: {"loss": a_loss(), 3: 1}, "key_not_string", ""),
    "a key no terminal prints": (lambda: {"\ud800": a_loss()}, "loss_missing", "loss"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_return_is_an_error_of_ours(name: str) -> None:
    make, code, path = HOSTILE[name]
    with pytest.raises(StepOutputError, match=code) as caught:
        coerce(make())
    assert [(problem.code, problem.path) for problem in caught.value.problems] == [(code, path)]


def test_a_mapping_that_raises_is_unreadable() -> None:
    class Raising(dict[str, Any]):
        def items(self) -> Any:
            raise ConnectionError("items")

    with pytest.raises(StepOutputError, match="unreadable") as caught:
        coerce(Raising(loss=a_loss()))
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("unreadable", "")
    assert problem.message == "expected a return that can be read, got Raising of length 1 that raised ConnectionError"
    assert problem.help == "return a plain dict of the five fields"


def test_a_plain_object_is_read_without_its_own_code() -> None:
    class Raising(types.SimpleNamespace):
        def __getattribute__(self, name: str) -> Any:
            raise ConnectionError(name)

    loss = a_loss()
    assert coerce(Raising(loss=loss)).loss is loss


def test_an_output_that_was_constructed_or_copied_is_checked_again() -> None:
    loss = torch.ones(1, requires_grad=True).sum()
    for wrong, code in ((None, "field_not_mapping"), ({"acc": torch.ones(3)}, "scalar_not_single")):
        made = TrainingOutput(loss=loss)
        for returned in (TrainingOutput.model_construct(loss=loss, log=wrong), made.model_copy(update={"log": wrong})):
            with pytest.raises(StepOutputError) as caught:
                coerce(returned)
            assert [problem.code for problem in caught.value.problems] == [code]
    attached: Any = coerce(made.model_copy(update={"log": {"loss": loss}}))
    assert not attached.log["loss"].requires_grad
    assert coerce(made) is made


class Log(TypedDict):
    acc: Scalar


class OwnOutput(TrainingOutput[Log]):
    """Lists a name, and keeps a value beside the fields."""

    @functools.cached_property
    def twice(self) -> Any:
        """Pydantic's own `__dict__` holds it once it was asked for."""
        return self.loss * 2


# what was put into a checked output, and what is wrong with it
PUT: list[tuple[dict[str, Any], str, str]] = [
    ({"hiddens": "text"}, "hiddens_not_tensor", "hiddens"),
    ({"metrics": None}, "field_not_mapping", "metrics"),
    ({"metrics": {3: 1}}, "key_not_string", "metrics"),
    ({"accuracy": 3}, "key_unknown", "accuracy"),
    ({"log": {"acc": 1, "more": 2}}, "key_unknown", "log.more"),
    ({"log": {}}, "key_missing", "log.acc"),
]


@pytest.mark.parametrize(("put", "code", "path"), PUT, ids=str)
def test_every_field_of_a_copied_output_is_checked_again(put: dict[str, Any], code: str, path: str) -> None:
    for schema in (None, OwnOutput):
        copied = OwnOutput(loss=a_loss(), log={"acc": 1}).model_copy(update=put)
        with pytest.raises(StepOutputError) as caught:
            coerce(copied, schema=schema)
        assert [(problem.code, problem.path) for problem in caught.value.problems] == [(code, path)]


@pytest.mark.parametrize("made", [TrainingOutput(loss=a_loss()), SkippedStep(reason="no boxes")], ids=repr)
def test_no_graph_is_carried_on_in_a_copied_output(made: Any) -> None:
    attached = a_loss()
    put = {"hiddens": [(attached,)], "metrics": {"p": {"q": attached}}}
    copied = made.model_copy(update=put)
    output: Any = coerce(copied)
    kept = (output.hiddens[0][0], output.metrics["p"]["q"])
    assert [tensor.requires_grad for tensor in kept] == [False, False]
    assert {tensor.data_ptr() for tensor in kept} == {attached.data_ptr()}
    assert copied.hiddens[0][0] is attached


def test_a_skipped_step_that_was_copied_or_constructed_is_checked_again() -> None:
    put = {"loss": a_loss(), "log": {"b": "text"}, "reason": 3}
    with pytest.raises(StepOutputError) as caught:
        coerce(SkippedStep(reason="no boxes").model_copy(update=put))
    assert [(problem.code, problem.path) for problem in caught.value.problems] == [
        ("skip_with_loss", "loss"),
        ("scalar_wrong_type", "log.b"),
        ("reason_not_string", "reason"),
    ]
    with pytest.raises(StepOutputError, match="reason_not_string"):
        coerce(SkippedStep.model_construct(log={}))


def test_an_output_that_is_as_it_was_checked_is_itself() -> None:
    tensor = torch.ones(3)
    metrics = {"a": [tensor, (tensor,), {"b": None}], "c": {1: "x"}}
    output = OwnOutput(loss=a_loss(), log={"acc": 1}, hiddens=(tensor, None), metrics=metrics)
    assert output.twice.grad_fn is not None
    for schema in (None, OwnOutput):
        assert coerce(output, schema=schema) is output
