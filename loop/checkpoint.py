"""Checkpoints on disk: written whole or not at all, read without running code, refused where they do not fit."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from strictstep.loop.early_stopping import Mode, check_monitor
from strictstep.loop.errors import LoopError
from strictstep.schema.describe import describe, names_text

FORMAT = 3
PARTS = frozenset(
    {"format", "made_for", "model", "optimizers", "schedulers", "optimization", "epoch", "within", "loader", "history"}
    | {"watched", "best", "patience", "loggers", "logged_names", "random_at_start", "random"}
)

LAST = "last.pt"
BEST = "best.pt"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where and when checkpoints are written: `last.pt`, and `best.pt` by a named value.

    `last.pt` is written at the end of each epoch, every `every_steps` optimizer steps, when `max_steps` is reached,
    and on Ctrl-C. With torchmetrics objects, or other `metrics` that an `epoch_end` function waits for, at the end of
    an epoch only: they cannot be brought back in the middle.

    An epoch that `max_steps` cuts short counts for `best.pt` as far as it went. The weights of a checkpoint:
    `model.load_state_dict(torch.load("runs/digits/best.pt")["model"])`.

    Args:
        folder: where the files go; it is made if it is missing.
        every_steps: how many optimizer steps lie between two in mid-epoch; `None` for none in mid-epoch.
        monitor: the name of the value by which `best.pt` is kept, as in the history: `"val_loss"`.
        mode: whether lower (`"min"`) or higher (`"max"`) is better. NaN is never better.

    Raises:
        LoopError: with the code `option`, for a wrong value.

    Example:
        >>> Checkpoint("runs/digits", every_steps=500, monitor="val_loss").last
        PosixPath('runs/digits/last.pt')
    """

    folder: str | os.PathLike[str]
    every_steps: int | None = None
    monitor: str | None = None
    mode: Mode = "min"

    def __post_init__(self) -> None:
        """Refuse what can be seen to be wrong."""
        if not isinstance(self.folder, (str, os.PathLike)):
            raise LoopError("option", f"expected a folder as `checkpoint`, got {describe(self.folder)}", "write a path")
        existing = next(path for path in (Path(self.folder), *Path(self.folder).parents) if os.path.exists(path))
        if not existing.is_dir():
            where = "the file" if existing == Path(self.folder) else "one within the file"
            raise LoopError("option", f"expected a folder as `checkpoint`, got {where} `{existing}`", "name another")
        if self.every_steps is not None and (type(self.every_steps) is not int or self.every_steps < 1):
            message = f"expected a positive int as `every_steps`, got {describe(self.every_steps)}"
            raise LoopError("option", message, "or `None` for checkpoints at the ends of epochs only")
        if self.monitor is not None or self.mode != "min":
            check_monitor(self.monitor, self.mode)

    @property
    def last(self) -> Path:
        """The file of the last checkpoint."""
        return Path(self.folder) / LAST

    @property
    def best(self) -> Path:
        """The file of the best one."""
        return Path(self.folder) / BEST


def write(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint: to a file beside it, to the disk, then in its place, so that a killed run leaves no half.

    Raises:
        LoopError: with the code `checkpoint_unsavable`, for what could not be read again; the one before stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    with unfinished.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    _require_loadable(unfinished)
    os.replace(unfinished, path)
    _sync_folder(path.parent)


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; only tensors and plain values are loaded, so that no code in it can run.

    Raises:
        LoopError: `checkpoint_missing` or `checkpoint_unreadable`.
    """
    if not path.is_file():
        message = f"expected a checkpoint at `{path}`, got no file there"
        raise LoopError("checkpoint_missing", message, "`resume=True` starts anew where there is none yet")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise _unreadable(path, f"a file that torch cannot load ({type(error).__name__})") from error
    if not (isinstance(state, dict) and state.get("format") == FORMAT):
        raise _unreadable(path, "another kind of file")
    if missing := PARTS - state.keys():
        raise _unreadable(path, f"one without {names_text(sorted(missing))}")
    return state


def _require_loadable(path: Path) -> None:
    """Raise if a file could not be read again. Mapped, since then no tensor is read, however large the model is."""
    try:
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        path.unlink()
        message = "expected states of tensors and plain values in a checkpoint, got one that only pickle could load"
        help = "keep plain numbers, strings, lists and dicts in `state_dict()`"
        raise LoopError("checkpoint_unsavable", message, help) from error


def _unreadable(path: Path, got: str) -> LoopError:
    message = f"expected a checkpoint of `fit` at `{path}`, got {got}"
    help = (
        "remove the file if it is damaged; a `state_dict` alone is loaded by `model.load_state_dict(torch.load(path))`"
    )
    return LoopError("checkpoint_unreadable", message, help)


def _sync_folder(folder: Path) -> None:
    """Put the renaming itself onto the disk; not every system lets a folder be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
