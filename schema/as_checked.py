"""Whether an output still is as the checks left it: one that was copied or constructed may hold anything."""

import operator
from collections.abc import Callable
from typing import Any

from strictstep.schema.base import AnyOutput
from strictstep.schema.containers import leaves
from strictstep.schema.outputs import SkippedStep
from strictstep.schema.scalars import scalars
from strictstep.schema.stages import MODELS
from strictstep.schema.trees import check_hiddens, check_metrics

_CHECKS = (("log", scalars), ("progress_bar", scalars), ("hiddens", check_hiddens), ("metrics", check_metrics))
_BUILT_IN = {*MODELS.values(), SkippedStep}  # which list no names


def fields_of(output: AnyOutput) -> dict[str, Any]:
    """The fields, and names that are none; a `cached_property` of a user's own keeps its value beside them."""
    kind = type(output)
    declared = kind.__pydantic_fields__
    return {name: value for name, value in output.__dict__.items() if name in declared or not hasattr(kind, name)}


def is_as_checked(fields: dict[str, Any], model: type[AnyOutput]) -> bool:
    """Whether the fields are as the checks leave them: an output that was copied or constructed may hold anything."""
    try:
        return (
            fields.keys() == model.__pydantic_fields__.keys()
            and all(type(fields[name]) is dict for name in ("log", "progress_bar", "metrics"))
            and all(_leaves_alone(check, fields[name]) for name, check in _CHECKS if fields[name] is not None)
            and (model in _BUILT_IN or _has_listed_names(fields, model))
            and type(fields.get("reason", "")) is str
        )
    except Exception:
        return False


def _leaves_alone(check: Callable[[Any], Any], value: Any) -> bool:
    return (type(value) is dict and not value) or all(map(operator.is_, leaves(check(value)), leaves(value)))


def _has_listed_names(fields: dict[str, Any], model: type[AnyOutput]) -> bool:
    return all(
        {name for name, required in names.items() if required} <= fields[field].keys() <= names.keys()
        for field, names in model.listed_names().items()
    )
