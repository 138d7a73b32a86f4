"""Numbers and shapes in annotated `metrics` and `hiddens`: host numbers only, and dimensions that agree."""

from collections.abc import Mapping
from typing import Annotated, Any

import annotated_types
import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import TypedDict

from strictstep.schema import EvaluationOutput, Reduce, Scalar, StepOutputError, coerce


class Numbers(TypedDict, total=False):
    share: float
    count: Annotated[int, annotated_types.Ge(0)]
    flag: bool
    worst: Annotated[float, Reduce("max")]
    anything: Any


class Shapes(TypedDict):
    logits: Float[Tensor, "batch classes"]  # noqa: F722
    labels: Int[Tensor, " batch"]  # noqa: F722


State = tuple[Float[Tensor, "batch hidden"], Float[Tensor, "batch hidden"]]  # noqa: F722


def problems_of(schema: Any, **fields: Any) -> list[tuple[str, str]]:
    """Codes and paths of what is wrong with an output of a schema."""
    with pytest.raises(StepOutputError, match=r"returned an invalid output") as caught:
        coerce(fields, schema=schema, stage="test")
    return [(problem.code, problem.path) for problem in caught.value.problems]


# -- metrics: numbers are numbers of the host


@pytest.mark.parametrize(
    ("name", "value", "number"),
    [
        ("share", 0.5, 0.5),
        ("share", np.float32(0.5), 0.5),
        ("share", np.array(0.5), 0.5),
        ("count", np.int64(3), 3),
        ("count", 3, 3),
        ("flag", np.bool_(True), True),
        ("worst", np.float64(0.1), 0.1),
    ],
)
def test_numbers_of_numpy_become_python_numbers(name: str, value: Any, number: Any) -> None:
    output = coerce({"metrics": {name: value}}, schema=EvaluationOutput[Any, Numbers], stage="test")
    metrics: Any = output.metrics
    assert metrics == {name: number}
    assert type(metrics[name]) is type(number)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share", torch.tensor(0.5)),  # would be read from its device
        ("count", torch.tensor(3)),
        ("flag", torch.tensor(True)),
        ("share", "0.5"),  # strings are never parsed
        ("count", "3"),
        ("flag", "yes"),
        ("count", 0.5),
        ("count", -1),
        ("share", None),
        ("share", np.ones(1)),
    ],
)
def test_nothing_else_is_a_number(name: str, value: Any) -> None:
    schema = EvaluationOutput[Any, Numbers]
    assert problems_of(schema, metrics={name: value}) == [("annotation_mismatch", f"metrics.{name}")]


def test_a_bound_that_fails_says_so() -> None:
    with pytest.raises(StepOutputError, match="annotation_mismatch") as caught:
        coerce({"metrics": {"count": -1}}, schema=EvaluationOutput[Any, Numbers], stage="test")
    assert caught.value.problems[0].message == "expected greater than or equal to 0, got int -1"


class Inner(TypedDict):
    x: float


class Deep(TypedDict, total=False):
    rows: list[float]
    pair: tuple[int, float]
    by_name: dict[str, float]
    maybe: float | None
    inner: Inner
    inners: list[Inner] | None
    either: int | Tensor
    scalar: Scalar
    more: tuple[float, ...]
    listed: Mapping[str, list[float]]


# numbers of numpy, wherever a number is annotated, and what they become
DEEP: list[tuple[str, Any, Any]] = [
    ("rows", [np.float32(0.5), 1.0], [0.5, 1.0]),
    ("pair", (np.int64(2), np.float64(0.5)), (2, 0.5)),
    ("by_name", {"a": np.float32(0.5)}, {"a": 0.5}),
    ("maybe", np.float32(0.5), 0.5),
    ("maybe", None, None),
    ("inner", {"x": np.array(0.5)}, {"x": 0.5}),
    ("inners", [{"x": np.float32(0.5)}], [{"x": 0.5}]),
    ("either", np.int32(3), 3),
    ("more", (np.float32(0.5), 1.5), (0.5, 1.5)),
    ("listed", {"a": [np.float32(0.5)]}, {"a": [0.5]}),
]


@pytest.mark.parametrize(("name", "value", "number"), DEEP, ids=lambda value: value if isinstance(value, str) else "")
def test_numbers_of_numpy_become_python_numbers_at_any_depth(name: str, value: Any, number: Any) -> None:
    metrics: Any = coerce({"metrics": {name: value}}, schema=EvaluationOutput[Any, Deep], stage="test").metrics
    assert metrics == {name: number}
    assert "numpy" not in repr(metrics) + str(type(metrics[name]))


class Loud(Tensor):
    """A tensor that must not be read."""

    def __float__(self) -> float:
        raise AssertionError("the value was read")


@pytest.mark.parametrize(
    ("name", "make", "path"),
    [
        ("rows", lambda t: [1.0, t], "metrics.rows[1]"),
        ("pair", lambda t: (1, t), "metrics.pair[1]"),
        ("by_name", lambda t: {"a": t}, "metrics.by_name.a"),
        ("maybe", lambda t: t, "metrics.maybe"),
        ("inner", lambda t: {"x": t}, "metrics.inner.x"),
        ("inners", lambda t: [{"x": t}], "metrics.inners[0].x"),
        ("more", lambda t: (t,), "metrics.more[0]"),
        ("listed", lambda t: {"a": [t]}, "metrics.listed.a[0]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_tensor_is_never_read_as_a_number(name: str, make: Any, path: str) -> None:
    tensor = torch.ones(()).as_subclass(Loud)
    assert problems_of(EvaluationOutput[Any, Deep], metrics={name: make(tensor)}) == [("annotation_mismatch", path)]
    mapped = EvaluationOutput[Any, dict[str, float]]
    assert problems_of(mapped, metrics={"a": tensor}) == [("annotation_mismatch", "metrics.a")]


def test_a_tensor_stands_where_one_is_annotated() -> None:
    tensor = torch.ones(())
    for name in ("either", "scalar"):
        metrics: Any = EvaluationOutput[Any, Deep](metrics={name: tensor}).metrics  # type: ignore[misc]
        assert metrics[name] is tensor


def test_a_float_or_a_tensor_is_refused_at_the_definition() -> None:
    class Either(TypedDict):
        x: float | Tensor

    with pytest.raises(TypeError, match=r"got an annotation of either\n  help: annotate with `Scalar`"):
        type("Team", (EvaluationOutput,), {"__annotations__": {"metrics": Either}})


class Node(TypedDict, total=False):
    value: float
    below: "list[Node]"


def test_a_schema_may_name_itself() -> None:
    schema = EvaluationOutput[Any, Node]
    output = coerce({"metrics": {"below": [{"value": np.float32(0.5)}]}}, schema=schema, stage="test")
    assert output.metrics == {"below": [{"value": 0.5}]}
    assert problems_of(schema, metrics={"below": [{"value": torch.ones(())}]}) == [
        ("annotation_mismatch", "metrics.below[0].value")
    ]


# -- shapes

Shaped = EvaluationOutput[Any, Shapes]


def shapes(rows: int, labels: int) -> Shapes:
    return {"logits": torch.zeros(rows, 10), "labels": torch.zeros(labels, dtype=torch.int64)}


def test_named_dimensions_agree_within_one_output_and_are_forgotten_after_it() -> None:
    for rows in (3, 5):
        metrics = shapes(rows, rows)
        output = coerce({"metrics": metrics}, schema=Shaped, stage="test")
        assert output.metrics["logits"] is metrics["logits"]
    assert problems_of(Shaped, metrics=shapes(3, 5)) == [("annotation_mismatch", "metrics.labels")]
    assert Shaped(metrics=shapes(2, 2)).metrics["labels"].shape == (2,)


def test_a_wrong_shape_or_dtype_says_what_was_expected() -> None:
    metrics = {"logits": torch.zeros(3), "labels": torch.zeros(3)}
    with pytest.raises(StepOutputError, match="annotation_mismatch") as caught:
        coerce({"metrics": metrics}, schema=Shaped, stage="test")
    first, second = caught.value.problems
    assert first.path == "metrics.logits"
    assert first.message == "expected an instance of Float[Tensor, 'batch classes'], got float32[3] tensor on cpu"
    assert second.path == "metrics.labels"
    assert first.help == "return what the schema annotates; dimensions of one name must agree within one output"


def test_dimensions_agree_between_hiddens_and_metrics() -> None:
    class Team(EvaluationOutput[Any, Shapes, State]):
        """Hiddens with shapes."""

    hiddens = (torch.zeros(3, 4), torch.zeros(3, 4))
    assert Team(hiddens=hiddens, metrics=shapes(3, 3)).hiddens[0].shape == (3, 4)
    assert problems_of(Team, hiddens=hiddens, metrics=shapes(2, 2))[0][0] == "annotation_mismatch"
    wrong = (torch.zeros(3, 4), torch.zeros(3, 5))
    assert problems_of(Team, hiddens=wrong, metrics=shapes(3, 3)) == [("annotation_mismatch", "hiddens[1]")]
    assert problems_of(Team, metrics=shapes(3, 3)) == [("annotation_mismatch", "hiddens")]
