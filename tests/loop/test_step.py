"""Section 5: how a step is called, from its signature alone."""

import functools
from typing import Any

import pytest
import torch
from torch import nn

from strictstep.loop import LoopError
from strictstep.loop.step import Step
from strictstep.schema import validate_step

BATCH = torch.ones(2)


class Module(nn.Module):
    def training_step(self, batch: Any, batch_idx: Any) -> Any:
        return self, batch, batch_idx

    def two_batches(self, batch: Any, other: Any) -> Any:
        return batch, other

    @validate_step(returns="original", stage="validation")
    def decorated(self, batch: Any) -> Any:
        return {"metrics": {"batch": batch}}


def test_a_function_gets_model_and_batch() -> None:
    model = nn.Linear(1, 1)
    assert Step(model, lambda model, batch: (model, batch)).run(BATCH) == (model, BATCH)


def test_a_bound_method_gets_the_batch() -> None:
    model = Module()
    step = Step(model, model.training_step)
    assert step.names == ("batch_idx",)
    assert step.run(BATCH, batch_idx=3) == (model, BATCH, 3)


def test_a_decorated_method_gets_the_batch() -> None:
    model = Module()
    returned: Any = Step(model, model.decorated).run(BATCH)
    assert returned["metrics"]["batch"] is BATCH


def test_a_function_that_holds_its_model_gets_the_batch() -> None:
    assert Step(nn.Linear(1, 1), lambda batch: batch).run(BATCH) is BATCH


def test_bound_arguments_and_defaults_are_left_alone() -> None:
    def step(model: Any, batch: Any, scale: Any, *, power: Any = 2, epoch: Any) -> Any:
        return batch, scale, power, epoch

    bound = Step(nn.Linear(1, 1), functools.partial(step, scale=3))
    assert bound.run(BATCH, epoch=4) == (BATCH, 3, 2, 4)
    assert bound.name == "step"


def test_a_name_that_is_bound_is_not_asked_for() -> None:
    def step(model: Any, batch: Any, epoch: Any, batch_idx: Any) -> Any:
        return batch, epoch, batch_idx

    bound = Step(nn.Linear(1, 1), functools.partial(step, epoch=7))
    assert bound.names == ("batch_idx",)
    assert bound.run(BATCH, batch_idx=1) == (BATCH, 7, 1)


def test_a_third_argument_may_be_bound_whatever_its_name() -> None:
    def distill(net: Any, batch: Any, model: Any) -> Any:
        return net, batch, model

    net, teacher = nn.Linear(1, 1), nn.Linear(1, 1)
    assert Step(net, functools.partial(distill, model=teacher)).run(BATCH) == (net, BATCH, teacher)


def test_a_model_that_is_bound_by_its_place_is_used() -> None:
    own = nn.Linear(1, 1)
    step = Step(nn.Linear(1, 1), functools.partial(lambda model, batch: (model, batch), own))
    assert step.run(BATCH) == (own, BATCH)


@pytest.mark.parametrize("role", ["model", "batch"])
def test_a_model_or_batch_that_is_bound_by_name_is_refused(role: str) -> None:
    def step(model: Any, batch: Any) -> Any:
        raise NotImplementedError

    with pytest.raises(LoopError) as caught:
        Step(nn.Linear(1, 1), functools.partial(step, **{role: None}))
    assert str(caught.value) == (
        f"expected a step that is given its {role}, got `step` with `{role}` bound to one  [step_signature]\n"
        "  help: bind a model by its place, `functools.partial(step, model)`; batches come from the loop"
    )


def test_a_step_of_any_arguments_gets_model_and_batch() -> None:
    model = nn.Linear(1, 1)
    assert Step(model, lambda *args, **kwargs: (args, kwargs)).run(BATCH) == ((model, BATCH), {})


def test_all_names_can_be_asked_for() -> None:
    def step(
        model: Any,
        batch: Any,
        *,
        batch_idx: Any,
        epoch: Any,
        global_step: Any,
        evaluation: Any,
        hiddens: Any,
        optimizers: Any,
    ) -> Any:
        raise NotImplementedError

    assert set(Step(nn.Linear(1, 1), step).names) == {
        "batch_idx",
        "epoch",
        "global_step",
        "evaluation",
        "hiddens",
        "optimizers",
    }


def required_too_much(model: Any, batch: Any, batch_index: Any) -> Any:
    raise NotImplementedError


def nothing() -> Any:
    raise NotImplementedError


def positional_only(model: Any, batch: Any, epoch: Any, /) -> Any:
    raise NotImplementedError


def keyword_required(model: Any, batch: Any, *, temperature: Any) -> Any:
    raise NotImplementedError


NAMES = "`batch_idx`, `epoch`, `global_step`, `evaluation`, `hiddens`, `optimizers`"


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            required_too_much,
            f"expected a step of (model, batch) and any of {NAMES}, got `required_too_much` which requires "
            "`model`, `batch`, `batch_index`  [step_signature]\n  help: rename `batch_index` to `batch_idx`",
        ),
        (
            nothing,
            f"expected a step of (model, batch) and any of {NAMES}, got `nothing` which requires none"
            "  [step_signature]\n"
            "  help: give the others defaults, or bind them: `functools.partial(step, name=value)`",
        ),
        (
            keyword_required,
            f"expected a step of (model, batch) and any of {NAMES}, got `keyword_required` which requires "
            "`model`, `batch`, `temperature`  [step_signature]\n"
            "  help: give the others defaults, or bind them: `functools.partial(step, name=value)`",
        ),
        (
            positional_only,
            "expected `epoch` of `positional_only` as a keyword, got it before a `/`  [step_signature]\n"
            "  help: move it behind the `/`: `def positional_only(model, batch, /, epoch)`",
        ),
        (
            3,
            "expected a function or a method as step, got int 3  [step_signature]\n  help: pass the function itself",
        ),
        (
            Module,
            "expected a function or a method as step, got class 'Module'  [step_signature]\n"
            "  help: pass the function itself",
        ),
    ],
)
def test_a_step_that_cannot_be_called_is_refused_at_the_start(step: Any, message: Any) -> None:
    with pytest.raises(LoopError) as caught:
        Step(nn.Linear(1, 1), step)
    assert str(caught.value) == message


def test_a_method_that_requires_more_than_the_batch_is_refused() -> None:
    model = Module()
    with pytest.raises(LoopError, match=r"expected a step of \(batch\)") as caught:
        Step(model, model.two_batches)
    assert caught.value.code == "step_signature"


@pytest.mark.parametrize("step", [lambda batch_idx, batch: batch, lambda model, epoch, batch: batch])
def test_a_name_before_the_batch_is_refused(step: Any) -> None:
    with pytest.raises(LoopError, match="behind `batch`, got it before") as caught:
        Step(nn.Linear(1, 1), step)
    assert caught.value.code == "step_signature"


def test_a_batch_with_a_default_is_still_the_batch() -> None:
    model = nn.Linear(1, 1)
    assert Step(model, lambda model, batch=None: (model, batch)).run(BATCH) == (model, BATCH)


class Whole(nn.Module):
    def forward(self, batch: Any) -> Any:
        return self, batch


def test_a_model_that_is_its_own_step_gets_the_batch() -> None:
    model = Whole()
    assert Step(model, model).run(BATCH) == (model, BATCH)


def test_the_signature_of_a_module_is_that_of_its_forward() -> None:
    model = nn.Bilinear(1, 1, 1)
    with pytest.raises(LoopError, match="got `Bilinear` which requires `input1`, `input2`") as caught:
        Step(model, model)
    assert caught.value.code == "step_signature"
