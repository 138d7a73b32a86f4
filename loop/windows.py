"""What an optimizer step is taken on: a window of micro-batches, or a chunk of a batch of sequences."""

from typing import Any

from strictstep.loop.chunks import chunks
from strictstep.loop.device import versions
from strictstep.loop.errors import LoopError
from strictstep.loop.loader import Loader
from strictstep.loop.random_state import random_state, set_random_state


class Windows:
    """Windows of micro-batches, fetched when they are asked for; none is held.

    Args:
        loader: where the micro-batches come from.
        size: how many a window has; the last of an epoch may have fewer.

    Attributes:
        first: the number of the first micro-batch of the last window.
        begins_sequence: whether the last window begins a sequence, so that earlier hiddens are not its own.

    Example:
        >>> windows = Windows(Loader("abc", "train_batches"), 2)
        >>> windows.start(epoch=0)
        >>> windows.next(), windows.next(), windows.next()
        (['a', 'b'], ['c'], [])
    """

    def __init__(self, loader: Loader, size: int = 1) -> None:
        """Keep the loader."""
        self.loader = loader
        self.first = 0
        self.begins_sequence = True
        self._size = size
        self._done = 0  # batches in whole windows: a loader may fail within one

    def start(self, epoch: int, position: dict[str, Any] | None = None) -> None:
        """Begin an epoch, or go on in the middle of it."""
        position = position or {"batches": 0, "loader": None, "has_ended": False}
        self._done = position["batches"]
        self.loader.start(epoch, self._done, position["loader"], position["has_ended"])

    def next(self) -> list[Any]:
        """The next window; empty at the end of the epoch."""
        loader = self.loader
        self.first = loader.batches
        if (batch := loader.fetch()) is loader.END:
            return []
        window = [batch]
        if self._size > 1:
            self._fill(window)
        self._done = loader.batches
        return window

    def _fill(self, window: list[Any]) -> None:
        """Fetch the other micro-batches.

        Raises:
            LoopError: with the code `window_changed`, for a loader that fills one buffer again and again.
        """
        loader, given = self.loader, versions(window)
        while len(window) < self._size and (batch := loader.fetch()) is not loader.END:
            window.append(batch)
            given += versions(batch)
        if versions(window) != given:
            message = "expected `train_batches` to leave the batches of a window as they are, got some changed in place"
            raise LoopError(
                "window_changed", message, "give a copy of the buffer that is filled: `yield buffer.clone()`"
            )

    def position(self) -> dict[str, Any]:
        """How far the epoch is, for a checkpoint."""
        loader = self.loader
        state = loader.source.state_dict() if loader.is_stateful else None
        return {"batches": self._done, "has_ended": loader.has_ended, "chunks": 0, "random": None, "loader": state}

    @property
    def length(self) -> int | None:
        """How many windows an epoch has, where that is known."""
        batches = self.loader.length
        return None if batches is None else -(-batches // self._size)


class ChunkWindows(Windows):
    """Chunks of batches of sequences, each a window of its own.

    Args:
        loader: where the batches come from.
        steps: time steps of a chunk.
        dim: the dimension of time.
        is_saved: whether checkpoints are written: then the state before each batch is kept, of the random generators
            and of a stateful loader, since a batch that is half done is fetched again, and may be drawn.
    """

    def __init__(self, loader: Loader, steps: int, dim: int, is_saved: bool = False) -> None:
        """Keep how to cut."""
        super().__init__(loader)
        self._is_saved = is_saved
        self._before: dict[str, Any] = {}
        self._generators: list[Any] = []
        self._steps = steps
        self._dim = dim
        self._left: list[Any] = []
        self._taken = 0

    def start(self, epoch: int, position: dict[str, Any] | None = None) -> None:
        """Begin an epoch, or go on in the middle of it, and of a batch."""
        self._left = []
        super().start(epoch, position)
        self._generators = self.loader.generators()
        if position and position["random"] is not None:
            set_random_state(position["random"], self._generators)
        for _ in range(position["chunks"] if position else 0):
            self.next()

    def next(self) -> list[Any]:
        """The next chunk; empty at the end of the epoch."""
        self.begins_sequence = not self._left
        if not self._left and not self._fetched():
            return []
        self._taken += 1
        return [self._left.pop()]

    def position(self) -> dict[str, Any]:
        """How far the epoch is: whole batches, and chunks of the one after them."""
        return {**self._before, "chunks": self._taken} if self._left else super().position()

    def _fetched(self) -> bool:
        """Fetch a batch and cut it; false at the end of the epoch."""
        self.first, self._taken = self.loader.batches, 0
        if self._is_saved:
            self._before = {**super().position(), "random": random_state(self._generators)}
        batch = self.loader.fetch()
        if batch is self.loader.END:
            return False
        self._left = list(chunks(batch, self._steps, self._dim))[::-1]
        self._done = self.loader.batches
        return True

    @property
    def length(self) -> int | None:
        """Not known: it depends on the lengths of the sequences."""
        return None
