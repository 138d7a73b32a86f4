"""Eighteen wrong returns, the same on every peer: what a step of `net` on a batch `x` gives back.

`net` is a module that gives one number for each example: float32[N, D] to float32[N, 1].
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Wrong = Callable[[nn.Module, Tensor], object]


def objective(net: nn.Module, x: Tensor) -> Tensor:
    """A loss that is right: float32[], attached to the graph."""
    return net(x).pow(2).mean()  # type: ignore[no-any-return]


def missing_key(net: nn.Module, x: Tensor) -> object:
    return {"objective": objective(net, x)}


def near_miss_key(net: nn.Module, x: Tensor) -> object:
    return {"Loss": objective(net, x)}


def loss_of_none(net: nn.Module, x: Tensor) -> object:
    return {"loss": None}


def loss_by_item(net: nn.Module, x: Tensor) -> object:
    return {"loss": objective(net, x).item()}


def loss_of_int_0(net: nn.Module, x: Tensor) -> object:
    terms: list[Tensor] = []
    return {"loss": sum(terms)}


def loss_of_text(net: nn.Module, x: Tensor) -> object:
    return {"loss": "0.3"}


def loss_of_integers(net: nn.Module, x: Tensor) -> object:
    return {"loss": objective(net, x).long()}


def loss_of_complex_numbers(net: nn.Module, x: Tensor) -> object:
    return {"loss": objective(net, x).to(torch.complex64)}


def unreduced_loss(net: nn.Module, x: Tensor) -> object:
    return {"loss": nn.functional.mse_loss(net(x), x[:, :1], reduction="none")}


def detached_loss(net: nn.Module, x: Tensor) -> object:
    return {"loss": objective(net, x).detach()}


def loss_without_grad_mode(net: nn.Module, x: Tensor) -> object:
    with torch.no_grad():
        return {"loss": objective(net, x)}


def leaf_constant(net: nn.Module, x: Tensor) -> object:
    return {"loss": torch.tensor(0.0, requires_grad=True)}


def tuple_of_two(net: nn.Module, x: Tensor) -> object:
    return objective(net, x), {"accuracy": 0.5}


def list_of_one(net: nn.Module, x: Tensor) -> object:
    return [objective(net, x)]


def generator(net: nn.Module, x: Tensor) -> Iterator[object]:
    yield {"loss": objective(net, x)}


def bare_float(net: nn.Module, x: Tensor) -> object:
    return objective(net, x).item()


def forgotten_return(net: nn.Module, x: Tensor) -> None:
    objective(net, x)


def vector_in_log(net: nn.Module, x: Tensor) -> object:
    return {"loss": objective(net, x), "log": {"recall": torch.tensor([0.2, 0.8])}}


EIGHTEEN: dict[str, Wrong] = {
    "missing key": missing_key,
    "near-miss key": near_miss_key,
    '{"loss": None}': loss_of_none,
    "float by .item()": loss_by_item,
    "int 0": loss_of_int_0,
    "text": loss_of_text,
    "integer dtype": loss_of_integers,
    "complex dtype": loss_of_complex_numbers,
    "unreduced": unreduced_loss,
    "detached": detached_loss,
    "under no_grad": loss_without_grad_mode,
    "leaf constant": leaf_constant,
    "tuple": tuple_of_two,
    "list": list_of_one,
    "generator": generator,
    "bare float": bare_float,
    "forgotten return": forgotten_return,
    "vector in log": vector_in_log,
}
OPTIONS: dict[str, dict[str, Any]] = {"forgotten return": {"on_none": "error"}}
