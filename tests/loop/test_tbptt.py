"""Rule 9: sequences in chunks, each a step of its own, with the hiddens of the chunk before."""

from collections import UserDict
from types import MappingProxyType
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torch.optim import SGD
from transformers import BatchEncoding

from strictstep.loop import LoopError, fit
from strictstep.loop.chunks import chunks
from strictstep.schema import SkippedStep


class Network(nn.Module):
    """A linear recurrence: its state is the running sum of what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.zeros(()))


def train(step: Any, batches: Any, **options: Any) -> Any:
    model = Network()
    optimizer = SGD(model.parameters(), lr=1e-9)
    options = {"optimizer": optimizer, "max_epochs": 1, "progress_bar": False, "tbptt": (2, 1), **options}
    return fit(model, step, batches, **options)


def recording(seen: list[Any], skip: Any = ()) -> Any:
    """A step that keeps what it is given, and hands on the running sum."""

    def step(model: Any, batch: Any, hiddens: Any, batch_idx: int) -> Any:
        seen.append((batch_idx, batch.sum().item(), None if hiddens is None else hiddens.item()))
        if len(seen) - 1 in skip:
            return SkippedStep(reason="asked")
        total = batch.sum() + (0 if hiddens is None else hiddens) + model.rate
        return {"loss": total * 1.0, "hiddens": total}

    return step


ONES = torch.ones(1, 5)


def test_each_chunk_gets_the_hiddens_of_the_one_before_and_each_sequence_begins_without() -> None:
    seen: list[Any] = []
    result = train(recording(seen), [ONES, ONES])
    given = [(batch_idx, total, hiddens is None) for batch_idx, total, hiddens in seen]
    assert given == [(0, 2.0, True), (0, 2.0, False), (0, 1.0, False), (1, 2.0, True), (1, 2.0, False), (1, 1.0, False)]
    assert result.global_step == 6


def hiddens_of(seen: Any) -> Any:
    return [hiddens if hiddens is None else round(hiddens) for _, _, hiddens in seen]


def test_hiddens_are_carried_over_to_the_next_batch_on_request_but_not_to_the_next_epoch() -> None:
    seen: list[Any] = []
    train(recording(seen), [ONES, ONES], carry_hiddens=True, max_epochs=2)
    assert hiddens_of(seen) == [None, 2, 4, 5, 7, 9] * 2


def test_hiddens_are_carried_over_without_chunks_too() -> None:
    seen: list[Any] = []
    train(recording(seen), [ONES] * 3, carry_hiddens=True, tbptt=None)
    assert hiddens_of(seen) == [None, 5, 10]


def test_without_being_asked_for_no_hiddens_are_handed_on() -> None:
    seen: list[Any] = []
    train(recording(seen), [ONES] * 3, tbptt=None)
    assert hiddens_of(seen) == [None, None, None]


def test_after_a_skip_the_next_chunk_gets_what_the_skipped_one_got() -> None:
    seen: list[Any] = []
    train(recording(seen, skip=[1]), [ONES])
    assert hiddens_of(seen) == [None, 2, 2]


def test_hiddens_come_without_a_graph() -> None:
    attached: list[bool] = []

    def step(model: Any, batch: Any, hiddens: Any) -> Any:
        attached.append(hiddens is not None and hiddens[0].requires_grad)
        return {"loss": model.rate * batch.sum(), "hiddens": (model.rate + 1, model.rate + 2)}

    train(step, [ONES])
    assert attached == [False] * 3


def test_chunks_of_an_lstm_give_the_gradients_of_torch_directly() -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(3, 4, batch_first=True)
    twin = nn.LSTM(3, 4, batch_first=True)
    twin.load_state_dict(lstm.state_dict())
    x = torch.randn(2, 7, 3)

    def step(model: Any, batch: Any, hiddens: Any) -> Any:
        out, state = model(batch, hiddens)
        return {"loss": out.pow(2).mean(), "hiddens": state}

    fit(lstm, step, [x], optimizer=SGD(lstm.parameters(), lr=0.5), max_epochs=2, tbptt=(3, 1), progress_bar=False)
    optimizer = SGD(twin.parameters(), lr=0.5)
    for _ in range(2):
        state = None
        for chunk in x.split(3, dim=1):
            out, state = twin(chunk, state)
            state = tuple(part.detach() for part in state)
            optimizer.zero_grad()
            out.pow(2).mean().backward()
            optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(lstm.parameters(), twin.parameters(), strict=True))


def test_tensors_without_the_dimension_and_other_values_go_whole_to_each_chunk() -> None:
    batch = {"x": torch.arange(10).view(2, 5), "y": torch.ones(2), "names": ["a", "b"], "pair": (torch.zeros(2, 5), 3)}
    cut = list(chunks(batch, 3, 1))
    assert [chunk["x"].tolist() for chunk in cut] == [[[0, 1, 2], [5, 6, 7]], [[3, 4], [8, 9]]]
    assert all(chunk["y"] is batch["y"] and chunk["names"] == ["a", "b"] for chunk in cut)
    assert [list(chunk["pair"][0].shape) for chunk in cut] == [[2, 3], [2, 2]]


@pytest.mark.parametrize(
    ("batch", "got"),
    [
        ((torch.ones(2, 5), torch.ones(2, 4)), "sizes 4, 5"),
        (torch.ones(2), "no tensor that has it"),
        ("text", "no tensor that has it"),
        (torch.ones(2, 0), "sizes 0"),
    ],
)
def test_a_batch_that_cannot_be_cut_is_an_error(batch: Any, got: str) -> None:
    with pytest.raises(LoopError, match=r"^expected one size of dimension 1 in the tensors of a batch") as caught:
        list(chunks(batch, 2, 1))
    assert (caught.value.code, caught.value.message.rpartition("got ")[2]) == ("tbptt_dimension", got)


def test_with_time_in_dimension_0_the_examples_are_counted_in_dimension_1() -> None:
    def step(model: Any, batch: Any) -> Any:
        return {"loss": model.rate * 0 + batch.mean()}

    result = train(step, [torch.full((4, 2), 1.0), torch.full((4, 6), 5.0)], tbptt=(2, 0))
    assert result.history[0]["loss"] == (1.0 * 2 + 5.0 * 6) / 8


def test_max_steps_may_end_within_a_sequence() -> None:
    seen: list[Any] = []
    result = train(recording(seen), [ONES, ONES], max_steps=4)
    assert (result.global_step, len(seen), result.stopped) == (4, 4, "max_steps")


@pytest.mark.parametrize("kind", [dict, UserDict, BatchEncoding])
def test_every_kind_of_dict_is_cut(kind: Any) -> None:
    cut = [chunk["x"].shape for chunk in chunks(kind({"x": torch.zeros(8, 5, 4)}), 2, 1)]
    assert cut == [(8, 2, 4), (8, 2, 4), (8, 1, 4)]


class Sequences(list[Any]):
    """A list of a kind of its own."""


@pytest.mark.parametrize(
    "batch",
    [
        TensorDict({"x": torch.zeros(8, 6)}, batch_size=[8]),
        Sequences([torch.zeros(8, 6)]),
        MappingProxyType({"x": torch.zeros(8, 6)}),
        nn.utils.rnn.pack_sequence([torch.zeros(3, 6), torch.zeros(2, 6)]),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_what_cannot_be_cut_is_refused_and_not_given_whole_to_each_chunk(batch: Any) -> None:
    with pytest.raises(LoopError, match="expected tensors in dicts, lists and tuples, to cut them in chunks") as caught:
        list(chunks(batch, 2, 1))
    assert caught.value.code == "tbptt_dimension"


class Drawn(torch.utils.data.Dataset[Any]):
    """Draws each item where it is fetched, as augmentation does."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return torch.randn(6, 4)


def test_a_run_that_is_resumed_within_a_drawn_batch_goes_on_with_the_same_draws(tmp_path: Any) -> None:
    def step(model: Any, batch: Any, hiddens: Any) -> Any:
        return model(batch).pow(2).mean()

    def run(folder: str, **options: Any) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 1))
        options = {"checkpoint": tmp_path / folder, "resume": True, "tbptt": (2, 1), "progress_bar": False, **options}
        optimizer = SGD(model.parameters(), lr=0.1)
        batches = torch.utils.data.DataLoader(Drawn(), 1)
        return fit(model, step, batches, optimizer=optimizer, max_epochs=1, **options).history

    whole = run("whole")
    for steps in range(1, 6):
        run(str(steps), max_steps=steps)
        assert run(str(steps)) == whole


def test_with_time_in_dimension_0_validation_counts_its_examples_in_dimension_1_too() -> None:
    def step(model: Any, batch: Any) -> Any:
        return {"loss": model.rate * 0 + batch.mean()}

    validated = {"validation_step": step, "validation_batches": [torch.full((4, 8), 0.0), torch.full((4, 2), 1.0)]}
    assert train(step, [torch.ones(4, 2)], tbptt=(2, 0), **validated).history[0]["val_loss"] == 0.2
