"""Rules 1, 4 and 6: a window is one batch, at every evaluation, whatever its micro-batches are."""

import copy
import itertools
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, AdamW

from strictstep.loop import AutomaticOptimization, LoopError
from strictstep.loop.window import NothingContributed
from strictstep.schema import SkippedStep

RAGGED = [8, 3, 5, 1, 7, 2, 8]


def loss_of(model: Any, batch: Any) -> Any:
    x, y = batch
    return (model(x) - y).pow(2).mean()


def joined(batches: Any) -> Any:
    return tuple(torch.cat(parts) for parts in zip(*batches, strict=True))


def windows(batches: Any, size: Any) -> Any:
    return [batches[at : at + size] for at in range(0, len(batches), size)]


def recording(kind: Any, gradients: Any, **options: Any) -> Any:
    """An optimizer of a kind that keeps the gradients and parameters of each evaluation."""

    class Recording(kind):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            def recorded() -> Any:
                loss = closure()
                parameters = [p for group in self.param_groups for p in group["params"]]
                gradients.append([(p.detach().clone(), p.grad.clone()) for p in parameters])
                return loss

            return super().step(recorded)

    return lambda parameters: Recording(parameters, **options)


@pytest.mark.parametrize("accumulation", [1, 2, 5])
@pytest.mark.parametrize("kind", ["LBFGS", "SAM"])
def test_the_gradient_of_every_evaluation_is_that_of_the_whole_window(
    model: Any, make_batch: Any, training_step: Any, optimizers: Any, kind: Any, accumulation: Any
) -> None:
    seen: list[Any] = []
    expected: list[Any] = []
    optimizer = (
        recording(LBFGS, seen, max_iter=4, line_search_fn="strong_wolfe")
        if kind == "LBFGS"
        else recording(optimizers.SAM, seen)
    )(model.parameters())
    optimization: Any = AutomaticOptimization(model, training_step, optimizer)
    batches = [make_batch(n, seed) for seed, n in enumerate(RAGGED)]  # 7 of them: the last window is short
    for window in windows(batches, accumulation):
        before = len(seen)
        report = optimization.step_window(window)
        assert report.evaluations == len(seen) - before > 1
        expected += [joined(window)] * report.evaluations
    assert optimization.global_step == len(windows(batches, accumulation))
    fresh = copy.deepcopy(model)
    for parameters, batch in zip(seen, expected, strict=True):
        with torch.no_grad():
            for parameter, (value, _) in zip(fresh.parameters(), parameters, strict=True):
                parameter.copy_(value)
        gradients = torch.autograd.grad(loss_of(fresh, batch), list(fresh.parameters()))
        for gradient, (_, recorded) in zip(gradients, parameters, strict=True):
            torch.testing.assert_close(recorded, gradient, rtol=1e-9, atol=1e-9)


def trained_by_torch(model: Any, batches: Any, make_optimizer: Any, loss_of: Any = loss_of, steps: Any = 20) -> Any:
    """Train with the plainest closure loop on whole batches."""
    optimizer = make_optimizer(model.parameters())
    for batch in itertools.islice(itertools.cycle(batches), steps):

        def closure(batch: Any = batch) -> Any:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)
    return list(model.parameters())


def trained_by_windows(optimization: Any, windows: Any, steps: Any = 20) -> Any:
    for window in itertools.islice(itertools.cycle(windows), steps):
        optimization.step_window(window)


def assert_equal_training(model: Any, parameters: Any) -> Any:
    for own, expected in zip(model.parameters(), parameters, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-9)


OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda parameters: SGD(parameters, lr=0.05, momentum=0.9),
    "AdamW": lambda parameters: AdamW(parameters, lr=0.05),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("accumulation", [2, 3, 5])
def test_accumulated_training_equals_large_batch_training(
    model: Any, make_batch: Any, training_step: Any, kind: Any, accumulation: Any
) -> None:
    grouped = windows([make_batch(n, seed) for seed, n in enumerate(RAGGED)], accumulation)
    other = copy.deepcopy(model)
    trained_by_windows(AutomaticOptimization(model, training_step, OPTIMIZERS[kind](model.parameters())), grouped)
    assert_equal_training(model, trained_by_torch(other, [joined(w) for w in grouped], OPTIMIZERS[kind]))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_skipped_micro_batches_count_nothing(model: Any, make_batch: Any, kind: Any) -> None:
    def step(model: Any, batch: Any) -> Any:
        return SkippedStep(reason="odd") if len(batch[0]) % 2 else loss_of(model, batch)

    grouped = windows([make_batch(n, seed) for seed, n in enumerate([8, 3, 6, 1, 7, 2, 4, 5])], 4)
    other = copy.deepcopy(model)
    optimization: Any = AutomaticOptimization(model, step, OPTIMIZERS[kind](model.parameters()))
    report: Any = optimization.step_window(grouped[0])
    assert (report.skipped, report.stepped, len(report.outputs), report.weights) == (2, True, 4, (8, 3, 6, 1))
    trained_by_windows(optimization, grouped[1:] + grouped[:1], 19)
    kept = [joined([batch for batch in window if len(batch[0]) % 2 == 0]) for window in grouped]
    assert_equal_training(model, trained_by_torch(other, kept, OPTIMIZERS[kind]))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_token_weights_need_only_a_function_of_the_batch(model: Any, make_batch: Any, kind: Any) -> None:
    def masked_loss(model: Any, batch: Any) -> Any:
        x, y, mask = batch
        return ((model(x) - y).pow(2) * mask).sum() / mask.sum()

    def masked(n: Any, seed: Any) -> Any:
        mask = (torch.rand(n, 1, generator=torch.Generator().manual_seed(seed)) > 0.4).double()
        mask[0] = 1
        return *make_batch(n, seed), mask

    grouped = windows([masked(n, seed) for seed, n in enumerate(RAGGED)], 3)
    other = copy.deepcopy(model)
    optimizer = OPTIMIZERS[kind](model.parameters())
    optimization: Any = AutomaticOptimization(model, masked_loss, optimizer, weight=lambda batch: batch[2].sum().item())
    trained_by_windows(optimization, grouped)
    whole = [joined(window) for window in grouped]
    assert_equal_training(model, trained_by_torch(other, whole, OPTIMIZERS[kind], masked_loss))


@pytest.mark.parametrize("skipped", [False, True])
def test_lbfgs_accumulates_as_on_the_whole_batch(model: Any, make_batch: Any, skipped: Any) -> None:
    def make_optimizer(parameters: Any) -> Any:
        return LBFGS(parameters, lr=0.5, max_iter=3)

    def step(model: Any, batch: Any) -> Any:
        return SkippedStep(reason="odd") if skipped and len(batch[0]) % 2 else loss_of(model, batch)

    window = [make_batch(n, seed) for seed, n in enumerate([8, 3, 4])]
    other = copy.deepcopy(model)
    trained_by_windows(AutomaticOptimization(model, step, make_optimizer(model.parameters())), [window])
    whole = joined([window[0], window[2]] if skipped else window)
    assert_equal_training(model, trained_by_torch(other, [whole], make_optimizer))


def test_the_loss_is_reported_as_it_was_returned(model: Any, make_batch: Any, training_step: Any) -> None:
    batches = [make_batch(n, seed) for seed, n in enumerate([6, 2])]
    expected = [loss_of(model, batch).detach() for batch in batches]
    report: Any = AutomaticOptimization(model, training_step, SGD(model.parameters(), lr=0.1)).step_window(batches)
    assert [output.loss for output in report.outputs] == expected
    assert [output.log["mse"] for output in report.outputs] == expected
    torch.testing.assert_close(report.loss, (6 * expected[0] + 2 * expected[1]) / 8)
    assert report.output is report.outputs[-1]


def test_a_hook_on_the_loss_alone_sees_the_factor(model: Any, make_batch: Any) -> None:
    seen: list[Any] = []

    def step(model: Any, batch: Any) -> Any:
        loss = loss_of(model, batch)
        loss.register_hook(lambda gradient: seen.append(gradient.item()))
        return loss

    optimization: Any = AutomaticOptimization(model, step, SGD(model.parameters(), lr=0.1))
    optimization.step_window([make_batch(6), make_batch(2, 1)])
    assert seen == [0.75, 0.25]


@pytest.mark.parametrize("size", [1, 3])
def test_a_window_that_is_skipped_steps_nothing(model: Any, make_batch: Any, optimizers: Any, size: Any) -> None:
    before = [parameter.clone() for parameter in model.parameters()]
    optimizer = optimizers.MovesWithoutGradients(model.parameters(), lr=0.1)
    optimization: Any = AutomaticOptimization(model, lambda model, batch: SkippedStep(reason="no boxes"), optimizer)
    report: Any = optimization.step_window([make_batch(seed=seed) for seed in range(size)])
    assert (report.stepped, report.skipped, report.evaluations, report.loss) == (False, size, 1, None)
    assert [output.reason for output in report.outputs] == ["no boxes"] * size
    assert (optimization.global_step, optimization.batches_seen) == (0, size)
    assert all(map(torch.equal, model.parameters(), before))


def test_adam_state_does_not_move_in_a_skip(model: Any, make_batch: Any) -> None:
    optimizer = AdamW(model.parameters())
    AutomaticOptimization(model, lambda model, batch: SkippedStep(reason="no boxes"), optimizer).step(make_batch())
    assert not optimizer.state


def test_an_optimizer_that_goes_on_where_all_was_skipped_is_told_so(
    model: Any, make_batch: Any, optimizers: Any
) -> None:
    optimizer = optimizers.SwallowsEverything(model.parameters(), lr=0.1)
    optimization: Any = AutomaticOptimization(model, lambda model, batch: SkippedStep(reason="no boxes"), optimizer)
    with pytest.raises(LoopError, match=r"`SwallowsEverything\.step` to end") as caught:
        optimization.step(make_batch())
    assert caught.value.code == "skip_swallowed"


def test_an_optimizer_that_calls_again_where_all_was_skipped_is_told_so_again(model: Any, make_batch: Any) -> None:
    class CallsTwice(SGD):
        def step(self, closure: Any = None) -> Any:
            with suppress(NothingContributed):
                closure()
            return closure()

    def step(model: Any, batch: Any) -> Any:
        calls.append(batch)
        return SkippedStep(reason="no boxes")

    calls: list[Any] = []
    optimization: Any = AutomaticOptimization(model, step, CallsTwice(model.parameters(), lr=0.1))
    report = optimization.step(make_batch())
    assert (report.stepped, report.skipped, len(calls)) == (False, 1, 1)


@pytest.mark.parametrize("size", [1, 2])
def test_the_loss_of_one_contributing_micro_batch_is_reported_in_its_own_dtype(make_batch: Any, size: Any) -> None:
    def step(model: Any, batch: Any, batch_idx: Any) -> Any:
        return SkippedStep(reason="odd") if batch_idx else model(batch[0].bfloat16()).pow(2).mean()

    model = nn.Linear(3, 1).bfloat16()
    optimization: Any = AutomaticOptimization(model, step, SGD(model.parameters(), lr=0.1))
    report = optimization.step_window([make_batch(seed=seed) for seed in range(size)])
    assert (report.loss.dtype, report.skipped) == (torch.bfloat16, size - 1)
    assert torch.equal(report.loss, report.outputs[0].loss)


def test_a_closure_of_ones_own_leaves_the_optimizer_by_no_exception(model: Any, make_batch: Any) -> None:
    optimization: Any = AutomaticOptimization(
        model, lambda model, batch: SkippedStep(reason="no boxes"), SGD(model.parameters(), lr=0.1)
    )
    closure = optimization.closure([make_batch()])
    with pytest.raises(NothingContributed, match=r"^$"):
        closure()
    assert not issubclass(NothingContributed, Exception)
    assert closure.take(stepped=False).skipped == 1


def test_later_evaluations_replay_only_those_that_contributed(model: Any, make_batch: Any) -> None:
    seen: list[Any] = []

    def step(model: Any, batch: Any, evaluation: Any, batch_idx: Any) -> Any:
        seen.append((evaluation, batch_idx))
        return SkippedStep(reason="odd") if batch_idx == 11 else loss_of(model, batch)

    optimization: Any = AutomaticOptimization(model, step, LBFGS(model.parameters(), max_iter=2))
    optimization.step_window([make_batch(seed=seed) for seed in range(3)], batch_idx=10)
    assert seen[:3] == [(0, 10), (0, 11), (0, 12)]
    assert seen[3:5] == [(1, 10), (1, 12)]


@pytest.mark.parametrize(
    "way", ["zero_grad", "zero_grad(set_to_none=False)", "backward", "clip", "zero_grad in a skip"]
)
def test_a_step_that_changes_the_gradients_of_its_window_is_an_error(model: Any, make_batch: Any, way: Any) -> None:
    def step(model: Any, batch: Any, batch_idx: Any) -> Any:
        if way == "backward":
            loss_of(model, batch).backward()
        elif way == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
        else:
            optimizer.zero_grad(set_to_none="False" not in way)
        return SkippedStep(reason="odd") if "skip" in way and batch_idx else loss_of(model, batch)

    optimizer = SGD(model.parameters(), lr=0.1)
    optimization: Any = AutomaticOptimization(model, step, optimizer)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(LoopError, match="expected `step` to leave gradients alone") as caught:
        optimization.step_window([make_batch(seed=0), make_batch(seed=1)])
    assert (caught.value.code, optimization.global_step) == ("gradients_changed", 0)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_a_step_that_clears_gradients_for_itself_may_in_a_window_of_one(model: Any, make_batch: Any) -> None:
    def step(model: Any, batch: Any) -> Any:
        optimizer.zero_grad()
        return loss_of(model, batch)

    optimizer = SGD(model.parameters(), lr=0.1)
    batch = make_batch()
    expected = model.weight - 0.1 * torch.autograd.grad(loss_of(model, batch), model.weight)[0]
    AutomaticOptimization(model, step, optimizer).step(batch)
    torch.testing.assert_close(model.weight, expected)


def test_an_empty_window_is_an_error(model: Any, training_step: Any) -> None:
    with pytest.raises(LoopError) as caught:
        AutomaticOptimization(model, training_step, SGD(model.parameters(), lr=0.1)).step_window([])
    assert caught.value.code == "window_empty"


def test_hiddens_are_for_a_window_of_one_chunk(model: Any, make_batch: Any) -> None:
    seen: list[Any] = []

    def step(model: Any, batch: Any, hiddens: Any) -> Any:
        seen.append(hiddens)
        return {"loss": loss_of(model, batch), "hiddens": model(batch[0])}

    optimization: Any = AutomaticOptimization(model, step, SGD(model.parameters(), lr=0.1))
    report: Any = optimization.step(make_batch(), hiddens="first")
    assert seen == ["first"]
    assert report.output.hiddens.grad_fn is None
    with pytest.raises(LoopError) as caught:
        optimization.step_window([make_batch(), make_batch()], hiddens=report.output.hiddens)
    assert caught.value.code == "hiddens_with_accumulation"


def test_gradients_are_clipped_at_each_evaluation_and_only_those_of_the_optimizer(make_batch: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4, dtype=torch.float64), nn.Linear(4, 1, dtype=torch.float64))
    seen: list[Any] = []
    batch = make_batch()
    gradients = torch.autograd.grad(loss_of(model, batch), list(model[1].parameters()))
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    optimizer = recording(LBFGS, seen, max_iter=3)(model[1].parameters())
    report: Any = AutomaticOptimization(model, loss_of, optimizer, max_grad_norm=0.01).step(batch)
    torch.testing.assert_close(report.grad_norm, norm)
    assert report.evaluations > 1
    for evaluation in seen:
        clipped = torch.cat([gradient.flatten() for _, gradient in evaluation]).norm()
        assert clipped.item() == pytest.approx(0.01, rel=1e-3)


def test_an_infinite_norm_measures_without_clipping(model: Any, make_batch: Any, training_step: Any) -> None:
    other, batch = copy.deepcopy(model), make_batch()
    optimizer = SGD(model.parameters(), lr=0.1)
    report: Any = AutomaticOptimization(model, training_step, optimizer, max_grad_norm=float("inf")).step(batch)
    assert report.grad_norm > 0
    AutomaticOptimization(other, training_step, SGD(other.parameters(), lr=0.1)).step(batch)
    assert all(map(torch.equal, model.parameters(), other.parameters()))


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), "1", True])
def test_a_wrong_clipping_norm_is_refused_at_the_start(model: Any, training_step: Any, wrong: Any) -> None:
    with pytest.raises(LoopError, match="as `max_grad_norm`") as caught:
        AutomaticOptimization(model, training_step, SGD(model.parameters(), lr=0.1), max_grad_norm=wrong)
    assert caught.value.code == "option"
