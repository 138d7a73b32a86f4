"""From the checked `log` and `progress_bar` to Lightning's `self.log_dict`.

Lightning has one value for each name: a name in both fields is the value of `log`, shown in the bar too.
"""

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from strictstep.schema.base import AnyOutput
from strictstep.schema.describe import names_text

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
DECIDED = {"self", "dictionary", "prog_bar", "logger", "reduce_fx"}  # by the fields and by the schema
OPTIONS = inspect.signature(LightningModule.log_dict).parameters.keys() - DECIDED


def log_to(
    module: LightningModule, output: AnyOutput, reductions: Mapping[str, str], options: Mapping[str, Any]
) -> None:
    """Hand the values of `log` and `progress_bar` to the module's `log_dict`, each reduced as its schema says."""
    log, bar = output.log, output.progress_bar
    alike: dict[tuple[bool, bool, str], dict[str, Any]] = {}
    for name, value in {**bar, **log}.items():
        kind = (name in bar, name in log, reductions.get(name, "mean"))
        alike.setdefault(kind, {})[name] = _floating(value)
    for (prog_bar, logged, reduce_fx), values in alike.items():
        logger = None if logged else False
        module.log_dict(values, prog_bar=prog_bar, logger=logger, reduce_fx=reduce_fx, **options)


def _floating(value: Any) -> Any:
    # Lightning does the same with counts and flags, and warns of each.
    whole = isinstance(value, Tensor) and not value.is_floating_point()
    return value.to(torch.get_default_dtype()) if whole else value


def refuse_other_options(options: Mapping[str, Any]) -> None:
    """Refuse what `log_dict` does not take, or what the fields decide.

    Raises:
        TypeError: at decoration, so that no run ends at its first batch for it.
    """
    others = sorted(options.keys() - OPTIONS)
    if others:
        raise TypeError(
            f"expected options of `log_dict` ({', '.join(sorted(OPTIONS))}) as `log_options`, got {names_text(others)}"
        )


def reductions_of(model: type[AnyOutput]) -> dict[str, str]:
    """How Lightning is to reduce the names that a schema lists.

    Raises:
        TypeError: if a name is reduced by `last`, which Lightning has no word for.
    """
    named = model.reductions()
    found: dict[str, str] = {**named.get("progress_bar", {}), **named.get("log", {})}
    last = [name for name, op in found.items() if op == "last"]
    if last:
        raise TypeError(
            f"`{model.__name__}`: expected a reduction that Lightning has (mean, sum, min, max), "
            f"got `last` for {names_text(last)}\n  help: log it with another reduction, or return it in `metrics`"
        )
    return found
