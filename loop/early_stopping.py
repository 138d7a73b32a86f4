"""A value that is watched: the best of it so far, and training that ends when it no longer gets better."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from strictstep.loop.errors import LoopError
from strictstep.schema.describe import describe, names_text
from strictstep.schema.names import nearest

Mode = Literal["min", "max"]


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """Ends training after some epochs in which a value has not got better.

    Args:
        monitor: the name of the value, as in `FitResult.history`: `"val_loss"`.
        mode: whether lower (`"min"`) or higher (`"max"`) is better. NaN is never better.
        patience: how many epochs in a row may bring nothing better; epochs without the value (of no validation) do
            not count.
        min_delta: by how much a value must be better to count, in its own unit.

    Raises:
        LoopError: with the code `option`, for a wrong value.

    Example:
        >>> EarlyStopping("val_accuracy", mode="max", patience=5).min_delta
        0.0
    """

    monitor: str
    mode: Mode = "min"
    patience: int = 3
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what can be seen to be wrong."""
        check_monitor(self.monitor, self.mode)
        if type(self.patience) is not int or self.patience < 1:
            message = f"expected a positive int as `patience`, got {describe(self.patience)}"
            raise LoopError("option", message, "1 ends training after the first epoch that is no better")
        if type(self.min_delta) not in (int, float) or not 0 <= self.min_delta < math.inf:
            message = f"expected a finite number of at least 0 as `min_delta`, got {describe(self.min_delta)}"
            raise LoopError("option", message, "the direction is `mode`'s: a difference has no sign")


class Best:
    """The best value of a name so far.

    Attributes:
        value: the best, `None` before the first.

    Example:
        >>> best = Best("max")
        >>> best.improves(0.5), best.improves(float("nan")), best.improves(0.4), best.value
        (True, False, False, 0.5)
    """

    def __init__(self, mode: Mode, min_delta: float = 0.0) -> None:
        """Start without a value."""
        self._sign = 1 if mode == "max" else -1
        self._min_delta = min_delta
        self.value: float | None = None

    def improves(self, value: float) -> bool:
        """Take in a value; tell whether it is the best so far."""
        if value != value or (self.value is not None and not self._is_better(value, self.value)):
            return False
        self.value = value
        return True

    def _is_better(self, value: float, best: float) -> bool:
        try:
            return self._sign * (value - best) > self._min_delta  # NaN, and no, for an infinity and itself
        except OverflowError:  # of an int that no float can hold
            return (value > best) is (self._sign > 0)


class Patience:
    """How long an `EarlyStopping` has waited.

    Attributes:
        best: the best value so far.
        waited: how many epochs in a row brought nothing better.
    """

    def __init__(self, early_stopping: EarlyStopping) -> None:
        """Start with all its patience."""
        self.rule = early_stopping
        self.best = Best(early_stopping.mode, early_stopping.min_delta)
        self.waited = 0

    def see(self, values: Mapping[str, Any]) -> None:
        """Take in the values of an epoch."""
        if self.rule.monitor in values:
            self.waited = 0 if self.best.improves(values[self.rule.monitor]) else self.waited + 1

    @property
    def is_over(self) -> bool:
        """Whether training shall end."""
        return self.waited >= self.rule.patience


def check_monitor(monitor: Any, mode: Any = "min") -> None:
    """Raise for what cannot name a value, and for an unknown mode.

    Raises:
        LoopError: with the code `option`.
    """
    if type(monitor) is not str or not monitor:
        message = f"expected the name of a value as `monitor`, got {describe(monitor)}"
        raise LoopError("option", message, "write it as in the history: 'loss', 'val_loss'")
    if mode not in ("min", "max"):
        raise LoopError("option", f"expected 'min' or 'max' as `mode`, got {describe(mode)}", "write one of them")


def _of_validation(monitor: str, known: Sequence[str]) -> str | None:
    """`val_loss` for `valid_loss` and `validation_loss`, as other libraries call it."""
    prefix, _, name = monitor.partition("_")
    is_known = f"val_{name}" in known or (prefix != "val" and name in known)
    return f"val_{name}" if prefix.startswith("val") and is_known else None


def _longer(monitor: str, known: Sequence[str]) -> str | None:
    """`val_accuracy` for `val_acc`, if one name alone goes on so."""
    longer = [name for name in known if name.startswith(monitor)]
    return longer[0] if len(longer) == 1 else None


def require_known(monitor: str, owner: str, names: Iterable[str]) -> None:
    """Raise if a name that is watched is none of the values that came.

    Raises:
        LoopError: with the code `monitor_unknown`, and the nearest name that there is.

    Example:
        >>> require_known("val_loss", "early_stopping", ["loss", "val_loss"])
    """
    known = list(names)
    if monitor in known:
        return
    near = nearest(monitor, known) or _longer(monitor, known) or _of_validation(monitor, known)
    help = f"write `{near}`" if near else "return the value in `log` of the step that has it"
    if monitor.startswith("val_") and not any(name.startswith("val_") for name in known):
        help = "names that begin with `val_` are what `validation_step` returns: give one, or look at its `return`"
    message = f"expected `{owner}` to watch a value that there is, got {describe(monitor)}; there is "
    raise LoopError("monitor_unknown", message + (names_text(known) or "none"), help)
