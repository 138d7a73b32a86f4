"""Batches at their device, and the engine's seam."""

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.optim import SGD

from strictstep.loop import AutomaticOptimization, LoopError
from strictstep.loop.device import moved
from strictstep.schema import SkippedStep

Pair = namedtuple("Pair", "x names")
META = torch.device("meta")


def test_nested_batches_move_and_keep_their_containers() -> None:
    packed = pack_sequence([torch.zeros(2)])
    batch = {"pair": Pair(torch.zeros(2), ["a"]), "more": OrderedDict(list=[torch.zeros(1), 3]), "packed": packed}
    there: Any = moved(batch, META)
    assert type(there["pair"]) is Pair
    assert there["pair"].x.device == META
    assert there["pair"].names == ["a"]
    assert type(there["more"]) is OrderedDict
    assert there["more"]["list"][0].device == META
    assert there["packed"].data.device == META
    pair: Any = batch["pair"]
    assert pair.x.device.type == "cpu"


def test_without_a_device_tensors_stay_what_they_are() -> None:
    x = torch.zeros(2)
    assert moved(x, None) is x
    assert moved((x, x), None) == (x, x)
    batch = [x, {"y": x}]
    fresh = moved(batch, None)
    assert (fresh[0] is x, fresh[1]["y"] is x, fresh is batch, fresh[1] is batch[1]) == (True, True, False, False)


def test_what_names_no_device_is_refused_at_the_start(model: Any) -> None:
    with pytest.raises(LoopError) as caught:
        AutomaticOptimization(model, lambda model, batch: None, SGD(model.parameters(), lr=0.1), device="gpu0")
    assert str(caught.value) == (
        'expected a device, got str \'gpu0\'  [option]\n  help: write it as torch does: "cpu", "cuda:0"'
    )


class Recording:
    """An engine of one rank that writes down what the closure asks of it, and skips where another rank would."""

    def __init__(self, skips: tuple[int, ...] = ()) -> None:
        self.asked: list[str] = []
        self.skips = skips

    def wrap(self, step: Any) -> Any:
        def wrapped(batch: Any, **named: Any) -> Any:
            self.asked.append("step")
            return step(batch, **named)

        return wrapped

    def agree(self, outcome: Any) -> Any:
        self.asked.append("agree")
        return SkippedStep(reason="rank 1") if self.asked.count("agree") in self.skips else outcome

    def total_weight(self, weights: Any) -> Any:
        self.asked.append(f"total {weights}")
        return 0 if isinstance(weights, Exception) else sum(weights)

    def backward(self, loss: Any, factor: Any) -> None:
        self.asked.append(f"backward {factor}")
        (loss * factor).backward()


def test_the_closure_asks_one_object_to_run_to_agree_and_to_go_backward(
    model: Any, make_batch: Any, training_step: Any
) -> None:
    engine = Recording()
    optimizer = SGD(model.parameters(), lr=0.1)
    AutomaticOptimization(model, training_step, optimizer, engine=engine).step_window([make_batch(6), make_batch(2)])
    assert engine.asked == [
        "total (6, 2)",
        *("step", "agree", "backward 0.75"),
        *("step", "agree", "backward 0.25"),
    ]


def test_a_skip_that_ranks_agree_on_is_a_skip(model: Any, make_batch: Any, training_step: Any) -> None:
    engine = Recording(skips=(1,))
    optimization: Any = AutomaticOptimization(model, training_step, SGD(model.parameters(), lr=0.1), engine=engine)
    expected = model.weight - 0.1 * torch.autograd.grad(training_step(model, make_batch(2))["loss"], model.weight)[0]
    report: Any = optimization.step_window([make_batch(6), make_batch(2)])
    assert (report.skipped, report.outputs[0].reason) == (1, "rank 1")
    torch.testing.assert_close(model.weight, expected)


def test_an_error_goes_through_the_agreement_before_any_backward(model: Any, make_batch: Any) -> None:
    engine = Recording()

    def step(model: Any, batch: Any) -> Any:
        raise ValueError("broken")

    optimization: Any = AutomaticOptimization(model, step, SGD(model.parameters(), lr=0.1), engine=engine)
    with pytest.raises(ValueError, match=r"^broken"):
        optimization.step(make_batch())
    assert engine.asked == ["total (8,)", "step", "agree"]


def test_an_error_of_another_rank_stops_a_step_that_went_well_here(
    model: Any, make_batch: Any, training_step: Any
) -> None:
    class OtherRankFailed(Recording):
        def agree(self, outcome: Any) -> Any:
            return ValueError("expected a batch on rank 1, got none")

    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = SGD(model.parameters(), lr=0.1)
    optimization: Any = AutomaticOptimization(model, training_step, optimizer, engine=OtherRankFailed())
    with pytest.raises(ValueError, match="expected a batch on rank 1, got none"):
        optimization.step(make_batch())
    assert all(map(torch.equal, model.parameters(), before))
    assert optimization.global_step == 0


def test_other_ranks_are_told_of_weights_that_cannot_be_read(model: Any, make_batch: Any, training_step: Any) -> None:
    engine, optimizer = Recording(), SGD(model.parameters(), lr=0.1)
    optimization: Any = AutomaticOptimization(model, training_step, optimizer, engine=engine, weight=lambda batch: -1)
    with pytest.raises(LoopError, match="expected a positive, finite number as weight"):
        optimization.step(make_batch())
    assert [text[:40] for text in engine.asked] == ["total expected a positive, finite number"]


def test_a_mapping_of_another_kind_moves_and_stays_of_its_kind() -> None:
    batch: Any = defaultdict(list, x=torch.zeros(2))
    there: Any = moved(batch, META)
    assert (type(there), there.default_factory, there["x"].device) == (defaultdict, list, META)
    assert moved(UserDict(x=torch.zeros(2)), META)["x"].device == META
    assert batch["x"].device.type == "cpu"
