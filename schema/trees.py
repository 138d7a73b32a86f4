"""The checks of `hiddens` and `metrics`: trees of tensors, every tensor detached, none copied."""

from typing import Any

from torch import Tensor

from strictstep.schema.containers import checked_mapping, detached_tree
from strictstep.schema.faults import fault


def check_hiddens(value: Any) -> Any:
    """Return the same nesting with every tensor detached; leaves are tensors or `None`."""
    return detached_tree(value, _only_none)


def check_metrics(values: Any) -> dict[str, Any]:
    """Return a new dict with tensors detached, also inside containers; other objects are kept as they are."""
    return checked_mapping(values, _metric)


def _metric(value: Any) -> Any:
    if type(value) is Tensor:
        return value.detach() if value.requires_grad else value
    return detached_tree(value, _as_it_is)


def _as_it_is(value: Any) -> Any:
    return value


def _only_none(value: Any) -> None:
    if value is not None:
        help = "keep tensors only; wrap none of them in an object, and return anything else in `metrics`"
        raise fault("hiddens_not_tensor", "a tensor, None, or a list, tuple or dict of them", value, help)
