"""Copies, pickles and `repr` of outputs: records with a detached loss, small and short; checked when they come back."""

import copy
import itertools
import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from typing_extensions import TypedDict

from strictstep.schema import (
    EvaluationOutput,
    ManualOutput,
    Scalar,
    StepOutput,
    StepOutputError,
    TrainingOutput,
    coerce,
)

MODELS: list[type[StepOutput]] = [TrainingOutput, ManualOutput, EvaluationOutput]


class Log(TypedDict):
    acc: Scalar


class LogOutput(TrainingOutput[Log]):
    """A team's own model."""


def a_loss() -> Tensor:
    """A loss that an operation of a graph made."""
    return (torch.ones(4, requires_grad=True) * 2).mean()


def full(model: Any = TrainingOutput) -> Any:
    """An output with all five fields."""
    loss = a_loss()
    return model(
        loss=loss,
        log={"acc": torch.tensor([0.5])},
        progress_bar=["acc"],
        hiddens=(loss.view(1), None),
        metrics={"logits": torch.ones(2, 3), "names": ["a"]},
    )


def pickled(output: Any) -> Any:
    return pickle.loads(pickle.dumps(output))


WAYS: dict[str, Callable[[Any], Any]] = {"deepcopy": copy.deepcopy, "pickle": pickled}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", [*MODELS, LogOutput, TrainingOutput[Log]], ids=lambda model: model.__name__)
def test_a_record_is_equal_and_its_loss_is_detached(way: str, model: Any) -> None:
    output = full(model)
    record = WAYS[way](output)
    assert type(record) is model
    assert record == output
    assert not record.loss.requires_grad
    assert record.loss.data_ptr() != output.loss.data_ptr()
    assert record.metrics["names"] is not output.metrics["names"]


def test_a_model_parametrised_in_a_function_is_pickled_too() -> None:
    output = full(EvaluationOutput[Log])
    assert type(pickled(output)) is type(output)


@pytest.mark.parametrize("way", WAYS)
def test_the_record_of_a_training_output_is_checked_again(way: str) -> None:
    with pytest.raises(StepOutputError, match="loss_no_grad"):
        coerce(WAYS[way](full()))
    for model, stage in ((ManualOutput, "manual"), (EvaluationOutput, "test")):
        record = WAYS[way](full(model))
        assert coerce(record, stage=stage) is record  # type: ignore[call-overload]


@pytest.mark.parametrize("loss", [0.27, None, "x", torch.ones(3), torch.ones(())], ids=repr)
def test_a_constructed_output_is_checked_again(loss: Any) -> None:
    with pytest.raises(StepOutputError, match="loss_") as caught:
        coerce(TrainingOutput.model_construct(loss=loss))
    assert {problem.path for problem in caught.value.problems} == {"loss"}


def test_an_attached_loss_in_a_constructed_output_is_detached_outside_training() -> None:
    loss = a_loss()
    output = ManualOutput.model_construct(loss=loss, log={"a": 1})
    checked = coerce(output, stage="manual")
    assert isinstance(checked.loss, Tensor)
    assert not checked.loss.requires_grad
    assert checked.log == {"a": 1}
    assert output.loss is loss


def test_a_shallow_copy_keeps_the_graph() -> None:
    output = full()
    twin = copy.copy(output)
    assert twin.loss is output.loss
    assert coerce(twin) is twin


@pytest.mark.parametrize("field", ["loss", "log", "hiddens", "metrics"])
def test_a_view_into_huge_storage_stays_small(field: str) -> None:
    view = torch.ones(1_000_000)[:1]
    values: dict[str, Any] = {
        "loss": view,
        "log": {"x": view},
        "hiddens": [view],
        "metrics": {"x": {"y": view}},
    }
    output = EvaluationOutput(**{field: values[field]})
    assert len(pickle.dumps(output)) < 10_000
    assert pickled(output) == output
    assert copy.deepcopy(output) == output


@pytest.mark.parametrize(
    "value",
    [
        torch.eye(2).to_sparse(),
        torch.ones(3, device="meta"),
        torch.ones(1).expand(1000),
        nn.Parameter(torch.ones(1)),
        pack_sequence([torch.ones(2)]),
        torch.ones(2, 2).t(),
        torch.ones(1, 2).max(dim=1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_tensors_of_every_kind_are_copied_and_pickled(value: Any) -> None:
    output = EvaluationOutput(metrics={"x": value})
    for way in WAYS.values():
        assert way(output) == output


@pytest.mark.parametrize("way", WAYS)
def test_sharing_is_kept_in_a_record(way: str) -> None:
    tensor, shared = torch.ones(10)[:1], [torch.ones(1)]
    record = WAYS[way](ManualOutput(hiddens=[tensor, tensor, shared, shared]))
    assert record.hiddens[0] is record.hiddens[1]
    assert record.hiddens[2] is record.hiddens[3]


class Endless(NamedTuple):
    """Two values, which its own `__iter__` never gives."""

    x: Any
    y: Any

    def __iter__(self) -> Any:
        return itertools.count()


def test_a_namedtuple_is_written_kept_and_compared_by_what_it_holds() -> None:
    output = EvaluationOutput(metrics={"pair": Endless(1, torch.ones(()))})
    assert json.loads(output.model_dump_json())["metrics"] == {"pair": [1, 1]}
    kept = output.__getstate__()["__dict__"]["metrics"]["pair"]
    assert (type(kept), kept.x, kept.y) == (Endless, 1, torch.ones(()))
    assert output == EvaluationOutput(metrics={"pair": Endless(1, torch.ones(()))})
    assert output != EvaluationOutput(metrics={"pair": Endless(2, torch.ones(()))})


def test_a_copy_inside_a_list_is_one_object() -> None:
    output = full()
    first, second = copy.deepcopy([output, output])
    assert first is second


def test_a_pickle_is_read_in_another_process() -> None:
    data = pickle.dumps(full())
    code = "import pickle, sys; print(repr(pickle.loads(sys.stdin.buffer.read()).loss.item()))"
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "2.0"


def test_repr_is_short_and_shows_no_contents() -> None:
    output = EvaluationOutput(
        loss=torch.ones(()),
        log={f"key{number}": 0.5 for number in range(30)},
        metrics={"big": torch.ones(10_000_000), "text": "x" * 1000, "list": list(range(1000))},
    )
    start = time.perf_counter()
    text = repr(output)
    assert time.perf_counter() - start < 0.1
    assert text == (
        "EvaluationOutput(loss=float32[] tensor on cpu, log={"
        + ", ".join(f"key{number}: float 0.5" for number in range(8))
        + ", ...}, metrics={big: float32[10000000] tensor on cpu, text: str '"
        + "x" * 37
        + "...', list: list of length 1000})"
    )
    assert str(EvaluationOutput(log={"a\ud800": 1})) == "log={a\\ud800: int 1}"


def test_repr_leaves_out_what_is_empty() -> None:
    assert repr(ManualOutput()) == "ManualOutput()"
    assert repr(ManualOutput(hiddens=[torch.ones(1)])) == "ManualOutput(hiddens=list[Tensor])"
    assert repr(full(TrainingOutput[Log])).startswith("TrainingOutput[Log](loss=float32[] tensor on cpu, log={acc: ")
