"""The rules of `log` and `progress_bar`: names to scalars, each on its device, none of them read."""

import enum
import json
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from strictstep.schema import EvaluationOutput, StepOutputError, coerce


class Count(enum.IntEnum):
    TWO = 2


class Name(enum.StrEnum):
    ACC = "acc"


class Marked(Tensor):
    """A subclass that does what a tensor does."""


def logged(value: Any) -> Any:
    """What a value under a name in `log` becomes."""
    return EvaluationOutput(log={"a": value}).log["a"]


def problems_of(**fields: Any) -> list[tuple[str, str]]:
    """Codes and paths of what is wrong with an evaluation output."""
    with pytest.raises(StepOutputError, match=r"returned an invalid output") as caught:
        coerce(fields, stage="validation")
    return [(problem.code, problem.path) for problem in caught.value.problems]


# a number of the host, and what it becomes: (value, number)
NUMBERS: list[tuple[Any, Any]] = [
    (0.5, 0.5),
    (True, True),
    (2**80 + 1, 2**80 + 1),  # exact: no float holds it
    (2**53 + 1, 2**53 + 1),
    (Count.TWO, 2),
    (np.float64(0.1), 0.1),
    (np.float32(0.5), 0.5),
    (np.float16(0.5), 0.5),
    (np.int64(2**62 + 1), 2**62 + 1),
    (np.uint64(2**64 - 1), 2**64 - 1),
    (np.bool_(True), True),
    (np.array(3), 3),
    (np.array(0.5), 0.5),
    (np.array(False), False),
    (np.array(7, dtype=object), 7),
]


@pytest.mark.parametrize(("value", "number"), NUMBERS, ids=lambda value: f"{type(value).__name__} {value!r}")
def test_a_number_of_the_host_becomes_a_python_number(value: Any, number: Any) -> None:
    assert logged(value) == number
    assert type(logged(value)) is type(number)


def test_nan_and_infinity_stay() -> None:
    assert np.isnan(logged(float("nan")))
    assert logged(np.float32("inf")) == float("inf")


# a tensor that is a scalar
TENSORS: dict[str, Callable[[], Tensor]] = {
    "shape []": lambda: torch.tensor(0.5),
    "shape [1]": lambda: torch.tensor([0.5]),
    "shape [1, 1]": lambda: torch.tensor([[0.5]]),
    "attached": lambda: torch.ones(3, requires_grad=True).sum(),
    "attached [1]": lambda: torch.ones(1, requires_grad=True) * 2,
    "int64": lambda: torch.tensor(3),
    "bool": lambda: torch.tensor(True),
    "uint16": lambda: torch.ones((), dtype=torch.uint16),
    "bfloat16": lambda: torch.ones((), dtype=torch.bfloat16),
    "float8": lambda: torch.ones(()).to(torch.float8_e5m2),
    "meta": lambda: torch.ones(1, device="meta"),
    "parameter": lambda: nn.Parameter(torch.ones(1)),
    "subclass": lambda: torch.ones(()).as_subclass(Marked),
}


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("field", ["log", "progress_bar"])
def test_a_tensor_is_detached_and_shares_its_storage(name: str, field: str) -> None:
    tensor = TENSORS[name]()
    fields: dict[str, Any] = {field: {"a": tensor}}
    kept = getattr(coerce(fields, stage="test"), field)["a"]
    assert kept.shape == ()
    assert not kept.requires_grad
    assert (kept.dtype, kept.device) == (tensor.dtype, tensor.device)
    assert kept.untyped_storage()._cdata == tensor.untyped_storage()._cdata


def test_a_tensor_without_a_graph_is_kept_as_it_is() -> None:
    tensor = torch.tensor(0.5)
    assert logged(tensor) is tensor


class Metric:
    """What torchmetrics has: it gives a number when it is asked for it."""

    def compute(self) -> float:
        return 0.5

    def __iter__(self) -> Any:
        raise NotImplementedError


def array_in_itself() -> Any:
    array = np.empty((), dtype=object)
    array[()] = array
    return array


# no scalar: (value, code, message, a part of the help)
WRONG: dict[str, tuple[Any, str, str, str]] = {
    "vector": (torch.ones(8), "scalar_not_single", "a scalar, got float32[8] tensor on cpu", "`x.mean()`"),
    "empty": (torch.ones(0), "scalar_not_single", "a scalar, got float32[0] tensor on cpu", "leave the name out"),
    "array": (np.ones(1), "scalar_not_single", "a scalar, got float64[1] array", "`float(x.mean())`"),
    "complex": (1j, "scalar_complex", "a real scalar, got complex 0+1j", "`abs(x)`"),
    "numpy complex": (np.complex64(1), "scalar_complex", "a real scalar, got numpy.complex64", "`abs(x)`"),
    "complex tensor": (
        torch.ones((), dtype=torch.complex64),
        "scalar_complex",
        "a real scalar, got complex64[] tensor on cpu",
        "`x.abs()`",
    ),
    "sparse": (
        torch.ones(1).to_sparse(),
        "scalar_not_strided",
        "a dense scalar, got sparse_coo float32[1] tensor on cpu",
        "`x.to_dense()`",
    ),
    "bits": (
        torch.empty((), dtype=torch.bits8),
        "scalar_wrong_type",
        "a scalar of a real dtype, got bits8[] tensor on cpu",
        "convert it",
    ),
    "None": (None, "scalar_wrong_type", "a scalar, got None", "leave the name out"),
    "str": ("0.5", "scalar_wrong_type", "a scalar, got str '0.5'", "strings are never parsed"),
    "dict": ({"a": 1}, "scalar_wrong_type", "a scalar, got dict of length 1", "flatten the names"),
    "list": ([1], "scalar_wrong_type", "a scalar, got list[int]", "reduce it to one number"),
    "object": (object(), "scalar_wrong_type", "a scalar, got object object", "log a number in its place"),
    "set": ({1}, "scalar_wrong_type", "a scalar, got set of length 1", "reduce it to one number"),
    "range": (range(2), "scalar_wrong_type", "a scalar, got range object", "reduce it to one number"),
    "UserDict": (UserDict(a=1), "scalar_wrong_type", "a scalar, got UserDict object", "flatten the names"),
    "metric": (Metric(), "scalar_wrong_type", "a scalar, got Metric object", "`x.compute()`"),
    "fraction": (Fraction(1, 2), "scalar_wrong_type", "a scalar, got Fraction object", "`float(x)`"),
    "masked": (
        np.ma.masked,
        "scalar_wrong_type",
        "a scalar, got float64[] array that is masked and has no value",
        "leave the name out",
    ),
    "masked array": (
        np.ma.array(3, mask=True),
        "scalar_wrong_type",
        "a scalar, got int64[] array that is masked and has no value",
        "leave the name out",
    ),
    "array in itself": (array_in_itself(), "scalar_not_single", "a scalar, got object[] array", "reduce it first"),
    "timedelta": (np.timedelta64(1, "s"), "scalar_wrong_type", "a scalar, got numpy.timedelta64", "`float(x)`"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("field", ["log", "progress_bar"])
def test_anything_else_is_an_error_at_its_name(name: str, field: str) -> None:
    value, code, message, help = WRONG[name]
    with pytest.raises(StepOutputError, match=code) as caught:
        coerce({field: {"top 1": value}}, stage="validation")
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == (code, f"{field}['top 1']")
    assert problem.message == f"expected {message}"
    assert help in problem.help


def test_every_wrong_value_is_named_at_once() -> None:
    log = {"list": [1], "fine": 1, "text": "x", "vector": torch.ones(2)}
    assert problems_of(log=log) == [
        ("scalar_wrong_type", "log.list"),
        ("scalar_wrong_type", "log.text"),
        ("scalar_not_single", "log.vector"),
    ]


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict, MappingProxyType], ids=lambda kind: kind.__name__)
def test_any_mapping_becomes_a_new_dict_in_the_same_order(kind: Any) -> None:
    values = kind({"b": 1, "a": 2})
    log = EvaluationOutput(log=values).log
    assert type(log) is dict
    assert list(log.items()) == [("b", 1), ("a", 2)]
    assert log is not values


@pytest.mark.parametrize("value", [None, 3, "acc", b"acc", torch.ones(1)], ids=repr)
@pytest.mark.parametrize("field", ["log", "progress_bar", "metrics"])
def test_a_field_that_is_no_mapping_is_an_error(field: str, value: Any) -> None:
    assert problems_of(**{field: value}) == [("field_not_mapping", field)]


def test_a_list_is_no_log() -> None:
    assert problems_of(log=["acc"]) == [("field_not_mapping", "log")]


@pytest.mark.parametrize("key", [Name.ACC, np.str_("acc")], ids=["StrEnum", "numpy.str_"])
def test_a_key_of_a_subclass_of_str_becomes_its_text(key: Any) -> None:
    output = EvaluationOutput(log={key: 1}, metrics={key: 2}, progress_bar={key: 3})
    for values in (output.log, output.metrics, output.progress_bar):
        assert [type(name) for name in values] == [str]
        assert list(values) == ["acc"]


@pytest.mark.parametrize("key", [3, None, ("a", "b"), b"acc", 0.5], ids=repr)
@pytest.mark.parametrize("field", ["log", "progress_bar", "metrics"])
def test_a_key_that_is_no_text_is_an_error(field: str, key: Any) -> None:
    assert problems_of(**{field: {key: 1}}) == [("key_not_string", field)]


def test_names_that_become_one_are_an_error() -> None:
    class Twin(str):
        def __hash__(self) -> int:
            return 7

        def __eq__(self, other: object) -> bool:
            return self is other

    assert problems_of(log={"acc": 1, Twin("acc"): 2}) == [("key_twice", "log.acc")]


LOG = {"acc": 0.5, "lr": 0.1}


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["acc"], {"acc": 0.5}),
        (("lr", "acc"), {"acc": 0.5, "lr": 0.1}),
        ({"lr"}, {"lr": 0.1}),
        (frozenset({"lr"}), {"lr": 0.1}),
        (LOG.keys(), LOG),
        ([], {}),
        (["acc", "acc"], {"acc": 0.5}),
        ([Name.ACC], {"acc": 0.5}),
        ([np.str_("acc")], {"acc": 0.5}),
    ],
    ids=repr,
)
def test_the_progress_bar_may_be_names_of_log_values(names: Any, shown: dict[str, float]) -> None:
    assert coerce({"log": LOG, "progress_bar": names}, stage="test").progress_bar == shown


def test_named_values_are_those_of_the_log() -> None:
    output = coerce({"log": {"a": torch.tensor([0.5])}, "progress_bar": ["a"]}, stage="test")
    assert output.progress_bar["a"] is output.log["a"]


def test_an_unknown_name_is_an_error_with_the_nearest_one() -> None:
    with pytest.raises(StepOutputError, match="progress_bar_unknown_name") as caught:
        coerce({"log": {"accuracy": 1}, "progress_bar": ["Accuracy", "f1"]}, stage="test")
    near, far = caught.value.problems
    assert (near.path, near.help) == ("progress_bar[0]", "write `accuracy`")
    assert near.message == "expected the name of a `log` value, got str 'Accuracy'; `log` has `accuracy`"
    assert far.path == "progress_bar[1]"
    assert far.help == "put the value into `log`, or give `progress_bar` a dict of its own"


def test_where_the_log_came_under_a_near_name_that_is_what_the_bar_is_told_of() -> None:
    with pytest.raises(StepOutputError, match="progress_bar_unknown_name") as caught:
        coerce({"logs": {"acc": 0.5}, "progress_bar": ["acc"]}, stage="test")
    assert caught.value.problems[0].help == "rename `logs` to `log`"


def test_names_without_a_log_are_unknown() -> None:
    with pytest.raises(StepOutputError, match=r"got str 'a'; `log` has no values  \[progress_bar_unknown_name\]"):
        coerce({"progress_bar": ["a"]}, stage="test")


@pytest.mark.parametrize("name", [3, None, ["a"]], ids=repr)
def test_a_name_that_is_no_text_is_an_error(name: Any) -> None:
    assert problems_of(log={"a": 1}, progress_bar=[name]) == [("key_not_string", "progress_bar[0]")]


def test_names_are_not_looked_up_in_a_wrong_log() -> None:
    assert problems_of(log={"a": "x"}, progress_bar=["a", "b"]) == [("scalar_wrong_type", "log.a")]
    assert problems_of(log={"a": "x"}, progress_bar=[3]) == [
        ("scalar_wrong_type", "log.a"),
        ("key_not_string", "progress_bar[0]"),
    ]


def test_a_value_that_raises_is_unreadable_at_its_name() -> None:
    class Raising(Tensor):
        def numel(self) -> int:
            raise ConnectionError("no")

    value = torch.ones(2).as_subclass(Raising)
    assert problems_of(log={"a": value, "b": "x"}) == [("unreadable", "log.a"), ("scalar_wrong_type", "log.b")]


def test_names_that_raise_are_unreadable() -> None:
    class Raising(list[str]):
        def __iter__(self) -> Any:
            raise ConnectionError("no")

    assert problems_of(log={"a": 1}, progress_bar=Raising(["a"])) == [("unreadable", "progress_bar")]


def test_the_users_dicts_are_left_as_they_are() -> None:
    tensor = torch.ones(1, requires_grad=True) * 2
    log = {"a": tensor, "n": np.float32(1)}
    returned = {"log": log, "progress_bar": ["a"]}
    coerce(returned, stage="test")
    assert returned == {"log": log, "progress_bar": ["a"]}
    assert log["a"] is tensor
    assert (tensor.shape, tensor.requires_grad) == ((1,), True)
    assert type(log["n"]) is np.float32


@pytest.mark.parametrize("array", [np.ma.array(3, mask=True), array_in_itself()], ids=["masked", "in itself"])
def test_an_array_without_a_number_in_it_is_written_as_an_object(array: Any) -> None:
    written = json.loads(EvaluationOutput(metrics={"a": array}).model_dump_json())
    name = f"{type(array).__module__}.{type(array).__name__}"
    assert written["metrics"] == {"a": {"$object": name}}


@pytest.mark.parametrize(
    "names", [iter(["acc"]), deque(["acc"]), np.array(["acc"]), True], ids=["iterator", "deque", "array", "bool"]
)
def test_a_bar_of_no_mapping_is_told_that_a_list_of_names_would_do(names: Any) -> None:
    with pytest.raises(StepOutputError, match="field_not_mapping") as caught:
        coerce({"log": {"acc": 1}, "progress_bar": names}, stage="test")
    (problem,) = caught.value.problems
    assert problem.message.startswith("expected a mapping of names to values, or a list of names of `log`, got ")
    assert problem.help == "return a list of names, for example `list(log)` for all of them"


def test_a_dict_among_the_names_of_the_bar_is_told_to_stand_alone() -> None:
    with pytest.raises(StepOutputError, match="key_not_string") as caught:
        coerce({"progress_bar": [{"a": 1}]}, stage="test")
    (problem,) = caught.value.problems
    assert problem.help == "a list of names holds no containers: return one dict of names to values in its place"


def test_one_name_alone_is_told_to_be_put_in_a_list() -> None:
    with pytest.raises(StepOutputError, match="field_not_mapping") as caught:
        coerce({"log": {"acc": 1}, "progress_bar": "acc"}, stage="test")
    assert caught.value.problems[0].help == "return a list of names: `['acc']`"
