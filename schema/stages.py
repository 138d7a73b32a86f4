"""The model that each stage is checked against, and a team's own in its place."""

from typing import Any, TypeGuard

from strictstep.schema.base import AnyOutput, StepOutput
from strictstep.schema.describe import describe
from strictstep.schema.errors import Stage
from strictstep.schema.names import nearest
from strictstep.schema.outputs import EvaluationOutput, ManualOutput, TrainingOutput

MODELS: dict[str, type[AnyOutput]] = {
    "training": TrainingOutput,
    "manual": ManualOutput,
    "validation": EvaluationOutput,
    "test": EvaluationOutput,
}


def model_of(stage: Any, schema: Any) -> type[AnyOutput]:
    """The model that a stage is checked against.

    Raises:
        TypeError: if `schema` is no output model, or one whose annotations cannot be resolved.
        ValueError: if `stage` is unknown, or `schema` is a model of another stage.
    """
    model = MODELS.get(stage) if type(stage) is str else None
    if model is None:
        near = nearest(stage, MODELS) if type(stage) is str else None
        raise ValueError(
            f"expected a stage ({', '.join(MODELS)}), got {describe(stage)}"
            + (f"\n  help: write '{near}'" if near else "")
        )
    if schema is None or schema is model:
        return model
    return _own_model(stage, model, schema)


def _own_model(stage: Stage, base: type[AnyOutput], schema: Any) -> type[AnyOutput]:
    if not _is_output(schema):
        raise TypeError(
            f"expected a subclass of `{base.__name__}` as `schema`, got {describe(schema)}\n"
            f"  help: derive it: `class MyOutput({base.__name__}[MyLog]): ...`"
        )
    if not issubclass(schema, base):
        stages = [name for name, model in MODELS.items() if issubclass(schema, model)]
        help = (f"pass `stage='{stages[0]}'`, or " if stages else "") + f"derive it from `{base.__name__}`"
        raise ValueError(
            f"expected a subclass of `{base.__name__}` for the stage '{stage}', got `{schema.__name__}`\n  help: {help}"
        )
    if not schema.__pydantic_complete__ and not _resolves(schema):
        raise TypeError(
            f"expected a schema whose annotations can be resolved, got `{schema.__name__}` with an unknown name\n"
            "  help: define or import what it annotates with before the step is decorated"
        )
    return schema


def _is_output(schema: Any) -> TypeGuard[type[AnyOutput]]:
    try:
        return issubclass(type(schema), type) and issubclass(schema, StepOutput)
    except Exception:  # its metaclass may raise
        return False


def _resolves(schema: type[AnyOutput]) -> bool:
    try:
        return bool(schema.model_rebuild(raise_errors=False))
    except NameError:
        return False
