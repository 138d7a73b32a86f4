"""The checks of a `loss`, one for each stage. They read attributes of the tensor, never its value.

The first lines of each are the hot path: an ordinary loss passes a handful of attribute reads and is returned as it is.
"""

import inspect
from collections.abc import Iterator
from types import CoroutineType
from typing import Any

import torch
from pydantic_core import PydanticCustomError
from torch import Tensor

from strictstep.schema.containers import values_in
from strictstep.schema.describe import describe, numpy_type
from strictstep.schema.faults import fault, fault_saying, faults_of, gathered, guarded, unreadable
from strictstep.schema.scalars import FLOATING, REAL, STRIDED, host_number, scalar


def training_loss(value: Any) -> Tensor:
    """Return the loss itself: a one-element tensor of a real floating dtype that an operation of a graph made.

    One element in another shape is viewed as shape `[]`, with the graph kept.
    """
    if (
        type(value) is Tensor
        and not value.is_leaf  # which makes no object of its `grad_fn`
        and value.ndim == 0
        and value.layout is STRIDED
        and value.dtype in FLOATING
    ):
        return value
    return _checked(value, "a differentiable scalar", FLOATING, graph=True)


def manual_loss(value: Any) -> Tensor | None:
    """Return the loss detached: a one-element tensor of a real floating dtype, with or without a graph; or `None`."""
    if value is None:
        return None
    if type(value) is Tensor and value.ndim == 0 and value.layout is STRIDED and value.dtype in FLOATING:
        return _detached(value)
    return _detached(_checked(value, "a scalar tensor", FLOATING, graph=False))


def evaluation_loss(value: Any) -> Any:
    """Return the loss detached: a one-element tensor of any real dtype, or a Python number; or `None`."""
    kind = type(value)
    if value is None or kind is float or kind is int or kind is bool:
        return value
    if kind is Tensor and value.ndim == 0 and value.layout is STRIDED and value.dtype in REAL:
        return _detached(value)
    number = guarded(host_number, value)
    if number is not None:
        return number
    return _detached(_checked(value, "a scalar tensor or a number", REAL, graph=False))


def no_loss(value: Any) -> None:
    """Accept only `None`: a skipped step has no loss."""
    if value is not None:
        help = "a step with a loss is not skipped: return `TrainingOutput(loss=...)`, or leave the loss out"
        raise fault("skip_with_loss", "no `loss` in a skipped step", value, help)


def _checked(value: Any, expected: str, dtypes: frozenset[torch.dtype], *, graph: bool) -> Tensor:
    try:
        faults = list(_faults(value, expected, dtypes, graph))
        if not faults:
            return _as_scalar(value)
    except Exception as error:
        faults = [unreadable(value, error)]
    raise gathered((((), found) for found in faults), value)


def _detached(value: Tensor) -> Tensor:
    return value.detach() if value.requires_grad else value


def _as_scalar(value: Tensor) -> Tensor:
    if value.dim() == 0:
        return value
    # A `[1]` loss that is checked under `no_grad` or `inference_mode` must not lose its graph here.
    with torch.inference_mode(False):  # which switches grad mode on, too
        return value.view(())


def _faults(value: Any, expected: str, dtypes: frozenset[torch.dtype], graph: bool) -> Iterator[PydanticCustomError]:
    if value is None:
        yield fault("loss_none", expected, value, "to skip a batch on purpose, return `SkippedStep(reason=...)`")
    elif not issubclass(type(value), Tensor):
        yield fault("loss_not_tensor", expected, value, _help_not_tensor(value))
    elif value.is_nested or value.layout is not STRIDED:
        yield fault("loss_not_strided", "a dense tensor", value, "reduce it to a dense scalar, as `.sum()` does")
    else:
        if value.dtype not in dtypes:
            kind = "real floating" if dtypes is FLOATING else "real"
            yield fault("loss_not_floating", f"a {kind} dtype", value, _help_dtype(value.dtype))
        if value.numel() != 1:
            yield fault("loss_not_scalar", f"{expected} (shape `[]`)", value, _help_not_scalar(value, graph))
        # No graph leads to an int, which is told by its dtype.
        if graph and value.grad_fn is None and (value.is_floating_point() or value.is_complex()):
            yield _without_graph(value)


def _without_graph(value: Tensor) -> PydanticCustomError:
    got = describe(value)
    if value.requires_grad:
        message = f"expected a loss made by an operation on the model's output, got {got} that no operation made"
        help = "a leaf leads to no parameter: compute the loss from the model's output (for zero: `output.sum() * 0`)"
        return fault_saying("loss_leaf", message, value, help)
    reason, help = _reason_without_graph(value)
    return fault_saying("loss_no_grad", f"expected a loss attached to the graph, got {got} {reason}", value, help)


def _reason_without_graph(value: Tensor) -> tuple[str, str]:
    if value.is_inference():
        return "made in inference mode", "run the training step outside `torch.inference_mode()`"
    if not torch.is_grad_enabled():
        return "while grad mode is off", "run the training step outside `torch.no_grad()`"
    help = "compute it without `.detach()`, `no_grad` or `torch.tensor(...)`, from parameters that require a gradient"
    return "without a graph", help


def _help_not_tensor(value: Any) -> str:
    kind = type(value)
    if issubclass(kind, int) and kind is not bool and value == 0:
        return "the sum of no terms is the int 0: use `output.sum() * 0`, or return `SkippedStep(reason=...)`"
    if issubclass(kind, (int, float)):
        return "return the tensor itself, without `.item()`"
    if issubclass(kind, str):
        return "strings are never parsed: return the tensor itself"
    if issubclass(kind, (numpy_type("ndarray"), numpy_type("generic"))):
        return "return the tensor itself, without `.numpy()`"
    if callable(value):
        return "call it, and return the tensor that it gives"
    if issubclass(kind, CoroutineType):
        return "`await` it, or make what gives it a plain function: replace `async def` by `def`"
    return _help_parts(value)


def _help_parts(value: Any) -> str:
    kind = type(value)
    if issubclass(kind, dict):
        return _help_dict(value)
    if inspect.getattr_static(value, "loss", None) is not None:  # which runs no code of the user's
        return "it has a loss of its own: return that, for example `output.loss`"
    if not issubclass(kind, (list, tuple)):
        return "return the loss tensor that the model's output leads to"
    if all(map(_is_scalar, values_in(value))):
        return "sum the parts, for example `sum(parts)` or `torch.stack(parts).sum()`, and put them in `log`"
    return "return the one tensor in it that is the loss, for example `output[0]`, and the rest in `metrics`"


def _help_dict(value: dict[Any, Any]) -> str:
    if any(type(key) is str and key == "loss" for key in dict.keys(value)):
        return 'it has a loss of its own: return that, for example `output["loss"]`'
    if all(map(_is_scalar, dict.values(value))):
        return "sum the parts, for example `sum(parts.values())`, and put them in `log`"
    return "return the one tensor in it that is the loss, and the rest in `metrics`"


def _is_scalar(value: Any) -> bool:
    return not any(faults_of(scalar, value))


def _help_dtype(dtype: torch.dtype) -> str:
    if dtype.is_complex:
        return "take a real value of it, for example `loss.abs()` or `loss.real`"
    return "keep the loss floating: `.long()`, `.int()`, `.argmax()` and comparisons cut the graph"


def _help_not_scalar(value: Tensor, graph: bool) -> str:
    if value.numel() == 0:
        return "it has no elements: return `SkippedStep(reason=...)` for a batch without targets"
    if not graph:
        return "reduce it, for example `loss.mean()`; put values of another shape in `metrics`"
    return "reduce it, for example `loss.mean()` (DataParallel returns one loss per device)"
