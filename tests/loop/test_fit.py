"""`fit`: what it trains, what its history says, and when it ends."""

import copy
import math
import warnings
from typing import Annotated, Any

import pytest
import torch
import torchmetrics
from torch import nn
from torch.optim import LBFGS, SGD, AdamW
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import TypedDict

from strictstep.loop import EarlyStopping, FitResult, LoopError, fit
from strictstep.loop.errors import LoopWarning
from strictstep.schema import Reduce, Scalar, SkippedStep, StepOutputError, StepOutputWarning, TrainingOutput


def mse(model: Any, batch: Any) -> Any:
    x, y = batch
    return (model(x) - y).pow(2).mean()


def train(model: Any, step: Any, batches: Any, **options: Any) -> FitResult:
    """`fit` with SGD and no bar, unless told otherwise."""
    optimizer = options.pop("optimizer", None) or SGD(model.parameters(), lr=0.1)
    return fit(model, step, batches, **{"optimizer": optimizer, "max_epochs": 1, "progress_bar": False, **options})


@pytest.fixture
def batches(make_batch: Any) -> Any:
    """Five batches, the last of them short."""
    return [make_batch(n, n) for n in (8, 8, 8, 8, 3)]


def bare(model: Any, batches: Any, optimizer: Any, epochs: int) -> list[float]:
    """The losses of the loop that one writes by hand."""
    losses = []
    for _ in range(epochs):
        for batch in batches:

            def closure(batch: Any = batch) -> Any:
                optimizer.zero_grad()
                loss = mse(model, batch)
                loss.backward()
                return loss

            losses.append(optimizer.step(closure).item())
    return losses


@pytest.mark.parametrize("kind", [SGD, AdamW, LBFGS])
def test_training_is_that_of_a_loop_written_by_hand(model: Any, batches: Any, kind: Any) -> None:
    twin = copy.deepcopy(model)
    losses = bare(twin, batches, kind(twin.parameters(), lr=0.05), 2)
    result = train(model, mse, batches, optimizer=kind(model.parameters(), lr=0.05), max_epochs=2)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    weights = [8, 8, 8, 8, 3]
    expected = [sum(map(lambda a, b: a * b, part, weights)) / 35 for part in (losses[:5], losses[5:])]
    assert [record["loss"] for record in result.history] == pytest.approx(expected, rel=1e-15)


def test_a_result_says_how_many_steps_there_were_and_why_training_ended(model: Any, batches: Any) -> None:
    result = train(model, mse, batches, max_epochs=3)
    assert (len(result.history), result.global_step, result.stopped) == (3, 15, "max_epochs")


def test_an_accumulation_window_is_one_step_and_the_last_one_is_short(model: Any, batches: Any) -> None:
    sizes = []
    result = train(
        model, mse, batches, gradient_accumulation_steps=2, max_epochs=2,
        after_step=lambda report: sizes.append(len(report.outputs)),
    )  # fmt: skip
    assert (result.global_step, sizes) == (6, [2, 2, 1] * 2)


def test_accumulated_training_is_large_batch_training(model: Any, batches: Any) -> None:
    twin = copy.deepcopy(model)
    joined = [tuple(torch.cat(parts) for parts in zip(*batches[at : at + 2], strict=True)) for at in (0, 2, 4)]
    train(model, mse, batches, gradient_accumulation_steps=2, max_epochs=4)
    train(twin, mse, joined, max_epochs=4)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)


def test_max_steps_ends_training_in_mid_epoch_which_is_recorded(model: Any, batches: Any) -> None:
    twin = copy.deepcopy(model)
    losses = bare(twin, batches, SGD(twin.parameters(), lr=0.1), 2)
    result = train(model, mse, batches, max_epochs=9, max_steps=7)
    assert (result.global_step, result.stopped) == (7, "max_steps")
    assert [record["loss"] for record in result.history][1] == pytest.approx(sum(losses[5:7]) / 2, rel=1e-15)


def test_max_steps_alone_is_enough(model: Any, make_batch: Any) -> None:
    def endless() -> Any:
        while True:
            yield make_batch()

    result = train(model, mse, endless(), max_epochs=None, max_steps=5)
    assert (result.global_step, result.stopped, len(result.history)) == (5, "max_steps", 1)


def test_validation_values_have_a_prefix_and_every_nth_epoch_has_them(model: Any, batches: Any) -> None:
    result = train(model, mse, batches, max_epochs=5, validation_step=mse, validation_batches=batches, validate_every=2)
    assert [list(record) for record in result.history] == [["loss"], ["loss", "val_loss"]] * 2 + [["loss"]]


def test_the_validation_loss_is_that_of_the_parameters_after_the_epoch(model: Any, batches: Any) -> None:
    result = train(model, mse, batches, validation_step=mse, validation_batches=batches)
    expected = sum(mse(model, batch).item() * len(batch[0]) for batch in batches) / 35
    assert result.history[0]["val_loss"] == pytest.approx(expected, rel=1e-12)


def test_validation_changes_no_mode_and_training_goes_on_in_its_own(batches: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 1, dtype=torch.float64), nn.Dropout(), nn.Identity().eval())
    seen = []

    def step(model: Any, batch: Any) -> Any:
        seen.append([module.training for module in model.modules()])
        return mse(model, batch)

    train(model, step, batches[:1], max_epochs=2, validation_step=mse, validation_batches=batches)
    assert seen == [[True, True, True, False]] * 2


def test_a_model_in_eval_mode_is_put_into_training_mode(model: Any, batches: Any) -> None:
    train(model.eval(), mse, batches)
    assert model.training


def test_the_reductions_of_a_schema_hold_in_validation_too(model: Any, batches: Any) -> None:
    class Log(TypedDict):
        images: Annotated[Scalar, Reduce("sum")]

    def step(model: Any, batch: Any) -> Any:
        return {"loss": mse(model, batch), "log": {"images": len(batch[0])}}

    result = train(model, step, batches, schema=TrainingOutput[Log], validation_step=step, validation_batches=batches)
    assert (result.history[0]["images"], result.history[0]["val_images"]) == (35, 35)


def test_a_weight_counts_in_the_gradient_and_in_the_means(model: Any, make_batch: Any) -> None:
    batches = [make_batch(4, seed) for seed in range(4)]
    twin = copy.deepcopy(model)

    def weighted(model: Any, batch: Any) -> Any:
        return {"loss": mse(model, batch[:2]), "log": {"tokens": batch[2]}}

    tokens = [10, 30, 5, 5]
    result = train(
        model, weighted, [(*b, n) for b, n in zip(batches, tokens, strict=True)], gradient_accumulation_steps=4,
        weight=lambda batch: batch[2],
    )  # fmt: skip
    loss: Any = sum(mse(twin, batch) * (n / 50) for batch, n in zip(batches, tokens, strict=True))
    loss.backward()
    assert result.history == [{"loss": pytest.approx(loss.item()), "tokens": (100 + 900 + 25 + 25) / 50}]
    torch.testing.assert_close(model.weight, twin.weight - 0.1 * twin.weight.grad, rtol=0, atol=1e-12)


def test_a_step_gets_what_its_signature_names(model: Any, batches: Any) -> None:
    seen = []

    def step(model: Any, batch: Any, batch_idx: int, epoch: int, global_step: int, evaluation: int) -> Any:
        seen.append((epoch, batch_idx, global_step, evaluation))
        return mse(model, batch)

    train(model, step, batches[:3], gradient_accumulation_steps=2, max_epochs=2)
    assert seen == [(0, 0, 0, 0), (0, 1, 0, 0), (0, 2, 1, 0), (1, 0, 2, 0), (1, 1, 2, 0), (1, 2, 3, 0)]


def test_manual_optimization_is_chosen_by_a_list_of_optimizers(model: Any, batches: Any) -> None:
    twin = copy.deepcopy(model)

    def step(model: Any, batch: Any, optimizers: Any) -> Any:
        optimizers["all"].zero_grad()
        loss = mse(model, batch)
        loss.backward()
        optimizers["all"].step()
        return {"loss": loss, "log": {"seen": 1}}

    result = train(model, step, batches, optimizer={"all": SGD(model.parameters(), lr=0.1)}, max_epochs=2)
    bare(twin, batches, SGD(twin.parameters(), lr=0.1), 2)
    assert torch.equal(model.weight, twin.weight)
    assert (result.global_step, result.history[0]["seen"]) == (10, 1.0)


def test_skips_are_counted_and_their_losses_left_out(model: Any, batches: Any) -> None:
    def step(model: Any, batch: Any, batch_idx: int) -> Any:
        return SkippedStep(reason="odd") if batch_idx % 2 else mse(model, batch)

    result = train(model, step, batches)
    assert (result.global_step, result.history[0]["skipped"]) == (3, 2)


def test_an_epoch_of_none_alone_is_an_error(model: Any, batches: Any) -> None:
    def forgetful_step(model: Any, batch: Any) -> None:
        mse(model, batch)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(LoopError) as caught:
            train(model, forgetful_step, batches)
    assert str(caught.value) == (
        "expected something to train on in epoch 0, got None from each of 5 steps  [all_returned_none]\n"
        "  help: was a `return` forgotten in the training step?"
    )


def test_an_epoch_of_deliberate_skips_is_none(model: Any, batches: Any) -> None:
    result = train(model, lambda model, batch: SkippedStep(reason="no boxes"), batches)
    assert (result.global_step, result.history) == (0, [{"skipped": 5}])


def test_a_loss_that_is_not_finite_can_be_skipped_with_its_values(model: Any, batches: Any) -> None:
    def step(model: Any, batch: Any, batch_idx: int) -> Any:
        loss = mse(model, batch) * (math.nan if batch_idx == 1 else 1)
        return {"loss": loss, "log": {"n": loss}}

    result = train(model, step, batches, on_non_finite="skip")
    assert result.history[0]["skipped"] == 1
    assert math.isfinite(result.history[0]["n"])


def test_a_loss_that_is_not_finite_and_kept_is_shown(model: Any, batches: Any) -> None:
    result = train(model, lambda model, batch: mse(model, batch) * math.nan, batches, on_non_finite="keep")
    assert math.isnan(result.history[0]["loss"])


def test_after_step_gets_every_report(model: Any, batches: Any) -> None:
    reports = []
    train(model, mse, batches, after_step=lambda report: reports.append(report.stepped))
    assert reports == [True] * 5


def test_epoch_end_gets_training_and_validation_values(model: Any, batches: Any) -> None:
    seen = []

    def epoch_end(outputs: Any, stage: str, epoch: int) -> Any:
        seen.append((stage, epoch, [len(value) for value in outputs["predictions"]]))
        return {"batches": len(outputs["predictions"])}

    def step(model: Any, batch: Any) -> Any:
        return {"loss": mse(model, batch), "metrics": {"predictions": model(batch[0])}}

    result = train(model, step, batches, epoch_end=epoch_end, validation_step=step, validation_batches=batches[:2])
    assert seen == [("training", 0, [8, 8, 8, 8, 3]), ("validation", 0, [8, 8])]
    assert (result.history[0]["batches"], result.history[0]["val_batches"]) == (5, 2)


def test_a_torchmetrics_object_is_computed_and_reset_each_epoch(model: Any, batches: Any) -> None:
    metric = torchmetrics.MeanMetric()

    def step(model: Any, batch: Any, epoch: int) -> Any:
        metric.update(float(epoch + 1))
        return {"loss": mse(model, batch), "metrics": {"number": metric}}

    result = train(model, step, batches, max_epochs=3)
    assert [record["number"] for record in result.history] == [1.0, 2.0, 3.0]


def test_metrics_without_an_epoch_end_are_warned_of_once(model: Any, batches: Any) -> None:
    def step(model: Any, batch: Any) -> Any:
        return {"loss": mse(model, batch), "metrics": {"predictions": model(batch[0])}}

    with pytest.warns(LoopWarning, match=r"^`predictions` in `metrics`: dropped, since") as caught:
        train(model, step, batches, max_epochs=3)
    assert len(caught) == 1


def test_a_seed_makes_a_run_repeatable() -> None:
    start = nn.Sequential(nn.Linear(3, 4), nn.Dropout(), nn.Linear(4, 1))
    loader = DataLoader(TensorDataset(torch.randn(10, 3)), 2, shuffle=True)

    def history(seed: int) -> Any:
        return train(
            copy.deepcopy(start), lambda model, batch: model(batch[0]).pow(2).mean(), loader, seed=seed
        ).history

    assert history(3) == history(3) != history(4)


def test_a_logger_gets_every_step_and_the_names_of_validation(model: Any, batches: Any) -> None:
    class Logger:
        def __init__(self) -> None:
            self.got: list[Any] = []

        def log_metrics(self, metrics: Any, step: int) -> None:
            self.got.append((step, metrics))

    logger = Logger()
    losses: list[Any] = []
    result = train(
        model, mse, batches[:2], loggers=[logger], validation_step=mse, validation_batches=batches[:1],
        after_step=lambda report: losses.append(report.loss.item()),
    )  # fmt: skip
    assert logger.got == [
        (1, {"loss": losses[0]}),
        (2, {"loss": losses[1]}),
        (2, {"val_loss": result.history[0]["val_loss"]}),
    ]


def test_a_logger_with_log_epoch_gets_the_whole_record(model: Any, batches: Any) -> None:
    epochs = []

    class Logger:
        def log_metrics(self, metrics: Any, step: int) -> None: ...

        def log_epoch(self, values: Any, epoch: int, global_step: int) -> None:
            epochs.append((epoch, global_step, values))

    result = train(model, mse, batches, loggers=[Logger()], max_epochs=2)
    assert epochs == [(0, 5, result.history[0]), (1, 10, result.history[1])]


def test_a_failed_run_closes_its_bar(model: Any, batches: Any, capsys: Any) -> None:
    def step(model: Any, batch: Any, batch_idx: int) -> Any:
        return mse(model, batch) if batch_idx < 2 else {"loss": 1.0}

    with pytest.raises(StepOutputError, match=r"returned an invalid output at epoch 0, batch 2"):
        train(model, step, batches, progress_bar=True)
    assert "(2 of 5 steps in" in capsys.readouterr().err


def test_fewer_epochs_than_a_checkpoint_has_seen_end_at_once(model: Any, batches: Any, tmp_path: Any) -> None:
    train(model, mse, batches, max_epochs=3, checkpoint=tmp_path)
    result = train(model, mse, batches, max_epochs=2, checkpoint=tmp_path, resume=True)
    assert (result.stopped, len(result.history)) == ("max_epochs", 3)


def test_training_that_could_only_skip_for_ever_ends_with_an_error(model: Any, batches: Any) -> None:
    def step(model: Any, batch: Any) -> Any:
        return SkippedStep(reason="empty")

    with pytest.raises(LoopError, match="expected an optimizer step in epoch 0, got none") as caught:
        train(model, step, batches, max_epochs=None, max_steps=3)
    assert caught.value.code == "nothing_stepped"


def test_a_scheduler_class_is_no_scheduler(model: Any, batches: Any) -> None:
    with pytest.raises(LoopError, match="expected a learning-rate scheduler, got class 'StepLR'") as caught:
        train(model, mse, batches, scheduler=torch.optim.lr_scheduler.StepLR)
    assert caught.value.code == "option"


@pytest.mark.parametrize("skip", [None, SkippedStep(reason="empty", log={"boxes": 0})])
def test_a_watched_name_is_looked_for_after_the_first_step_that_was_not_skipped(
    model: Any, batches: Any, skip: Any
) -> None:
    def step(model: Any, batch: Any, batch_idx: int) -> Any:
        return mse(model, batch) if batch_idx else skip

    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepOutputWarning)
        result = train(
            model, step, batches, optimizer=optimizer, scheduler=scheduler, early_stopping=EarlyStopping("val_loss"),
            validation_step=step, validation_batches=batches,
        )  # fmt: skip
    assert result.stopped == "max_epochs"


def test_a_loader_that_stops_before_it_begins_names_itself(model: Any) -> None:
    class Stopping:
        def __iter__(self) -> Any:
            return next(iter([]))

    with pytest.raises(LoopError, match=r"^expected `iter\(train_batches\)` to return, got a StopIteration") as caught:
        train(model, mse, Stopping())
    assert caught.value.code == "stop_iteration"
