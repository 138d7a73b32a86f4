"""What to say when there is no `loss`: which of the received values was probably meant."""

from collections.abc import Callable, Iterator, Mapping
from types import NoneType
from typing import Any

from torch import Tensor

from strictstep.schema.describe import Location, names_text, path_text, printable
from strictstep.schema.names import folded, looks_like_ascii, nearest

FIELDS = ("loss", "log", "progress_bar", "hiddens", "metrics")


def loss_missing_message(fields: Mapping[str, Any]) -> str:
    """Say that `loss` is missing, and list the keys that came instead."""
    keys = names_text(fields)
    if not keys:
        return "expected the key `loss`, got no names"
    return f"expected the key `loss`, got the key{'s' if len(fields) > 1 else ''} {keys}"


def loss_missing_help(fields: Mapping[str, Any]) -> str:
    """The most certain advice first: another spelling, a total, parts to sum, a near name, the one attached scalar."""
    exact = [key for key in fields if key != "loss" and folded(key) == "loss"]
    if exact:
        return f"keys are matched exactly: {_help_rename(exact[0])}"
    attached = any(_attached_scalars(fields))
    meant = _names_of_losses(fields, _may_be_attached if attached else _may_be_loss)
    parts = [key for key in meant if "loss" in folded(key)]
    totals = [key for key in (meant if attached else parts) if "total" in folded(key)]
    if parts and len(totals) == 1:
        return _help_rename(totals[0])
    if len(parts) > 1:
        return f"sum {names_text(parts)} into `loss`, and put the parts in `log`"
    near = parts[0] if parts else nearest("loss", meant)
    return _help_rename(near) if near else _help_by_values(fields)


def _help_rename(key: str) -> str:
    if looks_like_ascii(key):
        return f"retype `{printable(key)}` in ASCII, as `loss`"
    return f"rename `{printable(key)}` to `loss`"


def _names_of_losses(fields: Mapping[str, Any], may_be: Callable[[Any], bool]) -> list[str]:
    """The names beyond the five whose values may be a loss; of one value under two names, the first."""
    names: dict[int, str] = {}
    for key, value in fields.items():
        if key not in FIELDS and may_be(value):
            names.setdefault(id(value), key)
    return list(names.values())


def _may_be_loss(value: Any) -> bool:
    return not issubclass(type(value), (NoneType, str, bytes)) and not callable(value)


def _may_be_attached(value: Any) -> bool:
    kind = type(value)
    return value.grad_fn is not None if kind is Tensor else issubclass(kind, (Tensor, dict, list, tuple))


def _help_by_values(fields: Mapping[str, Any]) -> str:
    attached = {id(tensor): (location, tensor) for location, tensor in reversed(list(_attached_scalars(fields)))}
    if len(attached) == 1:
        ((location, _),) = attached.values()
        return f"`{path_text(location)}` is the only scalar attached to the graph: return it as `loss`"
    if "logits" in fields:
        return "a model gives no loss when it gets no labels: pass them, and return what it gives as `loss`"
    return "return the loss tensor under the key `loss`, or `SkippedStep(reason=...)` to skip the batch"


def _attached_scalars(fields: Mapping[str, Any]) -> Iterator[tuple[Location, Tensor]]:
    yield from (((key,), value) for key, value in fields.items() if _is_attached_scalar(value))
    for key, value in fields.items():
        if type(value) is dict:
            texts = [(name, inner) for name, inner in value.items() if issubclass(type(name), str)]
            yield from (((key, str.__str__(name)), inner) for name, inner in texts if _is_attached_scalar(inner))


def _is_attached_scalar(value: Any) -> bool:
    return type(value) is Tensor and value.grad_fn is not None and not value.is_nested and value.numel() == 1
