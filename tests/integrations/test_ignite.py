"""Checked steps in an Ignite `Engine`: as its process function, and inside one."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from strictstep.schema import ManualOutput, SkippedStep, StepOutputError, TrainingOutput, validate_step

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "`torch.jit.[a-z]+` is deprecated", DeprecationWarning)  # of torch's own modules
    from ignite.engine import Engine, Events
    from ignite.handlers import ProgressBar
    from ignite.metrics import Average, RunningAverage

BATCHES = list(torch.randn(30, 8, 4, generator=torch.Generator().manual_seed(1)))


def small_model() -> nn.Module:
    """The same small net each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Linear(4, 1))


def training_step(model: nn.Module, batch: Tensor) -> dict[str, Any]:
    """One batch, its `loss` and what to log of it."""
    loss = model(batch).pow(2).mean()
    return {"loss": loss, "log": {"rms": loss.detach().sqrt(), "rows": len(batch)}, "progress_bar": ["rms"]}


def trained(step: Any, read_loss: Any) -> nn.Module:
    """A model after a run of 30 iterations, with the step inside a process function."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def update(engine: Engine, batch: Tensor) -> Any:
        output = step(model, batch)
        optimizer.zero_grad()
        read_loss(output).backward()
        optimizer.step()
        return output

    Engine(update).run(BATCHES, max_epochs=1)
    return model


def whole(step: Any) -> Any:
    """A process function around a step, as Ignite's users write it, and its engine."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update(engine: Engine, batch: Tensor) -> Any:
        optimizer.zero_grad()
        returned = step(model, batch)
        returned["loss"].backward()
        optimizer.step()
        return returned

    return update


def test_parameters_are_those_of_the_unchecked_run() -> None:
    plain = trained(training_step, lambda output: output["loss"])
    checked = trained(validate_step(training_step), lambda output: output.loss)
    original = trained(validate_step(returns="original")(training_step), lambda output: output["loss"])
    for reference, one, other in zip(plain.parameters(), checked.parameters(), original.parameters(), strict=True):
        assert torch.equal(reference, one)
        assert torch.equal(reference, other)


def test_a_process_function_leaves_an_output_without_a_graph_in_the_state() -> None:
    engine = Engine(validate_step(stage="manual")(whole(training_step)))
    engine.run(BATCHES[:2], max_epochs=1)
    output: Any = engine.state.output
    assert type(output) is ManualOutput
    assert isinstance(output.loss, Tensor)
    assert not output.loss.requires_grad
    assert output.log["rows"] == 8


def test_metrics_attach_to_the_fields() -> None:
    engine = Engine(validate_step(stage="manual")(whole(training_step)))
    Average(output_transform=lambda output: output.log["rms"]).attach(engine, "rms")
    RunningAverage(output_transform=lambda output: output.loss).attach(engine, "running_loss")
    seen: list[float] = []
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: seen.append(engine.state.output.log["rms"]))
    engine.run(BATCHES, max_epochs=1)
    assert engine.state.metrics["rms"] == pytest.approx(float(torch.stack(seen).mean()), rel=1e-6)  # type: ignore[arg-type]
    assert engine.state.metrics["running_loss"] > 0


def test_the_progress_bar_attaches_to_its_field(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine(validate_step(stage="manual")(whole(training_step)))
    ProgressBar(ncols=100).attach(engine, output_transform=lambda output: output.progress_bar)
    engine.run(BATCHES[:3], max_epochs=1)
    assert "rms=" in capsys.readouterr().err


def test_a_wrong_return_stops_the_run_with_the_report(caplog: pytest.LogCaptureFixture) -> None:
    @validate_step
    def wrong(model: nn.Module, batch: Tensor) -> object:
        return {"loss": model(batch).mean().item()}

    with pytest.raises(StepOutputError, match=r"training step `wrong` returned an invalid output"):
        trained(wrong, lambda output: output.loss)
    assert "StepOutputError" not in caplog.text or "loss_not_tensor" in caplog.text


def test_a_skip_is_an_output_of_the_state() -> None:
    @validate_step
    def sometimes(model: nn.Module, batch: Tensor) -> object:
        return SkippedStep(reason="no boxes") if batch.sum() > 0 else model(batch).pow(2).mean()

    model = small_model()
    outputs: list[Any] = []

    def update(engine: Engine, batch: Tensor) -> Any:
        output = sometimes(model, batch)
        if not isinstance(output, SkippedStep):
            output.loss.backward()
        return output

    engine = Engine(update)
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: outputs.append(engine.state.output))
    engine.run(BATCHES, max_epochs=1)
    assert {type(output) for output in outputs} == {SkippedStep, TrainingOutput}
