"""The JSON form of an output: what each value becomes, and that a record reads it back byte for byte."""

import json
import math
from collections import OrderedDict, UserDict
from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from strictstep.schema import EvaluationOutput, ManualOutput, SkippedStep, StepRecord, TrainingOutput
from strictstep.schema.step_record import HistoryRecord


class Size(IntEnum):
    SMALL = 3


class Color(Enum):
    RED = "red"


class Pair(NamedTuple):
    first: int
    second: str


class Name(str):
    """A subclass of text whose own `str` lies."""

    def __str__(self) -> str:
        return "lie"


class Hostile(Tensor):
    """A tensor that raises when it is asked for its shape."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.dim, Tensor.shape.__get__):  # type: ignore[attr-defined]
            raise RuntimeError("no")
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


def dumped(value: Any, **options: Any) -> Any:
    """The JSON form of one value in `metrics`, by Python's own JSON reader."""
    return json.loads(EvaluationOutput(metrics={"x": value}).model_dump_json(**options))["metrics"]["x"]


def tensor_form(shape: Any, dtype: str = "float32", device: str = "cpu", **more: Any) -> Any:
    """The tag of a tensor."""
    return {"$tensor": {"shape": shape, "dtype": dtype, "device": device, **more}}


FORMS: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (2**64 + 1, 2**64 + 1),
    (0.1, 0.1),
    (1e308 * 10, {"$float": "inf"}),
    (-math.inf, {"$float": "-inf"}),
    (math.nan, {"$float": "nan"}),
    (Size.SMALL, 3),
    ("nan", "nan"),
    (Name("text"), "text"),
    ("caf\udce9", "caf\\udce9"),
    ({"$float": "nan"}, {"$dict": [["$float", "nan"]]}),
    ({"$tensor": {}}, {"$dict": [["$tensor", {}]]}),
    ({3: "c", "a": 1}, {"$dict": [[3, "c"], ["a", 1]]}),
    ({"\udce9": 1}, {"$dict": [["\\udce9", 1]]}),
    ({"a": {"b": 1}}, {"a": {"b": 1}}),
    (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
    ([1, (2, Pair(3, "c"))], [1, [2, [3, "c"]]]),
    (torch.tensor(2.5), 2.5),
    (torch.tensor(7, dtype=torch.uint8), 7),
    (torch.tensor(0.5, dtype=torch.float8_e4m3fn), 0.5),
    (torch.tensor(math.nan), {"$float": "nan"}),
    (torch.tensor([2.5]), tensor_form([1])),
    (torch.zeros(8, 2, dtype=torch.int64), tensor_form([8, 2], "int64")),
    (torch.nn.Parameter(torch.zeros(3)), tensor_form([3])),
    (torch.zeros(2, device="meta"), tensor_form([2], device="meta")),
    (torch.tensor(1.0, device="meta"), tensor_form([], device="meta")),
    (torch.eye(2).to_sparse(), tensor_form([2, 2])),
    (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged), tensor_form(None)),
    (torch.tensor(1j), tensor_form([], "complex64")),
    (torch.ones(2).as_subclass(Hostile), {"$object": f"{__name__}.Hostile"}),
    (torch.zeros(1, 2).max(dim=1), [tensor_form([1]), tensor_form([1], "int64")]),
    (1j, {"$object": "builtins.complex"}),
    (b"x", {"$object": "builtins.bytes"}),
    ({1}, {"$object": "builtins.set"}),
    (Color.RED, {"$object": f"{__name__}.Color"}),
    (UserDict(), {"$object": "collections.UserDict"}),
    (torch.nn.Linear, {"$object": "builtins.type"}),
]


@pytest.mark.parametrize(("value", "form"), FORMS, ids=lambda value: type(value).__name__)
def test_each_value_has_its_json_form(value: Any, form: Any) -> None:
    assert dumped(value) == form


@pytest.mark.parametrize(("value", "form"), FORMS, ids=lambda value: type(value).__name__)
def test_each_value_reads_back_to_the_same_bytes(value: Any, form: Any) -> None:
    text = EvaluationOutput(metrics={"x": value}, hiddens=None).model_dump_json()
    assert StepRecord.model_validate_json(text).model_dump_json() == text


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (torch.tensor([[1.5, math.nan]]), [[1.5, {"$float": "nan"}]]),
        (torch.tensor([True, False]), [True, False]),
        (torch.tensor([1 + 2j]), [[1.0, 2.0]]),
        (torch.zeros(2, 0), [[], []]),
        (torch.ones(4), [1.0] * 4),
    ],
)
def test_values_of_a_tensor_are_written_on_request(value: Tensor, written: Any) -> None:
    assert dumped(value, context={"tensor_values": 4})["$tensor"]["values"] == written
    assert "values" not in dumped(value)["$tensor"]


@pytest.mark.parametrize("value", [torch.ones(5), torch.eye(2).to_sparse(), torch.ones(1, device="meta")])
def test_values_beyond_the_limit_or_out_of_reach_are_not_written(value: Tensor) -> None:
    assert "values" not in dumped(value, context={"tensor_values": 4})["$tensor"]


@pytest.mark.parametrize("asked", ["64", -1, 1.5, True])
def test_a_wrong_request_for_values_is_an_error(asked: Any) -> None:
    with pytest.raises(PydanticSerializationError, match="expected a count of elements as `tensor_values`, got"):
        dumped(torch.ones(2), context={"tensor_values": asked})


def test_an_int_of_thousands_of_digits_is_written_in_hexadecimal_and_read_back() -> None:
    text = EvaluationOutput(loss=-(16**5000)).model_dump_json()
    assert json.loads(text)["loss"] == {"$int": "-0x1" + "0" * 5000}
    assert StepRecord.model_validate_json(text).loss == -(16**5000)


def test_names_may_begin_with_a_dollar_in_a_field_that_is_a_mapping() -> None:
    output = EvaluationOutput(log={"$float": 1}, metrics={"$tensor": 2})
    assert json.loads(output.model_dump_json())["log"] == {"$float": 1}
    assert json.loads(output.model_dump_json())["metrics"] == {"$tensor": 2}


def test_a_name_with_a_lone_surrogate_is_escaped() -> None:
    assert json.loads(EvaluationOutput(log={"caf\udce9": 1}).model_dump_json())["log"] == {"caf\\udce9": 1}


def test_two_names_that_json_writes_alike_are_an_error() -> None:
    with pytest.raises(PydanticSerializationError, match="got two that differ only in how a surrogate is written"):
        EvaluationOutput(log={"\udce9": 1, "\\udce9": 2}).model_dump_json()


def test_a_scalar_without_a_value_is_a_clear_error() -> None:
    with pytest.raises(PydanticSerializationError, match="cannot be called on meta tensors"):
        EvaluationOutput(loss=torch.tensor(1.0, device="meta")).model_dump_json()


def test_a_container_that_is_shared_a_billion_times_over_is_a_clear_error() -> None:
    shared: list[Any] = [1]
    for _ in range(40):
        shared = [shared, shared]
    for output in (EvaluationOutput(metrics={"x": shared}), EvaluationOutput(metrics={"x": [1] * 1_000_000})):
        with pytest.raises(PydanticSerializationError, match="expected at most 1000000 values in JSON, got more"):
            output.model_dump_json()


def test_a_container_that_is_shared_is_written_at_each_of_its_places() -> None:
    shared = [1]
    assert dumped([shared, {"a": shared}]) == [[1], {"a": [1]}]


def test_python_mode_keeps_the_objects() -> None:
    loss, nan = torch.ones(2, requires_grad=True).sum(), math.nan
    kept = TrainingOutput(loss=loss, log={"nan": nan}).model_dump()
    assert kept["loss"] is loss
    assert kept["log"]["nan"] is nan


def test_a_record_holds_numbers_not_tags() -> None:
    record = StepRecord.from_output(EvaluationOutput(loss=math.inf, log={"a": math.nan}, metrics={"b": [-math.inf]}))
    assert record.loss == math.inf
    assert math.isnan(record.log["a"])
    assert record.metrics["b"] == [-math.inf]


def test_a_skipped_step_has_its_reason_and_others_have_none() -> None:
    skipped = StepRecord.from_output(SkippedStep(reason="no \udce9"))
    assert skipped.reason == "no \\udce9"
    assert "reason" not in json.loads(StepRecord.from_output(EvaluationOutput()).model_dump_json())


def test_a_packed_sequence_is_recorded() -> None:
    packed = pack_sequence([torch.ones(3, 2)])
    assert json.loads(ManualOutput(hiddens=packed).model_dump_json())["hiddens"] == [
        tensor_form([3, 2]),
        tensor_form([3], "int64"),
        None,
        None,
    ]


@pytest.mark.parametrize("nested", [lambda inner: [inner], lambda inner: {"a": inner}, lambda inner: {1: inner}])
def test_the_deepest_accepted_nesting_reads_back(nested: Callable[[Any], Any]) -> None:
    value: Any = 1
    for _ in range(63):
        value = nested(value)
    text = EvaluationOutput(metrics={"x": value}).model_dump_json()
    assert StepRecord.model_validate_json(text).model_dump_json() == text


RECORD = {"loss": 0.5, "log": {}, "progress_bar": {}, "hiddens": None, "metrics": {}}
CHANGES = [
    ({"loss": "0.5"}, "expected a number"),
    ({"loss": {"$float": "NaN"}}, "expected a number"),
    ({"loss": {"$int": "12"}, "log": {"a": {"$int": "x"}}}, "expected a number"),
    ({"log": {"a": None}}, "expected a number"),
    ({"log": []}, r"log\n  Input should be"),
    ({"hiddens": {"$unknown": 1}}, "a JSON value whose tag, if any, is one of `\\$tensor`, `\\$object`, `\\$dict`"),
    ({"hiddens": {"$tensor": {"shape": [2], "dtype": "float32"}}}, "Field required"),
    ({"metrics": {"a": {"$tensor": {}, "b": 1}}}, "Extra inputs are not permitted"),
    ({"metrics": {"a": {"$dict": [[1, 2, 3]]}}}, "at most 2 items"),
    ({"reason": 3}, "valid string"),
    ({"losses": 3}, "Extra inputs are not permitted"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_wrong_record_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        StepRecord.model_validate_json(json.dumps({**RECORD, **change}))


def test_the_error_of_a_wrong_record_holds_no_input() -> None:
    with pytest.raises(ValidationError, match="expected a number") as caught:
        StepRecord.model_validate_json(json.dumps({**RECORD, "loss": "secret" * 10}))
    assert "secret" * 10 not in str(caught.value)


@pytest.mark.parametrize("field", RECORD)
def test_every_field_of_a_record_is_required(field: str) -> None:
    with pytest.raises(ValidationError, match=rf"{field}\n  Field required"):
        StepRecord.model_validate_json(json.dumps({name: value for name, value in RECORD.items() if name != field}))


def test_a_history_record_reads_past_what_a_loop_adds() -> None:
    text = '{"schema_version":1,"kind":"step","epoch":0,"global_step":3,"grad_norm":0.5,"outputs":[]}'
    assert HistoryRecord.model_validate_json(text).global_step == 3


@pytest.mark.parametrize("change", [{"schema_version": 2}, {"kind": "batch"}, {"epoch": -1}, {"outputs": [{}]}])
def test_a_wrong_history_record_is_refused(change: dict[str, Any]) -> None:
    line = {"schema_version": 1, "kind": "step", "epoch": 0, "global_step": 3, **change}
    with pytest.raises(ValidationError, match=next(iter(change))):
        HistoryRecord.model_validate_json(json.dumps(line))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)


@settings(deadline=None)
@given(JSON, st.floats(), st.integers())
def test_what_json_holds_is_written_as_it_is_and_reads_back(value: Any, ratio: float, count: int) -> None:
    output = EvaluationOutput(loss=ratio, log={"count": count}, metrics={"x": value})
    record = StepRecord.model_validate_json(output.model_dump_json())
    assert record.model_dump_json() == output.model_dump_json()
    assert record.loss == pytest.approx(ratio, rel=0, abs=0, nan_ok=True)
    assert record.log["count"] == count
    if "$" not in json.dumps(value):
        assert record.metrics["x"] == value
