"""One fault in one value, in the form in which pydantic gathers faults of all fields with their paths.

The checks of this room raise these inside validators. They never leave the room: `translate` turns what pydantic
gathered into `Problem`s, outside the `except`, so that no pydantic error (which holds the inputs) is kept alive.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from strictstep.schema.describe import Location, describe
from strictstep.schema.errors import ErrorCode

Fault = tuple[Location, PydanticCustomError]


def fault(code: ErrorCode, expected: str, value: object, help: str) -> PydanticCustomError:
    """A fault whose message is `expected …, got …`."""
    return fault_saying(code, f"expected {expected}, got {describe(value)}", value, help)


def fault_saying(code: ErrorCode, message: str, value: object, help: str) -> PydanticCustomError:
    """A fault with a message of its own; `value` gives only its type, it is not kept."""
    # The message is passed as context: braces in a user's key would be read as placeholders of the template.
    return PydanticCustomError(code, "{message}", {"message": message, "help": help, "got": type(value)})


def unreadable(value: object, error: BaseException) -> PydanticCustomError:
    """The fault of a value that raises when it is looked at."""
    message = f"expected a value that can be read, got {describe(value)} that raised {type(error).__name__}"
    return fault_saying("unreadable", message, value, "return plain tensors, numbers and containers")


def guarded(check: Callable[[Any], Any], value: Any) -> Any:
    """Return `check(value)`; whatever the value itself raises on the way becomes the fault `unreadable`."""
    try:
        return check(value)
    except (PydanticCustomError, ValidationError):
        raise
    except Exception as error:
        found = unreadable(value, error)
    raise found


def faults_of(check: Callable[[Any], object], value: object, location: Location = ()) -> Iterator[Fault]:
    """Every fault that `check(value)` raises, placed at `location`; none where it accepts the value."""
    try:
        check(value)
    except PydanticCustomError as error:
        yield location, error.with_traceback(None)
    except ValidationError as error:
        for line in error.errors(include_url=False, include_input=False):
            yield (*location, *line["loc"]), PydanticCustomError(line["type"], "{message}", line["ctx"])
    except Exception as error:
        yield location, unreadable(value, error)


def gathered(faults: Iterable[Fault], value: object) -> ValidationError:
    """Several faults inside one value as the one exception that pydantic merges into its own list."""
    details = [InitErrorDetails(type=fault, loc=location, input=None) for location, fault in faults]
    if not details:  # the value failed the first time it was read, and not the second
        details = [InitErrorDetails(type=unreadable(value, RuntimeError()), input=None)]
    return ValidationError.from_exception_data("faults", details)
