"""Values that raise, lie or have no end: an error of ours, at the place where they are; only interrupts pass."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from pydantic import field_validator
from torch import Tensor
from typing_extensions import TypedDict

from strictstep.schema import EvaluationOutput, SkippedStep, StepOutputError, coerce


class Own(BaseException):
    """An exception that is no `Exception`, and no interrupt either."""


class Endless(Mapping[str, Any]):
    """A mapping whose items have no end."""

    def __getitem__(self, key: str) -> Any:
        return 1

    def __iter__(self) -> Iterator[str]:
        return (str(number) for number in itertools.count())

    def __len__(self) -> int:
        return 1


class RaisingItems(dict[str, Any]):
    """A mapping that raises what is no `Exception`."""

    def items(self) -> Any:
        raise Own


class RaisingKey:
    """A key that is found where `loss` is, and raises when compared."""

    def __hash__(self) -> int:
        return hash("loss")

    def __eq__(self, other: object) -> bool:
        raise ConnectionError("no")


class Attached(Tensor):
    """A tensor that does not detach."""

    def detach(self) -> Any:
        return self


class NoTensor(Tensor):
    """A tensor that detaches into something else."""

    def detach(self) -> Any:
        return "x"


class Shapeless(Tensor):
    """A tensor that does not say what it is."""

    @property
    def dtype(self) -> Any:  # type: ignore[override]
        raise ConnectionError("no")


def attached(kind: Any) -> Any:
    """A tensor of a subclass, inside a graph."""
    return (torch.ones(1, requires_grad=True) * 2).as_subclass(kind)


# what comes: (returned, code, path)
CASES: dict[str, tuple[Callable[[], Any], str, str]] = {
    "endless": (Endless, "unreadable", ""),
    "endless log": (lambda: {"log": Endless()}, "unreadable", "log"),
    "raising items": (lambda: RaisingItems(a=1), "unreadable", ""),
    "raising key": (lambda: {RaisingKey(): 1}, "key_not_string", ""),
    "raising key in metrics": (lambda: {"metrics": {RaisingKey(): 1}}, "key_not_string", "metrics"),
    "attached hiddens": (lambda: {"hiddens": [attached(Attached)]}, "unreadable", "hiddens[0]"),
    "attached metrics": (lambda: {"metrics": {"a": attached(Attached)}}, "unreadable", "metrics.a"),
    "no tensor in hiddens": (lambda: {"hiddens": attached(NoTensor)}, "unreadable", "hiddens"),
    "shapeless log": (lambda: {"log": {"a": torch.ones(2).as_subclass(Shapeless)}}, "unreadable", "log.a"),
    "huge text": (lambda: {"log": {"a": "x" * 10_000}}, "scalar_wrong_type", "log.a"),
    "huge key": (lambda: {"log": {10**5000: 1}}, "key_not_string", "log"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_value_is_an_error_at_its_place(name: str) -> None:
    make, code, path = CASES[name]
    with pytest.raises(StepOutputError, match=code) as caught:
        coerce(make(), stage="validation")
    assert [(problem.code, problem.path) for problem in caught.value.problems] == [(code, path)]
    assert len(str(caught.value)) < 1000


def test_a_model_given_hostile_keys_raises_our_error() -> None:
    with pytest.raises(StepOutputError, match=r"\[\w+\]"):
        EvaluationOutput.model_validate({RaisingKey(): 1})


def test_a_value_is_described_without_its_help() -> None:
    with pytest.raises(StepOutputError, match="loss_not_tensor") as caught:
        coerce({"loss": 10**5000})
    assert caught.value.problems[0].message == "expected a differentiable scalar, got int of 16610 bits"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass_through(stop: type[BaseException]) -> None:
    class Stopping(dict[str, Any]):
        def items(self) -> Any:
            raise stop

    class Team(EvaluationOutput):
        """A check during which the user stops the run."""

        @field_validator("metrics")
        @classmethod
        def _check(cls, metrics: Any) -> Any:
            raise stop

    with pytest.raises(stop):
        coerce(Stopping(a=1), stage="test")
    with pytest.raises(stop):
        coerce({"log": Stopping(a=1)}, stage="test")
    with pytest.raises(stop):
        coerce({"metrics": {}}, schema=Team, stage="test")
    with pytest.raises(stop):
        Team(metrics={})


def test_a_skipped_step_may_say_that_it_has_no_loss() -> None:
    assert SkippedStep(reason="no boxes", loss=None).loss is None


@pytest.mark.parametrize("strict", ["yes", 1, None], ids=repr)
def test_strict_is_true_or_false(strict: Any) -> None:
    with pytest.raises(TypeError, match=r"^expected True or False as `strict`, got "):
        coerce(None, strict=strict)


class Inside(TypedDict):
    x: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


class Unresolved(EvaluationOutput):
    """A name that nothing defines, inside a TypedDict."""

    metrics: Inside  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]


def test_an_unknown_name_inside_a_typed_dict_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"whose annotations can be resolved, got `Unresolved` with an unknown name"):
        coerce(None, schema=Unresolved, stage="test")
