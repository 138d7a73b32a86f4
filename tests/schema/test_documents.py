"""JSON Schema of every model, held against the specification by the library `jsonschema`; the pages made from it."""

import enum
import functools
import json
import math
import re
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float
from jsonschema import Draft202012Validator, ValidationError
from pydantic import BaseModel, Field
from torch import Tensor
from typing_extensions import TypedDict

from strictstep.schema import (
    EvaluationOutput,
    Hiddens,
    ManualOutput,
    Reduce,
    Scalar,
    SkippedStep,
    StepOutput,
    StepRecord,
    TrainingOutput,
)
from strictstep.schema.documents import BUILT_IN, json_schema, page_documents, schema_documents
from strictstep.schema.pages import COERCION_TABLE
from strictstep.schema.step_record import HistoryRecord

ROOT = Path(__file__).parents[2]
AnyModel = type[StepOutput[Any, Any, Any, Any]]
unhurried = settings(deadline=None)  # the first example of a model makes its schema


class Log(TypedDict):
    """What is logged."""

    accuracy: Scalar
    """Share of right answers."""
    images: Annotated[Scalar, Reduce("sum")]
    rate: NotRequired[Scalar]


class Metrics(TypedDict):
    confusion: Float[Tensor, "classes classes"]  # noqa: F722
    """Rows are true classes."""
    count: int
    ratio: Annotated[float, Field(ge=0)]
    parts: list[Tensor]
    by_class: dict[int, float]
    text: NotRequired[str]
    anything: NotRequired[Any]
    day: NotRequired[bytes]


class State(NamedTuple):
    h: Float[Tensor, "layers hidden"]  # noqa: F722
    c: Tensor


class Own(TrainingOutput[Log, Metrics, State]):
    """A team's own output."""


class Overriding(EvaluationOutput):
    """The other spelling: fields overridden in the class."""

    log: Log = {"accuracy": 0, "images": 0}  # type: ignore[assignment]  # noqa: RUF012
    hiddens: Hiddens = None
    metrics: dict[str, Float[Tensor, "*batch 3"]] = {}  # type: ignore[assignment, unused-ignore]  # noqa: F722, RUF012


MODELS: tuple[AnyModel, ...] = (
    StepOutput,
    TrainingOutput,
    ManualOutput,
    EvaluationOutput,
    SkippedStep,
    Own,
    Overriding,
    TrainingOutput[Log],
    TrainingOutput[dict[str, Scalar], Any, tuple[Tensor, Tensor]],
)


@functools.cache
def validator(model: Any) -> Draft202012Validator:
    """The specification's own check of a model's recorded form."""
    return Draft202012Validator(model.model_json_schema(mode="serialization"))


def validator_of(output: Any) -> Draft202012Validator:
    """The same, of an output's model."""
    model: Any = type(output)
    return validator(model)


# -- the schemas themselves


@pytest.mark.parametrize("mode", ["validation", "serialization"])
@pytest.mark.parametrize("model", MODELS)
def test_every_schema_is_valid_by_the_draft(model: AnyModel, mode: Any) -> None:
    Draft202012Validator.check_schema(model.model_json_schema(mode=mode))


@pytest.mark.parametrize("model", [StepRecord, HistoryRecord])
def test_the_schemas_of_records_are_valid_by_the_draft(model: type[BaseModel]) -> None:
    Draft202012Validator.check_schema(model.model_json_schema())


@pytest.mark.parametrize("document", [*schema_documents([*BUILT_IN, Own])], ids=lambda document: document.path)
def test_schema_files_say_their_dialect_and_who_they_are(document: Any) -> None:
    schema = json.loads(document.text)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert re.fullmatch(r"urn:strictstep:schema:1:[\w.]+(:returned|:recorded)?", schema["$id"])
    assert document.text.endswith("}\n")


def test_the_identity_of_a_parametrised_model_is_a_uri() -> None:
    assert json_schema(TrainingOutput[Log])["$id"].endswith("TrainingOutput%5BLog%5D:returned")


def test_the_tensor_contract_stands_in_data_and_in_words() -> None:
    loss = TrainingOutput.model_json_schema()["properties"]["loss"]
    assert loss["x-tensor"] == {"rank": 0, "dtype": "real floating", "gradient": "required", "device": "kept"}
    assert loss["description"].endswith(
        "Tensor of shape `[]` (one element in another shape is viewed as `[]`); real floating dtype; "
        "made by an operation of a graph, and kept as it is; stays on its device."
    )


def test_a_named_shape_stands_in_data_and_in_words() -> None:
    confusion = Own.model_json_schema()["$defs"]["Metrics"]["properties"]["confusion"]
    assert confusion["x-tensor"] == {
        "rank": 2,
        "dims": "classes classes",
        "dtype": "float",
        "gradient": "detached",
        "device": "kept",
    }
    assert confusion["description"] == (
        "Rows are true classes.\n\nTensor of shape `[classes, classes]` (one name is one size within one output); "
        "float dtype; detached; stays on its device."
    )


@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_reductions_and_docstrings_are_in_the_schema(mode: Any) -> None:
    log = Own.model_json_schema(mode=mode)["$defs"]["Log"]
    assert log["description"] == "What is logged."
    assert log["properties"]["accuracy"]["description"] == "Share of right answers."
    assert {name: value["x-reduce"] for name, value in log["properties"].items()} == Own.reductions()["log"]


def test_a_field_that_a_schema_narrows_keeps_the_description_of_the_field() -> None:
    described = Own.model_json_schema()["properties"]["log"]["description"]
    assert described == "Names to scalars for the loggers, each detached and on its device."


def test_a_narrowed_field_whose_default_cannot_pass_is_required() -> None:
    assert TrainingOutput.model_json_schema()["required"] == ["loss"]
    assert Own.model_json_schema()["required"] == ["loss", "log", "hiddens", "metrics"]


def test_a_model_inside_another_pydantic_model_has_a_schema() -> None:
    class Report(BaseModel):
        output: EvaluationOutput

    for mode in ("validation", "serialization"):
        Draft202012Validator.check_schema(Report.model_json_schema(mode=mode))


@pytest.mark.parametrize("model", [TrainingOutput, ManualOutput, EvaluationOutput, SkippedStep])
def test_the_examples_in_a_schema_validate_and_read_back(model: AnyModel) -> None:
    (example,) = model.model_json_schema(mode="serialization")["examples"]
    validator(model).validate(example)
    text = json.dumps(example)
    assert json.loads(StepRecord.model_validate_json(text).model_dump_json()) == example


def test_the_schema_of_a_return_takes_names_for_the_progress_bar() -> None:
    for model in (EvaluationOutput, TrainingOutput[Log, Any, Any, Log]):
        check = Draft202012Validator({**model.model_json_schema(), "required": []})
        check.validate({"progress_bar": ["accuracy"]})
        with pytest.raises(ValidationError, match="is not valid under any of the given schemas"):
            check.validate({"progress_bar": [1]})


# -- what is dumped validates


def loss_of(value: float) -> Tensor:
    """An attached loss of this value."""
    return torch.tensor(value, dtype=torch.float64, requires_grad=True) * 1


NAMES = st.text(st.characters(exclude_categories=()), max_size=6).filter(lambda name: "\\" not in name)
NUMBERS = st.integers() | st.floats() | st.booleans() | st.builds(lambda: 10**5000)
DTYPES = st.sampled_from([torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.float8_e5m2])
SCALARS = NUMBERS | st.builds(lambda value, dtype: torch.tensor(value).to(dtype), st.floats(width=16), DTYPES)
TENSORS = st.sampled_from(
    [torch.zeros(3, 2), torch.ones(0), torch.eye(2).to_sparse(), torch.zeros(2, device="meta"), torch.tensor(1j)]
)
STATES = st.recursive(
    TENSORS | st.none(),
    lambda inner: (
        st.lists(inner, max_size=2) | st.tuples(inner) | st.dictionaries(st.integers() | NAMES, inner, max_size=2)
    ),
    max_leaves=4,
)
VALUES = st.recursive(
    SCALARS
    | TENSORS
    | NAMES
    | st.none()
    | st.binary(max_size=1)
    | st.sets(st.integers(), max_size=1)
    | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.tuples(inner, inner)
        | st.dictionaries(NAMES | st.integers() | st.sampled_from(["$float", "$tensor"]), inner, max_size=2)
        | st.builds(OrderedDict, st.dictionaries(NAMES, inner, max_size=2))
    ),
    max_leaves=6,
)


def free_fields(draw: Callable[..., Any]) -> dict[str, Any]:
    """Values for the fields that a model does not narrow."""
    named = st.dictionaries(NAMES | st.just("$float"), SCALARS, max_size=3)
    metrics = st.dictionaries(NAMES | st.just("$tensor"), VALUES, max_size=3)
    return {"log": draw(named), "progress_bar": draw(named), "hiddens": draw(STATES), "metrics": draw(metrics)}


@st.composite
def own_outputs(draw: Callable[..., Any]) -> StepOutput[Any, Any, Any, Any]:
    """Outputs of a team's own model."""
    log = {"accuracy": draw(SCALARS), "images": draw(SCALARS), **draw(st.sampled_from([{}, {"rate": 1}]))}
    metrics = {
        "confusion": torch.zeros([draw(st.integers(0, 3))] * 2),
        "count": draw(st.integers()),
        "ratio": draw(st.floats(0)),
        "parts": draw(st.lists(TENSORS, max_size=2)),
        "by_class": draw(st.dictionaries(st.integers(), st.floats(), max_size=2)),
        **draw(st.fixed_dictionaries({}, optional={"text": NAMES, "anything": VALUES, "day": st.binary()})),
    }
    state = State(torch.zeros(1, 2), torch.zeros(1))
    bar = draw(st.sampled_from([[], ["accuracy"], {"accuracy": 1.5}]))
    return Own(loss=loss_of(draw(st.floats())), log=log, metrics=metrics, hiddens=state, progress_bar=bar)  # type: ignore[arg-type]


@st.composite
def outputs(draw: Callable[..., Any]) -> StepOutput[Any, Any, Any, Any]:
    """Valid outputs of every stage, free and narrowed."""
    fields = free_fields(draw)
    number = draw(st.floats())
    choices: list[Callable[[], StepOutput[Any, Any, Any, Any]]] = [
        lambda: TrainingOutput(loss=loss_of(number), **fields),
        lambda: ManualOutput(loss=draw(st.sampled_from([None, torch.tensor(number)])), **fields),
        lambda: EvaluationOutput(loss=draw(SCALARS | st.none()), **fields),
        lambda: SkippedStep(reason=draw(NAMES), **fields),
        lambda: draw(own_outputs()),
    ]
    made = draw(st.sampled_from(choices))
    return made()  # type: ignore[no-any-return]


@unhurried
@given(outputs(), st.sampled_from([None, {"tensor_values": 0}, {"tensor_values": 6}]))
def test_every_dump_validates_against_the_schema(output: Any, context: Any) -> None:
    validator_of(output).validate(json.loads(output.model_dump_json(context=context)))


@pytest.mark.parametrize(
    "values",
    [
        {"ratio": math.inf, "by_class": {1: math.nan}},
        {"ratio": 0.5, "count": -(10**5000)},
        {
            "parts": [torch.tensor(2.5), torch.tensor(1j), torch.ones(3)],
            "anything": {1},
            "day": b"x",
            "text": "caf\udce9",
        },
    ],
)
def test_what_json_has_no_number_or_type_for_validates(values: dict[str, Any]) -> None:
    metrics = {"confusion": torch.eye(2), "count": 1, "ratio": 0.5, "parts": [], "by_class": {}, **values}
    log: Log = {"accuracy": math.nan, "images": 1}
    output = Own(loss=loss_of(1.0), log=log, metrics=metrics, hiddens=State(torch.ones(1, 2), torch.ones(1)))  # type: ignore[arg-type]
    validator(Own).validate(json.loads(output.model_dump_json()))


FIELDS = ("loss", "log", "progress_bar", "hiddens", "metrics")


@unhurried
@given(outputs(), st.sampled_from(FIELDS))
def test_a_dump_without_one_of_its_fields_does_not_validate(output: Any, field: str) -> None:
    dumped = json.loads(output.model_dump_json())
    del dumped[field]
    with pytest.raises(ValidationError, match=f"'{field}' is a required property"):
        validator_of(output).validate(dumped)


@unhurried
@given(outputs(), st.sampled_from(["losses", "Loss", "reasons"]))
def test_a_dump_with_an_extra_key_does_not_validate(output: Any, key: str) -> None:
    dumped = json.loads(output.model_dump_json())
    with pytest.raises(ValidationError, match="Additional properties are not allowed"):
        validator_of(output).validate({**dumped, key: 1})


@unhurried
@given(outputs(), st.sampled_from(["loss", "log", "progress_bar"]), st.sampled_from(["0.5", [], {"$float": "NaN"}, {}]))
def test_a_dump_with_a_wrong_type_in_a_typed_field_does_not_validate(output: Any, field: str, wrong: Any) -> None:
    dumped = json.loads(output.model_dump_json())
    dumped[field] = wrong if field == "loss" else {**dumped[field], "accuracy": wrong}
    assert not validator_of(output).is_valid(dumped)


@unhurried
@given(
    own_outputs(),
    st.sampled_from(
        [
            ("log", "accuracies", 1.0),
            ("log", "images", None),
            ("metrics", "confusion", 1.0),
            ("metrics", "confusion", {"shape": [2, 2], "dtype": "float32", "device": "cpu"}),
            ("metrics", "confusion", {"$tensor": {"shape": [2, 2], "dtype": "float32"}}),
            ("metrics", "count", 1.5),
            ("metrics", "ratio", -1.0),
            ("metrics", "parts", [{"$object": "Tensor"}]),
            ("metrics", "by_class", {"$dict": [[1]]}),
            ("metrics", "text", 3),
            ("metrics", "anything", {"$unknown": 1}),
            ("metrics", "anything", {"$float": "nan", "more": 1}),
            ("metrics", "more", 1),
        ]
    ),
)
def test_a_wrong_value_under_a_listed_name_does_not_validate(output: Any, change: tuple[str, str, Any]) -> None:
    field, name, wrong = change
    dumped = json.loads(output.model_dump_json())
    dumped[field][name] = wrong
    assert not validator(Own).is_valid(dumped)


def test_a_dump_without_a_listed_name_does_not_validate() -> None:
    output = TrainingOutput[Log](loss=loss_of(1.0), log={"accuracy": 1, "images": 2})
    dumped = json.loads(output.model_dump_json())
    del dumped["log"]["images"]
    with pytest.raises(ValidationError, match="'images' is a required property"):
        validator(TrainingOutput[Log]).validate(dumped)


# -- the files


class Outside(HTMLParser):
    """Gathers what a page would ask of the network, and its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        sources = [value for name, value in attrs if name in ("src", "srcset", "data", "action") and value]
        links = [value for name, value in attrs if name == "href" and value and tag == "link"]
        self.asked += [*sources, *links, *(["script"] if tag == "script" else [])]


@pytest.mark.parametrize("page", [*page_documents(BUILT_IN, "html")], ids=lambda page: page.path)
def test_an_html_page_asks_nothing_of_the_network(page: Any) -> None:
    if page.path.endswith(".html"):
        outside = Outside()
        outside.feed(page.text)
        assert outside.asked == []
        assert "url(" not in page.text
        assert "@import" not in page.text


@pytest.mark.parametrize("form", ["md", "html"])
def test_every_link_of_a_page_leads_to_a_file_that_is_written(form: Any) -> None:
    written = {document.path: document.text for document in page_documents(BUILT_IN, form)}
    pattern = r"\]\(([^)#]+)\)" if form == "md" else r'<a[^>]* href="([^"#]+)"'
    links = {path: re.findall(pattern, text) for path, text in written.items() if path.endswith(form)}
    assert {link for found in links.values() for link in found} <= written.keys()
    assert sum(map(len, links.values())) > 40


def test_pages_of_ones_own_classes_come_without_those_of_the_library() -> None:
    paths = [document.path for document in page_documents([Own], "md")]
    assert sorted(paths) == ["Own.md", "Own.record.schema.json", "Own.schema.json", "index.md"]


def test_a_page_names_every_field_its_type_and_its_reduction() -> None:
    (page,) = (document.text for document in page_documents([Own], "md") if document.path == "Own.md")
    assert page.startswith("# Own\n\nA team's own output.\n\n| name | type | required | what |\n")
    assert "| `loss` | tensor real floating[] | yes | The loss to descend," in page
    assert "| `images` | Scalar, reduced by sum | yes |" in page
    assert "| `confusion` | tensor float[classes, classes] | yes | Rows are true classes. Tensor of shape" in page


def test_the_coercion_table_has_a_row_for_every_accepted_form() -> None:
    design = ("an output model", "one-element", "mapping", "dataclass", "keys beyond", "no `loss`", "SkippedStep")
    assert all(form in COERCION_TABLE for form in design)
    assert {line.count("|") for line in COERCION_TABLE.splitlines()} == {5}


def test_the_files_are_the_same_whatever_the_hash_seed(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        for form in ("md", "html"):
            command = [
                sys.executable,
                "-m",
                "strictstep.schema",
                "docs",
                "-o",
                str(tmp_path / seed / form),
                "--format",
                form,
            ]
            subprocess.run(command, check=True, env={"PYTHONHASHSEED": seed}, cwd=tmp_path, capture_output=True)
    first, second = (
        {path.relative_to(tmp_path / seed): path.read_bytes() for path in (tmp_path / seed).rglob("*.*")}
        for seed in ("1", "2")
    )
    assert first == second
    assert len(first) > 60


class Colour(enum.Enum):
    RED = "red"


class Box(BaseModel):
    width: int


OF_USERS: list[tuple[Any, Any]] = [
    (Box, Box(width=1)),
    (list[Box], [Box(width=1)]),
    (Path, Path("a")),
    (Colour, Colour.RED),
    (Literal[Colour.RED], Colour.RED),
    (Float[np.ndarray, "b"], np.ones(3)),
    (TypedDict("Tagged", {"$x": int}), {"$x": 1}),  # type: ignore[operator]  # a type, not an entry of a class
    (Callable[[int], int], len),
    (Literal["a", 3], "a"),
    (Float[Tensor, "b"], torch.ones(3)),
]


@pytest.mark.parametrize(("annotation", "value"), OF_USERS, ids=[str(annotation) for annotation, _ in OF_USERS])
def test_what_is_recorded_of_a_users_type_fits_the_schema(annotation: Any, value: Any) -> None:
    class Named(TypedDict):
        value: annotation  # pyright: ignore[reportInvalidTypeForm]

    own: Any = type("Own", (EvaluationOutput[dict[str, Scalar], Named],), {"__module__": __name__})
    text = own(metrics={"value": value}).model_dump_json()
    validator(own).validate(json.loads(text))
    Draft202012Validator.check_schema(own.model_json_schema())
