"""The decorator: the same check around a step, in anybody's loop."""

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, overload

import torch

from strictstep.schema.base import AnyOutput
from strictstep.schema.coerce import Call, OnNone, Output, carefully_checked, refuse_unknown
from strictstep.schema.describe import describe
from strictstep.schema.errors import Stage, StepOutputError
from strictstep.schema.outputs import EvaluationOutput, ManualOutput, SkippedStep, TrainingOutput
from strictstep.schema.plain import plainly_checked
from strictstep.schema.stages import model_of

_uncompiled: Callable[..., Any] = torch.compiler.disable

P = ParamSpec("P")
R = TypeVar("R")
Made = TypeVar("Made", covariant=True)
Returns = Literal["model", "original"]

_STAGES: weakref.WeakKeyDictionary[Any, Stage] = weakref.WeakKeyDictionary()  # of the steps that return a model


class ToModel(Protocol[Made]):
    """A decorator that leaves a step's parameters as they are and makes it return a checked output."""

    def __call__(self, step: Callable[P, object], /) -> Callable[P, Made]:
        """Decorate one step."""


class AsItIs(Protocol):
    """A decorator that leaves a step's type as it is."""

    def __call__(self, step: Callable[P, R], /) -> Callable[P, R]:
        """Decorate one step."""


@overload
def validate_step(step: Callable[P, object], /) -> Callable[P, TrainingOutput | SkippedStep]: ...
@overload
def validate_step(
    *,
    stage: Stage = ...,
    schema: type[AnyOutput] | None = ...,
    strict: bool = ...,
    on_none: OnNone = ...,
    returns: Literal["original"],
) -> AsItIs: ...
@overload
def validate_step(
    *,
    schema: type[Output],
    stage: Stage = ...,
    strict: bool = ...,
    on_none: OnNone = ...,
    returns: Literal["model"] = ...,
) -> ToModel[Output | SkippedStep]: ...
@overload
def validate_step(
    *,
    stage: Literal["training"] = ...,
    schema: None = ...,
    strict: bool = ...,
    on_none: OnNone = ...,
    returns: Literal["model"] = ...,
) -> ToModel[TrainingOutput | SkippedStep]: ...
@overload
def validate_step(
    *,
    stage: Literal["manual"],
    schema: None = ...,
    strict: bool = ...,
    on_none: OnNone = ...,
    returns: Literal["model"] = ...,
) -> ToModel[ManualOutput | SkippedStep]: ...
@overload
def validate_step(
    *,
    stage: Literal["validation", "test"],
    schema: None = ...,
    strict: bool = ...,
    on_none: OnNone = ...,
    returns: Literal["model"] = ...,
) -> ToModel[EvaluationOutput | SkippedStep]: ...
def validate_step(
    step: Callable[..., object] | None = None,
    /,
    *,
    stage: Stage = "training",
    schema: type[AnyOutput] | None = None,
    strict: bool = False,
    on_none: OnNone = "skip",
    returns: Returns = "model",
) -> Any:
    """Check what a step returns, each time it is called. Use it bare or with arguments, on functions and methods.

    Args:
        step: the step: a function, a method, a `functools.partial`, any callable; not an `async def`.
        stage: `"training"`, `"manual"`, `"validation"` or `"test"`.
        schema: a model of your own, a subclass of the stage's model.
        strict: make names beyond the five fields an error.
        on_none: in training, `None` is a `SkippedStep` and a warning (`"skip"`) or an error (`"error"`).
        returns: `"model"` gives the checked output; `"original"` gives what the step returned, unchanged, for loops
            that take only plain values.

    Raises:
        StepOutputError: by the decorated step, with every problem at once.
        TypeError: at decoration, for something that is no step or no schema.
        ValueError: at decoration, for an unknown `stage`, `on_none` or `returns`, or a schema of another stage.

    Example:
        >>> import torch
        >>> @validate_step
        ... def training_step(model, batch):
        ...     return model(batch).pow(2).mean()
        >>> output = training_step(torch.nn.Linear(4, 1), torch.ones(8, 4))
        >>> output.loss.shape
        torch.Size([])
    """
    model = model_of(stage, schema)
    refuse_unknown(strict, on_none)
    given: Any = returns
    if type(given) is not str or given not in ("model", "original"):
        raise ValueError(f"expected 'model' or 'original' as `returns`, got {describe(given)}")

    def decorate(step: Callable[..., object]) -> Callable[..., object]:
        _refuse_no_step(step)
        return _checked_step(step, Call(model, stage, strict, on_none, step, None, None), returns == "original")

    return decorate if step is None else decorate(step)


def decorated_stage(step: object) -> Stage | None:
    """The stage whose outputs a decorated step returns; `None` for one that is not decorated, or returns what it did.

    Example:
        >>> decorated_stage(validate_step(stage="manual")(print)), decorated_stage(print)
        ('manual', None)
    """
    while isinstance(step, functools.partial):
        step = step.func
    function = step.__func__ if inspect.ismethod(step) else step
    return _STAGES.get(function) if inspect.isfunction(function) else None


def _checked_step(step: Callable[..., object], call: Call, original: bool) -> Callable[..., object]:
    def check(returned: object) -> object:
        outcome: object = plainly_checked(returned, call.model)
        if outcome is None:
            outcome = carefully_checked(returned, call)
        return returned if original and type(outcome) is not StepOutputError else outcome

    # The attributes of a callable object stay with it: they may hold a model.
    @functools.wraps(step, updated=("__dict__",) if inspect.isfunction(step) else ())
    def checked_step(*args: Any, **kwargs: Any) -> object:
        returned = step(*args, **kwargs)
        # Inside a graph that is being compiled the check is left to run between graphs, not traced.
        outcome = _uncompiled(check)(returned) if torch.compiler.is_compiling() else check(returned)
        if type(outcome) is StepOutputError:
            numbers = _numbers(step, args, kwargs)
            del args, kwargs, returned  # a kept error keeps this frame, and with it the model and the batch
            raise outcome.at(**numbers)
        return outcome

    if not original:  # a run-time type checker above this decorator would hold the step's `-> dict` against the model
        _STAGES[checked_step] = call.stage
        checked_step.__annotations__ = {**checked_step.__annotations__, "return": call.model | SkippedStep}
    return checked_step


def _numbers(step: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, int]:
    """The `epoch` and `batch_idx` that the step itself was called with."""
    try:
        given = inspect.signature(step).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return {}
    return {name: given[name] for name in ("epoch", "batch_idx") if type(given.get(name)) is int}


def _refuse_no_step(step: Any) -> None:
    if isinstance(step, (staticmethod, classmethod)):
        raise TypeError(
            f"expected a function, got {describe(step)}\n"
            f"  help: write `@{type(step).__name__}` above `@validate_step`, not below it"
        )
    if not callable(step) or isinstance(step, type):
        raise TypeError(f"expected a step to decorate (a function or another callable), got {describe(step)}")
    called = step if inspect.isroutine(step) or isinstance(step, functools.partial) else type(step).__call__
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise TypeError(
            f"expected a plain function as step, got the `async def` {getattr(step, '__name__', describe(step))}\n"
            "  help: a training loop does not await its step: replace `async def` by `def`"
        )
