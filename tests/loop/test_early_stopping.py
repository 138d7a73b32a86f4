"""Training ends when a named value no longer gets better; a name that is none is found at once."""

import math
from typing import Any

import pytest
import torch
import torchmetrics
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD

from strictstep.loop import EarlyStopping, LoopError, LoopWarning, fit
from strictstep.loop.early_stopping import Best, Patience


def step(model: Any, batch: Any) -> Any:
    return model(batch).pow(2).mean()


def train(early_stopping: Any, validation: Any = None, **options: Any) -> Any:
    """Up to ten epochs, whose validation gives the numbers one after the other."""
    numbers = iter(validation or [])
    model = nn.Linear(2, 1)
    if validation:
        options = {
            "validation_step": lambda model, batch: {"log": {"score": next(numbers)}},
            "validation_batches": [torch.ones(1)],
            **options,
        }
    options = {"optimizer": SGD(model.parameters(), lr=0.1), "max_epochs": 10, "progress_bar": False, **options}
    return fit(model, options.pop("step", step), [torch.ones(4, 2)] * 3, early_stopping=early_stopping, **options)


def test_training_ends_after_as_many_epochs_as_it_has_patience_for() -> None:
    result = train(EarlyStopping("val_score", patience=2), [3.0, 2.0, 2.0, 2.5, 1.0])
    assert (result.stopped, len(result.history)) == ("early_stopping", 4)


def test_higher_can_be_better() -> None:
    result = train(EarlyStopping("val_score", mode="max", patience=1), [1.0, 2.0, 3.0, 3.0])
    assert (result.stopped, len(result.history)) == ("early_stopping", 4)


def test_nan_is_never_better() -> None:
    result = train(EarlyStopping("val_score", patience=2), [math.nan, math.nan])
    assert (result.stopped, len(result.history)) == ("early_stopping", 2)


def test_epochs_without_the_value_do_not_count() -> None:
    result = train(EarlyStopping("val_score", patience=2), [1.0, 1.0, 1.0], validate_every=2)
    assert (result.stopped, len(result.history)) == ("early_stopping", 6)


def test_a_training_value_can_be_watched() -> None:
    result = train(
        EarlyStopping("constant", patience=1), step=lambda m, b: {"loss": step(m, b), "log": {"constant": 1}}
    )
    assert (result.stopped, len(result.history)) == ("early_stopping", 2)


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1), st.sampled_from(["min", "max"])
)
def test_the_best_is_the_best_of_all(numbers: Any, mode: Any) -> None:
    best = Best(mode)
    for number in numbers:
        best.improves(number)
    assert best.value == {"min": min, "max": max}[mode](numbers)


def test_a_value_must_be_better_by_min_delta() -> None:
    patience = Patience(EarlyStopping("a", patience=2, min_delta=0.1))
    for value in (1.0, 0.95, 0.85):
        patience.see({"a": value})
    assert (patience.best.value, patience.waited) == (0.85, 0)


def test_an_unknown_training_value_is_found_after_the_first_step() -> None:
    steps: list[Any] = []
    with pytest.raises(LoopError) as caught:
        train(EarlyStopping("val_loss"), after_step=steps.append)
    assert str(caught.value) == (
        "expected `early_stopping` to watch a value that there is, got str 'val_loss'; there is `loss`"
        "  [monitor_unknown]\n"
        "  help: names that begin with `val_` are what `validation_step` returns: give one, or look at its `return`"
    )
    assert len(steps) == 1


def test_an_unknown_validation_value_is_found_after_its_first_step_with_the_nearest_name() -> None:
    with pytest.raises(LoopError, match=r"got str 'val_scor'; there is `val_score`") as caught:
        train(EarlyStopping("val_scor"), [1.0])
    assert (caught.value.code, caught.value.help) == ("monitor_unknown", "write `val_score`")


def test_a_value_that_only_the_end_of_an_epoch_gives_can_be_watched() -> None:
    result = train(EarlyStopping("batches", patience=1), epoch_end=lambda outputs: {"batches": 3})
    assert (result.stopped, len(result.history)) == ("early_stopping", 2)


def test_a_torchmetrics_value_can_be_watched() -> None:
    metric = torchmetrics.MeanMetric()

    def training_step(model: Any, batch: Any) -> Any:
        metric.update(1.0)
        return {"loss": step(model, batch), "metrics": {"mean": metric}}

    result = train(EarlyStopping("mean", patience=1), step=training_step)
    assert (result.stopped, len(result.history)) == ("early_stopping", 2)


def test_a_validation_that_returns_nothing_has_no_value_to_watch() -> None:
    options = {"validation_step": lambda model, batch: None, "validation_batches": [torch.ones(1)]}
    forgotten = pytest.warns(LoopWarning, match=r"`<lambda>` returned None from 1 batch: was a `return` forgotten\?")
    with forgotten, pytest.raises(LoopError, match=r"got str 'val_loss'; there is `loss`") as caught:
        train(EarlyStopping("val_loss"), **options)
    assert caught.value.code == "monitor_unknown"


def test_a_value_that_the_end_of_the_epoch_does_not_give_either_is_an_error() -> None:
    with pytest.raises(LoopError, match=r"got str 'f2'; there is `loss`, `f1`") as caught:
        train(EarlyStopping("f2"), epoch_end=lambda outputs: {"f1": 0.5})
    assert caught.value.code == "monitor_unknown"


def test_an_infinite_value_is_no_better_than_itself() -> None:
    result = train(EarlyStopping("val_score", patience=2), [math.inf] * 9)
    assert (result.stopped, len(result.history)) == ("early_stopping", 3)


def test_ints_beyond_any_float_are_compared() -> None:
    best = Best("min")
    assert [best.improves(value) for value in (1.5, 10**400, 1.0, -(10**400))] == [True, False, True, True]


def test_a_validation_that_never_comes_is_refused_where_its_value_is_watched() -> None:
    message = "expected a validation within 10 epochs, since `val_score` is watched, got none: `validate_every` is 11"
    with pytest.raises(LoopError, match=message):
        train(EarlyStopping("val_score"), [1.0], validate_every=11)
