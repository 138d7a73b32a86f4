"""From `module:Class`, as it is typed in a shell, to the class."""

import contextlib
import importlib
import operator
import sys
import traceback
from collections.abc import Iterable
from types import ModuleType, TracebackType
from typing import Any

from strictstep.schema.base import StepOutput
from strictstep.schema.describe import describe
from strictstep.schema.documents import Documented
from strictstep.schema.names import nearest
from strictstep.schema.step_record import HistoryRecord, StepRecord


class WrongUse(Exception):
    """What was asked for on the command line cannot be done; the message is the line that says so."""


def classes_named(specs: Iterable[str]) -> list[Documented]:
    """The classes of several `module:Class`, each found in the current directory or among what is installed.

    Raises:
        WrongUse: if one is no output model or cannot be found, or if two have one name.
    """
    classes: dict[str, Documented] = {}
    for spec in specs:
        found = class_named(spec)
        if found.__name__ in classes:
            raise WrongUse(f"expected classes of different names, got `{found.__name__}` twice")
        classes[found.__name__] = found
    return list(classes.values())


def class_named(spec: str) -> Documented:
    """The class of one `module:Class`.

    Raises:
        WrongUse: if it is no output model, or cannot be found.

    Example:
        >>> class_named("strictstep.schema:TrainingOutput")
        <class 'strictstep.schema.outputs.TrainingOutput'>
    """
    module_name, _, path = spec.partition(":")
    if not path or not all(part.isidentifier() for part in module_name.split(".")):
        raise WrongUse(f"expected module:Class, got `{spec}`")
    found = _attribute(_imported(module_name), path)
    if not isinstance(found, type) or not issubclass(found, (StepOutput, StepRecord, HistoryRecord)):
        raise WrongUse(f"{spec}: expected an output model (a subclass of `TrainingOutput`, ...), got {describe(found)}")
    if not found.__pydantic_complete__:
        raise WrongUse(f"{spec}: expected annotations that can be resolved, got an unknown name in one of them")
    return found


def _attribute(module: ModuleType, path: str) -> Any:
    try:
        return operator.attrgetter(path)(module)
    except AttributeError:
        near = nearest(path, vars(module))
        hint = f"; the nearest name is `{near}`" if near else ""
        raise WrongUse(f"the module `{module.__name__}` has no `{path}`{hint}") from None


def _imported(name: str) -> ModuleType:
    sys.path[:0] = [""] if "" not in sys.path else []
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what a module prints is no part of our output
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        failed = error
    if isinstance(failed, ModuleNotFoundError) and f"{name}.".startswith(f"{failed.name}."):
        raise WrongUse(f"there is no module `{failed.name}`, neither here nor installed")
    trace = _from_users_code(failed.__traceback__)
    traceback.print_exception(type(failed), failed, trace, file=sys.stderr)
    raise WrongUse(f"the module `{name}` cannot be imported: it raised {type(failed).__name__}")


def _from_users_code(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without our frames and those of the import system."""
    while trace and (trace.tb_frame.f_code.co_filename.startswith("<frozen") or _is_ours(trace)):
        trace = trace.tb_next
    return trace


def _is_ours(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename in (__file__, importlib.__file__)
