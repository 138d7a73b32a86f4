"""A kept error, a valid output and the registries of warnings keep nothing alive that they should not.

Everything is checked without `gc.collect()`: reference counts alone must free it.
"""

import contextlib
import gc
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from strictstep.schema import (
    EvaluationOutput,
    SkippedStep,
    StepOutputError,
    StepOutputWarning,
    TrainingOutput,
    coerce,
    validate_step,
)


class Watched:
    """Weak references to tensors, leaves of graphs, models and batches, which must all die with their last owner."""

    def __init__(self) -> None:
        self._refs: list[weakref.ref[Any]] = []

    def tensor(self, *shape: int) -> Tensor:
        """An attached tensor of that shape; its leaf lives as long as its graph."""
        leaf = torch.ones(shape, requires_grad=True)
        made = leaf * 2
        self.watch(leaf)
        return self.watch(made)  # type: ignore[no-any-return]

    def watch(self, thing: Any) -> Any:
        self._refs.append(weakref.ref(thing))
        return thing

    def alive(self) -> list[str]:
        return [type(ref()).__name__ for ref in self._refs if ref() is not None]


@pytest.fixture
def watched() -> Iterator[Watched]:
    gc.disable()  # or a collection by chance would hide a cycle
    try:
        yield Watched()
    finally:
        gc.enable()


class Holder:
    """A user's object that holds a tensor."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Raising(dict[str, Any]):
    """A mapping that raises while it is read."""

    def items(self) -> Any:
        raise RuntimeError(list(self.values()))


RETURNS: dict[str, Callable[[Watched], Any]] = {
    "an unreduced loss": lambda watched: watched.tensor(8, 3),
    "a loss and a tensor in log": lambda watched: {"loss": watched.tensor(8, 2), "log": {"a": watched.tensor(8, 2)}},
    "a pair": lambda watched: (watched.tensor(), watched.tensor(8, 2)),
    "no loss": lambda watched: {"los": watched.tensor(), "metrics": {"a": watched.tensor(3, 2)}},
    "hiddens": lambda watched: {"loss": watched.tensor(), "hiddens": [watched.tensor(2, 2), watched.watch(Holder(1))]},
    "extras": lambda watched: {"loss": watched.tensor(), "extra": watched.tensor(), "metrics": {"extra": 1}},
    "an object": lambda watched: watched.watch(Holder(watched.tensor())),
    "a model": lambda watched: watched.watch(nn.Linear(2, 2)),
    "a mapping that raises": lambda watched: watched.watch(Raising(loss=watched.tensor())),
    "a log that raises": lambda watched: {"loss": watched.tensor(), "log": watched.watch(Raising(a=watched.tensor()))},
    "an output of another stage": lambda watched: EvaluationOutput(log={"a": watched.tensor()}),
    "a constructed output": lambda watched: TrainingOutput.model_construct(loss=watched.tensor(8, 2)),
    "a generator": lambda watched: (tensor for tensor in [watched.tensor()]),
    "too deep": lambda watched: {"loss": watched.tensor(), "metrics": {"a": recursive(watched)}},
}


def recursive(watched: Watched) -> Any:
    inner: Any = watched.tensor()
    for _ in range(80):
        inner = [inner]
    return inner


def kept_error(call: Callable[[], object]) -> StepOutputError:
    with pytest.raises(StepOutputError) as raised:
        call()
    error = raised.value
    raised.traceback  # noqa: B018 - it is made, as pytest does for a report
    return error


@pytest.mark.parametrize("name", RETURNS)
def test_a_kept_error_of_coerce_holds_nothing(name: str, watched: Watched) -> None:
    error = kept_error(lambda: coerce(RETURNS[name](watched)))
    assert watched.alive() == []
    assert (error.__cause__, error.__context__) == (None, None)
    assert error.__traceback__ is not None


@pytest.mark.parametrize("name", RETURNS)
def test_a_kept_error_of_a_decorated_step_holds_no_model_and_no_batch(name: str, watched: Watched) -> None:
    @validate_step
    def training_step(model: nn.Module, batch: Tensor, *, epoch: int) -> Any:
        return RETURNS[name](watched)

    def call() -> None:
        training_step(watched.watch(nn.Linear(2, 2)), watched.tensor(4, 2), epoch=3)

    error = kept_error(call)
    assert watched.alive() == []
    assert (error.epoch, error.__cause__, error.__context__) == (3, None, None)


@pytest.mark.parametrize("model", [TrainingOutput, EvaluationOutput])
def test_a_kept_error_of_calling_a_model_holds_nothing(model: Any, watched: Watched) -> None:
    error = kept_error(lambda: model(loss=watched.tensor(8, 2), log={"a": watched.tensor(8, 2)}, hiddens="x"))
    assert watched.alive() == []
    assert (error.__cause__, error.__context__) == (None, None)


def test_a_kept_error_of_model_validate_holds_nothing(watched: Watched) -> None:
    kept_error(lambda: TrainingOutput.model_validate({"loss": watched.tensor(8, 2)}))
    assert watched.alive() == []


def test_a_kept_error_of_a_skipped_step_holds_nothing(watched: Watched) -> None:
    kept_error(lambda: SkippedStep(reason="x", loss=watched.tensor()))  # type: ignore[arg-type]
    assert watched.alive() == []


def test_a_kept_error_holds_no_method_and_no_instance(watched: Watched) -> None:
    class Trainer:
        @validate_step
        def training_step(self, batch: Tensor) -> Any:
            return batch

    kept_error(lambda: watched.watch(Trainer()).training_step(watched.tensor(8, 2)))
    assert watched.alive() == []


def test_a_kept_error_raised_while_another_is_handled_holds_nothing_of_ours(watched: Watched) -> None:
    def call() -> None:
        try:
            raise KeyError("the user's own")
        except KeyError:
            coerce(watched.tensor(8, 2))

    error = kept_error(call)
    assert watched.alive() == []
    assert type(error.__context__) is KeyError


def test_a_kept_error_may_be_raised_again_and_formatted_and_holds_nothing(watched: Watched) -> None:
    error = kept_error(lambda: coerce(watched.tensor(8, 2)))

    def again() -> None:
        raise error

    kept_error(again)
    assert "".join(traceback.format_exception(error))
    assert watched.alive() == []


def test_the_frames_of_strictstep_in_the_traceback_hold_no_tensor(watched: Watched) -> None:
    error = kept_error(lambda: validate_step(lambda batch: batch)(watched.tensor(8, 2)))
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [frame for frame in frames if str(frame.f_globals.get("__name__")).startswith("strictstep")]
    assert ours
    assert not any(isinstance(value, Tensor) for frame in ours for value in frame.f_locals.values())


def test_an_error_that_is_dropped_leaves_no_cycle() -> None:
    kept_error(lambda: coerce((1, 2)))  # whatever is made once only
    gc.collect()
    gc.disable()
    try:
        kinds = _cycles_after(lambda: coerce({"los": torch.ones(3), "log": {"a": "x"}}))
        kinds |= _cycles_after(lambda: TrainingOutput(loss=torch.ones(3), log={"a": torch.ones(3)}))
    finally:
        gc.enable()
    assert kinds == set()


def _cycles_after(call: Callable[[], object]) -> set[str]:
    """Kinds of objects of strictstep, pydantic and torch that only a collection frees after an error is dropped."""
    gc.collect()
    with contextlib.suppress(StepOutputError):
        call()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        ours = ("strictstep", "pydantic", "torch")
        return {type(thing).__name__ for thing in gc.garbage if type(thing).__module__.startswith(ours)}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def test_the_check_for_cycles_notices_one() -> None:
    class Cycle:
        __module__ = "strictstep"

    def call() -> None:
        cycle = Cycle()
        cycle.itself = cycle  # type: ignore[attr-defined]

    assert _cycles_after(call) == {"Cycle"}


def test_the_watch_notices_what_is_kept(watched: Watched) -> None:
    kept = watched.tensor(8, 2)
    assert watched.alive() == ["Tensor", "Tensor"]
    graph = kept.grad_fn
    del kept
    assert watched.alive() == ["Tensor"]
    del graph
    assert watched.alive() == []


# -- valid outputs


def test_log_metrics_and_hiddens_of_a_valid_output_hold_no_graph(watched: Watched) -> None:
    def output() -> TrainingOutput:
        attached = watched.tensor()
        parts = {
            "log": {"a": attached},
            "progress_bar": {"a": attached},
            "hiddens": [attached],
            "metrics": {"a": [attached]},
        }
        made = coerce({"loss": watched.tensor(), **parts})
        assert isinstance(made, TrainingOutput)
        return made

    made = output()
    log, bar, hiddens, metrics = made.log, made.progress_bar, made.hiddens, made.metrics
    del made
    assert watched.alive() == []
    assert (log["a"], bar["a"], hiddens, metrics["a"]) == (2, 2, [torch.tensor(2.0)], [torch.tensor(2.0)])


def test_an_evaluation_output_holds_no_graph(watched: Watched) -> None:
    output = coerce({"loss": watched.tensor(), "log": {"a": watched.tensor()}}, stage="validation")
    assert watched.alive() == []
    assert isinstance(output, EvaluationOutput)


def test_a_dropped_output_is_freed_at_once(watched: Watched) -> None:
    output = coerce({"loss": watched.tensor(), "log": {"a": watched.tensor()}, "hiddens": [watched.tensor()]})
    watched.watch(output.log["a"])
    assert watched.alive()
    del output
    assert watched.alive() == []


# -- the registries of warnings


@pytest.mark.parametrize("extra", [None, "logits"])
def test_the_registries_of_warnings_keep_no_step_alive(extra: str | None, watched: Watched) -> None:
    returned = None if extra is None else {"loss": watched.tensor(), extra: 1}

    class Model:
        def training_step(self) -> Any:
            return returned

    def function() -> Any:
        return returned

    model: Any = watched.watch(Model())
    step: Any = watched.watch(function)
    for given in (model.training_step, step):
        with pytest.warns(StepOutputWarning):
            coerce(returned, step=given)
    del model, function, step, given
    returned = None
    assert watched.alive() == []


def test_a_warning_holds_no_returned_value(watched: Watched) -> None:
    with pytest.warns(StepOutputWarning, match=r"returned a name that is none of the five fields") as caught:
        coerce({"loss": watched.tensor(), "logits": watched.tensor(3, 2)})
    assert watched.alive() == []
    assert len(caught) == 1


def test_no_last_exception_is_left_behind(watched: Watched) -> None:
    coerce({"loss": watched.tensor(), "log": {"a": watched.tensor()}})
    assert sys.exc_info() == (None, None, None)
    assert watched.alive() == []
