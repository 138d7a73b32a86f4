"""What type checkers tell a user; read by mypy and pyright, never run.

Each line that reveals a type ends in the type that `tests/test_types.py` looks for.
"""

import functools
from typing import Annotated, Any, assert_type

from torch import Tensor, nn
from typing_extensions import TypedDict

from strictstep.schema import (
    EvaluationOutput,
    ManualOutput,
    Reduce,
    Scalar,
    SkippedStep,
    StepOutput,
    TrainingOutput,
    coerce,
    validate_step,
)


class DigitsLog(TypedDict):
    """The names that are logged."""

    accuracy: Scalar
    images: Annotated[Scalar, Reduce("sum")]


class DigitsMetrics(TypedDict):
    """What is collated over the epoch."""

    logits: Tensor


class DigitsOutput(TrainingOutput[DigitsLog, DigitsMetrics, tuple[Tensor, Tensor]]):
    """A schema of one's own."""


@validate_step
def training_step(model: nn.Module, batch: Tensor, batch_idx: int = 0) -> dict[str, Any]:
    """Bare."""
    return {"loss": model(batch).mean()}


@validate_step(schema=DigitsOutput, strict=True)
def digits_step(model: nn.Module, batch: Tensor) -> Any:
    """With a schema."""
    return model(batch).mean()


@validate_step(stage="validation")
def validation_step(model: nn.Module, batch: Tensor) -> Tensor:
    """Of another stage."""
    return batch.mean()


@validate_step(stage="manual")
def manual_step(model: nn.Module, batch: Tensor) -> None:
    """Of manual optimization."""


@validate_step(returns="original")
def original_step(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    """Handed back as it is."""
    return {"loss": batch.mean()}


class Module(nn.Module):
    """A module with a checked method."""

    @validate_step
    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """A method."""
        return batch.mean()


def check(model: nn.Module, batch: Tensor, loss: Tensor) -> None:
    """Every expression and its type."""
    assert_type(training_step(model, batch, batch_idx=1), TrainingOutput | SkippedStep)
    assert_type(digits_step(model, batch), DigitsOutput | SkippedStep)
    assert_type(validation_step(model, batch), EvaluationOutput | SkippedStep)
    assert_type(manual_step(model, batch), ManualOutput | SkippedStep)
    assert_type(original_step(model, batch), dict[str, Tensor])
    assert_type(Module().training_step(batch, 0), TrainingOutput | SkippedStep)
    assert_type(validate_step(functools.partial(original_step, model))(batch), TrainingOutput | SkippedStep)

    assert_type(coerce(loss), TrainingOutput | SkippedStep)
    assert_type(coerce(loss, stage="manual"), ManualOutput | SkippedStep)
    assert_type(coerce(loss, stage="test"), EvaluationOutput | SkippedStep)
    assert_type(coerce(loss, schema=DigitsOutput), DigitsOutput | SkippedStep)

    output = digits_step(model, batch)
    if isinstance(output, SkippedStep):
        assert_type(output.loss, None)
        assert_type(output.reason, str)
        return
    assert_type(output.loss, Tensor)
    assert_type(output.log["accuracy"], Tensor | float | int | bool)
    assert_type(output.metrics["logits"], Tensor)
    assert_type(output.hiddens[0], Tensor)


def construct(loss: Tensor) -> TrainingOutput:
    """A model is called with what its fields hold, or with names for the progress bar."""
    assert_type(ManualOutput().loss, Tensor | None)
    assert_type(EvaluationOutput(loss=0.5).loss, Tensor | float | int | bool | None)
    own = TrainingOutput[DigitsLog](loss=loss, log={"accuracy": 0.5, "images": 8})
    assert_type(own.log["images"], Tensor | float | int | bool)
    return TrainingOutput(loss=loss, log={"accuracy": loss, "lr": 0.1}, progress_bar=["accuracy"])


def refuse(loss: Tensor, output: DigitsOutput, other: StepOutput) -> None:
    """What a type checker must not accept: an unused `ignore` is an error of its own."""
    TrainingOutput(loss=0.3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    TrainingOutput(loss=loss, logs={})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    TrainingOutput()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    output.log["acuracy"]  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues, reportUnusedExpression]
    validate_step(stage="train")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    training_step(loss, loss)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
