"""The helpers for the tests of others: what `assert_step` notices, and what the strategies give."""

import random
import subprocess
import sys
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jaxtyping import Float, Int
from pydantic import Field, field_validator
from torch import Tensor, nn
from typing_extensions import TypedDict

from strictstep.schema import (
    EvaluationOutput,
    Reduce,
    Scalar,
    SkippedStep,
    StepOutputError,
    TrainingOutput,
    coerce,
    validate_step,
)
from strictstep.schema.testing import assert_step, invalid_returns, valid_returns

STAGES: tuple[Any, ...] = ("training", "manual", "validation", "test")
few = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


class DigitsLog(TypedDict):
    accuracy: Scalar
    images: Annotated[Scalar, Reduce("sum")]


class DigitsMetrics(TypedDict, total=False):
    logits: Float[Tensor, "batch classes"]  # noqa: F722
    labels: Int[Tensor, "batch"]  # noqa: F821
    boxes: Float[Tensor, "*any 4"]  # noqa: F722
    images: Annotated[int, Field(ge=3)]
    name: str


class Cells(NamedTuple):
    h: Tensor
    c: Tensor | None


class DigitsOutput(TrainingOutput[DigitsLog, DigitsMetrics, Cells]):
    """A schema that narrows every field."""


class BoundedOutput(TrainingOutput[DigitsLog]):
    """A schema with a check that no annotation tells of."""

    @field_validator("log")
    @classmethod
    def _few_images(cls, log: Any) -> Any:
        if log["images"] != 8:
            raise ValueError("expected 8 images")
        return log


@pytest.mark.parametrize("stage", STAGES)
def test_valid_returns_pass_without_a_warning(stage: Any) -> None:
    kinds: set[str] = set()

    @few
    @given(valid_returns(stage=stage))
    def check(returned: Any) -> None:
        kinds.add(type(returned).__name__)
        coerce(returned, stage=stage, strict=True)

    check()
    assert len(kinds) >= 5


@pytest.mark.parametrize("stage", STAGES)
def test_invalid_returns_are_refused(stage: Any) -> None:
    codes: set[str] = set()

    @few
    @given(invalid_returns(stage=stage))
    def check(returned: Any) -> None:
        with pytest.raises(StepOutputError, match="returned an invalid output") as caught:
            coerce(returned, stage=stage)
        codes.update(problem.code for problem in caught.value.problems)

    check()
    assert len(codes) >= 6


@few
@given(valid_returns(DigitsOutput))
def test_valid_returns_keep_to_a_schema(returned: Any) -> None:
    output = coerce(returned, schema=DigitsOutput)
    if not isinstance(output, SkippedStep):
        assert {"accuracy", "images"} == output.log.keys()
        assert isinstance(output.hiddens, Cells)


def test_invalid_returns_break_a_schema() -> None:
    codes: set[str] = set()

    @settings(few, max_examples=120)
    @given(invalid_returns(DigitsOutput))
    def check(returned: Any) -> None:
        with pytest.raises(StepOutputError, match="returned an invalid output") as caught:
            coerce(returned, schema=DigitsOutput)
        codes.update(problem.code for problem in caught.value.problems)

    check()
    assert {"key_missing", "key_unknown"} <= codes


@few
@given(valid_returns(BoundedOutput, log=st.fixed_dictionaries({"accuracy": st.floats(0, 1), "images": st.just(8)})))
def test_a_field_may_have_a_strategy_of_its_own(returned: Any) -> None:
    coerce(returned, schema=BoundedOutput)


@few
@given(valid_returns(EvaluationOutput))
def test_the_stage_is_that_of_the_schema(returned: Any) -> None:
    coerce(returned, stage="test")


@pytest.mark.parametrize("strategy", [valid_returns, invalid_returns])
def test_strategies_refuse_what_they_do_not_know(strategy: Any) -> None:
    with pytest.raises(TypeError, match="expected strategies for the five fields, got `logs`"):
        strategy(logs=st.none())
    with pytest.raises(ValueError, match="expected a stage"):
        strategy(stage="train")
    with pytest.raises(TypeError, match="expected a subclass of `TrainingOutput`"):
        strategy(dict)


def test_a_shape_that_is_a_formula_asks_for_a_strategy() -> None:
    class Metrics(TypedDict):
        doubled: Float[Tensor, "2*batch"]  # noqa: F821

    class Doubled(TrainingOutput[Any, Metrics]):
        """A shape that cannot be drawn."""

    @settings(few, max_examples=1, phases=[Phase.generate])  # nothing to shrink: every draw raises
    @given(valid_returns(Doubled))
    def draw(returned: Any) -> None: ...

    with pytest.raises(TypeError, match="expected a shape of names and numbers, got the formula"):
        draw()


class Net(nn.Module):
    """Dropout, a buffer that counts, and a head that a step may leave out."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.head = nn.Linear(4, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """To one number for each row."""
        self.calls += 1
        y: Tensor = self.head(self.body(x))
        return y

    def training_step(self, batch: Tensor, batch_idx: int) -> object:
        """A step as Lightning has it."""
        assert batch_idx == 0
        return {"loss": self(batch).pow(2).mean()}


X = torch.arange(32.0).view(8, 4)


def step(model: nn.Module, batch: Tensor) -> object:
    """A step that holds."""
    return {"loss": model(batch).pow(2).mean(), "log": {"rows": len(batch)}}


def test_a_step_that_holds_gives_its_output() -> None:
    output = assert_step(step, Net(), X)
    assert output.log == {"rows": 8}


@pytest.mark.parametrize("decorated", [validate_step(step), validate_step(returns="original")(step)])
def test_decorated_steps_hold_too(decorated: Callable[..., object]) -> None:
    assert_step(decorated, Net(), X)


def test_a_method_of_the_model_gets_the_batch_alone() -> None:
    model = Net()
    assert_step(model.training_step, model, X)


def test_nothing_is_left_behind() -> None:
    model = Net()
    kept = torch.ones_like(model.head.weight)
    model.head.weight.grad = kept
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    expected = torch.rand(2), random.random(), np.random.rand()
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    assert_step(step, model, X)
    assert torch.equal(torch.rand(2), expected[0])
    assert (random.random(), np.random.rand()) == expected[1:]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.head.weight.grad is kept
    assert model.body[0].weight.grad is None


def test_a_batch_that_the_step_empties_is_whole_in_the_second_run() -> None:
    def pops(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return step(model, batch.pop("x"))["loss"]  # type: ignore[index, no-any-return]

    batch = {"x": X}
    assert_step(pops, Net(), batch)
    assert batch == {"x": X}


def test_an_invalid_output_gives_the_report() -> None:
    with pytest.raises(StepOutputError, match=r"loss: expected a loss attached to the graph"):
        assert_step(lambda model, batch: model(batch).mean().detach(), Net(), X)


def test_none_is_no_skip_here() -> None:
    with pytest.raises(StepOutputError, match="returned_none"):
        assert_step(lambda model, batch: None, Net(), X)


def test_parameters_without_a_gradient_are_named() -> None:
    def headless(model: Any, batch: Tensor) -> Tensor:
        return model.body(batch).pow(2).mean()  # type: ignore[no-any-return]

    with pytest.raises(AssertionError, match=r"got none for `head\.weight`, `head\.bias`\n    help: use them"):
        assert_step(headless, Net(), X)
    model = Net()
    model.head.requires_grad_(False)
    assert_step(headless, model, X)


def test_a_loss_that_is_not_finite_is_named() -> None:
    def diverged(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).pow(2).mean() * float("inf")  # type: ignore[no-any-return]

    with pytest.raises(AssertionError, match=r"step `diverged` does not hold\n  expected a finite loss, got inf"):
        assert_step(diverged, nn.Linear(4, 1), X)


def test_steps_that_differ_between_runs_are_named() -> None:
    runs: list[int] = []

    def counts(model: nn.Module, batch: Tensor) -> object:
        runs.append(1)
        return {"loss": model(batch).mean(), "log": {"runs": len(runs)}}

    with pytest.raises(AssertionError, match=r"expected two runs from one seed \(0\) to agree, got another `log`"):
        assert_step(counts, Net(), X)


def test_random_numbers_of_each_library_are_seeded() -> None:
    def draws(model: nn.Module, batch: Tensor) -> object:
        log = {"torch": torch.rand(()), "python": random.random(), "numpy": np.random.rand()}
        return {"loss": model(batch).mean(), "log": log}

    model = Net()
    drawn = [assert_step(draws, model, X, seed=seed).log for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1]
    assert all(drawn[0][name] != drawn[2][name] for name in ("torch", "python", "numpy"))


def test_a_skip_shows_nothing() -> None:
    with pytest.raises(AssertionError, match=r"it skipped the batch \(no boxes\): nothing can be shown of a skip"):
        assert_step(lambda model, batch: SkippedStep(reason="no boxes"), Net(), X)


def test_validation_steps_run_without_gradients() -> None:
    def validation_step(model: nn.Module, batch: Tensor) -> object:
        assert not torch.is_grad_enabled()
        return {"loss": model(batch).mean()}

    assert_step(validation_step, Net().eval(), X, stage="validation")


def test_the_fixture_is_the_function(assert_step: Callable[..., Any], request: pytest.FixtureRequest) -> None:
    assert assert_step is request.getfixturevalue("assert_step")
    assert assert_step(step, Net(), X).log == {"rows": 8}


def test_the_plugin_imports_no_torch(tmp_path: Any) -> None:
    (tmp_path / "test_light.py").write_text("import sys\n\ndef test_light(): assert 'torch' not in sys.modules\n")
    # Only this plugin: those of others may import torch.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "strictstep_pytest", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in run.stdout, run.stdout


def test_the_plugin_is_known_to_pytest(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.has_plugin("strictstep_pytest") or pytestconfig.pluginmanager.has_plugin(
        "strictstep"
    )
