"""What the field returns, annotates and wraps around a step: torchmetrics, tensordict, jaxtyping, torch itself."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from beartype import beartype
from jaxtyping import Float, jaxtyped
from tensordict import TensorDict, tensorclass
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.regression import MeanAbsoluteError, MeanSquaredError
from typeguard import typechecked
from typing_extensions import TypedDict

from strictstep.schema import EvaluationOutput, StepOutputError, TrainingOutput, coerce, validate_step

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


def small_model() -> nn.Module:
    """The same small net each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def training_step(model: nn.Module, batch: Tensor) -> dict[str, Any]:
    """One batch, its `loss` and what to log of it."""
    loss = model(batch).pow(2).mean()
    return {"loss": loss, "log": {"rms": loss.detach().sqrt()}}


checked_step = validate_step(training_step)


def trained(step: Callable[..., Any], around: Callable[[Any], Any] = lambda step: step) -> nn.Module:
    """A model after twenty steps of a loop of one's own."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    wrapped = around(step)
    for _ in range(20):
        output = wrapped(model, X)
        optimizer.zero_grad()
        (output.loss if isinstance(output, TrainingOutput) else output["loss"]).backward()
        optimizer.step()
    return model


def assert_same(left: nn.Module, right: nn.Module) -> None:
    for one, other in zip(left.parameters(), right.parameters(), strict=True):
        assert torch.equal(one, other)


def test_metrics_of_torchmetrics_are_values() -> None:
    mean = MeanMetric()
    several = MetricCollection({"mse": MeanSquaredError(), "mae": MeanAbsoluteError()})
    several.update(X, X + 1)
    mean.update(2.0)
    output = coerce({"loss": X.sum(), "metrics": {"mean": mean, "several": several}}, stage="validation")
    assert output.metrics["mean"] is mean
    assert output.metrics["several"] is several
    assert output.metrics["several"].compute() == {"mse": 1.0, "mae": 1.0}


def test_computed_metrics_are_logged() -> None:
    several = MetricCollection({"mse": MeanSquaredError(), "mae": MeanAbsoluteError()})
    assert coerce({"log": several(X, X + 1)}, stage="test").log.keys() == {"mse", "mae"}


def test_a_metric_object_in_the_log_is_told_from_its_value() -> None:
    with pytest.raises(StepOutputError, match=r"log\.mse: expected a scalar, got MeanSquaredError object"):
        coerce({"log": {"mse": MeanSquaredError()}}, stage="validation")


def test_a_tensordict_is_a_mapping() -> None:
    loss = small_model()(X).mean()
    output = coerce(TensorDict({"loss": loss, "log": TensorDict({"rms": loss.detach()})}, batch_size=[]))
    assert output.loss is loss
    assert isinstance(output.log["rms"], Tensor)


def test_a_tensorclass_is_read_by_field() -> None:
    @tensorclass
    class Step:
        """A step's return as a tensorclass."""

        loss: Tensor
        metrics: TensorDict

    loss = small_model()(X).mean()
    made: Any = Step(loss=loss, metrics=TensorDict({"logits": X}), batch_size=[])  # type: ignore[call-arg]
    output = coerce(made)
    assert output.loss is loss
    assert torch.equal(output.metrics["logits"], X)


class Metrics(TypedDict):
    logits: Float[Tensor, "batch 1"]  # noqa: F722


class Shaped(TrainingOutput[Any, Metrics]):
    """A schema with a shape."""


def test_shapes_of_jaxtyping_are_checked_in_a_step_of_jaxtyping() -> None:
    @validate_step(schema=Shaped)
    @jaxtyped(typechecker=beartype)
    def step(model: nn.Module, batch: Float[Tensor, "batch 4"]) -> dict[str, Any]:  # noqa: F722
        logits = model(batch)
        return {"loss": logits.mean(), "metrics": {"logits": logits}}

    assert step(small_model(), X).metrics["logits"].shape == (8, 1)
    with pytest.raises(StepOutputError, match=r"metrics\.logits: expected"):
        step(nn.Linear(4, 2), X)


@pytest.mark.parametrize("check", [beartype, typechecked])
def test_type_checkers_at_run_time_stand_beside(check: Callable[[Any], Any]) -> None:
    assert_same(trained(training_step), trained(validate_step(check(training_step))))


def test_a_type_checker_above_the_decorator_sees_what_the_step_returned() -> None:
    # With `returns="model"` it would see a model where the step's annotation says dict.
    original = validate_step(returns="original")(training_step)
    assert_same(trained(training_step), trained(beartype(original)))


def test_a_checked_step_may_be_annotated_with_what_it_gives() -> None:
    @beartype
    def report(output: TrainingOutput) -> float:
        return float(output.loss.detach())

    assert report(checked_step(small_model(), X)) > 0  # type: ignore[arg-type]


def autocast_around(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step under bfloat16 autocast."""
    return torch.autocast("cpu", torch.bfloat16)(step)  # type: ignore[no-any-return]


@pytest.mark.parametrize("around", [autocast_around, torch.enable_grad()])
def test_context_managers_around_a_checked_step_change_nothing(around: Callable[[Any], Any]) -> None:
    assert_same(trained(training_step, around), trained(checked_step, around))


# Dynamo reads `.grad` of a loss between its graphs, and hides the warning, but cannot hide an error.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_steps_train_the_same() -> None:
    compiled = torch.compile(training_step, backend="eager")
    reference = trained(compiled)
    assert_same(reference, trained(validate_step(compiled)))
    assert_same(reference, trained(torch.compile(checked_step, backend="eager")))


def test_a_compiled_model_in_a_checked_step_trains_the_same() -> None:
    def compiled_model(step: Any) -> Any:
        compiled: dict[int, Any] = {}
        return lambda model, batch: step(compiled.setdefault(id(model), torch.compile(model, backend="eager")), batch)

    assert_same(trained(training_step, compiled_model), trained(checked_step, compiled_model))


def test_a_checked_step_under_inference_mode_is_for_evaluation() -> None:
    validation_step = validate_step(stage="validation")(training_step)
    with torch.inference_mode():
        output = validation_step(small_model(), X)
        assert isinstance(output, EvaluationOutput)
        with pytest.raises(StepOutputError, match="made in inference mode"):
            checked_step(small_model(), X)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_in_a_checked_step_train_the_same(reentrant: bool) -> None:
    def remembering_less(model: Any, batch: Tensor) -> dict[str, Any]:
        batch = batch.clone().requires_grad_()  # the reentrant kind needs an input with a gradient
        return {"loss": checkpoint(model, batch, use_reentrant=reentrant).pow(2).mean()}

    assert_same(trained(training_step), trained(validate_step(remembering_less)))


def test_a_whole_checked_step_may_be_checkpointed() -> None:
    def remembered(step: Any) -> Any:
        return lambda model, batch: checkpoint(step, model, batch, use_reentrant=False)

    assert_same(trained(training_step), trained(checked_step, remembered))


def test_functional_gradients_of_a_checked_step() -> None:
    model = small_model()
    parameters: dict[str, Tensor] = {**dict(model.named_parameters())}

    def loss_of(values: dict[str, Tensor], step: Callable[..., Any]) -> Tensor:
        output = step(lambda batch: torch.func.functional_call(model, values, (batch,)), X)
        return output.loss if isinstance(output, TrainingOutput) else output["loss"]

    plain = torch.func.grad(loss_of)(parameters, training_step)
    checked = torch.func.grad(loss_of)(parameters, checked_step)
    assert all(torch.equal(plain[name], checked[name]) for name in parameters)


def test_gradients_of_each_example_through_a_checked_step() -> None:
    model = small_model()
    parameters: dict[str, Tensor] = {**dict(model.named_parameters())}

    def loss_of(values: dict[str, Tensor], example: Tensor, step: Callable[..., Any]) -> Tensor:
        output = step(lambda batch: torch.func.functional_call(model, values, (batch,)), example)
        return output.loss if isinstance(output, TrainingOutput) else output["loss"]

    of_each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, None))
    plain, checked = of_each(parameters, X, training_step), of_each(parameters, X, checked_step)
    assert all(torch.equal(plain[name], checked[name]) for name in parameters)


def test_beartype_above_the_decorator_holds_the_model_against_the_model() -> None:
    @beartype
    @validate_step
    def step(batch: Tensor) -> dict[str, Tensor]:
        return {"loss": (batch * torch.ones((), requires_grad=True)).mean()}

    assert isinstance(step(torch.ones(2)), TrainingOutput)
