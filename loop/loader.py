"""A loader of batches: started for each epoch, fetched from, counted, and brought back to a position."""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from strictstep.loop.calls import place_text
from strictstep.loop.errors import LoopError
from strictstep.loop.step import stop_iteration
from strictstep.schema.describe import describe


class Loader:
    """What a `for` loop does with a loader, one batch at a time, so that nothing is held between two batches.

    Args:
        source: anything that can be iterated; it is not iterated before `start`.
        name: the option that gave it, for messages.

    Attributes:
        batches: how many batches of this epoch have been fetched.
        length: how many an epoch has, where the source says so, else `None`.
        has_failed: whether the source has raised.
        is_stateful: whether it says and takes its position itself, as torchdata's `StatefulDataLoader` does.

    Example:
        >>> loader = Loader(["a", "b"], "train_batches")
        >>> loader.start(epoch=0)
        >>> loader.fetch(), loader.fetch(), loader.fetch() is Loader.END
        ('a', 'b', True)
    """

    END: ClassVar[Any] = object()

    def __init__(self, source: Any, name: str) -> None:
        """Look at the source without iterating it."""
        self.source = source
        self.length = length_of(source)
        self.is_stateful = all(callable(getattr(source, method, None)) for method in ("state_dict", "load_state_dict"))
        self.batches = 0
        self.has_failed = False
        self._name = name
        self._epoch = 0
        self._iterator: Iterator[Any] | None = None

    def start(self, epoch: int, skip: int = 0, state: Any = None) -> None:
        """Begin an epoch; a sampler that has `set_epoch` is told of it.

        Args:
            epoch: its number.
            skip: how many batches have been seen before: they are fetched and dropped.
            state: where a stateful source stands, instead.
        """
        for sampler in self._parts():
            if callable(set_epoch := getattr(sampler, "set_epoch", None)):
                set_epoch(epoch)
        if state is not None:
            self.source.load_state_dict(state)
        self._epoch, self.batches = epoch, 0
        try:
            self._iterator = iter(self.source)
        except StopIteration as error:
            raise stop_iteration(f"`iter({self._name})`", error) from error
        if state is not None:
            self.batches = skip
            return
        for _ in range(skip):
            if self.fetch() is self.END:
                raise self._shorter(skip)

    def fetch(self) -> Any:
        """The next batch, or `END`.

        Raises:
            LoopError: `loader_empty`, `loader_used_up` or `loader_ended_early` for an end that is none.
            Exception: what the source raises, with a note.
        """
        try:
            batch = next(self._iterator)  # type: ignore[arg-type]  # `start` comes first
        except StopIteration:
            self._iterator = iter(())  # as a whole window is asked for, the end is met more than once
            self._refuse_false_end()
            return self.END
        except Exception as error:
            self.has_failed = True
            error.add_note(f"in `{self._name}`, {place_text(self._epoch, self.batches)}")
            raise
        self.batches += 1
        return batch

    def stop(self) -> None:
        """Let go of the iterator, and with it of worker processes."""
        self._iterator = None

    def generators(self) -> list[torch.Generator]:
        """The random generators of the source and of its parts, which a checkpoint saves."""
        found = [getattr(part, "generator", None) for part in (self.source, *self._parts())]
        return [generator for generator in found if isinstance(generator, torch.Generator)]

    def _parts(self) -> Iterator[Any]:
        """The samplers and the dataset, each once."""
        batch_sampler = getattr(self.source, "batch_sampler", None)
        samplers = (getattr(self.source, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
        parts = (*samplers, getattr(self.source, "dataset", None))
        return iter({id(part): part for part in parts if part is not None}.values())

    def _refuse_false_end(self) -> None:
        if self.batches < _certain_length(self.source):
            message = f"expected {self.length} batches from `{self._name}`, got an end after {self.batches}"
            help = "a StopIteration in `__getitem__` or `collate_fn` ends a loader without a word: catch it there"
            raise LoopError("loader_ended_early", message, help)
        if self.batches > 0:
            return
        if self._epoch > 0 and isinstance(self.source, Iterator):
            message = f"expected batches from `{self._name}` in epoch {self._epoch}, got a used-up "
            help = "an iterator gives its batches once: pass a list, or a loader that can be iterated again"
            raise LoopError("loader_used_up", message + describe(self.source), help)
        message = f"expected at least one batch from `{self._name}` in epoch {self._epoch}, got none"
        raise LoopError("loader_empty", message, "look at the dataset's length, and at `drop_last` of its loader")

    def _shorter(self, skip: int) -> LoopError:
        message = f"expected at least {skip} batches from `{self._name}`, as before the checkpoint, got {self.batches}"
        return LoopError("checkpoint_differs", message, "resume with the data that the checkpoint was made with")


def length_of(source: Any) -> int | None:
    """How many batches a source says it has; `None` where it does not say."""
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return None


def _certain_length(source: Any) -> int:
    """How many batches there must be: torch's own batching of a dataset by index is exact; 0 for anything else."""
    is_by_index = isinstance(source, DataLoader) and not isinstance(source.dataset, IterableDataset)
    if not is_by_index or type(source.batch_sampler) is not BatchSampler:
        return 0
    is_torchs = type(source.sampler).__module__.startswith("torch.")
    return len(source) if is_torchs else 0
