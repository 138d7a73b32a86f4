"""What to say when there is no `loss`: which of the received values was probably meant."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from strictstep.schema.describe import Location, names_text, path_text, printable
from strictstep.schema.names import nearest

FIELDS = ("loss", "log", "progress_bar", "hiddens", "metrics")


def loss_missing_message(fields: Mapping[str, Any]) -> str:
    """Say that `loss` is missing, and list the keys that came instead."""
    keys = names_text(fields)
    if not keys:
        return "expected the key `loss`, got no keys"
    return f"expected the key `loss`, got the key{'s' if len(fields) > 1 else ''} {keys}"


def loss_missing_help(fields: Mapping[str, Any]) -> str:
    """The most certain advice first: another spelling, parts to sum, a near name, the one attached scalar."""
    others = [key for key in fields if key not in FIELDS]
    exact = [key for key in others if key.strip().casefold() == "loss"]
    parts = [key for key in others if "loss" in key.casefold()]
    if exact:
        return f"keys are matched exactly: rename `{printable(exact[0])}` to `loss`"
    if len(parts) > 1:
        return f"sum {names_text(parts)} into `loss`, and put the parts in `log`"
    near = parts[0] if parts else nearest("loss", others)
    if near:
        return f"rename `{printable(near)}` to `loss`"
    return _help_by_values(fields)


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
