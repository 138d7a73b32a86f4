"""Warnings about outputs that were accepted: each name once per step function, not per step and not per process."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from strictstep.schema import StepOutputError, StepOutputWarning, coerce


def a_loss() -> Tensor:
    """A loss that an operation of a graph made."""
    return (torch.ones(4, requires_grad=True) * 2).mean()


def a_step() -> Callable[..., Any]:
    """A step function that has not warned yet."""

    def step() -> None: ...

    return step


def said(step: object, stage: Any = "validation", **values: Any) -> list[str]:
    """The texts of the warnings that a return gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        coerce(values, step=step, stage=stage)
    assert all(warning.category is StepOutputWarning for warning in caught)
    return [str(warning.message) for warning in caught]


REFUSES = "(an error with `strict=True`)"


def test_each_name_is_said_once_for_one_step_function() -> None:
    one, other = a_step(), a_step()
    moved = "step `step` returned a name that is none of the five fields, moved to `metrics`: "
    assert said(one, acc=1) == [f"{moved}`acc` {REFUSES}"]
    assert said(one, acc=1) == []
    assert said(one, acc=1, f1=2) == [f"{moved}`f1` {REFUSES}"]
    assert said(other, acc=1) == [f"{moved}`acc` {REFUSES}"]


def test_several_names_are_one_warning() -> None:
    (text,) = said(a_step(), acc=1, f1=2)
    moved = "step `step` returned names that are none of the five fields, moved to `metrics`: "
    assert text == f"{moved}`acc`, `f1` {REFUSES}"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("logs", "log"),
        ("hidden", "hiddens"),
        ("metric", "metrics"),
        ("Loss", "loss"),
        ("loss ", "loss"),
        ("progressbar", "progress_bar"),
        ("logits", None),
        ("acc", None),
        ("labels", None),
    ],
)
def test_the_nearest_field_is_named_where_one_is_near(name: str, near: str | None) -> None:
    (text,) = said(a_step(), **{name: 1})
    meant = f" (did you mean `{near}`?)" if near else ""
    assert text.endswith(f": `{name}`{meant} {REFUSES}")


def test_at_most_20_names_are_said() -> None:
    step = a_step()
    texts = [text for number in range(30) for text in said(step, **{f"key{number}": 1})]
    assert len(texts) == 20
    (many,) = said(a_step(), **{f"key{number}": 1 for number in range(30)})
    assert "`key19`" in many
    assert "`key20`" not in many


def test_a_wrong_output_warns_of_nothing() -> None:
    step = a_step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(StepOutputError, match="scalar_wrong_type"):
            coerce({"loss": a_loss(), "acc": 1, "log": {"a": "x"}}, step=step)
        with pytest.raises(StepOutputError, match="key_twice"):
            coerce({"loss": a_loss(), "acc": 1, "metrics": {"acc": 2}}, step=step)
    assert len(said(step, acc=1)) == 1


def test_none_is_said_once_for_one_step_function_and_only_in_training() -> None:
    step = a_step()
    asked = r"was a `return` forgotten\? \(an error with `on_none='error'`\)"
    text = rf"^step `step` returned None, and the batch is skipped: {asked}$"
    with pytest.warns(StepOutputWarning, match=text):
        coerce(None, step=step)
    coerce(None, step=step)
    for stage in ("manual", "validation", "test"):
        coerce(None, step=a_step(), stage=stage)


class Trainer:
    """A class with a step as method."""

    def training_step(self) -> None: ...


class Slotted:
    """A callable that has neither a hash nor weak references."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __call__(self) -> None: ...


class Unhashable:
    """A callable whose hash raises something of its own."""

    def __hash__(self) -> int:
        raise ConnectionError("no")

    def __call__(self) -> None: ...


def test_bound_methods_and_partials_stand_for_their_function() -> None:
    assert len(said(Trainer().training_step, acc=1)) == 1
    assert said(Trainer().training_step, acc=1) == []
    assert said(Trainer.training_step, acc=1) == []
    assert said(functools.partial(Trainer().training_step), acc=1) == []


@pytest.mark.parametrize("kind", [Slotted, Unhashable, nn.Identity], ids=lambda kind: kind.__name__)
def test_a_callable_object_is_warned_of_once(kind: Any) -> None:
    step = kind()
    assert said(step, acc=1) == [
        f"the step returned a name that is none of the five fields, moved to `metrics`: `acc` {REFUSES}",
    ]
    assert said(step, acc=1) == []


def test_without_a_step_the_calling_code_stands_for_it() -> None:
    def one_place() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            coerce({"acc": 1}, stage="test")
        return [str(warning.message) for warning in caught]

    moved = "the step returned a name that is none of the five fields, moved to `metrics`: "
    assert one_place() == [f"{moved}`acc` {REFUSES}"]
    assert one_place() == []


def test_the_warning_points_at_the_users_line() -> None:
    with pytest.warns(StepOutputWarning, match="acc") as caught:
        coerce({"acc": 1}, stage="test", step=a_step())
    assert caught[0].filename == __file__


def test_moved_tensors_are_detached_as_all_metrics() -> None:
    with pytest.warns(StepOutputWarning, match="logits"):
        output = coerce({"loss": a_loss(), "logits": torch.ones(2, requires_grad=True) * 2}, step=a_step())
    assert not output.metrics["logits"].requires_grad


def test_strict_makes_each_such_name_an_error() -> None:
    with pytest.raises(StepOutputError, match="key_unknown") as caught:
        coerce({"loss": a_loss(), "logs": {}, "acc": 1}, strict=True, step=a_step())
    assert [(problem.path, problem.message, problem.help) for problem in caught.value.problems] == [
        ("logs", "expected one of the five fields, got `logs`", "rename it to `log`"),
        ("acc", "expected one of the five fields, got `acc`", "put it in `metrics`"),
    ]


def test_a_warning_points_at_the_step_and_not_at_the_loop_that_called_it() -> None:
    def step() -> None:
        """Returns nothing."""

    with pytest.warns(StepOutputWarning, match="was a `return` forgotten") as caught:
        coerce(step(), step=step)  # type: ignore[func-returns-value]
    assert (caught[0].filename, caught[0].lineno) == (__file__, step.__code__.co_firstlineno)
