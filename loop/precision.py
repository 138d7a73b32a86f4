"""Autocast and the gradient scaler."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.optim import Optimizer

from strictstep.loop.errors import LoopError
from strictstep.schema.describe import describe

PrecisionName = Literal["fp32", "bf16-mixed", "fp16-mixed"]

_AUTOCAST = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}


class Precision:
    """What a precision asks for around the step and around the optimizer.

    Args:
        name: `"fp32"` (plain torch, whatever the parameters are), `"bf16-mixed"` or `"fp16-mixed"`.
        device_type: where the step computes, such as `"cuda"`.

    Attributes:
        autocast: the context of the user's step; `None` for `"fp32"`.
        scaler: the `GradScaler`; `None` but for `"fp16-mixed"`.

    Raises:
        LoopError: with the code `option`, for another name.

    Example:
        >>> Precision("bf16-mixed", "cpu").scaler is None
        True
    """

    __slots__ = ("autocast", "scaler")

    def __init__(self, name: PrecisionName, device_type: str) -> None:
        """Make the contexts once."""
        if name not in get_args(PrecisionName):
            expected = ", ".join(repr(known) for known in get_args(PrecisionName))
            raise LoopError("option", f"expected {expected} as `precision`, got {describe(name)}", "write one of them")
        dtype = _AUTOCAST.get(name)
        self.autocast: AbstractContextManager[Any] | None = (
            None if dtype is None else torch.autocast(device_type, dtype)
        )
        self.scaler = _scaler(device_type) if name == "fp16-mixed" else None

    def within(self, step: Callable[..., object]) -> Callable[..., object]:
        """The step, to be called in its context."""
        if self.autocast is None:
            return step
        return functools.partial(_run, self.autocast, step)


def _run(context: AbstractContextManager[Any], step: Callable[..., object], batch: Any, **named: Any) -> object:
    with context:
        return step(batch, **named)


def _scaler(device_type: str) -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler(device_type)
    scaler.scale(torch.zeros((), device=device_type))  # it makes its state at the first loss, and else cannot `update`
    return scaler


def step_scaled(scaler: torch.amp.GradScaler, optimizer: Optimizer, closure: Callable[[], Tensor]) -> bool:
    """Evaluate the closure, then let the scaler step the optimizer without it; tell whether it stepped.

    Passed to the scaler, the closure would run on gradients that are still scaled. What the optimizer's `step`
    returns says nothing of whether it ran: the scale does, since it falls exactly where a step was left out.

    Raises:
        LoopError: with the code `scale_vanished`, when the scale has fallen to zero: no gradient was finite for long.
    """
    before = scaler.get_scale()
    try:
        closure()
        scaler.step(optimizer)
    except BaseException:
        scaler.update(before)  # forget that this window was unscaled, or the next one could not be
        raise
    scaler.update()
    after = scaler.get_scale()
    if after == 0:
        help = 'train in "bf16-mixed", or look for the layer that overflows float16'
        raise LoopError("scale_vanished", "expected finite gradients now and then, got a scale that fell to 0", help)
    return after >= before


def refuse_closure_demanded(optimizer_name: str) -> LoopError:
    """The error for an optimizer that must evaluate the closure itself, under `"fp16-mixed"`."""
    message = (
        'expected an optimizer that steps without a closure under "fp16-mixed", '
        f"got `{optimizer_name}`, whose `step` demands one"
    )
    help = f'use `{optimizer_name}` with "bf16-mixed" or "fp32": the scaler unscales once per step'
    return LoopError("fp16_needs_one_evaluation", message, help)
