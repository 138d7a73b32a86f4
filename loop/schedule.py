"""Learning-rate schedulers: after each step or each epoch that moved something, and never after one that did not."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from strictstep.loop.calls import called

Interval = Literal["step", "epoch"]

_PLACED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_COUNTS = frozenset({"epoch", "t", "step", "num_updates", "num_steps", "iteration", "global_step", "current_step"})


class Schedule:
    """The schedulers of a run.

    Args:
        schedulers: torch's, or any with `step`, `state_dict` and `load_state_dict`.
        interval: whether they step after each optimizer step or after each epoch.
        monitor: the name of the value that a scheduler like `ReduceLROnPlateau` is given.

    Attributes:
        is_empty: whether there is none.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        >>> Schedule([torch.optim.lr_scheduler.StepLR(optimizer, 1)], "step").rates()
        {'lr': 0.1}
    """

    def __init__(self, schedulers: Sequence[Any], interval: Interval, monitor: str | None = None) -> None:
        """Find the optimizers whose rates are logged."""
        self._schedulers = schedulers
        self.is_empty = not schedulers
        self._interval = interval
        self._monitor = monitor
        optimizers = {id(optimizer): optimizer for s in schedulers if (optimizer := scheduled_by(s))}
        self._optimizers = list(optimizers.values())

    def rates(self) -> dict[str, Any]:
        """The learning rates as they stand: `lr`, or `lr_0`, `lr_1`, ... for several groups."""
        # The groups are read anew each time: `load_state_dict` of an optimizer replaces them.
        rates = [group["lr"] for optimizer in self._optimizers for group in optimizer.param_groups]
        # A rate that is a tensor is changed in place: the one that is logged must stay.
        rates = [rate.clone() if isinstance(rate, Tensor) else float(rate) for rate in rates]
        return {"lr" if len(rates) == 1 else f"lr_{index}": rate for index, rate in enumerate(rates)}

    def after_step(self, place: str) -> None:
        """Go on after an optimizer step."""
        if self._interval == "step":
            for scheduler in self._schedulers:
                called("scheduler", place, scheduler.step)

    def after_epoch(self, values: Mapping[str, Any], place: str) -> None:
        """Go on after an epoch with an optimizer step in it; a scheduler by value only if the epoch has the value."""
        if self._interval == "step":
            return
        for scheduler in self._schedulers:
            if not wants_value(scheduler):
                called("scheduler", place, scheduler.step)
            elif (value := values.get(self._monitor or "")) is not None:
                called("scheduler", place, scheduler.step, value)

    def state_dict(self) -> list[Any]:
        """The states of the schedulers."""
        return [scheduler.state_dict() for scheduler in self._schedulers]

    def load_state_dict(self, states: Sequence[Any]) -> None:
        """Go on from the states of a checkpoint."""
        for scheduler, state in zip(self._schedulers, states, strict=True):
            scheduler.load_state_dict(state)


def scheduled_by(scheduler: Any) -> Any:
    """The optimizer of a scheduler, or of one that it wraps, as Accelerate's do; `None` where it names none."""
    own = getattr(scheduler, "optimizer", None)
    return own if own is not None else getattr(getattr(scheduler, "scheduler", None), "optimizer", None)


def wants_value(scheduler: Any) -> bool:
    """Whether a scheduler's `step` cannot do without a value, as that of `ReduceLROnPlateau`."""
    return isinstance(scheduler, ReduceLROnPlateau) or bool(_required(scheduler, _PLACED))


def count_wanted(scheduler: Any) -> str | None:
    """The name of a count (`epoch`) that a scheduler's `step` cannot do without, as those of timm."""
    names = _required(scheduler, (*_PLACED, inspect.Parameter.KEYWORD_ONLY))
    return next((name for name in names if name in _COUNTS), None)


def _required(scheduler: Any, kinds: tuple[Any, ...]) -> list[str]:
    try:
        parameters = inspect.signature(scheduler.step).parameters.values()
    except (TypeError, ValueError):  # of a function that is not Python's
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind in kinds]
