"""The loggers of a run: told of each optimizer step, and of each epoch."""

from collections.abc import Mapping, Sequence
from typing import Any

from strictstep.loop.calls import called


class LogBook:
    """Hands values to every logger.

    One with `log_epoch(values, epoch, global_step)` is told of an epoch by it. Any other gets from an epoch, by
    `log_metrics`, only the names that its steps did not have: of the others it has every value already.

    Args:
        loggers: objects with `log_metrics(dict, step)`.

    Attributes:
        step_names: the names that steps have had.

    Example:
        >>> class Printer:
        ...     def log_metrics(self, metrics, step):
        ...         print(step, metrics)
        >>> book = LogBook([Printer()])
        >>> book.step({"loss": 0.5}, 1)
        1 {'loss': 0.5}
        >>> book.epoch({"loss": 0.5, "val_loss": 0.4}, 0, 1)
        1 {'val_loss': 0.4}
    """

    def __init__(self, loggers: Sequence[Any]) -> None:
        """Keep the loggers."""
        self._loggers = loggers
        self.step_names: set[str] = set()

    def step(self, values: dict[str, Any], global_step: int) -> None:
        """Tell of one optimizer step."""
        self.step_names.update(values)
        for logger in self._loggers:
            called("logger", f"step {global_step}", logger.log_metrics, dict(values), global_step)

    def epoch(self, values: Mapping[str, Any], epoch: int, global_step: int) -> None:
        """Tell of one epoch."""
        new = {name: value for name, value in values.items() if name not in self.step_names}
        for logger in self._loggers:
            if callable(log_epoch := getattr(logger, "log_epoch", None)):
                called("logger", f"epoch {epoch}", log_epoch, dict(values), epoch, global_step)
            elif new:
                called("logger", f"epoch {epoch}", logger.log_metrics, dict(new), global_step)

    def resumable(self) -> list[Any]:
        """Those that say where they stand, and can be brought back there."""
        methods = ("state_dict", "load_state_dict")
        return [logger for logger in self._loggers if all(callable(getattr(logger, name, None)) for name in methods)]
