"""A run as a checkpoint: everything that decides how it goes on."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from strictstep.loop.checkpoint import FORMAT, read, write
from strictstep.loop.device import walked
from strictstep.loop.early_stopping import Best, Patience
from strictstep.loop.errors import LoopWarning
from strictstep.loop.loader import Loader
from strictstep.loop.log_book import LogBook
from strictstep.loop.made_for import made_for, require_same
from strictstep.loop.options import Options
from strictstep.loop.random_state import random_state, set_random_state
from strictstep.loop.schedule import Schedule
from strictstep.loop.training_pass import TrainingPass
from strictstep.schema.describe import numpy_type


class Held(NamedTuple):
    """What an epoch stood at when its training was over, for the case that Ctrl-C comes while it is validated."""

    training: dict[str, Any]
    random: dict[str, Any]


class SavedRun:
    """Where a run stands, written to checkpoints and brought back from them.

    Args:
        options: those of `fit`.
        training: the pass over training batches.
        schedule: the schedulers.
        patience: of early stopping, if there is one.
        loaders: of training and of validation, whose generators are saved.
        book: the loggers, some of which are cut back to the checkpoint.

    Attributes:
        epoch: the number of the epoch that is open, or comes next.
        is_within: whether it is open.
        history: the values of the epochs so far, one dict for each.
        best: the best value of `Checkpoint.monitor` so far.
    """

    def __init__(
        self,
        options: Options,
        training: TrainingPass,
        schedule: Schedule,
        patience: Patience | None,
        loaders: list[Loader],
        book: LogBook,
    ) -> None:
        """Nothing is read or written yet."""
        self.rule = options.rule
        self.epoch = 0
        self.is_within = False
        self.history: list[dict[str, float]] = []
        self.best = Best("min" if self.rule is None else self.rule.mode)
        self._options = options
        self._model: nn.Module = options.model
        self._optimizers = options.optimizers
        self._training = training
        self._schedule = schedule
        self._patience = patience
        self._book = book
        generators = [generator for loader in loaders for generator in loader.generators()]
        self._generators = list({id(generator): generator for generator in generators}.values())
        self._random_at_start: dict[str, Any] | None = None
        self._has_warned = False

    def begin_epoch(self) -> None:
        """Begin the next epoch, unless one is open; the loader's order hangs on the random state at the beginning."""
        if self.is_within:
            return
        self._random_at_start = None if self.rule is None else random_state(self._generators)
        self.is_within = True
        self._training.start(self.epoch)

    def end_epoch(self, values: dict[str, float], is_saved: bool) -> None:
        """Record the epoch; write `best.pt`, if it is, and then `last.pt`, unless that stands within the epoch."""
        self.history.append(values)
        self.epoch += 1
        self.is_within = False
        if self.rule is None:
            return
        state = self._state(None)
        if self.rule.monitor in values and self.best.improves(values[self.rule.monitor]):
            state["best"] = self.best.value
            write(self.rule.best, state)
        if not is_saved:
            write(self.rule.last, state)

    def is_due(self) -> bool:
        """Whether a checkpoint within the epoch is due after this step."""
        rule = self.rule
        if rule is None or rule.every_steps is None:
            return False
        global_step: int = self._training.optimization.global_step
        return global_step % rule.every_steps == 0

    def hold(self) -> Held | None:
        """Keep what `save_held` needs, if the epoch could be saved as it stands."""
        if self.rule is None or self._training.values.kept:
            return None
        return Held(self._training.state_dict(), random_state(self._generators))

    def save_held(self, held: Held | None) -> None:
        """Write `last.pt` as of the end of training, its validation still to come."""
        if self.rule is not None and held is not None:
            within = {"position": self._training.windows.position(), "training": held.training}
            write(self.rule.last, {**self._state(within), "random": held.random})

    def save_within(self) -> bool:
        """Write `last.pt` in the middle of an epoch; tell whether it could be."""
        if self.rule is None or self._training.values.kept:
            self._warn_of_kept()
            return False
        self._training.optimization.read_waiting()  # no checkpoint before it is known that its losses were finite
        within = {"position": self._training.windows.position(), "training": self._training.state_dict()}
        write(self.rule.last, self._state(within))
        return True

    def resume(self, given: Any) -> None:
        """Bring the run back to a checkpoint: a file, the `last.pt` of a folder, or with `True` its own if it is there.

        Raises:
            LoopError: `checkpoint_missing`, `checkpoint_unreadable` or `checkpoint_differs`; nothing has moved then.
        """
        own = None if self.rule is None else self.rule.last
        path = own if given is True else None if given in (None, False) else Path(given)
        if path is None or (given is True and not path.exists()):
            return
        state = read(path / "last.pt" if path.is_dir() else path)
        require_same(state["made_for"], self._made_for)
        self._load(state)

    def _warn_of_kept(self) -> None:
        """Say once that a checkpoint was due and not written."""
        if self.rule is not None and self._training.values.kept and not self._has_warned:
            self._has_warned = True
            message = "no checkpoint within an epoch: its `metrics` cannot be brought back; at its end there is one"
            warnings.warn(message, LoopWarning, 2)

    def _load(self, state: Mapping[str, Any]) -> None:
        for logger, own in zip(self._book.resumable(), state["loggers"], strict=False):
            logger.load_state_dict(own)  # first: its file may be lost, and then nothing has moved
        self._model.load_state_dict(state["model"])
        for optimizer, own in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(own)
        self._schedule.load_state_dict(state["schedulers"])
        self._training.optimization.load_state_dict(state["optimization"])
        self.history = state["history"]
        then, now = state["watched"], self._watched()  # the best of another value says nothing of this one
        if then["best"] == now["best"]:
            self.best.value = state["best"]
        if self._patience is not None and then["patience"] == now["patience"]:
            self._patience.best.value, self._patience.waited = state["patience"]
        self._book.step_names.update(state["logged_names"])
        self._load_epoch(state)

    def _load_epoch(self, state: Mapping[str, Any]) -> None:
        self.epoch = state["epoch"]
        if (within := state["within"]) is not None:
            self._random_at_start = state["random_at_start"]
            set_random_state(state["random_at_start"], self._generators)
            self._training.resume(self.epoch, within["position"], within["training"])
            self.is_within = True
        elif state["loader"] is not None:
            self._training.windows.loader.source.load_state_dict(state["loader"])
        set_random_state(state["random"], self._generators)

    def _state(self, within: dict[str, Any] | None) -> dict[str, Any]:
        loader = self._training.windows.loader
        return {
            "format": FORMAT,
            "made_for": self._made_for,
            "model": self._model.state_dict(),
            "optimizers": [_plain(optimizer.state_dict()) for optimizer in self._optimizers],
            "schedulers": _plain(self._schedule.state_dict()),
            "optimization": self._training.optimization.state_dict(),
            "epoch": self.epoch,
            "within": within,
            "loader": loader.source.state_dict() if loader.is_stateful and within is None else None,
            "history": self.history,
            "watched": self._watched(),
            "best": self.best.value,
            "patience": None if self._patience is None else [self._patience.best.value, self._patience.waited],
            "loggers": [logger.state_dict() for logger in self._book.resumable()],
            "logged_names": sorted(self._book.step_names),
            "random_at_start": None if within is None else self._random_at_start,
            "random": random_state(self._generators),
        }

    @property
    def _made_for(self) -> dict[str, Any]:
        return made_for(self._options, len(self._book.resumable()), self._training.windows.loader.is_stateful)

    def _watched(self) -> dict[str, list[str | None] | None]:
        """What the best value is the best of, and what patience waits for."""
        rules = {"best": self.rule, "patience": None if self._patience is None else self._patience.rule}
        return {name: None if rule is None else [rule.monitor, rule.mode] for name, rule in rules.items()}


def _plain(state: Any) -> Any:
    """Numbers of numpy (a rate that a schedule computed) as Python's, which a checkpoint can hold; float32 has none."""
    numbers = tuple(numpy_type(name) for name in ("float64", "integer", "bool_"))
    return walked(state, lambda leaf: leaf.item() if issubclass(type(leaf), numbers) else leaf)
