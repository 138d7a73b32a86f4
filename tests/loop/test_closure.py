"""Rules 1, 2, 3 and 5: one closure for every optimizer, its first evaluation reported, once."""

import contextlib
import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD

from strictstep.loop import AutomaticOptimization, ClosureNotCalledError, LoopError
from strictstep.schema import SkippedStep, StepOutputError, TrainingOutput, validate_step


def parameters_of(model: Any) -> Any:
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_same(model: Any, parameters: Any) -> Any:
    for now, before in zip(model.parameters(), parameters, strict=True):
        assert torch.equal(now, before)


def loss_of(model: Any, batch: Any) -> Any:
    x, y = batch
    return (model(x) - y).pow(2).mean()


def test_sgd_takes_the_step_that_torch_takes(model: Any, make_batch: Any, training_step: Any) -> None:
    other, batch = copy.deepcopy(model), make_batch()
    AutomaticOptimization(model, training_step, SGD(model.parameters(), lr=0.1)).step(batch)
    loss_of(other, batch).backward()
    SGD(other.parameters(), lr=0.1).step()
    assert_same(model, parameters_of(other))


def test_lbfgs_reports_the_loss_before_the_step(model: Any, make_batch: Any, training_step: Any) -> None:
    batch = make_batch()
    before = loss_of(model, batch).detach()
    report: Any = AutomaticOptimization(model, training_step, LBFGS(model.parameters(), max_iter=5)).step(batch)
    assert torch.equal(report.loss, before)
    assert torch.equal(report.output.log["mse"], before)
    assert loss_of(model, batch) < before
    assert report.evaluations > 1


def test_evaluations_are_counted(model: Any, make_batch: Any, training_step: Any, optimizers: Any) -> None:
    optimization: Any = AutomaticOptimization(model, training_step, optimizers.CallsTwice(model.parameters(), lr=0.1))
    report: Any = optimization.step(make_batch())
    assert (report.evaluations, len(report.outputs), report.stepped, report.skipped) == (2, 1, True, 0)
    assert optimization.global_step == 1


def test_a_step_can_ask_which_evaluation_it_is(model: Any, make_batch: Any) -> None:
    seen: list[Any] = []

    def step(model: Any, batch: Any, evaluation: Any) -> Any:
        seen.append(evaluation)
        return loss_of(model, batch)

    AutomaticOptimization(model, step, LBFGS(model.parameters(), max_iter=3)).step(make_batch())
    assert seen == list(range(len(seen)))
    assert len(seen) > 1


@pytest.mark.parametrize("name", ["CallsUnderNoGrad", "CallsUnderInferenceMode", "KeywordOnly", "PassesOn"])
def test_the_closure_makes_gradients_whatever_mode_it_is_called_in(
    model: Any, make_batch: Any, training_step: Any, optimizers: Any, name: Any
) -> None:
    other, batch = copy.deepcopy(model), make_batch()
    AutomaticOptimization(model, training_step, getattr(optimizers, name)(model.parameters(), lr=0.1)).step(batch)
    AutomaticOptimization(other, training_step, SGD(other.parameters(), lr=0.1)).step(batch)
    assert_same(model, parameters_of(other))


def test_the_closure_returns_a_detached_scalar(model: Any, make_batch: Any, training_step: Any) -> None:
    batch = make_batch()
    closure = AutomaticOptimization(model, training_step, SGD(model.parameters(), lr=0.1)).closure([batch])
    loss = closure()
    assert (loss.shape, loss.requires_grad, loss.grad_fn) == (torch.Size([]), False, None)


def test_an_optimizer_without_closure_parameter_gets_its_closure_run_first(
    model: Any, make_batch: Any, training_step: Any, optimizers: Any
) -> None:
    other, batch = copy.deepcopy(model), make_batch()
    optimizer = optimizers.WithoutClosure(model.parameters(), lr=0.1)
    assert AutomaticOptimization(model, training_step, optimizer).step(batch).stepped
    AutomaticOptimization(other, training_step, SGD(other.parameters(), lr=0.1)).step(batch)
    assert_same(model, parameters_of(other))


def test_a_scheduler_that_patched_the_instance_does_not_hide_the_closure_parameter(
    model: Any, make_batch: Any, training_step: Any
) -> None:
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimization: Any = AutomaticOptimization(model, training_step, optimizer)
    assert optimization.step(make_batch()).evaluations == 1
    scheduler.step()  # it warns if the step has not gone through the instance


def test_an_optimizer_that_never_calls_is_named_and_no_counter_moves(
    model: Any, make_batch: Any, training_step: Any, optimizers: Any
) -> None:
    before = parameters_of(model)
    optimization: Any = AutomaticOptimization(model, training_step, optimizers.NeverCalls(model.parameters(), lr=0.1))
    with pytest.raises(ClosureNotCalledError) as caught:
        optimization.step(make_batch())
    assert str(caught.value) == (
        "expected `NeverCalls.step` to call its closure, got no call of it  [closure_not_called]\n"
        "  help: call it and return what it gives: `loss = closure()`"
    )
    assert (optimization.global_step, optimization.batches_seen) == (0, 0)
    assert_same(model, before)


def test_a_report_is_taken_once(model: Any, make_batch: Any, training_step: Any) -> None:
    optimization: Any = AutomaticOptimization(model, training_step, SGD(model.parameters(), lr=0.1))
    closure = optimization.closure([make_batch()])
    with pytest.raises(ClosureNotCalledError):
        closure.take()
    closure()
    assert closure.take().evaluations == 1
    for late in (closure.take, closure):
        with pytest.raises(LoopError) as caught:
            late()
        assert caught.value.code == "closure_taken"


def test_a_closure_that_is_called_late_is_refused(
    model: Any, make_batch: Any, training_step: Any, optimizers: Any
) -> None:
    optimization: Any = AutomaticOptimization(model, training_step, optimizers.CallsLate(model.parameters(), lr=0.1))
    with pytest.raises(ClosureNotCalledError):
        optimization.step(make_batch())
    with pytest.raises(LoopError) as caught:
        optimization.step(make_batch(seed=1))
    assert caught.value.code in ("closure_taken", "gradients_before_closure")


def test_an_exception_that_the_optimizer_swallowed_is_raised_again(
    model: Any, make_batch: Any, optimizers: Any
) -> None:
    def step(model: Any, batch: Any) -> Any:
        raise KeyError("label")

    optimization: Any = AutomaticOptimization(model, step, optimizers.SwallowsErrors(model.parameters(), lr=0.1))
    before = parameters_of(model)
    with pytest.raises(KeyError, match=r"^'label'\nin training step `step`$"):
        optimization.step(make_batch())
    assert optimization.global_step == 0
    assert_same(model, before)


def test_a_later_evaluation_that_raises_leaves_no_stale_result(model: Any, make_batch: Any, optimizers: Any) -> None:
    class SwallowsTheSecond(SGD):
        def step(self, closure: Any = None) -> Any:
            with torch.enable_grad():
                closure()
                try:
                    closure()
                except ValueError:
                    return
            return

    def step(model: Any, batch: Any, evaluation: Any) -> Any:
        if evaluation:
            raise ValueError("second")
        return loss_of(model, batch)

    optimization: Any = AutomaticOptimization(model, step, SwallowsTheSecond(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match=r"^second\nin training step `step`\nin evaluation 2 of one optimizer step"):
        optimization.step(make_batch())


def test_an_optimizer_that_needs_gradients_before_its_closure_is_told_so_by_name(
    model: Any, make_batch: Any, training_step: Any, optimizers: Any
) -> None:
    optimization: Any = AutomaticOptimization(model, training_step, optimizers.SAMAsCommonlyWritten(model.parameters()))
    for seed in (0, 1):  # the second time there would be stale gradients to serve
        with pytest.raises(LoopError, match=r"`SAMAsCommonlyWritten\.step` to call its closure before") as caught:
            optimization.step(make_batch(seed=seed))
        assert caught.value.code == "gradients_before_closure"


def test_gradients_are_none_after_a_step_also_those_of_parameters_that_are_not_the_optimizers(make_batch: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 4, dtype=torch.float64), nn.Linear(4, 1, dtype=torch.float64))
    optimization: Any = AutomaticOptimization(model, loss_of, SGD(model[1].parameters(), lr=0.1))
    before = parameters_of(model[0])
    optimization.step(make_batch())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert_same(model[0], before)


def test_gradients_left_by_others_are_not_counted(model: Any, make_batch: Any, training_step: Any) -> None:
    other, batch = copy.deepcopy(model), make_batch()
    loss_of(model, make_batch(seed=5)).backward()
    for one in (model, other):
        AutomaticOptimization(one, training_step, SGD(one.parameters(), lr=0.1)).step(batch)
    assert_same(model, parameters_of(other))


def test_a_logged_parameter_shows_its_value_before_the_step(make_batch: Any) -> None:
    model = nn.Linear(3, 1, dtype=torch.float64)
    before = model.bias.detach().clone()

    def step(model: Any, batch: Any) -> Any:
        return {
            "loss": loss_of(model, batch),
            "log": {"bias": model.bias, "first": model.weight[0, 1]},
            "progress_bar": ["bias"],
            "metrics": {"weight": model.weight},
        }

    weight = model.weight.detach().clone()
    report: Any = AutomaticOptimization(model, step, SGD(model.parameters(), lr=0.1)).step(make_batch())
    assert not torch.equal(model.bias, before)
    assert torch.equal(report.output.log["bias"], before[0])
    assert torch.equal(report.output.progress_bar["bias"], before[0])
    assert torch.equal(report.output.log["first"], weight[0, 1])
    assert torch.equal(report.output.metrics["weight"], weight)


def test_a_loss_that_is_a_view_of_a_parameter_is_reported_before_the_step() -> None:
    model = nn.Linear(2, 1)
    before = model.weight[0, 0].item()
    report: Any = AutomaticOptimization(
        model, lambda model, batch: model.weight[0, 0], SGD(model.parameters(), lr=1.0)
    ).step(torch.ones(3, 2))
    assert report.loss.item() == before
    assert model.weight[0, 0].item() == pytest.approx(before - 1)


def test_a_returned_model_is_not_mutated(model: Any, make_batch: Any) -> None:
    kept: list[Any] = []

    def step(model: Any, batch: Any) -> Any:
        kept.append(TrainingOutput(loss=loss_of(model, batch), log={"bias": model.bias}))
        return kept[-1]

    report: Any = AutomaticOptimization(model, step, SGD(model.parameters(), lr=0.1)).step(make_batch())
    assert kept[0].loss.grad_fn is not None
    assert report.loss.grad_fn is None
    assert type(report.output) is TrainingOutput
    assert report.output.log["bias"] != kept[0].log["bias"]


def test_a_wrong_output_at_the_first_evaluation_changes_nothing(model: Any, make_batch: Any) -> None:
    calls: list[Any] = []

    def step(model: Any, batch: Any) -> Any:
        calls.append(1)
        return loss_of(model, batch).item() if len(calls) == 2 else loss_of(model, batch)

    optimizer = torch.optim.AdamW(model.parameters())
    optimization, before = AutomaticOptimization(model, step, optimizer), parameters_of(model)
    with pytest.raises(StepOutputError) as caught:
        optimization.step_window([make_batch(), make_batch(seed=1)], epoch=3, batch_idx=10)
    error = caught.value
    assert (error.problems[0].code, error.epoch, error.batch_idx) == ("wrong_return_type", 3, 11)
    assert not hasattr(error, "__notes__")
    assert_same(model, before)
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())
    assert (optimization.global_step, optimization.batches_seen) == (0, 0)


def test_a_wrong_output_at_a_later_evaluation_says_where_the_parameters_stand(model: Any, make_batch: Any) -> None:
    def step(model: Any, batch: Any, evaluation: Any) -> Any:
        return "warm" if evaluation == 2 else loss_of(model, batch)

    optimization: Any = AutomaticOptimization(model, step, LBFGS(model.parameters(), max_iter=5))
    with pytest.raises(StepOutputError) as caught:
        optimization.step(make_batch())
    assert caught.value.problems[0].code == "wrong_return_type"
    assert caught.value.__notes__ == [
        "in evaluation 3 of one optimizer step: the parameters stand where `LBFGS` put them"
    ]
    assert optimization.global_step == 0


def test_user_exceptions_gain_a_note_with_epoch_and_batch(model: Any, make_batch: Any) -> None:
    def broken_step(model: Any, batch: Any) -> Any:
        raise KeyError("label")

    optimization: Any = AutomaticOptimization(model, broken_step, SGD(model.parameters(), lr=0.1))
    with pytest.raises(KeyError, match=r"^'label'\nin training step `broken_step`, epoch 2, batch 17$") as caught:
        optimization.step(make_batch(), epoch=2, batch_idx=17)
    assert caught.value.__notes__ == ["in training step `broken_step`, epoch 2, batch 17"]


def test_exceptions_of_the_optimizer_gain_that_note_too(model: Any, make_batch: Any, training_step: Any) -> None:
    class Broken(SGD):
        def step(self, closure: Any = None) -> Any:
            closure()
            raise ValueError("broken")

    optimization = AutomaticOptimization(model, training_step, Broken(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match=r"^broken\nin training step `mse_step`, epoch 0, batch 1$"):
        optimization.step(make_batch(), epoch=0, batch_idx=1)
    assert optimization.global_step == 0


def test_stop_iteration_from_the_step_is_an_error_that_names_it(model: Any, make_batch: Any) -> None:
    def exhausted_step(model: Any, batch: Any) -> Any:
        return next(iter(()))

    optimization: Any = AutomaticOptimization(model, exhausted_step, SGD(model.parameters(), lr=0.1))
    assert issubclass(LoopError, RuntimeError)
    with pytest.raises(LoopError, match="expected step `exhausted_step` to return") as caught:
        optimization.step(make_batch())
    assert caught.value.code == "stop_iteration"


@pytest.mark.parametrize("saves_nothing", [False, True])
def test_the_same_loss_twice_is_an_error(model: Any, make_batch: Any, saves_nothing: Any) -> None:
    kept: list[Any] = []

    def step(model: Any, batch: Any) -> Any:
        if not kept:
            kept.append(model.weight.sum() if saves_nothing else loss_of(model, batch))
        return kept[0]

    optimization: Any = AutomaticOptimization(model, step, SGD(model.parameters(), lr=0.1))
    optimization.step(make_batch())
    before = parameters_of(model)
    with pytest.raises(LoopError, match="went backward before") as caught:
        optimization.step(make_batch())
    assert caught.value.code == "graph_used_twice"
    assert_same(model, before)


def test_state_that_was_not_detached_is_an_error_that_names_the_way_out(model: Any, make_batch: Any) -> None:
    state = [torch.zeros((), dtype=torch.float64)]

    def step(model: Any, batch: Any) -> Any:
        state[0] = state[0] + loss_of(model, batch)
        return state[0]

    optimization: Any = AutomaticOptimization(model, step, SGD(model.parameters(), lr=0.1))
    optimization.step(make_batch())
    with pytest.raises(LoopError, match="return it as `hiddens`") as caught:
        optimization.step(make_batch())
    assert caught.value.code == "graph_used_twice"


def test_a_window_that_gives_no_gradient_is_an_error(model: Any, make_batch: Any) -> None:
    elsewhere = nn.Parameter(torch.ones((), dtype=torch.float64))
    optimization: Any = AutomaticOptimization(
        model, lambda model, batch: elsewhere * 2, SGD(model.parameters(), lr=0.1)
    )
    with pytest.raises(LoopError, match="got no gradient in any") as caught:
        optimization.step(make_batch())
    assert caught.value.code == "no_gradient"
    assert optimization.global_step == 0


def test_nothing_to_train_is_refused_at_the_start(model: Any, training_step: Any) -> None:
    optimizer = SGD(model.parameters(), lr=0.1)
    model.requires_grad_(False)
    with pytest.raises(LoopError) as caught:
        AutomaticOptimization(model, training_step, optimizer)
    assert caught.value.code == "nothing_to_train"


def test_after_a_step_graph_and_output_are_gone(model: Any, make_batch: Any) -> None:
    losses: list[Any] = []

    def step(model: Any, batch: Any) -> Any:
        loss = loss_of(model, batch)
        losses.append(weakref.ref(loss))
        return {"loss": loss}

    optimization: Any = AutomaticOptimization(model, step, LBFGS(model.parameters(), max_iter=3))
    gc.disable()
    try:
        batch = make_batch()
        batches = [weakref.ref(tensor) for tensor in batch]
        report = optimization.step(batch)
        output = weakref.ref(report.outputs[0].loss)
        assert [ref() for ref in losses] == [None] * report.evaluations
        del report, batch
        assert output() is None
        assert [ref() for ref in batches] == [None, None]
    finally:
        gc.enable()


def test_a_skip_at_a_later_evaluation_is_an_error(model: Any, make_batch: Any) -> None:
    def step(model: Any, batch: Any, evaluation: Any) -> Any:
        return SkippedStep(reason="bored") if evaluation else loss_of(model, batch)

    optimization: Any = AutomaticOptimization(model, step, LBFGS(model.parameters(), max_iter=5))
    with pytest.raises(LoopError, match="bored") as caught:
        optimization.step(make_batch())
    assert caught.value.code == "skipped_later"


def test_a_batch_changed_in_place_is_an_error_for_an_optimizer_that_evaluates_again(
    model: Any, make_batch: Any
) -> None:
    def noisy_step(model: Any, batch: Any) -> Any:
        batch[0].add_(1.0)
        return loss_of(model, batch)

    optimization: Any = AutomaticOptimization(model, noisy_step, LBFGS(model.parameters(), max_iter=5))
    with pytest.raises(LoopError, match="`noisy_step` to leave its batch and hiddens as they are") as caught:
        optimization.step(make_batch())
    assert caught.value.code == "window_changed"


def test_each_evaluation_gets_containers_of_its_own(model: Any, make_batch: Any) -> None:
    def step(model: Any, batch: Any) -> Any:
        return loss_of(model, (batch.pop("x"), batch["more"].pop()))

    x, y = make_batch()
    batch = {"x": x, "more": [y]}
    report: Any = AutomaticOptimization(model, step, LBFGS(model.parameters(), max_iter=5)).step(batch)
    assert report.evaluations > 1
    assert len(batch) == 2


def test_an_optimizer_that_changes_the_loss_it_gets_does_not_change_the_report(model: Any, make_batch: Any) -> None:
    class Summing(SGD):
        def step(self, closure: Any = None) -> Any:
            loss = closure()
            loss += closure()
            return super().step()

    batch = make_batch()
    expected = loss_of(model, batch)
    report = AutomaticOptimization(model, loss_of, Summing(model.parameters(), lr=0.1)).step(batch)
    torch.testing.assert_close(report.loss, expected.detach())


def test_hiddens_changed_in_place_are_an_error_for_an_optimizer_that_evaluates_again(
    model: Any, make_batch: Any
) -> None:
    def step(model: Any, batch: Any, hiddens: Any) -> Any:
        hiddens.mul_(2)
        return loss_of(model, batch) * hiddens.detach().clone()

    optimization: Any = AutomaticOptimization(model, step, LBFGS(model.parameters(), max_iter=5))
    with pytest.raises(LoopError, match="`step` to leave its batch and hiddens as they are") as caught:
        optimization.step(make_batch(), hiddens=torch.tensor(1.0))
    assert caught.value.code == "window_changed"


def test_each_evaluation_gets_the_hiddens_in_containers_of_its_own(model: Any, make_batch: Any) -> None:
    def step(model: Any, batch: Any, hiddens: Any) -> Any:
        return loss_of(model, batch) * hiddens.pop("scale")

    optimization: Any = AutomaticOptimization(model, step, LBFGS(model.parameters(), max_iter=5))
    assert optimization.step(make_batch(), hiddens={"scale": torch.tensor(1.0)}).evaluations > 1


def test_an_optimizer_that_swallows_an_error_of_half_a_window_finds_no_gradient(model: Any, make_batch: Any) -> None:
    class Swallowing(SGD):
        def step(self, closure: Any = None) -> Any:
            with contextlib.suppress(Exception):
                closure()
            return super().step()

    def step(model: Any, batch: Any, batch_idx: Any) -> Any:
        return {"los": 1} if batch_idx else loss_of(model, batch)

    optimizer = Swallowing(model.parameters(), lr=0.1, momentum=0.9)
    before = parameters_of(model)
    with pytest.raises(StepOutputError, match="loss_missing"):
        AutomaticOptimization(model, step, optimizer).step_window([make_batch(), make_batch()])
    assert_same(model, before)
    assert not optimizer.state


@pytest.mark.parametrize("begins", [0, 3])
def test_a_backward_of_the_steps_own_is_an_error_whenever_it_begins(model: Any, make_batch: Any, begins: int) -> None:
    def step(model: Any, batch: Any, global_step: int) -> Any:
        if global_step >= begins:  # as a penalty that is added now and then
            model.weight.pow(2).sum().backward()
        return loss_of(model, batch)

    optimization: Any = AutomaticOptimization(model, step, SGD(model.parameters(), lr=0.1))
    for _ in range(begins):
        optimization.step(make_batch())
    with pytest.raises(LoopError, match="expected `step` to leave gradients alone") as caught:
        optimization.step(make_batch())
    assert (caught.value.code, optimization.global_step) == ("gradients_changed", begins)


def test_an_optimizer_whose_step_is_wrapped_by_anything_is_given_the_closure(model: Any, make_batch: Any) -> None:
    class Wrapped(LBFGS):
        pass

    def step(*args: Any, **kwargs: Any) -> Any:
        return LBFGS.step(*args, **kwargs)

    Wrapped.step = step  # type: ignore[method-assign]
    optimizer = Wrapped(model.parameters(), lr=0.1, max_iter=3)
    assert AutomaticOptimization(model, loss_of, optimizer).step(make_batch()).evaluations > 1


def test_a_stop_iteration_of_the_optimizer_names_it(model: Any, make_batch: Any) -> None:
    class Stopping(SGD):
        def step(self, closure: Any = None) -> Any:
            closure()
            return next(iter([]))

    with pytest.raises(LoopError, match=r"expected `Stopping\.step` to return, got a StopIteration") as caught:
        AutomaticOptimization(model, loss_of, Stopping(model.parameters(), lr=0.1)).step(make_batch())
    assert caught.value.code == "stop_iteration"


def test_an_output_error_that_the_step_itself_raises_is_told_its_place(model: Any, make_batch: Any) -> None:
    @validate_step
    def decorated(model: Any, batch: Any) -> Any:
        return {"loss": 0.5}

    def calling(model: Any, batch: Any) -> Any:
        return TrainingOutput(loss=0.5)  # type: ignore[arg-type]

    for step, notes in ((decorated, None), (calling, ["in training step `calling`, epoch 2, batch 7"])):
        optimization: Any = AutomaticOptimization(model, step, SGD(model.parameters(), lr=0.1))
        with pytest.raises(StepOutputError, match="loss_not_tensor") as caught:
            optimization.step(make_batch(), epoch=2, batch_idx=7)
        error = pickle.loads(pickle.dumps(caught.value))
        assert (error.epoch, error.batch_idx, getattr(caught.value, "__notes__", None)) == (2, 7, notes)


def test_a_window_of_a_generator_is_refused(model: Any, make_batch: Any) -> None:
    batches: Any = (make_batch() for _ in range(2))
    with pytest.raises(LoopError, match="expected a list of batches as window, got generator") as caught:
        AutomaticOptimization(model, loss_of, SGD(model.parameters(), lr=0.1)).step_window(batches)
    assert caught.value.code == "window_empty"


def test_a_logged_parameter_outside_the_model_shows_its_value_before_the_step() -> None:
    scale = nn.Parameter(torch.tensor(1.0))

    def step(model: Any, batch: Any) -> Any:
        return {"loss": (scale * batch).mean(), "log": {"scale": scale}}

    report: Any = AutomaticOptimization(nn.Identity(), step, SGD([scale], lr=0.1)).step(torch.ones(2))
    assert (report.output.log["scale"].item(), round(scale.item(), 4)) == (1.0, 0.9)


def test_a_kept_loss_of_shape_one_is_found_too(model: Any, make_batch: Any) -> None:
    kept = model.weight.sum().view(1)
    optimization: Any = AutomaticOptimization(model, lambda model, batch: kept, SGD(model.parameters(), lr=0.1))
    optimization.step(make_batch())
    with pytest.raises(LoopError, match="went backward before") as caught:
        optimization.step(make_batch())
    assert caught.value.code == "graph_used_twice"


def test_an_element_of_a_parameter_may_be_the_loss_of_every_step(model: Any, make_batch: Any) -> None:
    optimization: Any = AutomaticOptimization(
        model, lambda model, batch: model.bias[0], SGD(model.parameters(), lr=0.1)
    )
    before = model.bias.item()
    for _ in range(3):
        optimization.step(make_batch())
    assert model.bias.item() == pytest.approx(before - 0.3)


def test_a_call_after_an_error_is_of_the_same_weights(model: Any, make_batch: Any) -> None:
    gradients: list[Any] = []

    class Retrying(SGD):
        def step(self, closure: Any = None) -> Any:
            with contextlib.suppress(ValueError):
                closure()
            closure()
            gradients.append(model.weight.grad.clone())

    calls: list[int] = []

    def step(model: Any, batch: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("once")
        return loss_of(model, batch)

    batch = make_batch()
    (expected,) = torch.autograd.grad(loss_of(model, batch), model.weight)
    with pytest.raises(ValueError, match=r"^once"):
        AutomaticOptimization(model, step, Retrying(model.parameters(), lr=0.1)).step(batch)
    torch.testing.assert_close(gradients[0], expected)


@pytest.mark.parametrize("size", [2, 700])
@pytest.mark.parametrize("place", [0, -1])
def test_an_element_of_a_model_of_any_size_shows_its_value_before_the_step(size: int, place: int) -> None:
    model = nn.Sequential(nn.Linear(size, size), nn.Linear(size, 1))
    before = [parameter.detach().view(-1)[place].item() for parameter in model.parameters()]

    def step(model: Any, batch: Any) -> Any:
        elements = {f"{number}": p.data.view(-1)[place] for number, p in enumerate(model.parameters())}
        return {"loss": sum(parameter.sum() for parameter in model.parameters()), "log": elements}

    report: Any = AutomaticOptimization(model, step, SGD(model.parameters(), lr=1.0)).step(torch.ones(1))
    assert [value.item() for value in report.output.log.values()] == before
    assert [p.detach().view(-1)[place].item() for p in model.parameters()] == pytest.approx([x - 1 for x in before])


def test_a_fresh_value_is_not_copied(model: Any, make_batch: Any) -> None:
    returned: list[Any] = []

    def step(model: Any, batch: Any) -> Any:
        loss = loss_of(model, batch)
        returned.append(loss.detach() + 1)
        return {"loss": loss, "log": {"fresh": returned[-1]}}

    optimization: Any = AutomaticOptimization(model, step, SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        assert optimization.step(make_batch()).output.log["fresh"] is returned[-1]


def test_a_hook_before_the_step_finds_gradients_as_in_a_loop_without_closure(model: Any, make_batch: Any) -> None:
    other, batch = copy.deepcopy(model), make_batch()

    def clipping(optimizer: Any, args: Any, kwargs: Any) -> None:
        nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1e-3)

    optimizers = [SGD(one.parameters(), lr=0.1) for one in (model, other)]
    for optimizer in optimizers:
        optimizer.register_step_pre_hook(clipping)
    AutomaticOptimization(model, loss_of, optimizers[0]).step(batch)
    loss_of(other, batch).backward()
    optimizers[1].step()
    assert_same(model, parameters_of(other))


def test_an_optimizer_that_cannot_do_without_its_closure_gets_it_whatever_its_hooks(
    model: Any, make_batch: Any
) -> None:
    optimizer = LBFGS(model.parameters(), max_iter=3)
    optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: None)
    assert AutomaticOptimization(model, loss_of, optimizer).step(make_batch()).evaluations > 1


def test_what_an_optimizer_refuses_before_its_closure_is_its_own_error(model: Any, make_batch: Any) -> None:
    class Guarded(SGD):
        def step(self, closure: Any = None) -> Any:
            raise ValueError("call `.train()` first")

    with pytest.raises(ValueError, match=r"^call `\.train\(\)` first\nin training step `loss_of`"):
        AutomaticOptimization(model, loss_of, Guarded(model.parameters(), lr=0.1)).step(make_batch())


@pytest.mark.parametrize("logged", [lambda loss: loss, lambda loss: loss.detach().view(torch.int64), lambda loss: 0.5])
def test_the_reported_loss_is_the_returned_one_whatever_is_logged_by_its_name(
    model: Any, make_batch: Any, logged: Any
) -> None:
    def step(model: Any, batch: Any) -> Any:
        loss = loss_of(model, batch)
        return {"loss": loss, "log": {"loss": logged(loss)}}

    batch = make_batch()
    expected = loss_of(model, batch).detach()
    report: Any = AutomaticOptimization(model, step, SGD(model.parameters(), lr=0.1)).step(batch)
    assert (report.loss.dtype, report.loss.requires_grad) == (torch.float64, False)
    assert torch.equal(report.loss, expected)
