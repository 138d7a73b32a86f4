"""Validation launches no operator but views and detaches, and never reads a tensor's value to the host."""

import pickle
import warnings
from collections import OrderedDict, UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from strictstep.schema import (
    EvaluationOutput,
    ManualOutput,
    SkippedStep,
    StepOutput,
    StepOutputError,
    TrainingOutput,
    coerce,
    validate_step,
)

VIEWS = {"aten::view", "aten::detach", "aten::alias", "aten::_reshape_alias", "aten::lift_fresh"}
UNSEEN = (
    "__repr__",
    "__format__",
    "__bool__",
    "__float__",
    "__array__",
    "tolist",
    "numpy",
    "item",
    "clone",
    "cpu",
    "to",
)
STAGES = ("training", "manual", "validation", "test")


class Launched(TorchDispatchMode):
    """Notes the name of every operator that is launched."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


class Plain(Tensor):
    """A subclass without behaviour of its own."""


class Asking(Tensor):
    """A subclass that notes which functions of torch are called on it."""

    asked: list[str]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(getattr(func, "__name__", "?"))
        parent: Any = super()
        return parent.__torch_function__(func, types, args, kwargs or {})


def launched(call: Callable[[], object]) -> list[str]:
    """The operators that a call launches; it may end with a StepOutputError, whose report is then written too."""
    with warnings.catch_warnings(), Launched() as mode:
        warnings.simplefilter("ignore")
        try:
            repr(call())
        except StepOutputError as error:
            _ = str(error), error.errors(), pickle.dumps(error)
    names: list[str] = mode.names
    return names


def loss() -> Tensor:
    return (torch.ones(2, requires_grad=True) * 2).sum()


def fields() -> dict[str, Any]:
    """All five, each with tensors in and outside a graph."""
    attached = loss()
    state = torch.zeros(2, 3, requires_grad=True) * 2
    return {
        "loss": attached,
        "log": {"loss": attached, "one": torch.ones(1), "lr": 0.1, "sub": torch.ones(()).as_subclass(Plain)},
        "progress_bar": {"loss": attached, "whole": torch.tensor(3)},
        "hiddens": (state, [state, None], OrderedDict(h=state), state.as_subclass(Plain)),
        "metrics": {"logits": state, "nested": [{"a": (state, "text")}], "names": ["a"], "mask": torch.ones(3) > 0},
    }


class Record:
    """An object with a `loss`."""

    def __init__(self) -> None:
        self.loss = loss()
        self.log = {"a": torch.ones(())}


FORMS: dict[str, Callable[[], Any]] = {
    "tensor": loss,
    "one element": lambda: loss().view(1),
    "one element of many dimensions": lambda: loss().view(1, 1, 1),
    "detached tensor": lambda: loss().detach(),
    "subclass": lambda: loss().as_subclass(Plain),
    "five fields": fields,
    "a mapping": lambda: UserDict(fields()),
    "keys beyond the five": lambda: {**fields(), "logits": torch.ones(3), "other": [torch.ones(3, requires_grad=True)]},
    "names for the bar": lambda: {**fields(), "progress_bar": ["loss", "lr"]},
    "no loss": lambda: {"log": {"a": torch.ones(())}},
    "no loss, one attached": lambda: {"a": loss(), "b": torch.ones(2)},
    "loss None": lambda: {"loss": None, "metrics": {"a": loss()}},
    "None": lambda: None,
    "object": Record,
    "meta": lambda: {"loss": torch.ones((), device="meta", requires_grad=True).view(()), "hiddens": loss()},
    "skipped": lambda: SkippedStep(reason="x", log={"a": loss()}),
}

WRONG: dict[str, Callable[[], Any]] = {
    "not a scalar": lambda: torch.ones(8, requires_grad=True) * 2,
    "no graph": lambda: torch.ones(()),
    "integer": lambda: torch.ones((), dtype=torch.long),
    "complex": lambda: torch.ones((), dtype=torch.complex64),
    "sparse": lambda: torch.eye(2).to_sparse(),
    "leaf": lambda: torch.ones((), requires_grad=True),
    "no elements": lambda: torch.ones(0),
    "a pair": lambda: (loss(), torch.ones(8)),
    "a list": lambda: [loss(), loss()],
    "parts": lambda: {"loss_a": loss(), "loss_b": loss()},
    "loss as a dict": lambda: {"loss": {"a": loss(), "b": loss()}},
    "log of everything": lambda: {"loss": loss(), "log": {"a": torch.ones(8), "b": "x", "c": [loss()], "d": {"e": 1}}},
    "hiddens of everything": lambda: {"loss": loss(), "hiddens": [torch.ones(3), "x", {"a": object()}]},
    "unknown bar name": lambda: {"loss": loss(), "log": {"acc": loss()}, "progress_bar": ["ac"]},
    "a wrong subclass": lambda: {
        "loss": torch.ones(8).as_subclass(Plain),
        "log": {"a": torch.ones(3).as_subclass(Plain)},
    },
    "everything": lambda: dict.fromkeys(("loss", "log", "progress_bar", "hiddens", "metrics"), torch.ones(8)),
    "tensor keys": lambda: {loss(): 1},
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("form", [*FORMS, *WRONG])
def test_coercion_launches_views_and_detaches_only(form: str, stage: Any) -> None:
    returned = {**FORMS, **WRONG}[form]()
    assert set(launched(lambda: coerce(returned, stage=stage))) <= VIEWS


@pytest.mark.parametrize("form", [*FORMS, *WRONG])
def test_a_decorated_step_adds_views_and_detaches_only(form: str) -> None:
    returned = {**FORMS, **WRONG}[form]()
    assert set(launched(validate_step(lambda: returned))) <= VIEWS


@pytest.mark.parametrize("model", [TrainingOutput, ManualOutput, EvaluationOutput])
def test_calling_a_model_launches_views_and_detaches_only(model: Any) -> None:
    values = fields()
    assert set(launched(lambda: model(**values))) <= VIEWS


@pytest.mark.parametrize("form", [*FORMS, *WRONG])
def test_no_method_that_reads_or_copies_is_called(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Tensor, *_: object, **__: object) -> Any:
        raise AssertionError("a tensor was read")

    returned = {**FORMS, **WRONG}[form]()
    for name in UNSEEN:  # what a dispatch mode does not see
        monkeypatch.setattr(Tensor, name, never)
    for stage in STAGES:
        launched(lambda stage=stage: coerce(returned, stage=stage))  # type: ignore[misc]


@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_return_launches_nothing_that_reads(name: str) -> None:
    returned = WRONG[name]()
    names = launched(lambda: coerce(returned))
    assert not {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::item", "aten::equal"} & set(names)


def test_a_plain_loss_launches_nothing_at_all() -> None:
    returned = {"loss": loss(), "log": {"a": torch.ones(()), "b": 0.1}, "hiddens": torch.zeros(3)}
    assert launched(lambda: coerce(returned)) == []


def test_a_subclass_is_asked_for_nothing_that_computes() -> None:
    Asking.asked = []
    returned = {"loss": loss().as_subclass(Asking), "log": {"a": loss().as_subclass(Asking)}}
    Asking.asked.clear()
    coerce(returned)
    allowed = {"__get__", "dim", "numel", "detach", "view"}
    assert set(Asking.asked) <= allowed


READS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda tensor: tensor.item(),
    "bool": bool,
    "float": float,
    "clone": lambda tensor: tensor.clone(),
    "eq": lambda tensor: tensor == 1,
}


@pytest.mark.parametrize("name", READS)
def test_the_mode_notices_what_must_not_happen(name: str) -> None:
    tensor = torch.ones(())
    assert not set(launched(lambda: READS[name](tensor))) <= VIEWS


def test_the_mode_notices_a_read_inside_a_users_own_check() -> None:
    class Reading(TrainingOutput):
        def model_post_init(self, context: Any) -> None:
            assert self.loss.item() > 0

    returned = loss()
    assert "aten::_local_scalar_dense" in launched(lambda: coerce(returned, schema=Reading))


def test_what_is_accepted_is_an_output() -> None:
    for form in ("tensor", "subclass", "five fields", "a mapping", "names for the bar", "object"):
        assert isinstance(coerce(FORMS[form]()), StepOutput)
