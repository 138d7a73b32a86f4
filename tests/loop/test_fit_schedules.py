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


class Counted:
    """A scheduler of timm's protocol: `step` demands the number of the epoch."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self, epoch: int, metric: Any = None) -> None:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def test_a_scheduler_that_demands_a_count_is_refused_and_not_given_a_value(
    model: Any, optimizer: Any, make_batch: Any
) -> None:
    with pytest.raises(LoopError, match=r"expected a scheduler with a `step\(\)`, got Counted .* asks for `epoch`"):
        train(model, mse, [make_batch()], optimizer, scheduler=Counted(optimizer))


def test_a_plateau_scheduler_whose_value_is_optional_is_given_it(model: Any, optimizer: Any, make_batch: Any) -> None:
    seen: list[Any] = []

    class Optional(ReduceLROnPlateau):
        def step(self, metrics: Any = None, epoch: Any = None) -> None:  # type: ignore[override]
            seen.append(metrics)

    scheduler = Optional(optimizer)
    result = train(model, mse, [make_batch()], optimizer, scheduler=scheduler, scheduler_monitor="loss", max_epochs=1)
    assert seen == [result.history[0]["loss"]]


def test_a_rate_of_a_group_that_is_added_on_the_way_is_reduced_by_the_last_too(make_batch: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    optimizer = SGD(model[1].parameters(), lr=0.1)

    def unfreeze(report: Any) -> None:
        if len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": list(model[0].parameters()), "initial_lr": 0.1})

    result = train(
        model, lambda model, batch: model(batch).pow(2).mean(), [torch.ones(2, 3)] * 4, optimizer, max_epochs=2,
        scheduler=ExponentialLR(optimizer, 0.5), scheduler_interval="step", after_step=unfreeze,
    )  # fmt: skip
    assert result.history[1]["lr_0"] == 0.1 * 0.5**7


class Wrapped:
    """An optimizer that wraps another, and shares its groups."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.param_groups = inner.param_groups

    def step(self, closure: Any) -> Any:
        return self.inner.step(closure)


def test_a_scheduler_of_the_optimizer_that_is_wrapped_is_taken(model: Any, optimizer: Any, make_batch: Any) -> None:
    train(model, mse, [make_batch()], Wrapped(optimizer), scheduler=ExponentialLR(optimizer, 0.5), max_epochs=2)
    assert optimizer.param_groups[0]["lr"] == 1e-2 * 0.25


def test_an_optimizer_without_a_state_cannot_be_saved_and_says_so_at_once(
    model: Any, optimizer: Any, make_batch: Any, tmp_path: Any
) -> None:
    with pytest.raises(LoopError, match="expected `state_dict` and `load_state_dict` of `Wrapped`, to write check"):
        train(model, mse, [make_batch()], Wrapped(optimizer), checkpoint=tmp_path)
