"""Schedulers step where something moved, and only there; the rate that is logged is the one that the step used."""

from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, ReduceLROnPlateau, StepLR

from strictstep.loop import LoopError, fit
from strictstep.schema import SkippedStep


def mse(model: Any, batch: Any) -> Any:
    x, y = batch
    return (model(x) - y).pow(2).mean()


def train(model: Any, step: Any, batches: Any, optimizer: Any, **options: Any) -> Any:
    return fit(model, step, batches, **{"optimizer": optimizer, "max_epochs": 4, "progress_bar": False, **options})


@pytest.fixture
def optimizer(model: Any) -> SGD:
    return SGD(model.parameters(), lr=1e-2)


class Steps:
    """A logger that keeps the rates."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def log_metrics(self, metrics: Any, step: int) -> None:
        self.rates.append(metrics["lr"])


def test_an_epoch_scheduler_steps_after_each_epoch(model: Any, optimizer: Any, make_batch: Any) -> None:
    result = train(model, mse, [make_batch()] * 2, optimizer, scheduler=StepLR(optimizer, 2, gamma=0.5))
    assert [record["lr"] for record in result.history] == [0.01, 0.01, 0.005, 0.005]


def test_a_step_scheduler_steps_after_each_optimizer_step(model: Any, optimizer: Any, make_batch: Any) -> None:
    logger = Steps()
    train(
        model, mse, [make_batch()] * 4, optimizer, scheduler=ExponentialLR(optimizer, 0.5), scheduler_interval="step",
        gradient_accumulation_steps=2, loggers=[logger], max_epochs=2,
    )  # fmt: skip
    assert logger.rates == [0.01 / 2**n for n in range(4)]


def test_no_scheduler_steps_after_a_skip(model: Any, optimizer: Any, make_batch: Any) -> None:
    def step(model: Any, batch: Any, batch_idx: int) -> Any:
        return mse(model, batch) if batch_idx == 1 else SkippedStep(reason="even")

    scheduler = ExponentialLR(optimizer, 0.5)
    train(model, step, [make_batch()] * 3, optimizer, scheduler=scheduler, scheduler_interval="step", max_epochs=3)
    assert scheduler.last_epoch == 3


def test_an_epoch_scheduler_steps_only_after_an_epoch_with_a_step(model: Any, optimizer: Any, make_batch: Any) -> None:
    def step(model: Any, batch: Any, epoch: int) -> Any:
        return mse(model, batch) if epoch % 2 else SkippedStep(reason="even")

    scheduler = ExponentialLR(optimizer, 0.5)
    train(model, step, [make_batch()], optimizer, scheduler=scheduler, max_epochs=5)
    assert scheduler.last_epoch == 2


def test_a_scheduler_by_value_gets_the_value_that_is_named(model: Any, optimizer: Any, make_batch: Any) -> None:
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    losses = iter([3.0, 3.0, 2.0, 2.5])

    def validation_step(model: Any, batch: Any) -> float:
        return next(losses)

    result = train(
        model, mse, [make_batch()], optimizer, scheduler=scheduler, scheduler_monitor="val_loss",
        validation_step=validation_step, validation_batches=[make_batch()],
    )  # fmt: skip
    assert [record["lr"] for record in result.history] == [0.01, 0.01, 0.005, 0.005]
    assert optimizer.param_groups[0]["lr"] == 0.0025


def test_a_scheduler_by_value_waits_for_an_epoch_that_has_the_value(
    model: Any, optimizer: Any, make_batch: Any
) -> None:
    scheduler = ReduceLROnPlateau(optimizer)
    train(
        model, mse, [make_batch()], optimizer, scheduler=scheduler, scheduler_monitor="val_loss", validate_every=2,
        validation_step=mse, validation_batches=[make_batch()],
    )  # fmt: skip
    assert scheduler.last_epoch == 2


def test_the_rates_of_several_groups_are_logged_by_their_numbers(model: Any, make_batch: Any) -> None:
    optimizer = SGD([{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.2}])
    result = train(model, mse, [make_batch()], optimizer, scheduler=StepLR(optimizer, 1), max_epochs=1)
    assert (result.history[0]["lr_0"], result.history[0]["lr_1"]) == (0.1, 0.2)


def test_a_rate_of_ones_own_is_not_overwritten(model: Any, optimizer: Any, make_batch: Any) -> None:
    def step(model: Any, batch: Any) -> Any:
        return {"loss": mse(model, batch), "log": {"lr": 7.0}}

    result = train(model, step, [make_batch()], optimizer, scheduler=StepLR(optimizer, 1), max_epochs=1)
    assert result.history[0]["lr"] == 7.0


def test_a_rate_that_is_a_tensor_is_logged_as_it_was(model: Any, make_batch: Any) -> None:
    optimizer = SGD(model.parameters(), lr=torch.tensor(0.5))
    result = train(model, mse, [make_batch()], optimizer, scheduler=ExponentialLR(optimizer, 0.5), max_epochs=2)
    assert [record["lr"] for record in result.history] == [0.5, 0.25]


def test_a_stop_iteration_of_a_scheduler_is_an_error_that_names_it(model: Any, optimizer: Any, make_batch: Any) -> None:
    rates = iter([1.0, 0.5])
    with pytest.raises(LoopError, match=r"expected scheduler `step` to return, got a StopIteration") as caught:
        train(model, mse, [make_batch()], optimizer, scheduler=LambdaLR(optimizer, lambda epoch: next(rates)))
    assert caught.value.code == "stop_iteration"


def test_an_unknown_value_is_found_after_the_first_step_with_the_nearest_name(
    model: Any, optimizer: Any, make_batch: Any
) -> None:
    with pytest.raises(LoopError) as caught:
        train(
            model, mse, [make_batch()] * 9, optimizer, scheduler=ReduceLROnPlateau(optimizer), scheduler_monitor="los"
        )
    assert str(caught.value) == (
        "expected `scheduler_monitor` to watch a value that there is, got str 'los'; there is `loss`, `lr`"
        "  [monitor_unknown]\n  help: write `loss`"
    )
