"""Rule 11: one notion of weight."""

import math
import warnings
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from strictstep.loop.errors import LoopError, LoopWarning
from strictstep.loop.weights import Weights

Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(4, 2),
        (torch.zeros(4, 2), torch.zeros(4)),
        [torch.zeros(4, 2), torch.zeros(4)],
        {"x": torch.zeros(4), "name": ["a", "b"], "temperature": torch.tensor(1.0)},
        Pair(torch.zeros(4, 2), {"y": [torch.zeros(4)]}),
    ],
)
def test_the_number_of_examples_is_what_all_tensors_share(batch: Any) -> None:
    assert Weights().of(batch) == 4


def test_with_time_first_the_examples_are_in_dimension_one() -> None:
    assert Weights(dim=1).of((torch.zeros(7, 4, 2), torch.zeros(7, 4))) == 4


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        (["a", "b"], "no tensor has a dimension 0"),
        (None, "no tensor has a dimension 0"),
        ((torch.zeros(3), torch.zeros(4)), "tensors disagree on the size of dimension 0 (3, 4)"),
    ],
)
def test_an_unreadable_first_batch_counts_one_throughout_and_warns_once(batch: Any, what: Any) -> None:
    weights = Weights()
    with pytest.warns(LoopWarning) as caught:
        assert weights.of(batch) == 1
    assert str(caught[0].message) == f"{what}: each batch counts as 1; or pass `weight=`"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert weights.of(torch.zeros(8)) == 1
        assert weights.of(batch) == 1


def test_a_later_disagreement_is_an_error_that_asks_for_a_weight() -> None:
    weights = Weights()
    weights.of((torch.zeros(4), torch.zeros(4)))
    with pytest.raises(LoopError) as caught:
        weights.of((torch.zeros(4), torch.zeros(3)))
    assert str(caught.value) == (
        "expected a batch of as many examples in each tensor, got one where tensors disagree on the size of "
        "dimension 0 (3, 4)  [weight_unreadable]\n  help: pass `weight=`: a number, or a function of the batch"
    )


def test_a_function_is_given_the_batch() -> None:
    assert Weights(lambda batch: batch["tokens"]).of({"tokens": 512}) == 512
    assert Weights(lambda batch: np.float64(2.5)).of(None) == 2.5
    assert Weights(3).of(None) == 3


@pytest.mark.parametrize("wrong", [0, -1, math.nan, math.inf, True, None, "3", torch.tensor(3)])
def test_anything_but_a_positive_finite_host_number_is_an_error(wrong: Any) -> None:
    def count_tokens(batch: Any) -> Any:
        return wrong

    with pytest.raises(LoopError, match=r"from `count_tokens\(batch\)`") as caught:
        Weights(count_tokens).of(None)
    assert caught.value.code == "weight_not_positive"
    if wrong is not None:
        with pytest.raises(LoopError, match="from `weight`") as caught:
            Weights(wrong)
        assert caught.value.code == "weight_not_positive"


def test_a_batch_of_no_examples_is_an_error() -> None:
    with pytest.raises(LoopError, match="got int 0 from the number of examples") as caught:
        Weights().of(torch.zeros(0, 3))
    assert caught.value.code == "weight_not_positive"


def test_stop_iteration_from_a_weight_function_names_it() -> None:
    def count_tokens(batch: Any) -> Any:
        return next(iter(()))

    with pytest.raises(LoopError, match="expected weight function `count_tokens` to return") as caught:
        Weights(count_tokens).of(None)
    assert caught.value.code == "stop_iteration"


@pytest.mark.parametrize("container", [tuple, list])
def test_an_empty_tensor_disagrees_with_one_that_is_not(container: Any) -> None:
    weights = Weights()
    weights.of((torch.zeros(3, 4), torch.zeros(3)))
    with pytest.raises(LoopError) as caught:
        weights.of(container((torch.zeros(0, 4), torch.zeros(5))))
    assert caught.value.code == "weight_unreadable"


@pytest.mark.parametrize("number", [10**400, 1e308])
def test_a_weight_that_no_sum_can_hold_is_refused(number: Any) -> None:
    with pytest.raises(LoopError, match="expected a positive, finite number as weight") as caught:
        Weights(lambda batch: number).of(None)
    assert caught.value.code == "weight_not_positive"


def test_a_tensor_without_the_dimension_counts_for_nothing_in_a_later_batch_too() -> None:
    weights = Weights()
    assert weights.of((torch.zeros(8, 2), torch.zeros(8))) == 8
    assert weights.of((torch.zeros(4, 2), torch.tensor(0.5))) == 4


def test_a_nested_tensor_counts_for_nothing_in_a_later_batch_too() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        ragged = torch.nested.nested_tensor([torch.zeros(3), torch.zeros(5)])
    weights = Weights()
    assert weights.of((ragged, torch.zeros(2))) == 2
    assert weights.of((ragged, torch.zeros(4))) == 4
