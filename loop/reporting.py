"""What a run shows while it goes: a bar in a terminal, plain lines elsewhere, and a line at the end of each epoch."""

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from tqdm import tqdm

from strictstep.loop.host_values import host_values
from strictstep.schema.describe import describe, printable

BAR_SECONDS = 0.1  # between two refreshes: a fast loop would be slowed by its own bar
LINE_SECONDS = 10.0  # between two plain lines, which stay in their log file


class ProgressBar:
    """Shows one epoch on stderr: the values as the step returned them, neither averaged nor smoothed.

    A name that is not given is not shown. Values are read from their device only when they are shown: after
    `log_every` steps at the earliest, and in a terminal ten times a second, elsewhere every ten seconds at most.
    Only the first rank shows anything.

    Args:
        total: how many optimizer steps the epoch has; `None` where that is not known.
        epoch: its number, from 0, as in reports and histories; `None` for a pass that is of no epoch.
        max_epochs: how many epochs there are; `None` where that is not known.
        enabled: `False` for a bar that does nothing.
        log_every: the least number of steps between two refreshes.
        done: how many steps of the epoch were taken before, by a run that is resumed.

    Example:
        >>> from contextlib import redirect_stderr
        >>> with redirect_stderr(sys.stdout):
        ...     bar = ProgressBar(total=2, epoch=0, max_epochs=20, enabled=True, log_every=1)
        ...     for loss in (0.7, 0.5):
        ...         if bar.step():
        ...             bar.show({"loss": loss})
        ...     bar.close({"loss": 0.6, "val_loss": 0.52})  # doctest: +ELLIPSIS
        epoch 0/19  loss 0.6000  val_loss 0.5200  (2 steps in ... s)
    """

    def __init__(
        self,
        total: int | None,
        epoch: int | None,
        max_epochs: int | None,
        enabled: bool,
        log_every: int,
        done: int = 0,
    ) -> None:
        """Start the epoch's clock; in a terminal the empty bar appears."""
        self._name = _name(epoch, max_epochs)
        self._total = total
        self._log_every = log_every
        self._due = done + log_every
        stderr = sys.stderr  # `None` in a process without a console
        self._is_shown = enabled and stderr is not None and _is_first_rank()
        self._bar = (
            _Bar.of(self._name, total, done) if self._is_shown and stderr is not None and _is_terminal(stderr) else None
        )
        self._seconds = LINE_SECONDS if self._bar is None else BAR_SECONDS
        self._steps = self._shown_steps = done
        self._started = self._shown_at = time.monotonic()

    def step(self) -> bool:
        """Count an optimizer step; tell whether a refresh is due, so that values are gathered only for one."""
        self._steps += 1
        if self._steps < self._due or not self._is_shown:
            return False
        return time.monotonic() - self._shown_at >= self._seconds

    def show(self, values: Mapping[str, Any]) -> None:
        """Show the values of the last step.

        Args:
            values: names to scalars, on whatever device.
        """
        text = values_text(values)
        if self._bar is None:
            of_total = "" if self._total is None else f"/{self._total}"
            _write_line(self._name, f"step {self._steps}{of_total}", text)
        else:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(self._steps - self._shown_steps)
        self._shown_steps = self._steps
        self._due = self._steps + self._log_every
        self._shown_at = time.monotonic()

    def close(self, summary: Mapping[str, Any]) -> None:
        """End the epoch with one line of its values; from then on nothing is shown.

        Args:
            summary: names to scalars; empty where the epoch did not come to its end.
        """
        if not self._is_shown:
            return
        self._is_shown = False
        if self._bar is not None:
            self._bar.close()
        steps = steps_text(self._steps, self._total)
        _write_line(self._name, values_text(summary), f"({steps} in {seconds_text(time.monotonic() - self._started)})")


class _Bar(tqdm):  # type: ignore[type-arg]  # not generic at run time
    """A bar that is refreshed when it is told to."""

    monitor_interval = 0  # no thread of its own: it would refresh by itself, and forks of loader workers would warn

    @classmethod
    def of(cls, name: str, total: int | None, done: int) -> "_Bar":
        look: dict[str, Any] = {"unit": " steps", "leave": False, "dynamic_ncols": True, "mininterval": 0}
        return cls(desc=name, total=total, initial=done, file=sys.stderr, **look)


def values_text(values: Mapping[str, Any]) -> str:
    """Names and numbers on one line.

    Example:
        >>> values_text({"loss": torch.tensor(0.5), "images": 1437, "lr": 3e-5})
        'loss 0.5000  images 1437  lr 3.000e-05'
    """
    return "  ".join(f"{printable(name)} {number_text(number)}" for name, number in host_values(values).items())


def number_text(number: float | int | bool) -> str:
    """A number for people: four significant digits, an exponent where it is very large or small; ints exact.

    Example:
        >>> [number_text(number) for number in (0.98765, 1234.5, 6.02e23, float("nan"), 1234567, True)]
        ['0.9877', '1234', '6.020e+23', 'nan', '1234567', 'True']
    """
    if isinstance(number, float):
        return f"{number:#.4g}".removesuffix(".")
    # The text of an int of thousands of digits may raise, and is no use to anybody.
    return str(number) if number.bit_length() <= 64 else describe(number)


def steps_text(steps: int, total: int | None) -> str:
    """A number of steps, and what it is short of.

    Example:
        >>> steps_text(1, 1), steps_text(50, 120)
        ('1 step', '50 of 120 steps')
    """
    if total in (None, steps):
        return f"{steps} step{'' if steps == 1 else 's'}"
    return f"{steps} of {total} steps"


def seconds_text(seconds: float) -> str:
    """A duration for people.

    Example:
        >>> seconds_text(0.8123), seconds_text(75)
        ('0.8 s', '01:15')
    """
    return f"{seconds:.1f} s" if seconds < 60 else tqdm.format_interval(seconds)


def _name(epoch: int | None, max_epochs: int | None) -> str:
    if epoch is None:
        return "evaluation"
    return f"epoch {epoch}" if max_epochs is None else f"epoch {epoch}/{max_epochs - 1}"


def _write_line(*parts: str) -> None:
    text = "  ".join(part for part in parts if part)
    # A line that cannot be shown ends no training: stderr may be closed, or a stand-in that only has `write`.
    with suppress(AttributeError, OSError, ValueError):
        print(text, file=sys.stderr)
        sys.stderr.flush()


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, OSError, ValueError):
        return False


def _is_first_rank() -> bool:
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0
