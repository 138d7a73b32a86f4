"""The seam for training on several ranks: the one object that the closure asks to run, to agree and to go backward.

In a single process there is none, since there is nobody to agree with: an outcome stands, weights are summed, and
`torch.autograd.backward` is called. Whatever runs several ranks (DDP, FSDP2) is an engine.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from torch import Tensor

Outcome = TypeVar("Outcome")


class Engine(Protocol):
    """What the closure needs from whatever runs it. Every rank makes the same calls in the same order.

    In each evaluation of a window, for each micro-batch: the wrapped step, `agree`, and `backward` if it contributes.
    `total_weight` is asked before the first step of a window, and again for those that contribute if some do not.
    """

    def wrap(self, step: Callable[..., object]) -> Callable[..., object]:
        """Give the callable that runs `step(batch, **named)`, the whole of the user's step, in the engine's forward.

        Asked once, at the start.
        """
        ...

    def agree(self, outcome: Outcome | Exception) -> Outcome | Exception:
        """Make one outcome of those of all ranks: a checked output, a `SkippedStep`, or an error.

        An error on one rank becomes an error on all of them, and a skip on one a skip on all, before any backward
        that synchronises.
        """
        ...

    def total_weight(self, weights: tuple[float, ...] | Exception) -> float:
        """The weight of the window over all ranks; raises on every rank where one could not read its weights."""
        ...

    def backward(self, loss: Tensor, factor: float) -> None:
        """Add the gradient of `factor * loss` to that of the parameters.

        `factor` is the micro-batch's share of the weight of `total_weight`; an engine whose backward averages over
        ranks multiplies it by their number.
        """
        ...
