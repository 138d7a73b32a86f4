"""Warnings about outputs that were accepted: each thing once per step function, not per step and not per process."""

import functools
import sys
import warnings
from collections.abc import Iterable
from types import FrameType, FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

from strictstep.schema.describe import name_of, printable
from strictstep.schema.errors import StepOutputWarning
from strictstep.schema.missing import FIELDS
from strictstep.schema.names import nearest
from strictstep.schema.source import function_of

MAX_NAMES = 20  # a step that makes its keys up as it goes would else warn for ever

_named: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
_returned_none: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def warn_of_moved_names(names: Iterable[str], step: object) -> None:
    """Say which returned names are none of the five fields; each name once for one step function."""
    named = _named.setdefault(_owner(step), set())
    new = [name for name in names if name not in named][: MAX_NAMES - len(named)]
    if new:
        named.update(new)
        form = "a name that is none" if len(new) == 1 else "names that are none"
        listed = ", ".join(map(_with_nearest, new))
        _warn(f"returned {form} of the five fields, moved to `metrics`: {listed} (an error with `strict=True`)", step)


def warn_of_none(step: object) -> None:
    """Ask whether a `return` was forgotten; once for one step function."""
    if not _returned_none.setdefault(_owner(step), False):
        _returned_none[_owner(step)] = True
        _warn(
            "returned None, and the batch is skipped: was a `return` forgotten? (an error with `on_none='error'`)", step
        )


def _with_nearest(name: str) -> str:
    near = nearest(name, FIELDS)
    return f"`{printable(name)}` (did you mean `{near}`?)" if near else f"`{printable(name)}`"


def _warn(what: str, step: object) -> None:
    name = name_of(step)
    text = f"step `{name}` {what}" if name else f"the step {what}"
    function = _function(step)
    if function is None:
        warnings.warn(text, StepOutputWarning, stacklevel=_callers_level())
    else:  # at the step itself: in somebody's trainer, the line that called it is the trainer's
        code = function.__code__
        warnings.warn_explicit(text, StepOutputWarning, code.co_filename, code.co_firstlineno, function.__module__)


def _function(step: object) -> FunctionType | None:
    try:
        return function_of(step)
    except Exception:  # anything may be given as the step
        return None


def _owner(step: Any) -> Any:
    """What stands for one step function; where no step is given, the code that called us."""
    while issubclass(type(step), (functools.partial, MethodType)):
        step = step.func if issubclass(type(step), functools.partial) else step.__func__
    if step is None:
        return _caller().f_code
    for owner in (step, type(step)):  # an instance without a hash or a weak reference: its class stands for it
        try:
            _named.get(owner)
        except Exception:
            continue
        return owner
    return object


def _caller() -> FrameType:
    frame = sys._getframe(1)
    while str(frame.f_globals.get("__name__")).startswith("strictstep.schema") and frame.f_back:
        frame = frame.f_back
    return frame


def _callers_level() -> int:
    """How many frames above `_warn` the user's own line is."""
    caller, frame, level = _caller(), sys._getframe(1), 1
    while frame is not caller and frame.f_back:
        frame, level = frame.f_back, level + 1
    return level
