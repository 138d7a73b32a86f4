"""The user's step: its signature, read once, and the one place that calls it."""

import functools
import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import nn

from strictstep.loop.errors import LoopError
from strictstep.schema.describe import describe, names_text
from strictstep.schema.names import nearest

NAMES = ("batch_idx", "epoch", "global_step", "evaluation", "hiddens", "optimizers")
"""The keyword arguments that a step gets if its signature names them."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Step:
    """A step bound to its model: a function `step(model, batch)`, or a method `model.step(batch)`.

    Attributes:
        function: the step as it was given.
        name: its name, for messages.
        names: those of `NAMES` that its signature asks for.
        run: called with a batch, and by name with what it asked for.

    Raises:
        LoopError: with the code `step_signature`, if the step cannot be called so.

    Example:
        >>> def training_step(model, batch, epoch, scale=2.0):
        ...     return model(batch).sum() * scale
        >>> step = Step(nn.Linear(4, 1), training_step)
        >>> step.names
        ('epoch',)
    """

    __slots__ = ("function", "name", "names", "run")

    def __init__(self, model: nn.Module, function: Callable[..., object]) -> None:
        """Read the signature."""
        self.function = function
        self.name = name_of(function)
        parameters = _parameters(function, self.name)
        self.names = _asked_for(parameters, self.name)
        is_method = function is model or getattr(function, "__self__", None) is model
        takes_model = _takes_model(parameters, self.name, is_method)
        self.run: Callable[..., object] = MethodType(function, model) if takes_model else function


def name_of(function: Any) -> str:
    """The name of a function for messages, also of a `functools.partial` or an object that is called."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def stop_iteration(what: str, cause: StopIteration) -> LoopError:
    """The error in place of a `StopIteration` from a function of the user's.

    Example:
        >>> stop_iteration("step `training_step`", StopIteration()).code
        'stop_iteration'
    """
    message = f"expected {what} to return, got a StopIteration from it"
    error = LoopError("stop_iteration", message, "a `next(...)` in it ran out: give it a default, or catch it there")
    error.__cause__ = cause
    return error


def _parameters(function: Any, name: str) -> list[inspect.Parameter]:
    if not callable(function) or isinstance(function, type):
        raise _wrong(f"expected a function or a method as step, got {describe(function)}", "pass the function itself")
    bound = function.keywords if isinstance(function, functools.partial) else {}
    try:
        called = function.forward if isinstance(function, nn.Module) else function
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        help = "wrap it: `def training_step(model, batch): ...`"
        raise _wrong(f"expected a step with a signature that can be read, got `{name}`", help) from None
    names = [parameter.name for parameter in parameters]
    for role, place in (("model", names[:1]), ("batch", names[:2])):
        if role in bound and role in place:
            help = f"bind a model by its place, `functools.partial({name}, model)`; batches come from the loop"
            raise _wrong(f"expected a step that is given its {role}, got `{name}` with `{role}` bound to one", help)
    return [parameter for parameter in parameters if parameter.name not in bound]


def _asked_for(parameters: list[inspect.Parameter], name: str) -> tuple[str, ...]:
    asked = [parameter for parameter in parameters if parameter.name in NAMES]
    for parameter in asked:
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            message = f"expected `{parameter.name}` of `{name}` as a keyword, got it before a `/`"
            raise _wrong(message, f"move it behind the `/`: `def {name}(model, batch, /, {parameter.name})`")
    return tuple(parameter.name for parameter in asked)


def _takes_model(parameters: list[inspect.Parameter], name: str, is_method: bool) -> bool:
    """Whether the step is called with `(model, batch)`; else it is called with `(batch)`."""
    own = [parameter for parameter in parameters if parameter.name not in NAMES]
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in own):
        return not is_method
    positional = [parameter for parameter in own if parameter.kind in _POSITIONAL]
    required = [parameter.name for parameter in own if _is_required(parameter)]
    most = 1 if is_method else 2
    if not positional or len(required) > most or any(p.name in required for p in own if p not in positional):
        raise _wrong_parameters(name, required, is_method)
    two = not is_method and len(positional) >= 2 and (len(required) != 1 or positional[1].name == "batch")
    _refuse_early_names(parameters, positional[two], name)
    return two


def _refuse_early_names(parameters: list[inspect.Parameter], batch: inspect.Parameter, name: str) -> None:
    """A name before the batch would be given twice: by its place, and by its name."""
    for parameter in parameters[: parameters.index(batch)]:
        if parameter.name in NAMES:
            message = f"expected `{parameter.name}` of `{name}` behind `{batch.name}`, got it before"
            raise _wrong(message, f"move it: `def {name}(model, batch, {parameter.name})`")


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind is not inspect.Parameter.VAR_KEYWORD


def _wrong_parameters(name: str, required: list[str], is_method: bool) -> LoopError:
    expected = "(batch)" if is_method else "(model, batch)"
    message = f"expected a step of {expected} and any of {names_text(NAMES)}, got `{name}` which requires "
    unknown = required[1:] if is_method else required[2:]
    near = {known: parameter for parameter in unknown if (known := nearest(parameter, NAMES))}
    renamed = [f"rename `{parameter}` to `{known}`" for known, parameter in near.items()]
    help = ", ".join(renamed) or "give the others defaults, or bind them: `functools.partial(step, name=value)`"
    return _wrong(message + (names_text(required) or "none"), help)


def _wrong(message: str, help: str) -> LoopError:
    return LoopError("step_signature", message, help)
