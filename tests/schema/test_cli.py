"""The command: what it prints, its exit codes, and one line for everything that can be wrong."""

import io
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import pytest

from strictstep.schema import EvaluationOutput
from strictstep.schema.check_history import MAX_LINE, History
from strictstep.schema.cli import main
from strictstep.schema.documents import BUILT_IN, json_schema, page_documents
from strictstep.schema.errors import ErrorCode
from strictstep.schema.step_record import HistoryRecord, StepRecord

ROOT = Path(__file__).parents[2]
RECORD = EvaluationOutput(loss=0.5, log={"accuracy": 0.9}).model_dump_json()
LINE = HistoryRecord(kind="step", epoch=0, global_step=1, outputs=[StepRecord.model_validate_json(RECORD)])

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory, from which modules are imported as in a shell, and nowhere after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in WRONG_MODULES:
        sys.modules.pop(name.removesuffix(".py"), None)


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


OWN = """
from typing_extensions import TypedDict
from strictstep.schema import Scalar, TrainingOutput

print("printed by the module")

class Log(TypedDict):
    accuracy: Scalar

class Own(TrainingOutput[Log]):
    '''What our step returns.'''

class Shelf:
    Inner = Own

NUMBER = 3
"""


# -- schema


@pytest.mark.parametrize("stage", ["training", "manual", "validation", "test"])
def test_schema_prints_that_of_a_stage(capsys: Captured, stage: str) -> None:
    code, out, err = run(capsys, "schema", "--stage", stage)
    title = {"training": "TrainingOutput", "manual": "ManualOutput"}.get(stage, "EvaluationOutput")
    assert (code, json.loads(out)["title"], err) == (0, title, "")


def test_schema_prints_that_of_a_class_in_the_current_directory(folder: Path, capsys: Captured) -> None:
    (folder / "mine.py").write_text(OWN)
    code, out, err = run(capsys, "schema", "mine:Own", "--recorded")
    assert (code, err) == (0, "printed by the module\n")
    assert json.loads(out)["$id"] == "urn:strictstep:schema:1:mine.Own:recorded"


def test_schema_prints_several_classes_as_an_array(folder: Path, capsys: Captured) -> None:
    (folder / "mine.py").write_text(OWN)
    _, out, _ = run(capsys, "schema", "mine:Own", "strictstep.schema:StepRecord")
    assert [schema["title"] for schema in json.loads(out)] == ["Own", "StepRecord"]


def test_schema_without_a_class_prints_the_built_in_models(capsys: Captured) -> None:
    _, out, _ = run(capsys, "schema")
    assert json.loads(out) == [json.loads(json.dumps(json_schema(model))) for model in BUILT_IN]


def test_a_class_inside_a_class_is_found(folder: Path, capsys: Captured) -> None:
    (folder / "mine.py").write_text(OWN)
    assert json.loads(run(capsys, "schema", "mine:Shelf.Inner")[1])["title"] == "Own"


def test_schema_writes_files_and_finds_them_fresh(folder: Path, capsys: Captured) -> None:
    code, out, _ = run(capsys, "schema", "--stage", "manual", "-o", "deep/er")
    assert (code, out) == (0, "deep/er/ManualOutput.schema.json\ndeep/er/ManualOutput.record.schema.json\n")
    assert run(capsys, "schema", "--stage", "manual", "-o", "deep/er", "--check") == (0, "", "")


def test_a_stale_file_is_shown_as_a_diff_with_the_command_that_mends_it(folder: Path, capsys: Captured) -> None:
    main(["schema", "--stage", "manual", "-o", "out dir"])
    stale = Path("out dir/ManualOutput.schema.json")
    stale.write_text(stale.read_text().replace('"title": "ManualOutput"', '"title": "Old"'))
    capsys.readouterr()
    code, out, err = run(capsys, "schema", "--stage", "manual", "-o", "out dir", "--check")
    assert code == 1
    assert out.startswith(f"--- {stale} (on disk)\n+++ {stale} (generated)\n@@ ")
    assert '-  "title": "Old",\n+  "title": "ManualOutput",\n' in out
    assert err == "not fresh; to mend it: strictstep schema --stage manual -o 'out dir'\n"
    main(["schema", "--stage", "manual", "-o", "out dir"])
    assert run(capsys, "schema", "--stage", "manual", "-o", "out dir", "--check")[0] == 0


# -- docs


@pytest.mark.parametrize("form", ["md", "html"])
def test_docs_writes_every_page_and_finds_them_fresh(folder: Path, capsys: Captured, form: Any) -> None:
    code, out, _ = run(capsys, "docs", "-o", "pages", "--format", form)
    assert code == 0
    assert set(out.splitlines()) == {f"pages/{document.path}" for document in page_documents(BUILT_IN, form)}
    assert {path.stem for path in Path("pages/errors").iterdir()} == set(get_args(ErrorCode))
    assert run(capsys, "docs", "-o", "pages", "--format", form, "--check") == (0, "", "")


def test_a_missing_page_is_not_fresh(folder: Path, capsys: Captured) -> None:
    (folder / "mine.py").write_text(OWN)
    code, out, err = run(capsys, "docs", "mine:Own", "-o", "pages", "--check")
    assert code == 1
    assert "+# Own\n" in out
    assert err.endswith("not fresh; to mend it: strictstep docs mine:Own -o pages --format md\n")


def test_the_documents_of_the_repository_are_fresh(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert run(capsys, "docs", "-o", "docs", "--check") == (0, "", "")
    written = {document.path for document in page_documents(BUILT_IN, "md")}
    assert {path.relative_to("docs").as_posix() for path in Path("docs").rglob("*.*")} == written


def test_the_pages_of_the_example_are_fresh(folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")
    command = ("docs", "own_schema:DigitsOutput", "-o", "own_schema", "--format", "html", "--check")
    assert run(capsys, *command) == (0, "", "")


def test_html_without_the_extra_is_one_line(folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "markdown2", None)
    code, _, err = run(capsys, "docs", "-o", "pages", "--format", "html")
    assert code == 2
    assert err == (
        "strictstep: expected json-schema-for-humans for HTML pages\n  help: pip install 'strictstep[docs]'\n"
    )


# -- wrong use

WRONG_MODULES = {
    "raising.py": "import torch\n\n\ndef load():\n    raise OSError('no data here')\n\n\nload()\n",
    "exiting.py": "import sys\n\nsys.exit(3)\n",
    "needing.py": "import not_installed_anywhere\n",
    "broken.py": "def step(:\n",
    "mine.py": OWN,
    "twin.py": OWN,
    "forward.py": (
        "from strictstep.schema import TrainingOutput\n\n"
        "class Later(TrainingOutput):\n    metrics: 'dict[str, Unknown]'\n"
    ),
}
WRONG_USE: list[tuple[tuple[str, ...], str]] = [
    (("schema", "nowhere:Own"), "there is no module `nowhere`, neither here nor installed"),
    (("schema", "mine.nowhere:Own"), "there is no module `mine.nowhere`, neither here nor installed"),
    (("schema", "raising:Own"), "the module `raising` cannot be imported: it raised OSError"),
    (("schema", "exiting:Own"), "the module `exiting` cannot be imported: it raised SystemExit"),
    (("schema", "needing:Own"), "the module `needing` cannot be imported: it raised ModuleNotFoundError"),
    (("schema", "broken:Own"), "the module `broken` cannot be imported: it raised SyntaxError"),
    (("schema", "mine"), "expected module:Class, got `mine`"),
    (("schema", "mine.py:Own"), "there is no module `mine.py`, neither here nor installed"),
    (("schema", "../mine:Own"), "expected module:Class, got `../mine:Own`"),
    (("schema", "mine:own"), "the module `mine` has no `own`; the nearest name is `Own`"),
    (
        ("schema", "mine:NUMBER"),
        "mine:NUMBER: expected an output model (a subclass of `TrainingOutput`, ...), got int 3",
    ),
    (
        ("schema", "mine:Log"),
        "mine:Log: expected an output model (a subclass of `TrainingOutput`, ...), got class 'Log'",
    ),
    (
        ("schema", "forward:Later"),
        "forward:Later: expected annotations that can be resolved, got an unknown name in one of them",
    ),
    (("schema", "mine:Own", "mine:Own"), "expected classes of different names, got `Own` twice"),
    (("docs", "mine:Own", "twin:Own", "-o", "d"), "expected classes of different names, got `Own` twice"),
    (("schema", "mine:Own", "--stage", "test"), "expected classes or --stage, got both"),
    (("schema", "--check"), "expected a folder to check: -o DIR"),
    (("schema", "-o", "mine.py"), "mine.py: File exists"),
    (("docs", "-o", "mine.py/below"), "mine.py/below: Not a directory"),
    (("check", "nothing.jsonl"), "nothing.jsonl: No such file or directory"),
    (("check", "."), ".: Is a directory"),
    (("explain", "loss_nograd"), "there is no error code `loss_nograd`; the nearest is `loss_no_grad`"),
    (("explain", "x"), "there is no error code `x`; errors of `strictstep.loop` explain themselves under `help:`"),
]


@pytest.mark.parametrize(("arguments", "line"), WRONG_USE, ids=range(len(WRONG_USE)))
def test_wrong_use_is_one_line_and_exit_code_2(
    folder: Path, capsys: Captured, arguments: tuple[str, ...], line: str
) -> None:
    for name, text in WRONG_MODULES.items():
        (folder / name).write_text(text)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == f"strictstep: {line}"
    assert f"{Path('strictstep', 'schema')}" not in err
    assert str(ROOT / "schema") not in err


def test_a_module_that_fails_shows_its_own_traceback(folder: Path, capsys: Captured) -> None:
    (folder / "raising.py").write_text(WRONG_MODULES["raising.py"])
    lines = run(capsys, "schema", "raising:Own")[2].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert 'raising.py", line 8, in <module>' in lines[1]
    assert lines[-2] == "OSError: no data here"
    assert all("cli.py" not in line and "importlib" not in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "strictstep: error: the following arguments are required: COMMAND"),
        (["docs"], "strictstep docs: error: the following arguments are required: -o/--output"),
        (["check"], "strictstep check: error: the following arguments are required: RUN.jsonl"),
        (["schema", "--stage", "train"], "strictstep schema: error: argument --stage: invalid choice: 'train'"),
    ],
)
def test_wrong_arguments_exit_with_2(capsys: Captured, arguments: list[str], line: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert capsys.readouterr().err.splitlines()[-1].startswith(line)


# -- check

FINDINGS: list[tuple[str, str]] = [
    ("", "1: expected a JSON object, got an empty line"),
    ("{'loss': 1}", "1: expected JSON, got a corrupt line: key must be a string at column 2"),
    ('{"loss": NaN}', '1: expected JSON, got a bare NaN: write `{"$float": "nan"}`, or "inf", "-inf"'),
    ('{"loss": [1, -Infinity]}', '1: expected JSON, got a bare -Infinity: write `{"$float": "nan"}`, or "inf", "-inf"'),
    ('{"loss": 1, ', "1: expected JSON, got a corrupt line: EOF while parsing a value at column 12"),
    ("[1, 2]", "1: expected a JSON object, got list[int, int]"),
    ('"text"', "1: expected a JSON object, got str 'text'"),
    ("{}", "1: loss: expected the key `loss`, got none"),
    (RECORD.replace("0.5", '"x"'), '1: loss: expected a number (a NaN is `{"$float": "nan"}`), got str \'x\''),
    (RECORD.replace("0.9", "null"), '1: log.accuracy: expected a number (a NaN is `{"$float": "nan"}`), got None'),
    (RECORD.replace('"metrics":{}', '"metrics":[]'), "1: metrics: expected an object, got list of length 0"),
    (RECORD.replace('{"loss"', '{"losses":1,"loss"'), "1: losses: expected no key `losses` here"),
    (
        RECORD.replace('"metrics":{}', '"metrics":{"a":[{"$tensor":{"dtype":"int8","device":"cpu"}}]}'),
        "1: metrics.a[0]['$tensor']: expected the key `shape`, got none",
    ),
    (
        RECORD.replace('"hiddens":null', '"hiddens":{"$blob":1}'),
        "1: hiddens: expected a JSON value whose tag, if any, is one of `$tensor`, `$object`, `$dict`, `$float`, "
        "`$int`, got dict of length 1",
    ),
    (
        '{"schema_version": 7, "kind": "step"}',
        "1: schema_version: expected 1, the one that this strictstep reads, got int 7",
    ),
    ('{"kind": "step"}', "1: schema_version: expected 1, the one that this strictstep reads, got none"),
    (
        LINE.model_dump_json().replace('"kind":"step"', '"kind":"batch"'),
        "1: kind: expected 'step' or 'epoch', got str 'batch'",
    ),
    (LINE.model_dump_json().replace('"loss":0.5,', ""), "1: outputs[0]: expected the key `loss`, got none"),
    ('{"x": "' + "a" * (3 * MAX_LINE) + '"}', f"1: expected a line of at most {MAX_LINE} bytes, got a longer one"),
    ("\x00" * 10, "1: expected JSON, got a corrupt line: expected value at column 1"),
]


@pytest.mark.parametrize(("text", "finding"), FINDINGS, ids=range(len(FINDINGS)))
def test_each_wrong_line_is_reported_by_file_line_and_problem(
    folder: Path, capsys: Captured, text: str, finding: str
) -> None:
    Path("run.jsonl").write_text(f"{text}\n{RECORD}\n{LINE.model_dump_json()}\n")
    code, out, err = run(capsys, "check", "run.jsonl")
    assert code == 1
    assert out.splitlines()[0] == f"run.jsonl:{finding}"
    assert all(line.startswith("run.jsonl:1: ") for line in out.splitlines())
    assert err.startswith("run.jsonl: 3 lines, ")


def test_a_history_without_a_fault_is_fine(folder: Path, capsys: Captured) -> None:
    Path("run.jsonl").write_text(f"{RECORD}\n{LINE.model_dump_json()}")
    assert run(capsys, "check", "run.jsonl") == (0, "", "run.jsonl: 2 lines, 0 findings\n")


def test_an_empty_history_is_a_finding(folder: Path, capsys: Captured) -> None:
    Path("run.jsonl").touch()
    code, out, _ = run(capsys, "check", "run.jsonl")
    assert (code, out) == (1, "run.jsonl: expected records, got an empty file\n")


@pytest.mark.parametrize("cut", range(1, len(RECORD)))
def test_a_last_line_that_is_cut_off_anywhere_is_told_from_a_corrupt_one(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(f"{RECORD}\n{RECORD[:cut]}")
    (finding,) = History(path).findings()
    assert finding == (2, f"the last line is cut off after {cut} bytes, as a killed run leaves it")


def test_a_line_that_is_cut_off_inside_a_character_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes('{"reason": "é'.encode()[:-1])
    (finding,) = History(path).findings()
    assert finding.message == "the last line is cut off after 13 bytes, as a killed run leaves it"


@pytest.mark.parametrize("text", ['{"a": }', "{x", '{"a": "\\ud800"', b'{"a": "\xff', b'{"a": "\xff"}'])
def test_a_last_line_that_is_no_beginning_of_json_is_corrupt(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    (finding,) = History(path).findings()
    assert finding.message.startswith("expected JSON, got a corrupt line: ")


def test_many_findings_are_counted_and_the_first_shown(folder: Path, capsys: Captured) -> None:
    Path("run.jsonl").write_text("[]\n" * 50)
    code, out, err = run(capsys, "check", "run.jsonl")
    assert (code, len(out.splitlines()), out.splitlines()[-1]) == (1, 21, "run.jsonl: and 30 more")
    assert err == "run.jsonl: 50 lines, 50 findings\n"


def test_many_problems_of_one_line_are_cut(folder: Path, capsys: Captured) -> None:
    Path("run.jsonl").write_text('{"a": 1}\n')
    assert run(capsys, "check", "run.jsonl")[1].splitlines()[-1] == "run.jsonl:1: and 3 more problems in this line"


def test_several_histories_are_checked_in_one_call(folder: Path, capsys: Captured) -> None:
    Path("good.jsonl").write_text(RECORD)
    Path("bad.jsonl").write_text("[]")
    code, out, _ = run(capsys, "check", "good.jsonl", "bad.jsonl")
    assert (code, out) == (1, "bad.jsonl:1: expected a JSON object, got list of length 0\n")


def peak_of(work: Callable[[], object]) -> int:
    """The peak of Python's own memory during the work, in bytes."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def wrong_lines(count: int) -> Iterator[str]:
    """Lines of which every other is wrong."""
    return (f"{LINE.model_dump_json()}\n[]\n" for _ in range(count // 2))


def test_memory_does_not_grow_with_the_history(folder: Path, capsys: Captured) -> None:
    peaks = {}
    for count in (1_000, 20_000):
        Path("run.jsonl").write_text("".join(wrong_lines(count)))
        main(["check", "run.jsonl"])
        peaks[count] = peak_of(lambda: main(["check", "run.jsonl"]))
    # To keep no more than a pointer for each of the 19,000 further lines would cost 152,000 bytes; a buffer of the
    # interpreter that happens to be made in one of the runs costs some ten thousand.
    assert peaks[20_000] - peaks[1_000] < 100_000


# -- explain, and the command itself


def test_explain_prints_the_page_of_a_code(capsys: Captured) -> None:
    code, out, err = run(capsys, "explain", "loss_no_grad")
    assert (code, err) == (0, "")
    assert out == (ROOT / "docs" / "errors" / "loss_no_grad.md").read_text()


def test_explain_alone_lists_every_code(capsys: Captured) -> None:
    out = run(capsys, "explain")[1]
    assert [line.split()[0] for line in out.splitlines()] == list(get_args(ErrorCode))


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("environment", "colored"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)])
def test_color_is_for_terminals_where_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], colored: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    main(["explain", "x"])
    assert ("\x1b[" in terminal.getvalue()) == colored


@pytest.mark.parametrize("arguments", ["schema", "docs -o nowhere --check", "check run.jsonl"])
def test_a_reader_that_has_had_enough_is_no_error(tmp_path: Path, arguments: str) -> None:
    (tmp_path / "run.jsonl").write_text("[]\n" * 50)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = f"{sys.executable} -m strictstep.schema {arguments} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert "Traceback" not in done.stderr
    assert "Broken pipe" not in done.stderr


def test_the_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert (left.value.code, capsys.readouterr().out) == (0, f"strictstep {version('strictstep')}\n")


def test_the_command_is_installed_and_helps() -> None:
    command = Path(sys.executable).with_name("strictstep")
    for arguments in ([], ["schema"], ["docs"], ["check"], ["explain"]):
        helped = subprocess.run([command, *arguments, "--help"], capture_output=True, text=True, check=False)
        assert (helped.returncode, helped.stderr) == (0, "")
        assert helped.stdout.startswith(f"usage: strictstep {' '.join(arguments)}".rstrip())
