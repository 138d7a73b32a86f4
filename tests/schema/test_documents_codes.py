"""The pages of the error codes: one for each code, and the step on it really triggers it."""

from collections import UserDict
from typing import Any, get_args

import pytest
import torch
from pydantic import field_validator
from typing_extensions import TypedDict

import strictstep.schema
from strictstep.schema import StepOutputError
from strictstep.schema.codes import EXPLANATIONS
from strictstep.schema.errors import ErrorCode
from strictstep.schema.pages import error_page, errors_page, first_sentence

BY_THE_LOOP = {"loss_non_finite"}
CODES: tuple[ErrorCode, ...] = get_args(ErrorCode)


def test_the_pages_cover_exactly_the_codes() -> None:
    assert set(EXPLANATIONS) == set(CODES)


@pytest.mark.parametrize("code", [code for code in CODES if code not in BY_THE_LOOP])
def test_the_step_on_a_page_triggers_its_code_alone(code: ErrorCode) -> None:
    names: dict[str, Any] = {
        **{name: getattr(strictstep.schema, name) for name in strictstep.schema.__all__},
        "__name__": "__main__",
        "torch": torch,
        "Any": Any,
        "TypedDict": TypedDict,
        "UserDict": UserDict,
        "field_validator": field_validator,
        "model": torch.nn.Linear(4, 3),
        "batch": torch.ones(8, 4),
    }
    with pytest.raises(StepOutputError, match=rf"\[{code}\]") as caught:
        exec(EXPLANATIONS[code].example, names)
    assert {problem.code for problem in caught.value.problems} == {code}


@pytest.mark.parametrize("code", CODES)
def test_a_page_has_cause_example_and_cure(code: ErrorCode) -> None:
    page = error_page(code)
    assert page.startswith(f"# {code}\n\n{EXPLANATIONS[code].cause}\n\n```python\n")
    assert page.endswith(f"\n```\n\n**Cure.** {EXPLANATIONS[code].cure}\n")


@pytest.mark.parametrize("code", CODES)
def test_the_prose_of_a_page_ends_its_sentences(code: ErrorCode) -> None:
    assert EXPLANATIONS[code].cause[-1] == "."
    assert EXPLANATIONS[code].cure[-1] == "."
    assert first_sentence(code).count("`") % 2 == 0


def test_the_list_links_every_page() -> None:
    assert all(f"- [`{code}`](errors/{code}.md): " in errors_page() for code in CODES)
