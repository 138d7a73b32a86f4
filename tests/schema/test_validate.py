"""The decorator: what may be decorated, what is refused and in which words, and what a decorated step gives."""

import asyncio
import functools
import inspect
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from typing_extensions import TypedDict

from strictstep.schema import (
    EvaluationOutput,
    ManualOutput,
    Scalar,
    SkippedStep,
    StepOutput,
    StepOutputError,
    StepOutputWarning,
    TrainingOutput,
    coerce,
    validate_step,
)


def loss(scale: float = 2.0) -> Tensor:
    return (torch.ones(2, requires_grad=True) * scale).sum()


@validate_step
def top_level_step(batch: Tensor, batch_idx: int = 0, *, epoch: int = 0) -> dict[str, Any]:
    """A step that pickle finds by its name."""
    return {"loss": batch, "log": {"images": 8}}


# -- what may be decorated


class Trainer:
    """Methods of every kind, decorated."""

    scale = 3.0

    @validate_step
    def bare(self, batch: Tensor) -> Tensor:
        return batch * self.scale

    @validate_step(stage="validation", strict=True)
    def with_arguments(self, batch: Tensor) -> dict[str, Any]:
        return {"log": {"a": batch}}

    @classmethod
    @validate_step
    def of_class(cls, batch: Tensor) -> Tensor:
        return batch * cls.scale

    @staticmethod
    @validate_step
    def static(batch: Tensor) -> Tensor:
        return batch

    @validate_step
    def __call__(self, batch: Tensor) -> Tensor:
        return batch


class Model(nn.Module):
    """A module whose call is the step."""

    def forward(self, batch: Tensor) -> Tensor:
        return batch * 2


def plain(batch: Tensor) -> Tensor:
    return batch


def two(scale: float, batch: Tensor) -> Tensor:
    return batch * scale


class Callable_:
    """An object that is called."""

    def __call__(self, batch: Tensor) -> Tensor:
        return batch


STEPS: dict[str, Callable[[], Any]] = {
    "function": lambda: validate_step(plain),
    "function with arguments": lambda: validate_step(stage="training")(plain),
    "lambda": lambda: validate_step(lambda batch: batch),
    "partial": lambda: validate_step(functools.partial(two, 2.0)),
    "partial of a partial": lambda: validate_step(functools.partial(functools.partial(two, 2.0))),
    "callable": lambda: validate_step(Callable_()),
    "module": lambda: validate_step(Model()),
    "builtin": lambda: validate_step(torch.sum),
    "bound method": lambda: validate_step(Callable_().__call__),
    "method": lambda: Trainer().bare,
    "classmethod": lambda: Trainer().of_class,
    "staticmethod": lambda: Trainer.static,
    "decorated __call__": lambda: Trainer(),
    "lru_cache": lambda: validate_step(functools.lru_cache(plain)),
    "under no_grad switched on again": lambda: validate_step(torch.enable_grad()(plain)),
    "twice": lambda: validate_step(validate_step(plain)),
}


@pytest.mark.parametrize("name", STEPS)
def test_any_callable_may_be_decorated(name: str) -> None:
    output = STEPS[name]()(loss())
    assert type(output) is TrainingOutput
    assert output.loss.grad_fn is not None


def test_arguments_choose_stage_and_strictness() -> None:
    assert type(Trainer().with_arguments(torch.ones(()))) is EvaluationOutput
    with pytest.raises(StepOutputError, match=r"\[scalar_not_single\]"):
        Trainer().with_arguments(torch.ones(3))


def test_strict_makes_other_names_an_error() -> None:
    with pytest.raises(StepOutputError, match=r"\[key_unknown\]"):
        validate_step(strict=True)(lambda: {"loss": loss(), "logits": 1})()


def test_on_none_is_passed_on() -> None:
    with pytest.raises(StepOutputError, match=r"\[returned_none\]"):
        validate_step(on_none="error")(lambda: None)()
    with pytest.warns(StepOutputWarning, match=r"returned None, and the batch is skipped: was a `return` forgotten\?"):
        skipped = validate_step(lambda: None)()
    assert skipped == SkippedStep(reason="returned None")


@pytest.mark.parametrize(
    ("stage", "model"),
    [
        ("training", TrainingOutput),
        ("manual", ManualOutput),
        ("validation", EvaluationOutput),
        ("test", EvaluationOutput),
    ],
)
def test_each_stage_gives_its_model(stage: Any, model: type[StepOutput]) -> None:
    decorate: Any = validate_step(stage=stage)
    assert type(decorate(lambda: {"loss": loss()})()) is model


def test_a_step_keeps_its_exceptions() -> None:
    error = KeyError("the step's own")

    @validate_step
    def step() -> Tensor:
        raise error

    with pytest.raises(KeyError) as raised:
        step()
    assert raised.value is error


def test_a_schema_of_ones_own_is_what_comes_out() -> None:
    class Log(TypedDict):
        acc: Scalar

    class Output(TrainingOutput[Log]):
        pass

    assert type(validate_step(schema=Output)(lambda: {"loss": loss(), "log": {"acc": 1}})()) is Output
    with pytest.raises(StepOutputError, match=r"\[key_missing\]"):
        validate_step(schema=Output)(lambda: {"loss": loss(), "log": {}})()


# -- the original return


@pytest.mark.parametrize(
    "returned", [lambda: loss(), lambda: {"loss": loss(), "log": {"a": 1}}, lambda: {"loss": loss()}]
)
def test_returns_original_gives_the_very_same_object(returned: Callable[[], Any]) -> None:
    made = returned()
    before = dict(made) if isinstance(made, dict) else made
    given = validate_step(returns="original")(lambda: made)()
    assert given is made
    assert before == given if isinstance(made, dict) else before is given


def test_returns_original_gives_none_for_a_skipped_batch() -> None:
    step = validate_step(returns="original", stage="manual")(lambda: None)
    assert step() is None


def test_returns_original_checks_all_the_same() -> None:
    with pytest.raises(StepOutputError, match=r"\[loss_not_scalar\]"):
        validate_step(returns="original")(lambda: torch.ones(8, requires_grad=True) * 2)()


# -- what is refused at decoration


async def coroutine_step() -> None: ...


async def generator_step() -> Any:
    yield 1


class AsyncCallable:
    async def __call__(self) -> None: ...


async def partial_target(scale: float) -> None: ...


ASYNC: dict[str, Any] = {
    "coroutine_step": coroutine_step,
    "generator_step": generator_step,
    "AsyncCallable object": AsyncCallable(),
    "partial object": functools.partial(partial_target, 1.0),
    "wrapped": functools.wraps(coroutine_step)(coroutine_step),
}


@pytest.mark.parametrize("name", ASYNC)
def test_an_async_step_is_refused(name: str) -> None:
    shown = "coroutine_step" if name == "wrapped" else name
    with pytest.raises(TypeError) as raised:
        validate_step(ASYNC[name])
    assert str(raised.value) == (
        f"expected a plain function as step, got the `async def` {shown}\n"
        "  help: a training loop does not await its step: replace `async def` by `def`"
    )


def test_a_bound_async_method_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^expected a plain function as step, got the `async def` __call__\n"):
        validate_step(AsyncCallable().__call__)


def test_a_step_that_returns_a_coroutine_is_an_error_without_noise() -> None:
    with pytest.raises(StepOutputError, match=r"\[wrong_return_type\]"):
        validate_step(lambda: coroutine_step())()
    asyncio.run(coroutine_step())


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_a_static_or_class_method_below_the_decorator_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError) as raised:
        validate_step(kind(plain))
    assert str(raised.value) == (
        f"expected a function, got {kind.__name__} object\n"
        f"  help: write `@{kind.__name__}` above `@validate_step`, not below it"
    )


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (1, "int 1"),
        ("step", "str 'step'"),
        ({"loss": 1}, "dict of length 1"),
        (Trainer, "class 'Trainer'"),
        (torch.ones(3), "float32[3] tensor on cpu"),
        (property(plain), "property object"),
    ],
)
def test_what_is_no_step_is_refused(step: Any, words: str) -> None:
    with pytest.raises(TypeError) as raised:
        validate_step(step)
    assert str(raised.value) == f"expected a step to decorate (a function or another callable), got {words}"


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "an unknown stage": (
        {"stage": "train"},
        ValueError,
        "expected a stage (training, manual, validation, test), got str 'train'",
    ),
    "a near stage": (
        {"stage": "Training"},
        ValueError,
        "expected a stage (training, manual, validation, test), got str 'Training'\n  help: write 'training'",
    ),
    "a stage that is no text": (
        {"stage": ["training"]},
        ValueError,
        "expected a stage (training, manual, validation, test), got list[str]",
    ),
    "on_none": ({"on_none": "raise"}, ValueError, "expected 'skip' or 'error' as `on_none`, got str 'raise'"),
    "returns": ({"returns": dict}, ValueError, "expected 'model' or 'original' as `returns`, got class 'dict'"),
    "strict": ({"strict": 1}, TypeError, "expected True or False as `strict`, got int 1"),
    "a schema that is no output": (
        {"schema": dict},
        TypeError,
        "expected a subclass of `TrainingOutput` as `schema`, got class 'dict'\n"
        "  help: derive it: `class MyOutput(TrainingOutput[MyLog]): ...`",
    ),
    "a schema that is no class": (
        {"schema": {"loss": Tensor}},
        TypeError,
        "expected a subclass of `TrainingOutput` as `schema`, got dict of length 1\n"
        "  help: derive it: `class MyOutput(TrainingOutput[MyLog]): ...`",
    ),
    "a schema of another stage": (
        {"schema": EvaluationOutput},
        ValueError,
        "expected a subclass of `TrainingOutput` for the stage 'training', got `EvaluationOutput`\n"
        "  help: pass `stage='validation'`, or derive it from `TrainingOutput`",
    ),
    "a schema of no stage": (
        {"schema": StepOutput},
        ValueError,
        "expected a subclass of `TrainingOutput` for the stage 'training', got `StepOutput`\n"
        "  help: derive it from `TrainingOutput`",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_refused_at_decoration_in_words_of_its_own(name: str) -> None:
    arguments, kind, words = WRONG[name]
    with pytest.raises(kind) as raised:
        validate_step(**arguments)
    assert type(raised.value) is kind
    assert str(raised.value) == words


@pytest.mark.parametrize("name", [name for name in WRONG if name != "returns"])
def test_coerce_refuses_the_same_arguments_in_the_same_words(name: str) -> None:
    arguments, kind, words = WRONG[name]
    with pytest.raises(kind) as raised:
        coerce(loss(), **arguments)
    assert str(raised.value) == words


def test_a_schema_with_an_unknown_name_is_refused_at_decoration() -> None:
    class Output(TrainingOutput):
        metrics: "dict[str, NotDefinedAnywhere]" = {}  # type: ignore[name-defined] # noqa: F821, RUF012

    with pytest.raises(TypeError) as raised:
        validate_step(schema=Output)
    assert str(raised.value) == (
        "expected a schema whose annotations can be resolved, got `Output` with an unknown name\n"
        "  help: define or import what it annotates with before the step is decorated"
    )


# -- what stays of the step


def test_signature_name_and_docstring_are_kept() -> None:
    assert top_level_step.__name__ == "top_level_step"
    assert top_level_step.__qualname__ == "top_level_step"
    assert top_level_step.__module__ == __name__
    assert top_level_step.__doc__ == "A step that pickle finds by its name."
    assert list(inspect.signature(top_level_step).parameters) == ["batch", "batch_idx", "epoch"]
    assert inspect.unwrap(top_level_step) is not top_level_step


def test_attributes_of_a_function_are_kept_and_those_of_an_object_are_not_copied() -> None:
    def step() -> Tensor:
        return loss()

    step.tag = 1  # type: ignore[attr-defined]
    model = Model()
    assert validate_step(step).tag == 1  # type: ignore[attr-defined]
    assert not hasattr(validate_step(model), "training")


def test_a_method_stays_a_method() -> None:
    assert inspect.ismethod(Trainer().bare)
    assert list(inspect.signature(Trainer().bare).parameters) == ["batch"]


def test_a_subclass_may_call_the_decorated_step_of_its_base() -> None:
    class Child(Trainer):
        @validate_step
        def bare(self, batch: Tensor) -> Any:
            return super().bare(batch)

    assert type(Child().bare(loss())) is TrainingOutput


def test_a_decorated_top_level_function_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(top_level_step)) is top_level_step


# -- the headline


def headline(call: Callable[[], object]) -> str:
    with pytest.raises(StepOutputError) as raised:
        call()
    return str(raised.value).splitlines()[0]


def test_epoch_and_batch_idx_come_from_the_steps_own_arguments() -> None:
    bad = torch.ones(8)
    prefix = "training step `top_level_step` returned an invalid output"
    assert headline(lambda: top_level_step(bad, 7, epoch=3)) == f"{prefix} at epoch 3, batch 7 (2 problems)"
    assert headline(lambda: top_level_step(bad, batch_idx=7)) == f"{prefix} at batch 7 (2 problems)"
    assert headline(lambda: top_level_step(bad)) == f"{prefix} (2 problems)"


@pytest.mark.parametrize("value", [None, "7", 7.0, True, torch.tensor(7)])
def test_a_batch_idx_that_is_no_int_is_left_out(value: Any) -> None:
    assert "batch" not in headline(lambda: top_level_step(torch.ones(8), value)).replace("top_level_step", "")


def test_numbers_of_a_partial_and_of_a_method_are_found() -> None:
    def step(epoch: int, batch_idx: int) -> Any:
        return torch.ones(8)

    class Own:
        @validate_step
        def training_step(self, batch: Tensor, batch_idx: int) -> Any:
            return batch

    assert " at batch 5 " in headline(lambda: validate_step(functools.partial(step, 2))(5))
    assert " at batch 4 " in headline(lambda: Own().training_step(torch.ones(8), 4))


def test_a_callable_without_a_signature_is_reported_without_numbers() -> None:
    assert headline(lambda: validate_step(dict.fromkeys)(["los"])) == (
        "training step `fromkeys` returned an invalid output (1 problem)"
    )


def test_the_rank_is_named_where_processes_are_many(tmp_path: Any) -> None:
    assert "rank" not in headline(lambda: top_level_step(torch.ones(8)))
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(StepOutputError) as raised:
            top_level_step(torch.ones(8), 1)
        assert raised.value.rank == 0
        assert " at batch 1, rank 0 " in str(raised.value)
        with pytest.raises(StepOutputError) as called:
            TrainingOutput(loss=torch.ones(8))
        assert called.value.rank == 0
    finally:
        distributed.destroy_process_group()


def test_the_report_names_file_and_line_of_the_step() -> None:
    with pytest.raises(StepOutputError) as raised:
        top_level_step(torch.ones(8))
    line = inspect.unwrap(top_level_step).__code__.co_firstlineno + 1  # the line of `def`, below the decorator
    file = os.path.relpath(__file__)
    assert str(raised.value).splitlines()[1] == f"  --> {file}:{line}, in `top_level_step`"


# -- threads


def _loss_of(output: Any) -> Tensor:
    detached: Tensor = output.loss.detach()
    return detached


def test_many_threads_may_run_one_step() -> None:
    results: list[Any] = []

    def work(index: int) -> None:
        for turn in range(50):
            if turn % 2:
                results.append(float(_loss_of(top_level_step(loss(index)))))
            else:
                with pytest.raises(StepOutputError) as raised:
                    top_level_step(torch.ones(8), batch_idx=index)
                results.append(raised.value.batch_idx)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted([*range(1, 9)] * 25 + [2.0 * index for index in range(1, 9)] * 25)
