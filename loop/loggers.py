"""Where the values of a run are kept: a file of JSON lines, or TensorBoard.

Any object with `log_metrics(metrics, step)` is a logger, Lightning's among them. One that has `log_epoch` as well is
told about epochs by it, and one that has `state_dict` and `load_state_dict` is cut back to the checkpoint on resuming.
"""

import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from strictstep.loop.errors import LoopError
from strictstep.loop.history import LoggedEpoch, LoggedStep
from strictstep.loop.host_values import host_values
from strictstep.schema.step_record import HistoryRecord


class JSONLLogger:
    """Writes a history: a line of JSON for each optimizer step and each epoch, as `strictstep check` reads it.

    Each line is with the operating system before the next step begins, so that a killed run loses at most the line it
    was writing. There is no clock in it: the same run writes the same bytes. A run that is not resumed starts the
    file anew, at its first line.

    Args:
        path: the file, such as `run.jsonl`; missing folders are made.

    Raises:
        LoopError: with the code `option`, for a folder.
        ValidationError: (pydantic's) for a value that is no number.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     logger = JSONLLogger(f"{folder}/run.jsonl")
        ...     logger.log_metrics({"loss": float("nan")}, step=1)
        ...     logger.close()
        ...     print(logger.path.read_text(), end="")
        {"schema_version":1,"kind":"step","epoch":0,"global_step":1,"values":{"loss":{"$float":"nan"}},"outputs":[]}
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Keep the path; the file is opened for the first line."""
        self.path = Path(path)
        if self.path.is_dir():
            message = f"expected a file for `JSONLLogger`, got the folder `{self.path}`"
            raise LoopError("option", message, "name a file in it: `run.jsonl`")
        self._file: BinaryIO | None = None
        self._position = 0
        self._epoch = self._step = 0

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write the values of one optimizer step.

        It belongs to the epoch after the last one that was logged; a number that does not grow begins another run.

        Args:
            metrics: names to scalars, on whatever device.
            step: how many optimizer steps there have been, this one included.
        """
        self._epoch = self._epoch if step > self._step else 0
        self._step = step
        self._write(LoggedStep(epoch=self._epoch, global_step=step, values=host_values(metrics)))

    def log_epoch(self, values: Mapping[str, Any], epoch: int, global_step: int) -> None:
        """Write the values of an epoch.

        Args:
            values: names to scalars, on whatever device.
            epoch: its number, from 0.
            global_step: how many optimizer steps there have been.
        """
        self._write(LoggedEpoch(epoch=epoch, global_step=global_step, values=host_values(values)))
        self._epoch = epoch + 1

    def state_dict(self) -> dict[str, int]:
        """Where the history stands, for a checkpoint: `position` in bytes, which are on the disk, and `epoch`."""
        if self._file is not None:
            os.fsync(self._file.fileno())
        return {"position": self._position, "epoch": self._epoch}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a checkpoint: lines that were written after it are cut off.

        Raises:
            LoopError: `checkpoint_differs`, if the file is gone, or ends before the checkpoint's position.
        """
        self.close()
        self._position, self._epoch, self._step = state["position"], state["epoch"], 0
        if self._position:
            _cut_back(self.path, self._position)

    def close(self) -> None:
        """Close the file; a line that comes later is appended."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, record: HistoryRecord) -> None:
        line = record.model_dump_json().encode() + b"\n"
        file = self._opened()
        file.write(line)
        file.flush()
        self._position += len(line)

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab" if self._position else "wb")
            weakref.finalize(self, self._file.close)  # nobody closes a logger after training
        return self._file


def _cut_back(path: Path, position: int) -> None:
    size = path.stat().st_size if path.exists() else 0
    if size < position:
        message = f"expected at least {position} bytes in `{path}`, which the checkpoint says it had, got {size}"
        raise LoopError("checkpoint_differs", message, "put back the file that belongs to the checkpoint")
    os.truncate(path, position)


class TensorBoardLogger:
    """Writes TensorBoard's event files: each value under its name, those of epochs under `epoch/`.

    Needs the extra `tensorboard`. The axis is the number of optimizer steps.

    Args:
        folder: where the event files go, such as `runs/digits`.

    Raises:
        ImportError: without the extra `tensorboard`.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Find TensorBoard; a file is opened for the first value."""
        self.folder = Path(folder)
        self._writer_class = _summary_writer()
        self._writer: Any = None
        self._step = 0
        self._purge_step: int | None = None

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Add the values of one optimizer step.

        Args:
            metrics: names to scalars, on whatever device.
            step: how many optimizer steps there have been, this one included.
        """
        if self._writer is None:
            self._writer = self._writer_class(str(self.folder), purge_step=self._purge_step)
        for name, number in host_values(metrics).items():
            self._writer.add_scalar(name, number, step)
        self._step = step

    def log_epoch(self, values: Mapping[str, Any], epoch: int, global_step: int) -> None:
        """Add the values of an epoch, under `epoch/`, and its number."""
        named = {f"epoch/{name}": value for name, value in values.items()}
        self.log_metrics({**named, "epoch": epoch}, global_step)

    def state_dict(self) -> dict[str, int]:
        """The last step, for a checkpoint; what was logged is written out."""
        if self._writer is not None:
            self._writer.flush()
        return {"step": self._step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a checkpoint: TensorBoard hides what was logged after it."""
        self.close()
        self._step = state["step"]
        self._purge_step = self._step + 1

    def close(self) -> None:
        """Write everything out."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        message = "expected tensorboard for `TensorBoardLogger`\n  help: pip install 'strictstep[tensorboard]'"
        raise ImportError(message) from error
    return SummaryWriter
