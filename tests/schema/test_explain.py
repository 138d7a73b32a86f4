"""Where a step is, and the likely line of its fault: right, or nothing."""

import ast
import calendar
import contextlib
import csv
import dataclasses
import functools
import gc
import importlib.util
import inspect
import linecache
import os
import re
import runpy
import shlex
import subprocess
import sys
import textwrap
import weakref
import zipapp
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strictstep.schema import culprits, source
from strictstep.schema.explain import Arrived, Likely, likely, place

TABLES = runpy.run_path(str(Path(__file__).with_name("faulty_steps.py")))
CASES = [*TABLES["FAULTY"], *TABLES["TRAPS"]]


def load(text: str, folder: Path, name: str = "faulty") -> ModuleType:
    """Import a text as a module of its own, from a file that pytest does not rewrite."""
    file = folder / f"{name}.py"
    file.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arrived_as(returned: Any) -> Arrived:
    """Describe what was returned, as the caller of `likely` does."""
    kind: type[Any] = returned.__class__
    is_mapping = issubclass(kind, Mapping)
    keys = tuple(returned) if is_mapping else None
    if dataclasses.is_dataclass(kind):
        keys = tuple(field.name for field in dataclasses.fields(kind))
    return Arrived(kind, keys, len(returned) if kind in (tuple, list) else None)


def at(returned: Any, path: tuple[str | int, ...]) -> Any:
    """Give the value at a path."""
    for key in path:
        if isinstance(returned, torch.Tensor):
            break  # a tensor returned by itself is the loss
        returned = getattr(returned, str(key)) if dataclasses.is_dataclass(returned) else returned[key]
    return returned


def type_at(returned: Any, path: tuple[str | int, ...]) -> Any:
    """Give the type of the value at a path, None if there is none."""
    try:
        return at(returned, path).__class__
    except KeyError:
        return None


def asked(step: Any, code: str, path: tuple[str | int, ...]) -> Likely | None:
    """Run a step, and ask for the likely line as after a failed check."""
    returned = step(torch.ones(8, requires_grad=True))
    if inspect.iscoroutine(returned):
        returned.close()
    return likely(step, code, path, type_at(returned, path), arrived_as(returned))


def expected(marked: str) -> tuple[int, str, str] | None:
    """Read the marks of a text: the line's number, the line as it is shown, the text above the caret."""
    for number, line in enumerate(marked.split("\n"), start=1):
        if "«" in line:
            caret = line[line.index("«") + 1 : line.index("»")]
            return number, line.replace("«", "").replace("»", "").strip().replace("\t", " "), caret
    return None


def seen(found: Likely | None) -> tuple[int, str, str] | None:
    return None if found is None else (found.line, found.text, found.text[found.column : found.column + found.width])


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # `float(x)` is one of the faults
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_likely_line_is_the_marked_one(case: Any, tmp_path: Path) -> None:
    module = load(case.source.replace("«", "").replace("»", ""), tmp_path)
    found, wanted = asked(module.step, case.code, case.path), expected(case.source)
    assert (wanted is None) == (case.outcome == "silent")
    if wanted is None or len(wanted[1]) <= 100:
        assert seen(found) == wanted
        return
    # A long line is shown in part, around its caret.
    assert found is not None
    line, text, caret = wanted
    assert found.line == line
    assert len(found.text) <= 100
    assert found.text.removeprefix("...").removesuffix("...") in text
    shown = found.text[found.column : found.column + found.width]
    assert shown == caret or (caret.startswith(shown.removesuffix("...")) and len(shown) > 60)


# How to mend what the caret marks, and what then no longer holds of the value.
MENDED = [
    (r"(.*)\.(item|tolist|detach|long)\(\)", r"\1"),
    (r"(.*?)\.(detach\(\)\.cpu\(\)\.numpy|detach\(\)\.numpy)\(\)", r"\1"),
    (r"(.*)\.(data)", r"\1"),
    (r"(float|int)\(.*\)", "x.sum()"),
    (r"x > 0", "x"),
    (r"x\.argmax\(0\)", "x.sum()"),
    (r"x\.to\(.*\)", "x"),
    (r"(torch\.no_grad|torch\.inference_mode|without|torch\.set_grad_enabled)\((False)?\)", "torch.enable_grad()"),
    (r"torch\.(tensor|zeros)\(.*\)", "x.sum()"),
    (r"reduction=\"none\"", 'reduction="mean"'),
    (r"(.*)\.detach\(\)\.requires_grad_\(\)", r"\1"),
    (r"loss\.requires_grad_\(\)", "loss = x.sum()"),
    (r"loss\.requires_grad", "loss = x.sum(); unused"),
]
FAULTS: dict[str, Callable[[Any], bool]] = {
    "loss_not_tensor": lambda value: not isinstance(value, torch.Tensor),
    "hiddens_not_tensor": lambda value: not isinstance(value, torch.Tensor),
    "wrong_return_type": lambda value: not isinstance(value, torch.Tensor),
    "loss_no_grad": lambda value: not value.requires_grad,
    "loss_leaf": lambda value: value.is_leaf,
    "loss_not_floating": lambda value: not value.is_floating_point(),
    "loss_not_scalar": lambda value: value.numel() != 1,
}
MENDABLE = [
    case
    for case in CASES
    if case.outcome == "exact" and not re.search(r"«(yield|async|\.item)|requires_grad=True|hooks|round", case.source)
]


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize("case", MENDABLE, ids=[case.name for case in MENDABLE])
def test_mending_what_is_marked_mends_the_step(case: Any, tmp_path: Path) -> None:
    """An exact claim is true in this sense: change that spot alone, and the fault is gone."""
    wanted = expected(case.source)
    assert wanted is not None
    mended = next(re.sub(f"^{spot}$", by, wanted[2]) for spot, by in MENDED if re.fullmatch(spot, wanted[2]))
    faulty = FAULTS[case.code]
    for replacement, is_faulty in ((wanted[2], True), (mended, False)):
        before, rest = case.source.split("«")
        text = before + replacement + rest.split("»")[1]
        returned = load(text, tmp_path, f"mended_{is_faulty}").step(torch.ones(8, requires_grad=True))
        assert faulty(at(returned, case.path)) == is_faulty


def test_the_table_is_large_and_its_names_differ() -> None:
    assert len(TABLES["FAULTY"]) >= 45
    assert len(TABLES["TRAPS"]) >= 25
    assert len({case.name for case in CASES}) == len(CASES)


# -- the source has to be the one that runs

STEP = """
def step(x):
    loss = x.sum()
    return {"loss": loss.item()}
"""


@pytest.mark.parametrize(
    "edited",
    [
        STEP.replace("item", "sum"),
        STEP.replace("loss = x", "loss  =  x"),
        STEP.replace('{"loss": loss.item()}', '{\n        "loss": loss.item()}'),
        "\n" + STEP,
        STEP.replace("def", "async def"),
        STEP.replace(":\n", "(\n"),
        "x = 1\n",
        "",
    ],
)
def test_a_file_that_changed_since_its_import_is_not_trusted(edited: str, tmp_path: Path) -> None:
    step = load(STEP, tmp_path).step
    Path(step.__code__.co_filename).write_text(edited + "# another size\n")
    assert asked(step, "loss_not_tensor", ("loss",)) is None


def test_a_comment_elsewhere_does_not_make_the_source_another(tmp_path: Path) -> None:
    step = load(STEP, tmp_path).step
    Path(step.__code__.co_filename).write_text(STEP + "# a note\n")
    assert seen(asked(step, "loss_not_tensor", ("loss",))) == (4, 'return {"loss": loss.item()}', "loss.item()")


def test_constants_are_compared_with_their_types(tmp_path: Path) -> None:
    text = "def step(x):\n    return {'loss': (1, (2.0, frozenset({1}))), 'f': x in {1, 2}, 'g': lambda: 1}\n"
    step = load(text, tmp_path).step
    Path(step.__code__.co_filename).write_text(text.replace("(1, (2.0", "(1, (2.5"))
    assert likely(step, "loss_not_tensor", ("loss",), tuple, Arrived(dict, ("loss", "f", "g"))) is None


def test_code_that_was_read_from_a_pyc_is_trusted(tmp_path: Path) -> None:
    load(STEP, tmp_path)
    spec = importlib.util.spec_from_file_location("faulty", tmp_path / "faulty.py")
    assert spec is not None
    assert spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    assert seen(asked(again.step, "loss_not_tensor", ("loss",))) is not None


@pytest.mark.parametrize("option", ["-O", "-OO", "-Xno_debug_ranges", "-I"])
def test_the_interpreters_options_do_not_matter(option: str, tmp_path: Path) -> None:
    """Assertions, docstrings and columns may be left out of the code that runs."""
    text = """
        from strictstep.schema.explain import Arrived, likely

        def step(x):
            "Return a number."
            assert x
            return {"loss": float(x)}

        found = likely(step, "loss_not_tensor", ("loss",), float, Arrived(dict, ("loss",)))
        print(found and found.text[found.column :][: found.width])
    """
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(text))
    command = [sys.executable, option, "-B", str(file)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "float(x)\n"


def test_names_that_refer_to_each_other_are_survived(tmp_path: Path) -> None:
    step = load("def step(x):\n    if x is None:\n        return b\n    a = b\n    b = a\n", tmp_path).step
    assert likely(step, "loss_not_tensor", ("loss",), float, Arrived(dict, ("loss",))) is None


def test_a_deleted_file_is_silent(tmp_path: Path) -> None:
    step = load(STEP, tmp_path).step
    Path(step.__code__.co_filename).unlink()
    linecache.clearcache()
    assert asked(step, "loss_not_tensor", ("loss",)) is None


def test_a_source_that_warns_when_compiled_is_read_in_silence(tmp_path: Path) -> None:
    with pytest.warns(SyntaxWarning if sys.version_info >= (3, 12) else DeprecationWarning, match="invalid escape"):
        step = load(STEP + 'pattern = "\\d"\n', tmp_path).step
    assert asked(step, "loss_not_tensor", ("loss",)) is not None


def test_a_notebook_cell_is_read_from_the_line_cache() -> None:
    file = "<ipython-input-1-strictstep>"
    linecache.cache[file] = (len(STEP), None, [str(line) for line in STEP.splitlines(keepends=True)], file)
    names: dict[str, Any] = {}
    exec(compile(STEP, file, "exec"), names)
    found = asked(names["step"], "loss_not_tensor", ("loss",))
    assert found is not None
    assert (found.file, found.line) == (file, 4)


def test_the_same_text_in_two_files_gives_each_its_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        found = asked(load(STEP, tmp_path, name).step, "loss_not_tensor", ("loss",))
        assert found is not None
        assert Path(found.file).name == f"{name}.py"


def test_a_second_failure_parses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = load(STEP, tmp_path).step
    first = asked(step, "loss_not_tensor", ("loss",))

    def forbidden(*_: object) -> ast.Module:
        raise AssertionError("parsed again")

    monkeypatch.setattr(ast, "parse", forbidden)
    assert asked(step, "loss_not_tensor", ("loss",)) == first is not None


def test_the_cache_keeps_no_step_alive(tmp_path: Path) -> None:
    step = load("def make(tensor):\n    def step(x):\n        return tensor\n    return step\n", tmp_path).make
    tensor = torch.zeros(8)
    inner = step(tensor)
    assert asked(inner, "loss_not_scalar", ()) is not None
    gone = weakref.ref(tensor)
    del inner, tensor
    gc.collect()
    assert gone() is None


def test_this_module_is_rewritten_by_pytest_and_so_not_trusted() -> None:
    def step(x: torch.Tensor) -> dict[str, float]:
        assert x.shape == (8,)
        return {"loss": x.sum().item()}

    assert asked(step, "loss_not_tensor", ("loss",)) is None
    assert place(step) is not None


def test_another_type_than_the_source_says_is_no_claim(tmp_path: Path) -> None:
    step = load("def step(x):\n    return {'loss': 'text'}\n", tmp_path).step
    assert likely(step, "loss_not_tensor", ("loss",), float, Arrived(dict, ("loss",))) is None


def test_what_the_source_cannot_have_returned_is_no_claim(tmp_path: Path) -> None:
    step = load("def step(x):\n    yield {'loss': x.sum()}\n", tmp_path).step
    assert likely(step, "loss_not_tensor", ("loss",), float, Arrived(dict, ("loss",))) is None
    step = load("def step(x):\n    return x, x\n", tmp_path, "other").step
    nothing = load("step = lambda x: (x, x)\n", tmp_path, "nothing").step
    assert likely(nothing, "wrong_return_type", (), list, Arrived(list, None, 2)) is None
    for arrived in (Arrived(tuple, None, 3), Arrived(list, None, 2), Arrived(dict, ("loss",)), Arrived(type(None))):
        assert likely(step, "wrong_return_type", (), arrived.kind, arrived) is None


# -- place

PLACES = """
import functools
import torch

def plain(x): ...

@functools.lru_cache(
    maxsize=2
)
def cached(x): ...

def wraps(function):
    @functools.wraps(function)
    def wrapper(x): ...
    return wrapper

@wraps
@torch.no_grad()
def wrapped(x): ...

class Digits:
    def training_step(self, x): ...
    def __call__(self, x): ...
    @classmethod
    @torch.no_grad()
    async def of_class(cls, x): ...

class Net(torch.nn.Module):
    def forward(self, x): ...

def make():
    class Local:
        def step(self, x): ...
    return Local().step

nothing = lambda x: None
digits = Digits()
partial = functools.partial(functools.partial(digits.training_step))
net = Net()
compiled = torch.compile(net, backend="eager")
compiled_function = torch.compile(plain, backend="eager")
local = make()
"""


@pytest.mark.parametrize(
    ("expression", "line_starts", "name"),
    [
        ("plain", "def plain", "plain"),
        ("cached", "def cached", "cached"),
        ("wrapped", "def wrapped", "wrapped"),
        ("digits.training_step", "    def training_step", "Digits.training_step"),
        ("Digits.training_step", "    def training_step", "Digits.training_step"),
        ("Digits.of_class", "    async def of_class", "Digits.of_class"),
        ("partial", "    def training_step", "Digits.training_step"),
        ("digits", "    def __call__", "Digits.__call__"),
        ("net", "    def forward", "Net.forward"),
        ("net.__call__", "    def forward", "Net.forward"),
        ("compiled", "    def forward", "Net.forward"),
        ("compiled_function", "def plain", "plain"),
        ("local", "        def step", "Local.step"),
        ("nothing", "nothing = lambda", "<lambda>"),
    ],
)
def test_place_is_the_line_of_the_def(expression: str, line_starts: str, name: str, tmp_path: Path) -> None:
    module = load(PLACES, tmp_path)
    found = place(eval(expression, vars(module)))
    assert found is not None
    assert PLACES.split("\n")[found.line - 1].startswith(line_starts)
    assert (found.name, found.file) == (name, module.__file__)


def test_place_skips_decorators_also_where_the_source_is_not_trusted() -> None:
    def keep(function: Any) -> Any:
        return function

    @keep
    @keep
    def step(x: torch.Tensor) -> None:
        assert x is not None

    found = place(step)
    assert found is not None
    assert linecache.getline(__file__, found.line).strip().startswith("def step")
    assert found.name == "step"


def test_files_inside_the_current_directory_are_shown_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = load(STEP, tmp_path).step
    monkeypatch.chdir(tmp_path)
    where, found = place(step), asked(step, "loss_not_tensor", ("loss",))
    assert where is not None
    assert found is not None
    assert where.file == found.file == "faulty.py"
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert place(step) == dataclasses.replace(where, file=str(tmp_path / "faulty.py"))


def test_a_current_directory_that_is_gone_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = load(STEP, tmp_path).step

    def gone(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", gone)
    where = place(step)
    assert where is not None
    assert where.file == step.__code__.co_filename


# -- whatever the step is


class Hostile:
    """Raises whatever is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __bool__(self) -> bool:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, x: Any) -> Any:
        return x


class HostileMeta(type):
    """A class that raises whatever is asked of it."""

    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)


class OfHostileMeta(metaclass=HostileMeta):
    """An instance of a hostile class."""

    def __call__(self, x: Any) -> Any:
        return x


class EndlessWrapped:
    """Wraps itself for ever."""

    @property
    def __wrapped__(self) -> Any:
        return EndlessWrapped()

    def __getattr__(self, name: str) -> Any:
        return self


class HostileModule(torch.nn.Module):
    """A module without a `forward`, whose dictionary is gone."""

    def __init__(self) -> None:
        """Leave out what `torch.nn.Module` sets up."""


def looped() -> Any:
    """Return a function that wraps itself."""

    def step(x: Any) -> Any:
        return x

    step.__wrapped__ = step  # type: ignore[attr-defined]
    return step


ODD: list[Any] = [
    Hostile(),
    OfHostileMeta(),
    OfHostileMeta,
    EndlessWrapped(),
    HostileModule(),
    looped(),
    functools.partial(Hostile()),
    functools.lru_cache(len),
    len,
    "".join,
    int,
    type,
    torch.add,
    torch.nn.Linear,
    torch.nn.Linear(1, 1),
    torch.jit,
    None,
    ...,
    object(),
    iter(()),
    staticmethod(len),
    vars(dict)["fromkeys"],
    inspect.getattr_static(Any, "__init_subclass__", None),
    property(len),
    runpy,
]


@pytest.mark.parametrize("index", range(len(ODD)))  # pytest would ask the objects themselves
def test_no_step_is_too_odd(index: int) -> None:
    step = ODD[index]
    found = place(step)
    assert found is None or found.line > 0
    for arrived in (Arrived(dict, ("loss",)), Arrived(OfHostileMeta), Arrived(type(None)), Arrived(tuple, None, 2)):
        result = likely(step, "loss_not_tensor", ("loss",), OfHostileMeta, arrived)
        assert result is None or result.width >= 1


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.functions(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.builds(functools.partial, st.functions()),
    max_leaves=5,
)
PATHS = st.lists(st.sampled_from(["loss", "log", "acc"]) | st.integers(-3, 5), max_size=3).map(tuple)
CODES = st.sampled_from([*culprits.TRAILS, "loss_missing", "key_unknown", "never heard of"])
KINDS: st.SearchStrategy[type] = st.sampled_from([dict, list, tuple, float, type(None), torch.Tensor, Arrived])


@given(ANYTHING, CODES, PATHS, KINDS | st.none(), KINDS, st.lists(st.text()).map(tuple) | st.none())
def test_no_question_raises(
    step: object, code: str, path: Any, got: type | None, kind: type, keys: tuple[str, ...] | None
) -> None:
    place(step)
    likely(step, code, path, got, Arrived(kind, keys, 2))


LIBRARY = (calendar, contextlib, csv, shlex, textwrap, zipapp)


@functools.cache
def all_steps() -> list[Any]:
    """Every function of some modules of the standard library, as steps of any shape."""
    values = [value for module in LIBRARY for value in vars(module).values()]
    classes = [value for value in values if inspect.isclass(value)]
    values += [value for kept in classes for value in vars(kept).values()]
    names = {module.__name__ for module in LIBRARY}
    return [value for value in values if inspect.isfunction(value) and value.__module__ in names]


@given(st.data(), CODES, PATHS, KINDS | st.none(), KINDS, st.just(("loss", "log")) | st.none())
def test_whatever_the_source_the_caret_stands_in_its_line(
    data: st.DataObject, code: str, path: Any, got: type | None, kind: type, keys: tuple[str, ...] | None
) -> None:
    step = data.draw(st.sampled_from(all_steps()))
    found = likely(step, code, path, got, Arrived(kind, keys, 2))
    if found is not None:
        assert 0 <= found.column < found.column + found.width <= len(found.text) <= 100
        first = step.__code__.co_firstlineno
        assert first <= found.line < first + len(inspect.getsourcelines(step)[0])
        assert found.text == found.text.strip()


def test_the_sources_of_the_standard_library_are_trusted() -> None:
    plain = [step for step in all_steps() if not hasattr(step, "__wrapped__")]
    assert len(plain) > 100
    # Dataclasses, named tuples and enums make functions that have no source.
    assert [step.__name__ for step in plain if step.__code__.co_filename.startswith("<")] == []
    assert [step.__name__ for step in plain if source.trusted(step) is None] == []
