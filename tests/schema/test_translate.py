"""Nothing of pydantic's leaks in its own voice: each of its built-in types of error is given ours."""

import copy
from collections import defaultdict
from typing import Annotated, Any, Literal, NamedTuple, get_args

import pydantic
import pydantic_core
import pytest
import torch
from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, PydanticKnownError, core_schema
from pydantic_core._pydantic_core import list_all_errors
from pydantic_core.core_schema import ErrorType
from typing_extensions import TypedDict

from strictstep.schema import EvaluationOutput, StepOutputError, TrainingOutput, coerce
from strictstep.schema.describe import describe

BUILT_IN = {error["type"]: error for error in list_all_errors()}
OURS = ("missing", "extra_forbidden", "value_error", "assertion_error")  # these have codes of their own


def known_error(kind: Any) -> PydanticKnownError:
    """An error of one of pydantic's built-in types, with the context that it demands."""
    context = BUILT_IN[kind].get("example_context")
    if kind in ("value_error", "assertion_error"):
        return PydanticKnownError(kind, {"error": ValueError("Not this.")})
    return PydanticKnownError(kind, copy.deepcopy(context) if context else None)


class Raising:
    """An annotation whose check raises the error that it is given as value."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def check(value: Any) -> Any:
            raise known_error(value)

        return core_schema.no_info_plain_validator_function(check)


class Metrics(TypedDict):
    x: Raising


def problem_of(kind: str) -> Any:
    """The one problem that an error of a built-in type becomes."""
    with pytest.raises(StepOutputError, match=r"returned an invalid output") as caught:
        coerce({"metrics": {"x": kind}}, schema=EvaluationOutput[Any, Metrics], stage="test")
    (problem,) = caught.value.problems
    return problem


def test_every_built_in_type_is_known() -> None:
    assert set(get_args(ErrorType)) == set(BUILT_IN)


@pytest.mark.parametrize("kind", [kind for kind in BUILT_IN if kind not in OURS])
def test_every_built_in_type_speaks_in_our_voice(kind: str) -> None:
    problem = problem_of(kind)
    assert (problem.code, problem.path) == ("annotation_mismatch", "metrics.x")
    assert problem.message.startswith("expected ")
    assert problem.message.endswith(f", got str '{kind if len(kind) <= 40 else kind[:37] + '...'}'")
    assert not problem.message.endswith(".")
    assert "input should" not in problem.message.lower()
    assert problem.help == "return what the schema annotates; dimensions of one name must agree within one output"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("list_type", "a valid list"),
        ("none_required", "None"),
        ("timezone_aware", "a value that should have timezone info"),
        ("timezone_naive", "a value that should not have timezone info"),
        ("fraction_parsing", "a value that is not a valid fraction"),
        ("string_not_ascii", "a value that fits its annotation (string should contain only ASCII characters)"),
        ("url_type", "a string or URL"),
        ("uuid_version", "a value that fits its annotation (UUID version 0 expected)"),
        ("decimal_max_digits", "a value that should have no more than 0 digits in total"),
    ],
)
def test_the_words_of_pydantic_become_ours(kind: str, expected: str) -> None:
    assert problem_of(kind).message.startswith(f"expected {expected}, got str ")


def test_exceptions_of_users_checks_keep_their_words() -> None:
    for kind in ("value_error", "assertion_error"):
        problem = problem_of(kind)
        assert (problem.code, problem.message) == ("own_check_failed", "Not this.")


def test_a_union_gives_one_problem_at_its_place() -> None:
    class Union(TypedDict):
        x: list[int] | dict[str, int] | None

    for value, path in (("x", "metrics.x"), ([1, "a"], "metrics.x")):
        with pytest.raises(StepOutputError, match="annotation_mismatch") as caught:
            coerce({"metrics": {"x": value}}, schema=EvaluationOutput[Any, Union], stage="test")
        assert {problem.path for problem in caught.value.problems} <= {path, f"{path}[1]"}
        assert "list[" not in "".join(problem.path for problem in caught.value.problems)


def problems_of(annotation: Any, value: Any) -> list[tuple[str, str, str]]:
    """Code, path and message of each problem of a value that stands in annotated metrics."""
    make: Any = TypedDict
    model: Any = EvaluationOutput
    with pytest.raises(StepOutputError, match=r"returned an invalid output") as caught:
        coerce({"metrics": {"x": value}}, schema=model[Any, make("Given", {"x": annotation})], stage="test")
    return [(problem.code, problem.path, problem.message) for problem in caught.value.problems]


class Inner(TypedDict):
    a: int


class InnerTuple(NamedTuple):
    a: int


class InnerModel(pydantic.BaseModel):
    a: int


@pytest.mark.parametrize("key", [3, None, (1, 2), torch.tensor(123.5)], ids=describe)
@pytest.mark.parametrize("annotation", [Inner, InnerTuple, InnerModel])
def test_a_key_that_is_no_text_inside_a_typed_value_is_a_problem(annotation: Any, key: Any) -> None:
    problems = problems_of(annotation, {key: 1})
    assert ("key_missing", "metrics.x.a", "expected the name `a`, got no names") in problems
    assert "123" not in str(problems)


def test_a_key_that_is_no_text_in_a_validated_dict_is_a_problem() -> None:
    with pytest.raises(StepOutputError, match="loss_missing"):
        TrainingOutput.model_validate({3: 1})


class Cat(TypedDict):
    kind: Literal["cat"]


class Dog(TypedDict):
    kind: Literal["dog"]


@pytest.mark.parametrize("tag", [torch.tensor([123.456, 789.25]), "fish" * 150, object()], ids=describe)
def test_a_tag_that_arrived_is_not_written_out(tag: Any) -> None:
    expected = "expected a value whose tag 'kind' is one of 'cat', 'dog', got dict of length 1"
    annotation = Annotated[Cat | Dog, Field(discriminator="kind")]
    assert problems_of(annotation, {"kind": tag}) == [("annotation_mismatch", "metrics.x", expected)]


def test_what_was_expected_is_cut() -> None:
    names: Any = tuple(f"name_{number}" for number in range(500))
    ((_, _, message),) = problems_of(Literal[names], "z")
    assert message.startswith("expected 'name_0', 'name_1', ")
    assert message.endswith(" ..., got str 'z'")
    assert len(message) < 240


def test_a_tensor_and_a_users_dict_are_not_indexed_by_what_pydantic_adds_to_a_path() -> None:
    given: Any = defaultdict(list, a=1.5)  # the tensor would warn, which is an error here
    for annotation, value in ((bool | int, torch.tensor([1, 2])), (dict[str, int] | int, given)):
        assert {problem[:2] for problem in problems_of(annotation, value)} == {("annotation_mismatch", "metrics.x")}
    assert given == {"a": 1.5}


def test_no_error_of_pydantic_is_kept() -> None:
    with pytest.raises(StepOutputError, match="annotation_mismatch") as caught:
        coerce({"metrics": {"x": "list_type"}}, schema=EvaluationOutput[Any, Metrics], stage="test")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert not isinstance(caught.value, (pydantic_core.ValidationError, PydanticCustomError))
