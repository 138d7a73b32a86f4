"""A loader of batches: started for each epoch, fetched from, counted, and brought back to a position."""

from collections.abc import Iterator
from typing import Any, ClassVar

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from strictstep.loop.calls import place_text
from strictstep.loop.errors import LoopError
from strictstep.loop.random_state import is_generator
from strictstep.loop.step import stop_iteration
from strictstep.schema.describe import describe

DEEPEST = 8  # of parts within parts: an object that answers to every name has some without end


class Loader:
    """What a `for` loop does with a loader, one batch at a time, so that nothing is held between two batches.

    Args:
        source: anything that can be iterated; it is not iterated before `start`.
        name: the option that gave it, for messages.

    Attributes:
        batches: how many batches of this epoch have been fetched.
        length: how many an epoch has, where the source says so, else `None`.
        has_failed: whether the source has raised.
        has_ended: whether the end of this epoch has been met.
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
        self.is_stateful = _is_stateful(source)
        self.batches = 0
        self.has_failed = self.has_ended = False
        self._name = name
        self._certain_length = 0
        self._epoch = 0
        self._iterator: Iterator[Any] | None = None

    def start(self, epoch: int, skip: int = 0, state: Any = None, has_ended: bool = False) -> None:
        """Begin an epoch; a sampler that has `set_epoch` is told of it.

        Args:
            epoch: its number.
            skip: how many batches have been seen before: they are fetched and dropped.
            state: where a stateful source stands, instead.
            has_ended: whether that is the end: from there it would begin the next epoch.
        """
        for sampler in self._parts():
            if callable(set_epoch := getattr(sampler, "set_epoch", None)):
                set_epoch(epoch)
        if state is not None:
            self.source.load_state_dict(state)
        self._epoch, self.batches, self.has_ended = epoch, 0, False
        self._certain_length = _certain_length(self.source)  # as it begins: a dataset may grow on the way
        try:
            self._iterator = iter(()) if state is not None and has_ended else iter(self.source)
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
            self.has_ended = True
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

    def generators(self) -> list[Any]:
        """The random generators that the source and its parts have as attributes, which a checkpoint saves."""
        values = [value for part in (self.source, *self._parts()) for value in getattr(part, "__dict__", {}).values()]
        return [value for value in values if is_generator(value)]

    def _parts(self) -> list[Any]:
        """The samplers and the datasets, also those that another draws from, each once."""
        known: dict[int, Any] = {}
        _collect(self.source, known, DEEPEST)
        return list(known.values())[1:]

    def _refuse_false_end(self) -> None:
        if self.batches < self._certain_length:
            message = f"expected {self._certain_length} batches from `{self._name}`, got an end after {self.batches}"
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
    except Exception:  # of a length that is not there, each library raises its own
        return None


def _collect(part: Any, known: dict[int, Any], depth: int) -> None:
    """Add a part of a loader, and the parts that it has itself."""
    if part is None or depth == 0 or id(part) in known:
        return
    known[id(part)] = part
    for name in ("sampler", "batch_sampler", "dataset"):
        _collect(getattr(part, name, None), known, depth - 1)
    datasets = getattr(part, "datasets", None)
    for dataset in datasets if isinstance(datasets, (list, tuple)) else ():
        _collect(dataset, known, depth - 1)


def _is_stateful(source: Any) -> bool:
    """Whether a source has its state; those of Accelerate have the methods, and a state only if they were asked for."""
    methods = (getattr(source, name, None) for name in ("state_dict", "load_state_dict"))
    return all(map(callable, methods)) and getattr(source, "use_stateful_dataloader", True) is not False


def _certain_length(source: Any) -> int:
    """How many batches there must be: torch's own batching of a dataset by index is exact; 0 for anything else."""
    is_by_index = isinstance(source, DataLoader) and not isinstance(source.dataset, IterableDataset)
    if not is_by_index or type(source.batch_sampler) is not BatchSampler:
        return 0
    is_torchs = type(source.batch_sampler.sampler).__module__.startswith("torch.")
    return (length_of(source) or 0) if is_torchs else 0
