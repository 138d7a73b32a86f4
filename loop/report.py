"""What one optimizer step has to say for itself."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from strictstep.schema.base import AnyOutput


@dataclass(slots=True, eq=False)
class StepReport:
    """What came of one window of micro-batches: the outputs of its first evaluation, and whether a step was taken.

    Attributes:
        outputs: one output per micro-batch, in their order, each detached; a `SkippedStep` for one that was skipped.
            They are those of the first evaluation, at the parameters that the step started from.
        output: the last of them.
        loss: weighted mean of the losses of those that contributed, as they were returned: shape `[]`, on their device;
            `None` where none has a loss.
        weights: the weight of each micro-batch (examples, unless `weight=` says otherwise), skipped ones included.
        stepped: whether the optimizer took its step.
        skipped: how many of the micro-batches were skipped.
        evaluations: how often the optimizer evaluated the window; 1 where nothing in it contributed.
        grad_norm: norm over the optimizer's gradients at the first evaluation, before clipping, shape `[]`; `None`
            where it was not computed (no `max_grad_norm`).

    Example:
        >>> from strictstep.schema import ManualOutput
        >>> output = ManualOutput(loss=torch.tensor(1.0))
        >>> StepReport((output,), output.loss, (8,)).output is output
        True
    """

    outputs: tuple[AnyOutput, ...]
    output: AnyOutput = field(init=False, repr=False)
    loss: Tensor | None = field(repr=False)  # its text would read the device
    weights: tuple[float, ...]
    stepped: bool = False
    skipped: int = 0
    evaluations: int = 1
    grad_norm: Tensor | None = None

    def __post_init__(self) -> None:
        """Find the last output: an attribute is read more cheaply than a property, and it is read at each step."""
        self.output = self.outputs[-1]


def weighted_mean(losses: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The weighted mean of scalars, computed where they are and not read; several of half precision in float32."""
    if len(losses) == 1:
        return losses[0]
    dtype = torch.promote_types(losses[0].dtype, torch.float32)
    total = sum(weights)
    parts = [loss.to(dtype) * (weight / total) for loss, weight in zip(losses, weights, strict=True)]
    return torch.stack(parts).sum()
