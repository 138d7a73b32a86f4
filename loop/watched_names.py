"""The names that options watch: looked for among the values as soon as these are known, not after hours."""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from strictstep.loop.early_stopping import require_known
from strictstep.loop.epoch_values import EpochValues
from strictstep.loop.errors import LoopWarning
from strictstep.loop.options import Options

Prefix = Literal["", "val_"]


class WatchedNames:
    """What early stopping, the best checkpoint and a scheduler by value watch.

    A name that begins with `val_` is one of validation, if there is one. Each is looked for after the first step that
    returned values; where more may come at the end of the pass (torchmetrics, `epoch_end`), there.

    Args:
        options: those of `fit`.

    Attributes:
        is_settled: whether there is nothing more to look for after a step.
    """

    def __init__(self, options: Options) -> None:
        """List the names."""
        stopping, checkpoint = options.early_stopping, options.rule
        watched = {
            "early_stopping": None if stopping is None else stopping.monitor,
            "checkpoint": None if checkpoint is None else checkpoint.monitor,
            "scheduler_monitor": options.scheduler_monitor if options.scheduler is not None else None,
        }
        self._has_validation = options.validation_step is not None
        self._may_come_late = options.epoch_end is not None
        self._unseen = {owner: name for owner, name in watched.items() if name is not None}
        self._is_checked: dict[Prefix, bool] = {"": not self._unseen, "val_": not self._unseen}
        self.is_settled = not self._unseen

    def after_step(self, values: EpochValues, prefix: Prefix) -> None:
        """Look among the names of the first step that was not skipped.

        Raises:
            LoopError: with the code `monitor_unknown`.
        """
        if self._is_checked[prefix]:
            return
        names = values.names() if values.has_output else []
        if names:
            self._is_checked[prefix] = True
            self.is_settled = all(self._is_checked.values())
            if not (self._may_come_late or values.kept):
                self._require([f"{prefix}{name}" for name in names], prefix)

    def after_epoch(self, values: Mapping[str, Any], is_validated: bool) -> None:
        """Look among the values of the first epoch that has them all.

        Raises:
            LoopError: with the code `monitor_unknown`.
        """
        if self._unseen:
            for prefix in ("", "val_") if is_validated else ("",):
                self._require(values, prefix)
            self._unseen = {owner: name for owner, name in self._unseen.items() if name not in values}

    def after_run(self, history: Iterable[Mapping[str, Any]]) -> None:
        """Warn of names that never came, since no epoch was validated: with `max_steps` nobody knows that before."""
        seen = {name for values in history for name in values}
        for owner, name in self._unseen.items():
            if self._has_validation and name.startswith("val_") and name not in seen:
                message = f"`{owner}` watched `{name}`, which never came: no epoch was validated; validate more often"
                warnings.warn(message, LoopWarning, 2)

    def _require(self, names: Iterable[str], prefix: Prefix | str) -> None:
        for owner, name in self._unseen.items():
            is_validation = self._has_validation and name.startswith("val_")
            if is_validation is (prefix == "val_") and name != "skipped":
                require_known(name, owner, names)
