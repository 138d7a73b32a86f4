"""Rule 11 and 13: the values of an epoch, reduced as declared, in float64 on the host, ints exact, NaN never hidden."""

import math
import warnings
import weakref
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from typing_extensions import TypedDict

from strictstep.loop.aggregate import Aggregate
from strictstep.loop.epoch_values import EpochValues
from strictstep.loop.errors import LoopError, LoopWarning
from strictstep.schema import EvaluationOutput, Reduce, Scalar, SkippedStep

NAN = float("nan")


class Log(TypedDict, total=False):
    mean: Scalar
    total: Annotated[Scalar, Reduce("sum")]
    smallest: Annotated[Scalar, Reduce("min")]
    largest: Annotated[Scalar, Reduce("max")]
    last: Annotated[Scalar, Reduce("last")]


class Output(EvaluationOutput[Log]):
    """Every reduction by name."""


def reduced(op: Any, numbers: Any, weights: Any = None) -> Any:
    """The value of one name over micro-batches."""
    aggregate = Aggregate()
    for number, weight in zip(numbers, weights or [1] * len(numbers), strict=True):
        aggregate.add({"a": number}, weight, {"a": op})
    return aggregate.values()["a"]


def values_of(*outputs: Any, weights: Any = None, **options: Any) -> Any:
    """The values of a pass over outputs."""
    values = EpochValues("validation", options.pop("ops", {}), **options)
    for output, weight in zip(outputs, weights or [1] * len(outputs), strict=True):
        values.add((output,), (weight,))
    return values.close(0)


def test_a_mean_counts_each_micro_batch_by_its_weight() -> None:
    assert reduced("mean", [0.7, 0.8, 0.9], [256, 256, 10]) == (0.7 * 256 + 0.8 * 256 + 0.9 * 10) / 522


@pytest.mark.parametrize(("op", "expected"), [("sum", 6), ("min", 1), ("max", 3), ("last", 2)])
def test_other_reductions_ignore_the_weights(op: Any, expected: Any) -> None:
    assert reduced(op, [3, 1, 2], [1, 100, 7]) == expected


@given(st.lists(st.tuples(st.integers(-(2**80), 2**80), st.integers(1, 2**40)), min_size=1))
def test_the_mean_of_ints_is_rounded_once(pairs: Any) -> None:
    numbers, weights = zip(*pairs, strict=True)
    exact = Fraction(sum(n * w for n, w in pairs), sum(weights))
    assert reduced("mean", numbers, list(weights)) == float(exact)


@given(st.lists(st.integers(), min_size=1), st.sampled_from(["sum", "min", "max", "last"]))
def test_ints_stay_exact_however_large(numbers: Any, op: Any) -> None:
    expected = {"sum": sum(numbers), "min": min(numbers), "max": max(numbers), "last": numbers[-1]}[op]
    result = reduced(op, numbers)
    assert (type(result), result) == (int, expected)


@pytest.mark.parametrize("op", ["mean", "sum", "min", "max"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_nan_is_never_hidden(op: Any, at: int) -> None:
    numbers = [1.0, 2.0, 3.0]
    numbers[at] = NAN
    assert math.isnan(reduced(op, numbers))


def test_a_bool_counts_as_zero_or_one() -> None:
    assert [reduced(op, [True, False, True]) for op in ("mean", "sum", "max", "last")] == [2 / 3, 2, 1, 1]


@given(st.lists(st.tuples(st.floats(allow_nan=False), st.integers(1, 9)), min_size=2), st.data())
def test_a_resumed_aggregate_goes_on_bit_by_bit(pairs: Any, data: Any) -> None:
    cut = data.draw(st.integers(1, len(pairs) - 1))
    whole, first, second = Aggregate(), Aggregate(), Aggregate()
    for number, weight in pairs:
        whole.add({"a": number}, weight, {})
    for number, weight in pairs[:cut]:
        first.add({"a": number}, weight, {})
    second.load_state_dict(first.state_dict())
    for number, weight in pairs[cut:]:
        second.add({"a": number}, weight, {})
    assert repr(second.state_dict()) == repr(whole.state_dict())


def test_a_model_of_ones_own_declares_the_reductions() -> None:
    rows = [Output(log={"mean": n, "total": n, "smallest": n, "largest": n, "last": n}) for n in (2, 6, 1)]
    assert values_of(*rows, weights=[1, 1, 2]) == {"mean": 2.5, "total": 9, "smallest": 1, "largest": 6, "last": 1}


def test_a_sum_is_in_float64_on_the_host() -> None:
    rows = [EvaluationOutput(log={"a": torch.tensor(value)}) for value in (1e8, 1.0, 1.0)]
    assert values_of(*rows, ops={"a": "sum"}) == {"a": 100000002.0}  # float32 would stay at 1e8


def test_an_int_tensor_stays_exact() -> None:
    rows = [EvaluationOutput(log={"a": torch.tensor(2**53 + 1)}), EvaluationOutput(log={"a": 0})]
    assert values_of(*rows, ops={"a": "sum"}) == {"a": 2**53 + 1}


def test_scalar_metrics_and_bar_values_are_reduced_likewise() -> None:
    rows = [
        EvaluationOutput(progress_bar={"b": n}, metrics={"m": torch.tensor(float(n)), "np": np.float32(n)})
        for n in (1, 3)
    ]
    assert values_of(*rows) == {"b": 2.0, "m": 2.0, "np": 2.0}


def test_where_a_name_stands_twice_the_loss_comes_first_and_then_the_log() -> None:
    row = EvaluationOutput(loss=1.0, log={"loss": 2.0, "a": 3.0}, progress_bar={"a": 4.0}, metrics={"a": 5.0})
    assert values_of(row) == {"loss": 1.0, "a": 3.0}


def test_a_key_that_appears_or_vanishes_is_reported_once() -> None:
    rows = [EvaluationOutput(log=log) for log in ({"a": 1}, {"b": 2}, {"b": 3}, {"a": 1}, {"b": 2})]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert values_of(*rows) == {"a": 1.0, "b": 7 / 3}
    assert [str(warning.message) for warning in caught] == [
        "`log`: `b` appeared in mid-epoch: its value covers the steps that have it",
        "`log`: `a` is missing in mid-epoch: its value covers the steps that have it",
    ]


def test_another_order_of_the_same_keys_is_no_drift() -> None:
    rows = [EvaluationOutput(log=log) for log in ({"a": 1, "b": 2}, {"b": 4, "a": 3}, {"a": 5, "b": 6})]
    assert values_of(*rows) == {"a": 3.0, "b": 4.0}


@pytest.mark.parametrize("read_every", [1, 2, 3, 50])
def test_however_many_steps_are_reduced_together_sums_are_those_of_one_after_the_other(read_every: Any) -> None:
    numbers = [0.1, 1e16, 0.3, -1e16, 0.7]  # a sum that hangs on the order, as floats do
    values = EpochValues("validation", {"a": "sum", "n": "last"}, read_every=read_every)
    for n, number in enumerate(numbers):
        values.add((EvaluationOutput(log={"a": torch.tensor(number, dtype=torch.float64), "n": n}),), (1,))
        assert values.names() == ["a", "n"]
    running = 0.0
    for number in numbers:
        running += number
    assert values.state_dict()["a"][1] == running
    assert values.close(0) == {"a": running, "n": 4}


def test_numbers_that_wait_to_be_reduced_hold_no_tensor() -> None:
    output: Any = EvaluationOutput(loss=torch.tensor(0.5))
    value = weakref.ref(output.loss)
    values = EpochValues("validation", {}, read_every=50)
    values.add((output,), (1,))
    del output
    assert value() is None
    assert values.close(0) == {"loss": 0.5}


def test_a_skipped_step_is_no_drift_and_its_own_values_count() -> None:
    rows = [
        EvaluationOutput(log={"a": 1}),
        SkippedStep(reason="empty", log={"boxes": 0}),
        EvaluationOutput(log={"a": 3}),
    ]
    assert values_of(*rows) == {"a": 2.0, "boxes": 0.0}


def test_metrics_that_nobody_wants_are_named_once_and_not_kept() -> None:
    values = EpochValues("validation", {})
    rows = [EvaluationOutput(metrics={"preds": torch.ones(3), "ids": ["a"]})] * 3
    with pytest.warns(LoopWarning, match=r"^`ids`, `preds` in `metrics`: dropped, since only an `epoch_end`") as caught:
        values.add(rows, (1, 1, 1))
    assert len(caught) == 1
    assert not values.kept


def pretending_cpu_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda self: False), raising=False)


def counting_lists(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the tensors that are read as lists from now on."""
    sizes: list[int] = []
    tolist = Tensor.tolist

    def counted(self: Tensor) -> Any:
        sizes.append(self.numel())
        return tolist(self)

    monkeypatch.setattr(Tensor, "tolist", counted)
    return sizes


def test_values_of_a_device_wait_and_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pretending_cpu_is_a_device(monkeypatch)
    reads = counting_lists(monkeypatch)
    monkeypatch.setattr(Tensor, "item", lambda self: pytest.fail("a value was read alone"))
    values = EpochValues("validation", {}, read_every=4)
    for n in range(10):
        values.add((EvaluationOutput(loss=torch.tensor(float(n)), log={"a": torch.tensor(2.0), "host": n}),), (1,))
    assert reads == [8, 8]
    assert values.close(0) == {"loss": 4.5, "a": 2.0, "host": 4.5}
    assert reads == [8, 8, 4]


def test_steps_are_told_in_their_order_though_some_values_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    pretending_cpu_is_a_device(monkeypatch)
    told: list[Any] = []
    values = EpochValues("training", {}, read_every=3, on_step=lambda numbers, step: told.append((step, numbers)))
    values.add((EvaluationOutput(loss=torch.tensor(1.0)),), (1,), 1)
    values.add((EvaluationOutput(loss=5),), (1,), 2)
    assert told == []
    values.read()
    assert told == [(1, {"loss": 1.0}), (2, {"loss": 5})]


def test_a_step_of_several_micro_batches_is_told_as_one() -> None:
    told: list[Any] = []
    values = EpochValues("training", {"n": "sum"}, on_step=lambda numbers, step: told.append((step, numbers)))
    values.add([EvaluationOutput(loss=loss, log={"n": 2}) for loss in (1.0, 4.0)], (2, 1), 7)
    assert told == [(7, {"loss": 2.0, "n": 4})]


@pytest.mark.parametrize("weights", [(2,), (2.5,), (2, 2.5)])
def test_the_mean_of_ints_beyond_any_float_is_an_error_that_names_them(weights: Any) -> None:
    with pytest.raises(LoopError, match="for the mean of `a`, got an int beyond") as caught:
        reduced("mean", [1, *[10**400] * len(weights)], [1, *weights])
    assert caught.value.code == "value_too_large"


def test_sums_of_ints_beyond_any_float_stay_exact() -> None:
    assert reduced("sum", [10**400, 1]) == 10**400 + 1
