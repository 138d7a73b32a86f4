"""Ctrl-C: the first asks training to end at the next step, the second passes through."""

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupt:
    """Watches for Ctrl-C while it is entered.

    The first one is noted, and the handler from before is put back, so that a second one does what it always did.
    Where one is entered within another, as in a `fit` that a step calls, both have it noted. Outside the main thread,
    and where Ctrl-C is ignored, nothing is changed.

    Attributes:
        requested: whether Ctrl-C was pressed.

    Example:
        >>> with Interrupt() as interrupt:
        ...     signal.raise_signal(signal.SIGINT)
        >>> interrupt.requested
        True
    """

    def __init__(self) -> None:
        """Not watching yet."""
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> Self:
        """Begin to watch."""
        before = signal.getsignal(signal.SIGINT)
        # `None` is a handler that was not set from Python, which could not be put back.
        if threading.current_thread() is threading.main_thread() and before not in (None, signal.SIG_IGN):
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        """Put the handler from before back."""
        self._restore()

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.requested = True
        before = self._before
        self._restore()
        if isinstance(getattr(before, "__self__", None), Interrupt):
            before(signum, frame)

    def _restore(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            signal.signal(signal.SIGINT, before)
