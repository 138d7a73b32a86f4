"""What is wrong with an option: a message and a help."""

from collections.abc import Callable, Iterator
from typing import Any

from strictstep.loop.errors import LoopError

Found = tuple[str, str]


def raised(check: Callable[..., object], *args: Any) -> Iterator[Found]:
    """What a check of another file raises, as a message and a help."""
    try:
        check(*args)
    except LoopError as error:
        yield error.message, error.help
    except (TypeError, ValueError) as error:
        message, _, help = str(error).partition("\n  help: ")
        yield message, help or "see the traceback"


def int_or_zero(value: Any) -> int:
    """An option to compute with; what is no int is said elsewhere."""
    return value if type(value) is int else 0
