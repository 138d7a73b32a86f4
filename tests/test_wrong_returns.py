"""The catalogue of errors: every code has a step that triggers it, and every report stands in full in a text."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from strictstep.schema.errors import ErrorCode

ROOT = Path(__file__).parents[1]
STORED = Path(__file__).with_name("wrong_returns.txt")
RAISED_BY_THE_LOOP = {"loss_non_finite"}


@pytest.fixture(scope="module")
def catalogue() -> ModuleType:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("wrong_returns", ROOT / "examples/wrong_returns.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where `inspect` and pydantic look its names up
    spec.loader.exec_module(module)
    return module


def test_every_code_has_a_step(catalogue: ModuleType) -> None:
    assert set(catalogue.CATALOGUE) == set(get_args(ErrorCode)) - RAISED_BY_THE_LOOP


@pytest.mark.filterwarnings("ignore:Sparse")
def test_every_step_triggers_its_code(catalogue: ModuleType) -> None:
    for code, steps in catalogue.CATALOGUE.items():
        for step in steps:
            assert code in {problem.code for problem in catalogue.report(step).problems}, step.__name__


def test_the_reports_are_those_that_are_stored() -> None:
    """To renew the text after a wanted change: python examples/wrong_returns.py > tests/wrong_returns.txt."""
    command = [sys.executable, "-W", "ignore", "examples/wrong_returns.py"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == STORED.read_text()
