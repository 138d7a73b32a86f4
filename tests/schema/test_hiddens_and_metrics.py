"""The rules of `hiddens` and `metrics`: containers rebuilt, tensors detached and never copied, all else kept."""

import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from strictstep.schema import EvaluationOutput, StepOutputError, coerce


class State(NamedTuple):
    hidden: Tensor
    cell: Any


class Careful(NamedTuple):
    """A namedtuple whose own constructor would be one too many."""

    value: Any

    @classmethod
    def of(cls, value: Any) -> "Careful":
        return cls(value)


def attached(*shape: int) -> Tensor:
    """A tensor inside a graph."""
    return torch.ones(shape, requires_grad=True) * 2


def kept(value: Any, field: str = "hiddens") -> Any:
    """What a value becomes in a field."""
    fields = {field: value if field == "hiddens" else {"x": value}}
    output = getattr(coerce(fields, stage="manual"), field)
    return output if field == "hiddens" else output["x"]


def problems_of(**fields: Any) -> list[tuple[str, str]]:
    """Codes and paths of what is wrong with an evaluation output."""
    with pytest.raises(StepOutputError, match=r"returned an invalid output") as caught:
        coerce(fields, stage="validation")
    return [(problem.code, problem.path) for problem in caught.value.problems]


# a container of one tensor, and the way from it to the tensor
CONTAINERS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Any]]] = {
    "tensor": (lambda t: t, lambda x: x),
    "list": (lambda t: [t, None], lambda x: x[0]),
    "tuple": (lambda t: (t, None), lambda x: x[0]),
    "dict": (lambda t: {"h": t}, lambda x: x["h"]),
    "dict with other keys": (lambda t: {0: t, (1, 2): None}, lambda x: x[0]),
    "OrderedDict": (lambda t: OrderedDict(h=t), lambda x: x["h"]),
    "namedtuple": (lambda t: State(t, None), lambda x: x.hidden),
    "namedtuple with a method": (Careful.of, lambda x: x.value),
    "PackedSequence": (lambda t: pack_sequence([t, t]), lambda x: x.data),
    "torch.return_types": (lambda t: t.view(1, -1).max(dim=1), lambda x: x.values),
    "nested": (lambda t: [{"a": (t, [None])}], lambda x: x[0]["a"][0]),
}


@pytest.mark.parametrize("field", ["hiddens", "metrics"])
@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_keep_their_type_and_tensors_are_detached(name: str, field: str) -> None:
    make, tensor_in = CONTAINERS[name]
    value = make(attached(3))
    original = tensor_in(value)
    result = kept(value, field)
    assert type(result) is type(value)
    assert not tensor_in(result).requires_grad
    assert tensor_in(result).data_ptr() == original.data_ptr()
    assert original.requires_grad
    if not isinstance(value, Tensor):
        assert result is not value


def test_the_parts_of_a_packed_sequence_work_on() -> None:
    packed = pack_sequence([attached(3, 2), attached(1, 2)])
    result = kept(packed)
    assert type(result) is PackedSequence
    assert torch.equal(result.batch_sizes, packed.batch_sizes)
    output, _ = nn.GRU(2, 4)(result)
    assert output.data.shape == (4, 4)


def test_order_and_keys_are_kept() -> None:
    assert list(kept({"b": None, "a": None, 3: None})) == ["b", "a", 3]
    assert kept([]) == []
    assert kept(()) == ()
    assert kept(None) is None


@pytest.mark.parametrize("field", ["hiddens", "metrics"])
def test_a_detached_tensor_is_kept_by_identity(field: str) -> None:
    tensor = torch.ones(3)
    assert kept([tensor], field)[0] is tensor
    assert kept(tensor, field) is tensor


@pytest.mark.parametrize("field", ["hiddens", "metrics"])
def test_sharing_is_kept(field: str) -> None:
    shared = [attached(1)]
    first, second = kept([shared, {"again": shared}], field)
    assert first is second["again"]
    assert first is not shared


class Listlike(list[Any]):
    """A list of the user's own."""


# what is no part of a state, at `hiddens[1]`
NO_STATE: list[Any] = [
    "x",
    3,
    0.5,
    np.ones(1),
    {1},
    deque(),
    defaultdict(list),
    Listlike(),
    SimpleNamespace(h=torch.ones(1)),
    TensorDict({}),
    torch.ones,
]


@pytest.mark.parametrize("value", NO_STATE, ids=lambda value: type(value).__name__)
def test_anything_else_in_hiddens_is_an_error_at_its_place(value: Any) -> None:
    assert problems_of(hiddens=[torch.ones(1), value]) == [("hiddens_not_tensor", "hiddens[1]")]


def test_the_message_of_a_wrong_state_says_what_is_one() -> None:
    with pytest.raises(StepOutputError, match="hiddens_not_tensor") as caught:
        coerce({"hiddens": "warm"}, stage="manual")
    (problem,) = caught.value.problems
    assert problem.message == "expected a tensor, None, or a list, tuple or dict of them, got str 'warm'"
    assert problem.help == "keep tensors only; wrap none of them in an object, and return anything else in `metrics`"


def test_every_wrong_leaf_is_named_by_its_path() -> None:
    hiddens = {"a": [1, State(torch.ones(1), "x")], "b c": 2, 3: 4, (5, 6): 7}
    assert problems_of(hiddens=hiddens) == [
        ("hiddens_not_tensor", "hiddens.a[0]"),
        ("hiddens_not_tensor", "hiddens.a[1].cell"),
        ("hiddens_not_tensor", "hiddens['b c']"),
        ("hiddens_not_tensor", "hiddens[3]"),
        ("hiddens_not_tensor", "hiddens['tuple[int, int]']"),
    ]


# what `metrics` keeps by identity
OBJECTS: list[Any] = [
    "text",
    None,
    3,
    np.ones(3),
    np.float32(1),
    {1, 2},
    deque([1]),
    defaultdict(list, a=[1]),
    Listlike([1]),
    SimpleNamespace(a=1),
    nn.Linear(1, 1),
    object(),
    len,
]


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: type(value).__name__)
def test_other_objects_in_metrics_are_kept_by_identity(value: Any) -> None:
    assert kept(value, "metrics") is value
    assert kept([value], "metrics")[0] is value


@pytest.mark.parametrize("shape", [(), (1,), (3, 3), (0,)], ids=str)
def test_tensors_of_any_shape_are_metrics(shape: tuple[int, ...]) -> None:
    assert kept(attached(*shape), "metrics").shape == shape


def chain(levels: int, leaf: Any = None, kind: Any = list) -> Any:
    """A leaf inside so many containers."""
    for _ in range(levels):
        leaf = kind([leaf]) if kind is not dict else {"x": leaf}
    return leaf


@pytest.mark.parametrize("field", ["hiddens", "metrics"])
@pytest.mark.parametrize("kind", [list, tuple, dict], ids=lambda kind: kind.__name__)
def test_64_levels_are_accepted_and_65_are_not(kind: Any, field: str) -> None:
    assert kept(chain(64, torch.ones(1), kind), field) is not None
    fields = {"hiddens": chain(65, None, kind)} if field == "hiddens" else {"metrics": {"x": chain(65, None, kind)}}
    with pytest.raises(StepOutputError, match="too_deep") as caught:
        coerce(fields, stage="manual")
    (problem,) = caught.value.problems
    assert problem.code == "too_deep"
    assert problem.message.startswith("expected at most 64 levels of containers, none inside itself, got ")
    assert problem.help == "return a flatter structure"


def test_sharing_is_no_way_around_the_levels() -> None:
    first = chain(60)
    second = chain(10, first)  # 70 levels, of which 60 have been seen before
    assert kept([first]) == [first]
    assert problems_of(hiddens=[first, second])[0][0] == "too_deep"
    assert problems_of(hiddens=[second, first])[0][0] == "too_deep"


def test_a_shared_container_may_lie_deeper_the_second_time() -> None:
    shared = chain(10, attached(1))
    result = kept([shared, chain(20, shared)])
    inner = result[1]
    for _ in range(20):
        (inner,) = inner
    assert inner is result[0]


def cycle() -> list[Any]:
    """A list inside itself."""
    a: list[Any] = []
    a.append(a)
    return a


def branching_cycle() -> list[Any]:
    """A list twice inside itself: a walk that only counts levels would take 2**64 steps."""
    a: list[Any] = []
    a += [a, a]
    return a


def mutual_cycle() -> dict[str, Any]:
    a: dict[str, Any] = {}
    a["b"] = [a, (a, a)]
    return a


@pytest.mark.parametrize("field", ["hiddens", "metrics"])
@pytest.mark.parametrize("make", [cycle, branching_cycle, mutual_cycle], ids=lambda make: make.__name__)
def test_a_cycle_is_too_deep_and_found_at_once(make: Callable[[], Any], field: str) -> None:
    start = time.perf_counter()
    value = make()
    found = problems_of(**{field: value if field == "hiddens" else {"x": value}})
    assert {code for code, _ in found} == {"too_deep"}
    assert time.perf_counter() - start < 2


def test_a_wide_web_of_sharing_is_walked_once() -> None:
    web: Any = attached(1)
    for _ in range(60):
        web = [web, web]
    start = time.perf_counter()
    assert kept(web)[0] is not None
    assert problems_of(hiddens=[web, "x"]) == [("hiddens_not_tensor", "hiddens[1]")]
    assert time.perf_counter() - start < 2


def test_a_tensor_that_raises_is_unreadable_at_its_place() -> None:
    class Raising(Tensor):
        @property
        def requires_grad(self) -> bool:  # type: ignore[override]
            raise ConnectionError("no")

    value = torch.ones(2).as_subclass(Raising)
    assert problems_of(hiddens=[None, value]) == [("unreadable", "hiddens[1]")]
    assert problems_of(metrics={"a": {"b": value}}) == [("unreadable", "metrics.a.b")]


def test_the_users_containers_are_left_as_they_are() -> None:
    tensor = attached(2)
    hiddens: dict[str, Any] = {"h": [tensor, (tensor, None)]}
    metrics: dict[str, Any] = {"m": {"logits": tensor}}
    output = EvaluationOutput(hiddens=hiddens, metrics=metrics)
    assert hiddens["h"][0] is tensor
    assert hiddens["h"][1][0] is tensor
    assert metrics["m"]["logits"] is tensor
    assert tensor.requires_grad
    assert output.metrics["m"] is not metrics["m"]
