"""What is asked of one step of a LightningModule, and how its values are logged."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import LightningModule

from strictstep.schema.base import AnyOutput
from strictstep.schema.coerce import Call, OnNone
from strictstep.schema.describe import describe
from strictstep.schema.errors import Stage
from strictstep.schema.integrations.lightning_log import reductions_of, refuse_other_options
from strictstep.schema.stages import MODELS, model_of

STAGES: dict[str, tuple[Stage, ...]] = {
    "training_step": ("training", "manual"),
    "validation_step": ("validation",),
    "test_step": ("test",),
}


@dataclass(frozen=True, slots=True)
class Contract:
    """What is asked of one step, by the stages that it can be of."""

    calls: Mapping[Stage, Call]
    reductions: Mapping[str, str]
    log_options: Mapping[str, Any]

    def call_for(self, module: LightningModule, name: str) -> Call:
        """The check that fits how the module is optimized.

        Raises:
            TypeError: if the schema is for the other way.
        """
        stage = STAGES[name][0 if module.automatic_optimization else -1]
        if stage not in self.calls:
            schema = next(iter(self.calls.values())).model.__name__
            raise TypeError(
                f"expected a schema for the stage '{stage}' of `{type(module).__name__}.{name}`, got `{schema}`\n"
                f"  help: derive it from `{MODELS[stage].__name__}`, or change `self.automatic_optimization`"
            )
        return self.calls[stage]


def contract_of(
    name: str, schema: type[AnyOutput] | None, strict: Any, on_none: OnNone, log_options: Mapping[str, Any]
) -> Contract:
    """Put a contract together; what is wrong with the options is said here, at decoration.

    Raises:
        TypeError: for something that is no schema, an option of another kind, or a reduction unknown to Lightning.
        ValueError: for an unknown `on_none`, or a schema of another stage.
    """
    if type(strict) is not bool:
        raise TypeError(f"expected True or False as `strict`, got {describe(strict)}")
    if on_none not in ("skip", "error"):
        raise ValueError(f"expected 'skip' or 'error' as `on_none`, got {describe(on_none)}")
    refuse_other_options(log_options)
    models = {stage: model_of(stage, schema) for stage in _stages_for(name, schema)}
    calls = {stage: Call(model, stage, strict, on_none, None, None, None) for stage, model in models.items()}
    return Contract(calls, reductions_of(next(iter(models.values()))), dict(log_options))


def _stages_for(name: str, schema: Any) -> tuple[Stage, ...]:
    """The stages that a schema is for: a training step's is for one way of optimization only."""
    if schema is None:
        return STAGES[name]
    if not isinstance(schema, type):
        return STAGES[name][:1]  # where it is refused
    return tuple(stage for stage in STAGES[name] if issubclass(schema, MODELS[stage])) or STAGES[name][:1]
