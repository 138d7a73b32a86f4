"""The gradients of one optimizer's parameters: cleared, rescaled, measured, clipped."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from strictstep.loop.errors import LoopError
from strictstep.loop.step import Step


class Gradients:
    """The gradients that a window leaves behind.

    The optimizer's groups are read anew each time, since a group may be added in mid-training. The model's other
    parameters are only cleared: nothing steps them, and what piled up in them would be of no window.
    """

    __slots__ = ("_groups_of", "_others", "_step")

    def __init__(self, model: nn.Module, optimizer: Optimizer, step: Step) -> None:
        """Find the model's parameters that are not the optimizer's."""
        self._groups_of = optimizer
        self._step = step
        own = {id(parameter) for parameter in self.parameters()}
        self._others = [parameter for parameter in model.parameters() if id(parameter) not in own]
        if not any(parameter.requires_grad for parameter in self.parameters()):
            help = "set `requires_grad` before the optimizer is made, or give it the parameters that shall train"
            message = "expected an optimizer with a parameter that requires a gradient, got none"
            raise LoopError("nothing_to_train", message, help)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The optimizer's parameters, in its order."""
        for group in self._groups_of.param_groups:
            yield from group["params"]

    def clear(self) -> None:
        """Set every gradient to `None`. Not by `optimizer.zero_grad()`: its profiler record costs 32 µs."""
        for group in self._groups_of.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        for parameter in self._others:
            parameter.grad = None

    def require_some(self) -> None:
        """Raise if no parameter of the optimizer has a gradient: its step would move nothing, without a word."""
        for group in self._groups_of.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    return
        raise self._none()

    def note(self) -> list[tuple[Tensor, int]]:
        """The gradients, and how often each has been changed in place: between two backwards all must stay."""
        return [(gradient, gradient._version) for gradient in self._present()]

    def require_none(self) -> None:
        """Raise if a step has left gradients where none were: the loop alone goes backward."""
        for group in self._groups_of.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    raise self._changed()

    def require_noted(self, noted: Sequence[tuple[Tensor, int]]) -> None:
        """Raise if a step has added to the gradients, cleared them or changed them."""
        present = list(self._present())
        if len(present) != len(noted) or any(
            gradient is not known or gradient._version != version
            for gradient, (known, version) in zip(present, noted, strict=True)
        ):
            raise self._changed()

    def rescale(self, factor: float) -> None:
        """Multiply every gradient in place."""
        for gradient in self._present():
            gradient.mul_(factor)

    def clip(self, max_norm: float) -> Tensor:
        """Scale the optimizer's gradients down to `max_norm`; return their norm before that, shape `[]`.

        Raises:
            LoopError: with the code `gradient_sparse`.
        """
        try:
            return torch.nn.utils.clip_grad_norm_(list(self.parameters()), max_norm).detach()
        except NotImplementedError as error:
            if not any(gradient.is_sparse for gradient in self._present()):
                raise
            message = "expected dense gradients to clip, got a sparse one, whose norm torch does not compute"
            help = "make the embedding with `sparse=False`, or leave `max_grad_norm` out"
            raise LoopError("gradient_sparse", message, help) from error

    def _present(self) -> Iterator[Tensor]:
        return (parameter.grad for parameter in self.parameters() if parameter.grad is not None)

    def _changed(self) -> LoopError:
        message = f"expected `{self._step.name}` to leave gradients alone, got them changed by it"
        help = "leave `zero_grad()`, `backward()` and clipping out of the step: the loop does them, once a window"
        if "optimizers" in self._step.names:
            help += "; for manual optimization pass the optimizer in a list: `optimizer=[optimizer]`"
        return LoopError("gradients_changed", message, help)

    def _none(self) -> LoopError:
        elsewhere = any(parameter.grad is not None for parameter in self._others)
        message = (
            f"expected the loss of `{self._step.name}` to lead to a parameter of the optimizer, got no gradient in any"
        )
        if elsewhere:
            help = "other parameters of the model got one: give them to the optimizer"
        else:
            help = "the optimizer must hold the parameters that the step uses: make it after the model is final"
        return LoopError("no_gradient", message, help)
