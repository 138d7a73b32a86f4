"""What holds for the repository as a whole: the package list, the order of imports, the documents that run."""

import ast
import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import strictstep.loop
import strictstep.schema

ROOT = Path(__file__).parents[1]
ROOMS = (strictstep.schema, strictstep.loop)
HAS_SOURCE = (ROOT / "schema").is_dir()
needs_source = pytest.mark.skipif(not HAS_SOURCE, reason="runs against an installed wheel: there is no source tree")


def modules() -> Iterator[str]:
    """The names of all modules of both packages."""
    for room in ROOMS:
        yield room.__name__
        yield from (module.name for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."))


def python_files() -> list[Path]:
    """The source files of both packages."""
    return [path for room in ("schema", "loop") for path in (ROOT / room).rglob("*.py")]


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@needs_source
def test_the_package_list_names_every_folder() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.parent.relative_to(ROOT).as_posix().replace("/", ".") for path in python_files()}
    assert set(project["packages"]) == {f"strictstep.{folder}" for folder in folders}


@needs_source
def test_every_package_has_a_typed_marker() -> None:
    assert all((ROOT / room / "py.typed").is_file() for room in ("schema", "loop"))


@needs_source
def test_the_schema_room_never_imports_the_loop_room() -> None:
    offenders = [path for path in (ROOT / "schema").rglob("*.py") if any("strictstep.loop" in n for n in imports(path))]
    assert offenders == []


def test_the_import_check_notices_an_import_of_the_loop_room(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def late():\n    from strictstep import loop\n")
    assert "strictstep.loop" in set(imports(bad))


@needs_source
def test_there_are_no_import_cycles() -> None:
    names = {
        f"strictstep.{p.relative_to(ROOT).with_suffix('').as_posix().replace('/', '.')}": p for p in python_files()
    }
    left = {name: {target for target in imports(path) if target in names} for name, path in names.items()}
    while left:
        leaves = {name for name, targets in left.items() if not targets & left.keys()}
        assert leaves, f"a cycle among {sorted(left)}"
        left = {name: targets for name, targets in left.items() if name not in leaves}


@needs_source
def test_imports_inside_functions_are_of_optional_dependencies_only() -> None:
    optional = {"jaxtyping", "json_schema_for_humans", "markdown2", "torchmetrics", "tensorboard", "torch"}
    for path in python_files():
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                late = [n for n in ast.walk(function) if isinstance(n, (ast.Import, ast.ImportFrom))]
                names = {a.name.split(".")[0] for n in late if isinstance(n, ast.Import) for a in n.names}
                names |= {(n.module or "").split(".")[0] for n in late if isinstance(n, ast.ImportFrom)}
                assert names <= optional, f"{path}: {function.name} imports {names - optional}"


@needs_source
@pytest.mark.parametrize("room", ["schema", "loop"])
def test_a_room_imported_by_its_folder_name_refuses(room: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", f"import {room}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert f"ImportError: import `strictstep.{room}`, not `{room}`" in run.stderr


def test_all_names_what_is_public() -> None:
    for room in ROOMS:
        public = {name for name, value in vars(room).items() if not name.startswith("_")}
        public -= {name.rpartition(".")[2] for name in modules()}
        assert sorted(room.__all__) == list(room.__all__)
        assert set(room.__all__) - {name.rpartition(".")[2] for name in modules()} == public


def test_the_version_is_that_of_the_distribution() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", metadata.version("strictstep"))


@pytest.mark.filterwarnings("default")
def test_the_examples_in_docstrings_run() -> None:
    results = [doctest.testmod(importlib.import_module(name)) for name in modules() if not name.endswith("__main__")]
    assert sum(result.attempted for result in results) > 20
    assert sum(result.failed for result in results) == 0


def test_the_python_in_the_readme_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", readme(), re.S)
    whole = [block for block in blocks if "import" in block and "    ...,\n" not in block]
    assert len(whole) >= 4
    for block in whole:
        subprocess.run([sys.executable, "-W", "error", "-c", block], check=True, capture_output=True)


STEP_BEFORE = """import torch
from torch.nn.functional import cross_entropy

from strictstep.schema import validate_step

torch.manual_seed(0)
model = torch.nn.Linear(64, 10)


"""
STEP_AFTER = """
try:
    digits_step(model, (torch.ones(8, 64), torch.arange(8)))
except ValueError as error:
    print(error)
"""


def test_the_report_in_the_readme_is_what_its_step_gives(tmp_path: Path) -> None:
    shown = re.search(r"```python\n(@validate_step\ndef digits_step.*?)```.*?```text\n(.*?)```", readme(), re.S)
    assert shown
    (tmp_path / "train.py").write_text(STEP_BEFORE + shown[1] + STEP_AFTER)
    run = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    number = re.compile(r"float \d\.\d+")
    assert number.sub("float", run.stdout) == number.sub("float", shown[2])


def readme() -> str:
    """The text of the README."""
    return (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_main_example_reaches_97_percent() -> None:
    run = subprocess.run([sys.executable, ROOT / "examples/digits.py"], capture_output=True, text=True, check=True)
    accuracy = re.search(r"held-out accuracy (\d+\.\d)%", run.stdout)
    assert accuracy
    assert float(accuracy[1]) >= 97
