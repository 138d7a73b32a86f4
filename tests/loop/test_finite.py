"""Rule 7: what is not finite is an error, a skip or kept; never hidden, and read late on an accelerator."""

from typing import Any, cast

import pytest
import torch
from torch.optim import LBFGS, SGD
from torch.utils._python_dispatch import TorchDispatchMode

from strictstep.loop import AutomaticOptimization, LoopError
from strictstep.loop.finite import READ_EVERY, FiniteWatch, Origin
from strictstep.schema import StepOutputError


def loss_of(model: Any, batch: Any) -> Any:
    x, y = batch
    return (model(x) - y).pow(2).mean()


def spoiled_step(model: Any, batch: Any) -> Any:
    loss = loss_of(model, batch)
    loss = loss * float("nan") if len(batch[0]) % 2 else loss
    return {"loss": loss, "log": {"part": loss, "size": len(batch[0])}}


def test_a_loss_that_is_not_finite_is_an_error_before_anything_moves(model: Any, make_batch: Any) -> None:
    optimization: Any = AutomaticOptimization(model, spoiled_step, SGD(model.parameters(), lr=0.1))
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(StepOutputError) as caught:
        optimization.step_window([make_batch(4), make_batch(3)], epoch=1, batch_idx=6)
    (problem,) = caught.value.problems
    assert (problem.code, problem.path, problem.message) == (
        "loss_non_finite",
        "loss",
        "expected a finite loss, got nan",
    )
    assert problem.help.startswith("`part` in `log` is not finite either; ")
    assert (caught.value.epoch, caught.value.batch_idx) == (1, 7)
    assert all(map(torch.equal, model.parameters(), before))


def test_skip_leaves_out_the_micro_batch_and_its_values(model: Any, make_batch: Any) -> None:
    optimization: Any = AutomaticOptimization(
        model, spoiled_step, SGD(model.parameters(), lr=0.1), on_non_finite="skip"
    )
    batches = [make_batch(4), make_batch(3)]
    gradient = torch.autograd.grad(loss_of(model, batches[0]), model.weight)[0]
    expected = model.weight.detach() - 0.1 * gradient
    report: Any = optimization.step_window(batches)
    assert (report.skipped, report.stepped) == (1, True)
    assert (report.output.reason, report.output.log) == ("the loss is nan", {})
    torch.testing.assert_close(model.weight.detach(), expected)


def test_keep_trains_on_and_hides_nothing(model: Any, make_batch: Any) -> None:
    optimization: Any = AutomaticOptimization(
        model, spoiled_step, SGD(model.parameters(), lr=0.1), on_non_finite="keep"
    )
    report: Any = optimization.step(make_batch(3))
    assert report.stepped
    assert report.loss.isnan()
    assert model.weight.isnan().any()


def test_later_evaluations_are_checked_too(model: Any, make_batch: Any) -> None:
    def step(model: Any, batch: Any, evaluation: Any) -> Any:
        return loss_of(model, batch) * (float("inf") if evaluation == 2 else 1.0)

    optimization: Any = AutomaticOptimization(model, step, LBFGS(model.parameters(), max_iter=5))
    with pytest.raises(StepOutputError, match="expected a finite loss, got inf") as caught:
        optimization.step(make_batch())
    assert caught.value.problems[0].code == "loss_non_finite"
    assert "evaluation 3" in caught.value.__notes__[-1]


def step_with_infinite_gradient(model: Any, batch: Any) -> Any:
    return (model(batch[0]) * 0).abs().sqrt().mean()


def test_a_gradient_norm_that_is_not_finite_is_an_error_where_it_is_computed(model: Any, make_batch: Any) -> None:
    optimizer = SGD(model.parameters(), lr=0.1)
    optimization: Any = AutomaticOptimization(model, step_with_infinite_gradient, optimizer, max_grad_norm=1.0)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(LoopError, match="expected a finite gradient norm at epoch 0, batch 2, got nan") as caught:
        optimization.step(make_batch(), epoch=0, batch_idx=2)
    assert caught.value.code == "grad_norm_non_finite"
    assert all(map(torch.equal, model.parameters(), before))


def test_a_gradient_norm_that_is_not_finite_skips_the_window(model: Any, make_batch: Any) -> None:
    optimizer = SGD(model.parameters(), lr=0.1)
    optimization: Any = AutomaticOptimization(
        model, step_with_infinite_gradient, optimizer, max_grad_norm=1.0, on_non_finite="skip"
    )
    before = [parameter.clone() for parameter in model.parameters()]
    report: Any = optimization.step_window([make_batch(), make_batch(seed=1)])
    assert (report.stepped, report.skipped) == (False, 2)
    assert report.output.reason == "the gradient norm is nan"
    assert all(map(torch.equal, model.parameters(), before))


def test_an_unknown_policy_is_refused_at_the_start(model: Any) -> None:
    with pytest.raises(LoopError) as caught:
        AutomaticOptimization(model, loss_of, SGD(model.parameters(), lr=0.1), on_non_finite=cast(Any, "ignore"))
    assert str(caught.value) == (
        "expected 'error', 'skip' or 'keep' as `on_non_finite`, got str 'ignore'  [option]\n  help: write one of them"
    )


def origin(batch_idx: Any) -> Any:
    return Origin(loss_of, "training", 2, batch_idx, 0)


def test_values_of_an_accelerator_wait_and_their_error_names_their_step() -> None:
    watch: Any = FiniteWatch("error")
    watch.wait(torch.tensor(1.0), "loss", origin(4))
    watch.wait(torch.tensor(float("nan")), "loss", origin(5))
    with pytest.raises(StepOutputError) as caught:
        watch.read()
    assert (caught.value.epoch, caught.value.batch_idx, caught.value.step_name) == (2, 5, "loss_of")
    watch.read()  # nothing waits any more


def test_so_many_values_wait_at_most() -> None:
    watch: Any = FiniteWatch("error")
    for _ in range(READ_EVERY - 1):
        watch.wait(torch.tensor(float("inf")), "grad_norm", origin(0))
    with pytest.raises(LoopError) as caught:
        watch.wait(torch.tensor(1.0), "loss", origin(0))
    assert caught.value.code == "grad_norm_non_finite"


@pytest.mark.parametrize("policy", ["skip", "keep"])
def test_nothing_waits_under_another_policy(policy: Any) -> None:
    watch: Any = FiniteWatch(policy)
    watch.wait(torch.tensor(float("nan")), "loss", origin(0))
    watch.read()


class CountsReads(TorchDispatchMode):
    reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.reads += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("policy", "reads"), [("error", 1), ("keep", 0)])
def test_a_step_reads_one_value_on_the_cpu_and_none_without_the_check(
    model: Any, make_batch: Any, training_step: Any, policy: Any, reads: Any
) -> None:
    batch = make_batch()
    optimization: Any = AutomaticOptimization(
        model, training_step, SGD(model.parameters(), lr=0.1), on_non_finite=policy
    )
    with cast(Any, CountsReads)() as counter:
        optimization.step(batch)
    assert counter.reads == reads
