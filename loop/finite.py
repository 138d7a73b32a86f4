"""Losses and gradient norms that are not finite: found at once on the CPU, later on an accelerator.

Reading a value of an accelerator waits for it. There the values wait instead, and are read many at a time; their error
names the step that they came from.
"""

import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from strictstep.loop.errors import LoopError
from strictstep.schema.base import AnyOutput
from strictstep.schema.describe import describe, names_text
from strictstep.schema.errors import Stage, StepOutputError
from strictstep.schema.explain import Arrived
from strictstep.schema.forms import length_of, names_in
from strictstep.schema.report import report_of_step
from strictstep.schema.translate import Found

OnNonFinite = Literal["error", "skip", "keep"]

READ_EVERY = 50  # so many values wait at most, where nobody asks for them before


class Origin(NamedTuple):
    """Which step a value came from."""

    step: object
    stage: Stage
    epoch: int | None
    batch_idx: int | None
    evaluation: int

    @property
    def numbers(self) -> tuple[int | None, int | None]:
        """Its epoch and its batch."""
        return self.epoch, self.batch_idx


class FiniteWatch:
    """The policy `on_non_finite`, and the values that wait to be read.

    Args:
        policy: `"error"`; `"skip"`, which reads each value at once on every device; or `"keep"`, which reads none.

    Example:
        >>> watch = FiniteWatch("error")
        >>> watch.reads(torch.tensor(1.0))
        True
    """

    __slots__ = ("_waiting", "policy")

    def __init__(self, policy: OnNonFinite) -> None:
        """Refuse an unknown policy."""
        if policy not in get_args(OnNonFinite):
            message = f"expected 'error', 'skip' or 'keep' as `on_non_finite`, got {describe(policy)}"
            raise LoopError("option", message, "write one of them")
        self.policy = policy
        self._waiting: list[tuple[Tensor, str, Origin]] = []

    def reads(self, value: Tensor) -> bool:
        """Whether a value is read at once."""
        return self.policy == "skip" or (self.policy == "error" and value.is_cpu)

    def wait(self, value: Tensor, kind: Literal["loss", "grad_norm"], origin: Origin) -> None:
        """Keep a value of an accelerator until it is read; read all of them when there are many."""
        if self.policy != "error":
            return
        self._waiting.append((value.detach(), kind, origin))
        if len(self._waiting) >= READ_EVERY:
            self.read()

    def read(self) -> None:
        """Read all values that wait, in one transfer.

        Raises:
            StepOutputError: for the first loss that is not finite, with its epoch and batch.
            LoopError: `grad_norm_non_finite`, if a gradient norm comes first.
        """
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        device = waiting[0][0].device
        finite = torch.stack([value.isfinite().to(device) for value, _, _ in waiting]).tolist()
        for (value, kind, origin), is_finite in zip(waiting, finite, strict=True):
            if not is_finite:
                raise _error(value.item(), kind, origin)


def non_finite_loss(number: float, origin: Origin, returned: object, output: AnyOutput | None) -> StepOutputError:
    """The error of a loss that is not finite."""
    parts = names_text(_non_finite_names(output)) if output is not None else ""
    help = f"{parts} in `log` {'is' if ',' not in parts else 'are'} not finite either; " if parts else ""
    help += 'lower the learning rate or clip; `on_non_finite="skip"` leaves such a batch out'
    found = Found("loss_non_finite", ("loss",), f"expected a finite loss, got {number}", help, Tensor)
    arrived = Arrived(type(returned), names_in(returned), length_of(returned))
    _, stage, epoch, batch_idx, _ = origin
    return report_of_step([found], arrived, stage=stage, step=origin.step, epoch=epoch, batch_idx=batch_idx)


def refuse_lost_parameters(model: nn.Module, epoch: int) -> None:
    """Raise if parameters are no longer finite: every batch would be skipped for ever.

    Raises:
        LoopError: with the code `parameters_non_finite`.
    """
    lost = [name for name, parameter in model.named_parameters() if not parameter.isfinite().all()]
    if lost:
        named = names_text(lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        message = f"expected finite parameters after epoch {epoch}, which skipped every batch, got others in {named}"
        raise LoopError("parameters_non_finite", message, "go back to a checkpoint, with clipping or a lower rate")


def non_finite_norm(number: float, origin: Origin) -> LoopError:
    """The error of a gradient norm that is not finite, though the losses were."""
    known = [
        f"{name} {value}" for name, value in (("epoch", origin.epoch), ("batch", origin.batch_idx)) if value is not None
    ]
    where = f" at {', '.join(known)}" if known else ""
    message = f"expected a finite gradient norm{where}, got {number} from finite losses"
    help = "look for a square root, a division or a norm at zero; its gradient there is infinite"
    return LoopError("grad_norm_non_finite", message, help)


def _error(number: float, kind: str, origin: Origin) -> StepOutputError | LoopError:
    if kind == "grad_norm":
        return non_finite_norm(number, origin)
    return non_finite_loss(number, origin, None, None)


def _non_finite_names(output: AnyOutput) -> Iterator[str]:
    values: dict[str, Any] = dict(output.log)
    return (name for name, value in values.items() if not -math.inf < value < math.inf)
