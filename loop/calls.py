"""Functions of the user's besides the step: what they raise keeps its type and gains a note."""

from collections.abc import Callable
from typing import Any

from strictstep.loop.step import name_of, stop_iteration


def called(what: str, place: str, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call a function of the user's.

    Args:
        what: its part in the loop, such as `"logger"`.
        place: where the loop is, such as `"epoch 2, batch 17"`.
        function: the function.
        args: its arguments.
        named: those by name.

    Raises:
        LoopError: with the code `stop_iteration`, in place of a `StopIteration`, which would end a loop unseen.

    Example:
        >>> called("weight function", "epoch 0, batch 3", len, [1, 2])
        2
    """
    try:
        return function(*args, **named)
    except StopIteration as error:
        raise stop_iteration(f"{what} `{name_of(function)}`", error) from error
    except Exception as error:
        error.add_note(f"in {what} `{name_of(function)}`, {place}")
        raise


def place_text(epoch: int, batch_idx: int) -> str:
    """Where a loop is, in words.

    Example:
        >>> place_text(2, 17)
        'epoch 2, batch 17'
    """
    return f"epoch {epoch}, batch {batch_idx}"
