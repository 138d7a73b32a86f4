"""Running values of `log`: reduced as declared, over steps and over processes."""

import pytest
import torch

from strictstep.schema.integrations.log_terms import LogTerms


def combined(terms: LogTerms) -> dict[str, float]:
    """What one process reports."""
    return terms.combined([terms.take()])


def test_each_reduction_over_tensors_and_numbers() -> None:
    terms = LogTerms({"low": "min", "high": "max", "rows": "sum", "now": "last"})
    for value in (torch.tensor(2.0), 4.0, torch.tensor(3)):
        terms.add(dict.fromkeys(("low", "high", "rows", "now", "mean"), value))
    assert combined(terms) == {"low": 2, "high": 4, "rows": 9, "now": 3, "mean": 3}
    assert combined(terms) == {}


def test_a_mean_is_weighted_and_a_sum_is_not() -> None:
    terms = LogTerms({"rows": "sum"})
    terms.add({"accuracy": 1.0, "rows": 30}, weight=30)
    terms.add({"accuracy": 0.0, "rows": 10}, weight=10)
    assert combined(terms) == {"accuracy": 0.75, "rows": 40}


def test_hits_are_counted_and_half_precision_is_summed_in_single() -> None:
    terms = LogTerms({"hits": "sum"})
    for _ in range(5000):
        terms.add({"hits": torch.tensor(True), "loss": torch.tensor(1.0, dtype=torch.float16)})
    assert combined(terms) == {"hits": 5000, "loss": 1.0}


def test_a_logged_parameter_keeps_the_value_it_had() -> None:
    temperature = torch.nn.Parameter(torch.tensor(1.0))
    terms = LogTerms({"temperature": "last"})
    terms.add({"temperature": temperature.detach()})
    with torch.no_grad():
        temperature.add_(1)
    assert combined(terms) == {"temperature": 1.0}


def test_processes_may_have_different_names_and_counts() -> None:
    ranks = [LogTerms({"low": "min"}) for _ in range(2)]
    for rank, value in ((0, 1.0), (0, 2.0), (1, 6.0)):
        ranks[rank].add({"loss": value, "low": value})
    ranks[1].add({"boxes": 5})
    assert ranks[0].combined(rank.take() for rank in ranks) == {"loss": 3.0, "low": 1.0, "boxes": 5.0}


@pytest.mark.parametrize("value", [3, 3.5])
def test_numbers_are_never_tensors(value: float) -> None:
    terms = LogTerms({"x": "last"})
    terms.add({"x": value})
    assert type(combined(terms)["x"]) is type(value)
