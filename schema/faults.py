"""One fault in one value, in the form in which pydantic gathers faults of all fields with their paths.

The checks of this room raise these inside validators. They never leave the room: `translate` turns what pydantic
gathered into `Problem`s, outside the `except`, so that no pydantic error (which holds the inputs) is kept alive.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from strictstep.schema.describe import Location, describe, type_name
from strictstep.schema.errors import ErrorCode

Fault = tuple[Location, PydanticCustomError]

GATHERED = "strictstep's own faults"  # the title by which a ValidationError of ours is known
STOPS = (KeyboardInterrupt, SystemExit)  # they go through everything; whatever else a value raises does not


class Got:
    """The type of what arrived, on its way through pydantic, which writes out all that it is given along with a fault.

    So the `repr` of a metaclass of the user's is not called, nor that of a class for each of 100,000 faults.
    """

    __slots__ = ("kind",)

    def __init__(self, kind: type) -> None:
        """Keep the type."""
        self.kind = kind

    def __repr__(self) -> str:
        """Nothing of the type."""
        return "Got"


class OwnFault(PydanticCustomError):
    """A fault that a check of this room found: a value that is read may raise pydantic's exceptions itself."""


def fault(code: ErrorCode, expected: str, value: object, help: str) -> PydanticCustomError:
    """A fault whose message is `expected …, got …`."""
    return fault_saying(code, f"expected {expected}, got {describe(value)}", value, help)


def fault_saying(code: ErrorCode, message: str, value: object, help: str) -> PydanticCustomError:
    """A fault with a message of its own; `value` gives only its type, it is not kept."""
    # The message is passed as context: braces in a user's key would be read as placeholders of the template.
    return OwnFault(code, "{message}", {"message": message, "help": help, "got": Got(type(value))})


def unreadable(value: object, error: BaseException) -> PydanticCustomError:
    """The fault of a value that raises when it is looked at."""
    message = f"expected a value that can be read, got {describe(value)} that raised {type_name(type(error))}"
    return fault_saying("unreadable", message, value, "return plain tensors, numbers and containers")


def words_of(fault: PydanticCustomError) -> tuple[str, str, type]:
    """Message, help and arrived type of a fault."""
    context = fault.context or {}
    return context["message"], context["help"], context["got"].kind


def guarded(check: Callable[[Any], Any], value: Any) -> Any:
    """Return `check(value)`; whatever the value itself raises on the way becomes the fault `unreadable`."""
    try:
        return check(value)
    except Exception as error:
        if _is_own(error):
            raise
        found = unreadable(value, error)
    raise found


def faults_of(check: Callable[[Any], object], value: object, location: Location = ()) -> Iterator[Fault]:
    """Every fault that `check(value)` raises, placed at `location`; none where it accepts the value."""
    try:
        check(value)
    except Exception as error:
        if not _is_own(error):
            yield location, unreadable(value, error)
        elif isinstance(error, ValidationError):
            for line in error.errors(include_url=False, include_input=False):
                yield (*location, *line["loc"]), OwnFault(line["type"], "{message}", line["ctx"])
        elif isinstance(error, OwnFault):
            yield location, error.with_traceback(None)


def is_of_values(error: BaseException, keys: Iterable[object]) -> bool:
    """Tell whether an exception that pydantic let through comes from the values: from comparing a key, or a panic.

    If it does not, a validator of the user's own has raised it, and it is the user's to see.
    """
    return not isinstance(error, Exception) or not all(type(key) is str for key in keys)


def _is_own(error: Exception) -> bool:
    return type(error) is OwnFault or (type(error) is ValidationError and error.title == GATHERED)


def gathered(faults: Iterable[Fault], value: object) -> ValidationError:
    """Several faults inside one value as the one exception that pydantic merges into its own list."""
    details: list[InitErrorDetails] = []
    failed: Exception = RuntimeError()  # the value may fail the first time it is read, and not the second
    try:
        details.extend(InitErrorDetails(type=fault, loc=location, input=None) for location, fault in faults)
    except Exception as error:  # the walk that looks for faults meets the same values
        failed = error
    if not details:
        details = [InitErrorDetails(type=unreadable(value, failed), input=None)]
    return ValidationError.from_exception_data(GATHERED, details)
