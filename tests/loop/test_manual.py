"""Manual optimization: the user steps, the return is checked, and what stepped is counted."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from strictstep.loop import LoopError, ManualOptimization
from strictstep.schema import ManualOutput, SkippedStep, StepOutputError


def loss_of(model: Any, batch: Any) -> Any:
    x, y = batch
    return (model(x) - y).pow(2).mean()


def train(model: Any, batch: Any, optimizer: Any) -> Any:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    return loss


def test_the_step_moves_the_parameters_itself(model: Any, make_batch: Any) -> None:
    other, batch = copy.deepcopy(model), make_batch()
    optimization: Any = ManualOptimization(
        model, lambda model, batch, optimizers: train(model, batch, optimizers), SGD(model.parameters(), lr=0.1)
    )
    report: Any = optimization.step(batch)
    loss = train(other, batch, SGD(other.parameters(), lr=0.1))
    assert (report.stepped, report.evaluations, report.weights, optimization.global_step) == (True, 1, (8,), 1)
    assert torch.equal(report.loss, loss.detach())
    assert report.loss.grad_fn is None
    assert all(map(torch.equal, model.parameters(), other.parameters()))


@pytest.mark.parametrize(
    "returned",
    [
        lambda loss: None,
        lambda loss: loss,
        lambda loss: {"loss": loss},
        lambda loss: {"loss": None, "log": {"seen": 8}},
        lambda loss: {"loss": loss, "hiddens": loss},
        lambda loss: {"loss": None, "hiddens": loss},
        lambda loss: ManualOutput(loss=loss),
    ],
)
def test_every_manual_form_is_taken(model: Any, make_batch: Any, returned: Any) -> None:
    optimization: Any = ManualOptimization(
        model, lambda model, batch: returned(loss_of(model, batch)), SGD(model.parameters(), lr=0.1)
    )
    report: Any = optimization.step(make_batch())
    assert type(report.output) is ManualOutput
    assert (report.stepped, report.skipped, optimization.global_step, optimization.batches_seen) == (False, 0, 0, 1)


def test_optimizers_are_given_as_they_came(model: Any, make_batch: Any) -> None:
    optimizers = {"a": SGD([model.weight], lr=0.1), "b": Adam([model.bias])}

    def step(model: Any, batch: Any, optimizers: Any, global_step: Any, batch_idx: Any) -> Any:
        if batch_idx == 1:
            train(model, batch, optimizers["b"])
        return {"log": {"global_step": global_step}}

    optimization: Any = ManualOptimization(model, step, optimizers)
    reports = [optimization.step(make_batch()) for _ in range(3)]
    assert [report.stepped for report in reports] == [False, True, False]
    assert [report.output.log["global_step"] for report in reports] == [0, 0, 1]


def test_a_step_left_out_by_the_users_scaler_does_not_count(make_batch: Any) -> None:
    model = nn.Linear(3, 1)
    scaler = torch.amp.GradScaler("cpu")
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(model: Any, batch: Any, batch_idx: Any) -> Any:
        loss = model(batch[0].float()).sum() * (float("inf") if batch_idx == 0 else 1.0)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    optimization: Any = ManualOptimization(model, step, optimizer)
    assert [optimization.step(make_batch()).stepped for _ in range(2)] == [False, True]


def test_no_hook_stays_on_the_optimizers(model: Any, make_batch: Any) -> None:
    optimizer = SGD(model.parameters(), lr=0.1)
    ManualOptimization(model, lambda model, batch: None, optimizer).step(make_batch())
    assert not optimizer._optimizer_step_post_hooks


def test_a_skip_is_counted(model: Any, make_batch: Any) -> None:
    optimization: Any = ManualOptimization(
        model, lambda model, batch: SkippedStep(reason="no boxes"), SGD(model.parameters(), lr=0.1)
    )
    report: Any = optimization.step(make_batch())
    assert (report.skipped, report.stepped, report.loss) == (1, False, None)


def test_a_wrong_output_after_a_step_says_that_it_stepped(model: Any, make_batch: Any) -> None:
    def step(model: Any, batch: Any, optimizers: Any) -> Any:
        return train(model, batch, optimizers).item()

    optimization: Any = ManualOptimization(model, step, SGD(model.parameters(), lr=0.1))
    with pytest.raises(StepOutputError) as caught:
        optimization.step(make_batch(), epoch=0, batch_idx=3)
    assert (caught.value.problems[0].code, caught.value.batch_idx) == ("wrong_return_type", 3)
    assert caught.value.__notes__ == ["an optimizer had stepped before: the parameters stand where it put them"]
    assert (optimization.global_step, optimization.batches_seen) == (0, 0)


def test_a_loss_that_is_not_finite_is_an_error(model: Any, make_batch: Any) -> None:
    optimization: Any = ManualOptimization(
        model, lambda model, batch: loss_of(model, batch) * float("nan"), SGD(model.parameters(), lr=0.1)
    )
    with pytest.raises(StepOutputError, match="expected a finite loss, got nan") as caught:
        optimization.step(make_batch())
    assert caught.value.problems[0].code == "loss_non_finite"


def test_gradients_are_on_whatever_surrounds_the_step(model: Any, make_batch: Any) -> None:
    optimization: Any = ManualOptimization(
        model, lambda model, batch, optimizers: train(model, batch, optimizers), SGD(model.parameters(), lr=0.1)
    )
    with torch.no_grad():
        assert optimization.step(make_batch()).stepped


@pytest.mark.parametrize(
    ("optimizers", "message"),
    [
        ([], "expected at least one optimizer, got none  [option]\n  help: pass those that the step uses"),
        (
            [3],
            "expected an optimizer of torch's protocol, got int 3  [option]\n"
            "  help: pass an instance, for example `torch.optim.AdamW(model.parameters())`",
        ),
        (
            3,
            "expected an optimizer of torch's protocol, got int 3  [option]\n"
            "  help: pass an instance, for example `torch.optim.AdamW(model.parameters())`",
        ),
    ],
)
def test_what_is_no_optimizer_is_refused_at_the_start(model: Any, optimizers: Any, message: Any) -> None:
    with pytest.raises(LoopError) as caught:
        ManualOptimization(model, lambda model, batch: None, optimizers)
    assert str(caught.value) == message


def test_fp16_is_refused_with_manual_optimization(model: Any) -> None:
    with pytest.raises(LoopError) as caught:
        ManualOptimization(model, lambda model, batch: None, SGD(model.parameters(), lr=0.1), precision="fp16-mixed")
    assert caught.value.code == "fp16_with_manual"


def test_optimizers_whose_steps_cannot_be_counted_are_refused(model: Any) -> None:
    class Wrapper:
        param_groups: Any = ()

        def step(self) -> None: ...

    given: Any = [Wrapper()]
    with pytest.raises(LoopError, match=r"expected an optimizer derived from `torch\.optim\.Optimizer`") as caught:
        ManualOptimization(model, lambda model, batch: None, given)
    assert caught.value.code == "option"


def test_optimizers_that_are_given_only_once_are_refused(model: Any) -> None:
    given: Any = iter([SGD(model.parameters(), lr=0.1)])
    with pytest.raises(LoopError, match="expected an optimizer, or several in a list or a dict, got") as caught:
        ManualOptimization(model, lambda model, batch: None, given)
    assert caught.value.code == "option"
