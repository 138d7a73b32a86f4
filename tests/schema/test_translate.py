"""Nothing of pydantic's leaks in its own voice: each of its built-in types of error is given ours."""

import copy
from typing import Any, get_args

import pydantic_core
import pytest
from pydantic import GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, PydanticKnownError, core_schema
from pydantic_core._pydantic_core import list_all_errors
from pydantic_core.core_schema import ErrorType
from typing_extensions import TypedDict

from strictstep.schema import EvaluationOutput, StepOutputError, coerce

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


def test_no_error_of_pydantic_is_kept() -> None:
    with pytest.raises(StepOutputError, match="annotation_mismatch") as caught:
        coerce({"metrics": {"x": "list_type"}}, schema=EvaluationOutput[Any, Metrics], stage="test")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert not isinstance(caught.value, (pydantic_core.ValidationError, PydanticCustomError))
