"""Checking a run's history as a stream: one line at a time, whatever the size of the file."""

import codecs
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json
from tqdm import tqdm

from strictstep.schema.describe import Location, describe, path_text
from strictstep.schema.step_record import SCHEMA_VERSION, HistoryRecord, StepRecord

MAX_LINE = 1 << 20  # bytes; a record is some hundred, and a line without an end must not fill the memory
PROBLEMS_SHOWN = 3
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NOT_JSON = re.compile(rb"[\[:,]\s*(-?Infinity|NaN)\s*[\],}]")  # as `json.dumps` writes them


class Finding(NamedTuple):
    """Something wrong in a history: the number of the line (0: the file), and what it is."""

    line: int
    message: str


class History:
    """A run's history on disk.

    Attributes:
        path: the file.
        lines: how many lines have been read.
    """

    def __init__(self, path: Path) -> None:
        """Keep the path; nothing is opened yet."""
        self.path = path
        self.lines = 0

    def findings(self) -> Iterator[Finding]:
        """Everything that is wrong, in order, read as it is asked for; a progress bar runs along in a terminal.

        Raises:
            OSError: if the file cannot be read.
        """
        size = self.path.stat().st_size
        with (
            self.path.open("rb") as file,
            tqdm(total=size, unit="B", unit_scale=True, desc=self.path.name, leave=False, disable=None) as bar,
        ):
            for self.lines, line in enumerate(_lines(file), 1):
                yield from (Finding(self.lines, message) for message in _problems(line))
                bar.update(len(line))
        if self.lines == 0:
            yield Finding(0, "expected records, got an empty file")


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines, none longer than `MAX_LINE` and a byte; the rest of a longer one is passed over."""
    while line := file.readline(MAX_LINE + 1):
        rest = line
        while len(rest) > MAX_LINE and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE + 1)
        yield line


def _problems(line: bytes) -> Iterator[str]:
    if len(line) > MAX_LINE:
        yield f"expected a line of at most {MAX_LINE} bytes, got a longer one"
        return
    try:
        record = from_json(line.rstrip(b"\r\n"), allow_inf_nan=False)
    except ValueError as error:
        yield _unreadable(line, error)
        return
    if type(record) is not dict:
        yield f"expected a JSON object, got {describe(record)}"
    else:
        yield from _problems_of_record(line, record)


def _unreadable(line: bytes, error: ValueError) -> str:
    if not line.strip():
        return "expected a JSON object, got an empty line"
    if not line.endswith(b"\n") and _is_cut_off(line):
        return f"the last line is cut off after {len(line)} bytes, as a killed run leaves it"
    if (bare := _NOT_JSON.search(_TEXT.sub(b'""', line))) is not None:
        return f'expected JSON, got a bare {bare[1].decode()}: write `{{"$float": "nan"}}`, or "inf", "-inf"'
    return f"expected JSON, got a corrupt line: {str(error).replace(' at line 1', ' at')}"


def _is_cut_off(line: bytes) -> bool:
    """Tell whether a line is JSON up to its end, which may lie inside a character."""
    try:
        from_json(codecs.getincrementaldecoder("utf-8")().decode(line), allow_inf_nan=False)
    except UnicodeDecodeError:
        return False
    except ValueError as error:
        return str(error).startswith("EOF")
    return False


def _problems_of_record(line: bytes, record: dict[str, Any]) -> Iterator[str]:
    is_history = "schema_version" in record or "kind" in record
    if is_history and record.get("schema_version") != SCHEMA_VERSION:
        got = describe(record["schema_version"]) if "schema_version" in record else "none"
        yield f"schema_version: expected {SCHEMA_VERSION}, the one that this strictstep reads, got {got}"
        return
    model: type[BaseModel] = HistoryRecord if is_history else StepRecord
    try:
        model.model_validate_json(line)
    except ValidationError as invalid:
        problems = invalid.errors(include_url=False)
        yield from (_problem(problem, record) for problem in problems[:PROBLEMS_SHOWN])
        if len(problems) > PROBLEMS_SHOWN:
            yield f"and {len(problems) - PROBLEMS_SHOWN} more problems in this line"


def _problem(error: ErrorDetails, record: dict[str, Any]) -> str:
    where = path_text(_in_data(error["loc"], record))
    if error["type"] == "missing":
        return f"{where or error['loc'][-1]}: expected the key `{error['loc'][-1]}`, got none"
    if error["type"] == "extra_forbidden":
        return f"{where}: expected no key `{error['loc'][-1]}` here"
    message = error["msg"].replace("Input should be", "expected")
    return f"{where}: {message}" if "got " in message else f"{where}: {message}, got {describe(error['input'])}"


def _in_data(location: Location, data: Any) -> Location:
    """A location without what pydantic adds to it: the names of a union's members."""
    steps: list[str | int] = []
    for step in location:
        with suppress(KeyError, IndexError, TypeError):
            data = data[step]
            steps.append(step)
    return tuple(steps)
