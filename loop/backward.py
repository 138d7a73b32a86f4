"""Backward of one loss, once."""

from torch import Tensor, autograd

from strictstep.loop.errors import LoopError
from strictstep.loop.setup import Setup

_MARK = "_strictstep_went_backward"


def backward(setup: Setup, loss: Tensor, factor: float) -> None:
    """Add the gradient of `factor * loss`, with the loss scaled where the precision asks for it.

    It is scaled only here: what users see is what they returned.

    Raises:
        LoopError: with the code `graph_used_twice`, if the graph of the loss, or a part of it, went backward before:
            the step kept it from an earlier batch. A graph that saves nothing for backward (`parameter.sum()`) would
            give the old gradient again without a word, so the loss itself is marked.
    """
    viewed = loss._base  # of a loss of shape `[1]`, the tensor that the step may have kept
    marks = (loss if viewed is None or viewed.is_leaf else viewed).__dict__
    if _MARK in marks:
        raise _used_twice("expected a loss of this batch, got one that went backward before")
    marks[_MARK] = True
    try:
        scaler, engine = setup.precision.scaler, setup.engine
        scaled = loss if scaler is None else scaler.scale(loss)
        if engine is not None:
            engine.backward(scaled, factor)
        else:  # what `Tensor.backward` calls; a tuple is what it makes of a tensor first
            autograd.backward((scaled if factor == 1.0 else scaled * factor,))
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            raise
        raise _used_twice("expected a graph of this batch alone, got a part of it that went backward before") from error


def _used_twice(message: str) -> LoopError:
    help = (
        "leave `loss.backward()` out of the step, since the loop calls it; detach what is kept from one batch to the "
        "next, or return it as `hiddens`, which is detached"
    )
    return LoopError("graph_used_twice", message, help)
