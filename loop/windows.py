"""What an optimizer step is taken on: a window of micro-batches, or a chunk of a batch of sequences."""

from typing import Any

from strictstep.loop.chunks import chunks
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
        self._done = position["batches"] if position else 0
        self.loader.start(epoch, self._done, position["loader"] if position else None)

    def next(self) -> list[Any]:
        """The next window; empty at the end of the epoch."""
        loader = self.loader
        self.first = loader.batches
        if (batch := loader.fetch()) is loader.END:
            return []
        window = [batch]
        while len(window) < self._size and (batch := loader.fetch()) is not loader.END:
            window.append(batch)
        self._done = loader.batches
        return window

    def position(self) -> dict[str, Any]:
        """How far the epoch is, for a checkpoint."""
        loader = self.loader
        state = loader.source.state_dict() if loader.is_stateful else None
        return {"batches": self._done, "chunks": 0, "random": None, "loader": state}

    @property
    def can_resume_here(self) -> bool:
        """Whether the position can be found again."""
        return True

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
        is_saved: whether checkpoints are written: then the random state before each batch is kept, since a batch that
            is half done is fetched again, and may be drawn.
    """

    def __init__(self, loader: Loader, steps: int, dim: int, is_saved: bool = False) -> None:
        """Keep how to cut."""
        super().__init__(loader)
        self._is_saved = is_saved
        self._random: dict[str, Any] | None = None
        self._steps = steps
        self._dim = dim
        self._left: list[Any] = []
        self._taken = 0

    def start(self, epoch: int, position: dict[str, Any] | None = None) -> None:
        """Begin an epoch, or go on in the middle of it, and of a batch."""
        self._left = []
        super().start(epoch, position)
        if position and position["random"] is not None:
            set_random_state(position["random"], self.loader.generators())
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
        position = super().position()
        if not self._left:
            return position
        return {**position, "batches": self.loader.batches - 1, "chunks": self._taken, "random": self._random}

    @property
    def can_resume_here(self) -> bool:
        """Whether the position can be found again: a stateful loader gives the batch of a half no second time."""
        return not (self._left and self.loader.is_stateful)

    def _fetched(self) -> bool:
        """Fetch a batch and cut it; false at the end of the epoch."""
        self.first, self._taken = self.loader.batches, 0
        self._random = random_state(self.loader.generators()) if self._is_saved else None
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
