"""What trains nothing, or something else than was meant, is an error instead of a plausible history."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from accelerate.scheduler import AcceleratedScheduler
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Sampler

from strictstep.loop import AutomaticOptimization, EarlyStopping, JSONLLogger, LoopError, ManualOptimization, fit
from strictstep.loop.early_stopping import require_known
from strictstep.loop.errors import LoopWarning
from strictstep.schema import validate_step


@pytest.mark.parametrize("max_epochs", [1, None])
def test_optimizers_that_no_step_steps_are_an_error_and_not_a_run_without_training(max_epochs: int | None) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).pow(2).mean()  # type: ignore[no-any-return]

    with pytest.raises(LoopError, match=r"got none in 3 batches  \[nothing_stepped\]"):
        fit(
            model,
            step,
            [torch.ones(8, 4)] * 3,
            optimizer=[optimizer],
            max_epochs=max_epochs,
            max_steps=5,
            progress_bar=False,
        )


def test_a_scheduler_of_another_optimizer_is_refused() -> None:
    model = nn.Linear(4, 1)
    optimizer, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    scheduler = torch.optim.lr_scheduler.StepLR(other, 1)
    with pytest.raises(LoopError, match=r"expected a scheduler of the optimizer that trains"):
        fit(
            model,
            lambda model, batch: model(batch).mean(),
            [torch.ones(8, 4)],
            optimizer=optimizer,
            max_epochs=1,
            scheduler=scheduler,
            progress_bar=False,
        )


def test_a_tensor_is_no_window_of_batches() -> None:
    model = nn.Linear(4, 1)
    optimization = AutomaticOptimization(
        model, lambda model, batch: model(batch).mean(), torch.optim.SGD(model.parameters(), lr=0.1)
    )
    with pytest.raises(LoopError, match=r"expected a list of batches as window, got float32\[8, 4\] tensor on cpu"):
        optimization.step_window(torch.ones(8, 4))  # type: ignore[arg-type]


@pytest.mark.parametrize("monitor", ["valid_loss", "validation_loss"])
@pytest.mark.parametrize("names", [["loss", "val_loss"], ["loss"]])  # after the epoch; after its first step
def test_the_name_that_another_library_gives_a_validation_value_is_near(monitor: str, names: list[str]) -> None:
    with pytest.raises(LoopError, match=r"help: write `val_loss`"):
        require_known(monitor, "early_stopping", names)


def test_a_name_that_is_cut_short_is_near() -> None:
    with pytest.raises(LoopError, match=r"help: write `val_accuracy`"):
        require_known("val_acc", "early_stopping", ["val_loss", "val_accuracy"])


def test_a_validation_value_without_validation_gets_its_own_help() -> None:
    with pytest.raises(LoopError, match=r"help: .*what `validation_step` returns: give one, or look at"):
        require_known("val_accuracy", "early_stopping", ["loss", "accuracy"])


def test_a_training_value_that_validation_would_hide_is_warned_of() -> None:
    model = nn.Linear(4, 1)

    def step(model: nn.Module, batch: torch.Tensor) -> dict[str, object]:
        return {"loss": model(batch).pow(2).mean(), "log": {"val_size": 1}}

    def validation_step(model: nn.Module, batch: torch.Tensor) -> dict[str, object]:
        return {"log": {"size": 2}}

    hidden = "`val_size` of the training step: hidden by validation's of that name"
    with pytest.warns(LoopWarning, match=hidden) as caught:
        result = fit(
            model,
            step,
            [torch.ones(8, 4)],
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            max_epochs=3,
            validation_step=validation_step,
            validation_batches=[torch.ones(8, 4)],
            progress_bar=False,
        )
    assert (result.history[0]["val_size"], len(caught)) == (2, 1)


def test_a_sparse_gradient_cannot_be_clipped_and_says_so() -> None:
    model = nn.Embedding(4, 2, sparse=True)
    optimization = AutomaticOptimization(
        model,
        lambda model, batch: model(batch).pow(2).mean(),
        torch.optim.SparseAdam(model.parameters()),
        max_grad_norm=1.0,
    )
    with pytest.raises(LoopError, match="expected dense gradients to clip, got a sparse one") as caught:
        optimization.step(torch.tensor([1, 2]))
    assert (caught.value.code, optimization.global_step) == ("gradient_sparse", 0)


def test_a_weight_that_fails_in_manual_optimization_is_told_its_place() -> None:
    model = nn.Linear(4, 1)

    def step(model: nn.Module, batch: torch.Tensor) -> None:
        raise NotImplementedError

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimization = ManualOptimization(model, step, optimizer, weight=lambda batch: 0)
    with pytest.raises(LoopError, match="expected a positive, finite number as weight") as caught:
        optimization.step(torch.ones(8, 4), epoch=1, batch_idx=2)
    assert caught.value.__notes__ == ["in training step `step`, epoch 1, batch 2"]


def run(step: Any, optimizer: Any = None, **options: Any) -> Any:
    model = nn.Linear(4, 1)
    options = {"max_epochs": 1, "progress_bar": False, **options}
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return fit(model, step, [torch.ones(8, 4)], optimizer=optimizer, **options)


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).pow(2).mean()  # type: ignore[no-any-return]


def test_a_step_that_is_decorated_for_another_stage_is_refused_before_the_first_batch() -> None:
    decorated = functools.partial(validate_step(loss_of))
    with pytest.raises(LoopError) as caught:
        run(decorated, validation_step=decorated, validation_batches=[torch.ones(8, 4)])
    assert str(caught.value) == (
        "expected a step for the stage 'validation', got `loss_of`, decorated for 'training'  [option]\n"
        "  help: pass it undecorated, or `loss_of.__wrapped__`: its returns are checked here, stage by stage"
    )
    parameter = nn.Parameter(torch.ones(1))
    with pytest.raises(LoopError, match="expected a step for the stage 'manual', got `loss_of`, decorated for 'train"):
        run(decorated, [torch.optim.SGD([parameter], lr=0.1)])


def test_a_step_that_is_decorated_for_its_own_stage_or_returns_what_it_did_is_used() -> None:
    tested = validate_step(stage="test")(loss_of)
    manual = validate_step(stage="manual", returns="original")(loss_of)

    @functools.wraps(tested)
    def training_step(model: Any, batch: Any) -> Any:
        tested(model, batch)
        return loss_of(model, batch)

    for step, validation_step in ((loss_of, tested), (manual, manual), (training_step, loss_of)):
        history = run(step, validation_step=validation_step, validation_batches=[torch.ones(8, 4)]).history
        assert list(history[0]) == ["loss", "val_loss"]


def test_a_step_that_steps_its_one_optimizer_itself_is_told_how_to_pass_it() -> None:
    def step(model: Any, batch: Any, optimizers: Any) -> Any:
        loss = loss_of(model, batch)
        loss.backward()
        return loss_of(model, batch)

    with pytest.raises(LoopError, match=r"for manual optimization pass the optimizer in a list: `optimizer=\[opt"):
        run(step)


def test_an_optimizer_that_is_given_twice_is_refused() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(LoopError, match="expected each optimizer once, got one twice"):
        run(loss_of, [optimizer, optimizer])


def test_a_monitor_that_no_scheduler_watches_is_refused() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(LoopError, match="expected a scheduler that watches str 'loss', got none"):
        run(loss_of, optimizer, scheduler=scheduler, scheduler_monitor="loss")


def test_schedulers_may_be_given_by_name() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    fit(
        model,
        loss_of,
        [torch.ones(8, 4)],
        optimizer=optimizer,
        max_epochs=1,
        scheduler={"all": scheduler},
        progress_bar=False,
    )
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_an_epoch_whose_losses_are_all_skipped_as_not_finite_is_an_error() -> None:
    def step(model: Any, batch: Any) -> Any:  # a finite loss whose gradient is not
        return loss_of(model, batch) + 0 * (model.weight * 0).norm().sqrt()

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"max_epochs": 3, "progress_bar": False, "on_non_finite": "skip"}
    message = "expected finite parameters after epoch 1, which skipped every batch, got others in `weight`  "
    with pytest.raises(LoopError, match=message) as caught:
        fit(model, step, [torch.ones(8, 4)] * 3, optimizer=optimizer, **options)
    assert caught.value.code == "parameters_non_finite"


def test_an_epoch_that_is_skipped_as_not_finite_with_sound_parameters_is_none() -> None:
    def step(model: Any, batch: Any, epoch: int) -> Any:
        return loss_of(model, batch) * (float("nan") if epoch == 1 else 1)

    assert [len(values) for values in run(step, max_epochs=3, on_non_finite="skip").history] == [1, 1, 1]


def test_a_metric_forgets_a_run_that_failed() -> None:
    metric = torchmetrics.MeanMetric()
    numbers = iter([100.0, 1.0, 1.0])

    def step(model: Any, batch: Any) -> Any:
        metric.update(next(numbers))
        return {"loss": loss_of(model, batch), "metrics": {"mean": metric}}

    def fail(report: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(step, after_step=fail)
    assert run(step).history[0]["mean"] == 1.0


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_logged_count_that_goes_on_in_place_shows_each_batch_its_own(accumulation: int) -> None:
    model, seen = nn.Linear(4, 1), torch.zeros(())
    logged: list[Any] = []

    def step(model: Any, batch: Any) -> Any:
        seen.add_(len(batch))
        return {"loss": loss_of(model, batch), "log": {"seen": seen}}

    fit(
        model,
        step,
        [torch.ones(8, 4)] * 4,
        optimizer=torch.optim.LBFGS(model.parameters(), max_iter=1),
        max_epochs=1,
        gradient_accumulation_steps=accumulation,
        after_step=lambda report: logged.extend(output.log["seen"] for output in report.outputs),
        progress_bar=False,
    )
    assert [int(value) for value in logged] == [8, 16, 24, 32]


def test_a_norm_beyond_any_float_measures_without_clipping() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    assert AutomaticOptimization(nn.Linear(1, 1), loss_of, optimizer, max_grad_norm=10**400)


def test_a_logger_on_a_folder_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(LoopError, match="expected a file for `JSONLLogger`, got the folder"):
        JSONLLogger(tmp_path)


def mean_square(model: Any, batch: Any) -> Any:
    return model(batch).pow(2).mean()


def trained(batches: Any, **options: Any) -> Any:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given: dict[str, Any] = {"optimizer": optimizer, "max_epochs": 1, "progress_bar": False, **options}
    return fit(model, mean_square, batches, **given)


def test_a_loader_that_fills_one_buffer_is_refused_as_window() -> None:
    buffer = torch.zeros(4, 3)

    def filled() -> Any:
        for number in range(4):
            yield buffer.fill_(number)

    assert trained(filled()).global_step == 4
    with pytest.raises(LoopError, match="expected `train_batches` to leave the batches of a window") as caught:
        trained(filled(), gradient_accumulation_steps=2)
    assert caught.value.code == "window_changed"


def test_one_batch_given_again_may_be_a_window() -> None:
    assert trained([torch.ones(4, 3)] * 4, gradient_accumulation_steps=2).global_step == 2


class AtMost(Sampler[int]):
    """Has a length that is a bound."""

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Any:
        return iter(range(4))


def test_a_sampler_that_gives_fewer_than_it_says_ends_its_epoch() -> None:
    loader: Any = DataLoader(torch.ones(10, 3), batch_sampler=BatchSampler(AtMost(), 2, False))  # type: ignore[arg-type]
    assert trained(loader).global_step == 2


def test_a_dataset_that_grows_while_it_is_trained_on_ends_its_epoch_as_it_began() -> None:
    replay = [torch.ones(3) for _ in range(8)]
    loader: Any = DataLoader(replay, batch_size=2)  # type: ignore[arg-type]
    result = trained(loader, after_step=lambda report: replay.append(torch.ones(3)), max_epochs=2)
    assert result.global_step == 4 + 6


@pytest.mark.parametrize("error", [RuntimeError, ValueError, AttributeError])
def test_a_loader_whose_length_is_not_to_be_had_is_iterated(error: Any) -> None:
    class Lengthless(list[Any]):
        def __len__(self) -> int:
            raise error("no length")

    assert trained(Lengthless([torch.ones(4, 3)] * 3)).global_step == 3


def test_a_watched_value_that_never_came_is_warned_of_at_the_end() -> None:
    options: dict[str, Any] = {"validation_step": mean_square, "validation_batches": [torch.ones(4, 3)]}
    options |= {"max_epochs": None, "validate_every": 9, "early_stopping": EarlyStopping("val_loss")}
    with pytest.warns(LoopWarning, match=r"^`early_stopping` watched `val_loss`, which never came: no epoch was"):
        trained([torch.ones(4, 3)] * 4, max_steps=12, **options)
    assert trained([torch.ones(4, 3)] * 4, max_steps=36, **options).global_step == 36


def test_the_rates_of_a_scheduler_within_another_object_are_logged() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = AcceleratedScheduler(torch.optim.lr_scheduler.StepLR(optimizer, 1), optimizer, step_with_optimizer=False)
    result = fit(
        model, mean_square, [torch.ones(4, 3)], optimizer=optimizer, scheduler=wrapped, max_epochs=2,
        progress_bar=False,
    )  # fmt: skip
    assert [values["lr"] for values in result.history] == [0.1, pytest.approx(0.01)]
