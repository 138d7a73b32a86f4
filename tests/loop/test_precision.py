"""Rule 8: autocast, and a scaler that gets its closure run first."""

from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD

from strictstep.loop import AutomaticOptimization, LoopError
from strictstep.schema import SkippedStep


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


@pytest.fixture
def batch() -> Any:
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(0))


def square_step(model: Any, batch: Any) -> Any:
    return model(batch).float().pow(2).mean()


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16-mixed", torch.bfloat16), ("fp16-mixed", torch.float16)]
)
def test_the_step_runs_under_autocast_and_only_the_step(model: Any, batch: Any, precision: Any, dtype: Any) -> None:
    seen: list[Any] = []

    def step(model: Any, batch: Any) -> Any:
        seen.append(model(batch).dtype)
        return square_step(model, batch)

    optimization: Any = AutomaticOptimization(model, step, SGD(model.parameters(), lr=0.1), precision=precision)
    optimization.step(batch)
    assert seen == [dtype]
    assert not torch.is_autocast_enabled("cpu")
    assert (optimization.scaler is None) == (precision != "fp16-mixed")


def test_the_optimizer_and_the_clipping_see_unscaled_gradients(model: Any, batch: Any) -> None:
    seen: list[Any] = []

    class Recording(SGD):
        def step(self, closure: Any = None) -> Any:
            assert closure is None
            seen.extend(parameter.grad.clone() for parameter in self.param_groups[0]["params"])

    def step(model: Any, batch: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return square_step(model, batch)

    expected = torch.autograd.grad(square_step(model, batch), list(model.parameters()))
    norm = torch.cat([gradient.flatten() for gradient in expected]).norm()
    optimization: Any = AutomaticOptimization(
        model, step, Recording(model.parameters(), lr=0.1), precision="fp16-mixed", max_grad_norm=norm.item() / 2
    )
    report: Any = optimization.step(batch)
    torch.testing.assert_close(report.grad_norm, norm)
    for clipped, gradient in zip(seen, expected, strict=True):
        torch.testing.assert_close(clipped, gradient / 2)
    torch.testing.assert_close(report.loss, square_step(model, batch).detach())


def test_a_step_left_out_by_the_scaler_is_told_by_the_scale_and_moves_no_counter(model: Any, batch: Any) -> None:
    optimization: Any = AutomaticOptimization(
        model,
        lambda model, batch: square_step(model, batch) * 1e36,
        SGD(model.parameters(), lr=0.1),
        precision="fp16-mixed",
    )
    before, scale = [p.clone() for p in model.parameters()], optimization.scaler.get_scale()
    report: Any = optimization.step(batch)
    assert (report.stepped, report.skipped, optimization.global_step, optimization.batches_seen) == (False, 0, 0, 1)
    assert optimization.scaler.get_scale() == scale / 2
    assert all(map(torch.equal, model.parameters(), before))
    assert report.loss.isfinite()


def test_accumulation_under_the_scaler_equals_the_whole_batch(batch: Any) -> None:
    torch.manual_seed(0)
    model, other = nn.Linear(3, 1), nn.Linear(3, 1)
    other.load_state_dict(model.state_dict())

    def step(model: Any, batch: Any) -> Any:
        if len(batch) == 1:
            return SkippedStep(reason="single")
        with torch.autocast("cpu", enabled=False):
            return square_step(model, batch)

    windows = [[batch[:5], batch[5:6], batch[6:]]]
    optimization: Any = AutomaticOptimization(model, step, SGD(model.parameters(), lr=0.1), precision="fp16-mixed")
    assert optimization.step_window(windows[0]).skipped == 1
    AutomaticOptimization(other, step, SGD(other.parameters(), lr=0.1)).step(torch.cat([batch[:5], batch[6:]]))
    for own, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(own, expected)


def test_a_skip_under_the_scaler_leaves_it_alone(model: Any, batch: Any) -> None:
    optimizer = SGD(model.parameters(), lr=0.1)
    optimization: Any = AutomaticOptimization(
        model, lambda model, batch: SkippedStep(reason="no boxes"), optimizer, precision="fp16-mixed"
    )
    before = optimization.scaler.state_dict()
    assert not optimization.step(batch).stepped
    assert optimization.scaler.state_dict() == before


def test_after_an_error_under_the_scaler_the_next_step_works(model: Any, batch: Any) -> None:
    class FailsOnce(SGD):
        failed = False

        def step(self, closure: Any = None) -> Any:
            if not self.failed:
                self.failed = True
                raise ValueError("once")
            return super().step()

    optimization: Any = AutomaticOptimization(
        model, square_step, FailsOnce(model.parameters(), lr=0.1), precision="fp16-mixed"
    )
    with pytest.raises(ValueError, match=r"^once"):
        optimization.step(batch)
    assert optimization.step(batch).stepped


def test_fp16_is_refused_by_name_with_an_optimizer_that_demands_a_closure(model: Any) -> None:
    with pytest.raises(LoopError) as caught:
        AutomaticOptimization(model, square_step, LBFGS(model.parameters()), precision="fp16-mixed")
    assert str(caught.value) == (
        'expected an optimizer that steps without a closure under "fp16-mixed", got `LBFGS`, whose `step` demands one'
        "  [fp16_needs_one_evaluation]\n"
        '  help: use `LBFGS` with "bf16-mixed" or "fp32": the scaler unscales once per step'
    )


def test_an_unknown_precision_is_refused_at_the_start(model: Any) -> None:
    with pytest.raises(LoopError) as caught:
        AutomaticOptimization(model, square_step, SGD(model.parameters(), lr=0.1), precision=cast(Any, "16"))
    assert str(caught.value) == (
        "expected 'fp32', 'bf16-mixed', 'fp16-mixed' as `precision`, got str '16'  [option]\n  help: write one of them"
    )


def test_the_state_of_counters_scaler_and_weights_goes_through_a_state_dict(model: Any, batch: Any) -> None:
    def make() -> Any:
        return AutomaticOptimization(model, square_step, SGD(model.parameters(), lr=0.1), precision="fp16-mixed")

    first, second = make(), make()
    first.step(batch)
    second.load_state_dict(first.state_dict())
    assert (second.global_step, second.batches_seen) == (1, 1)
    assert second.state_dict() == first.state_dict()
