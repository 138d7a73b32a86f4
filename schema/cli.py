"""The command `strictstep`: the schema and the pages of what your steps return, and a check of what a run recorded.

Exit codes: 0 nothing to report; 1 something was found (a stale file, a wrong record); 2 wrong use.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TextIO

from strictstep.schema.base import StepOutput
from strictstep.schema.check_history import Finding, History
from strictstep.schema.codes import EXPLANATIONS
from strictstep.schema.documents import (
    BUILT_IN,
    Document,
    Documented,
    json_schema,
    page_documents,
    schema_documents,
    stale,
    write,
)
from strictstep.schema.errors import SHOWN
from strictstep.schema.named_classes import WrongUse, classes_named
from strictstep.schema.names import nearest
from strictstep.schema.pages import error_page, first_sentence
from strictstep.schema.stages import MODELS

FINE, FOUND, WRONG = 0, 1, 2
RED, GREEN = 31, 32


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (those of the process if none) and return its exit code.

    Example:
        >>> main(["explain", "loss_leaf"])  # doctest: +ELLIPSIS
        # loss_leaf
        <BLANKLINE>
        ...
        0
    """
    asked = _parser().parse_args(arguments)
    try:
        code: int = asked.run(asked)
    except WrongUse as error:
        print(f"{_painted('strictstep:', RED, sys.stderr)} {error}", file=sys.stderr)
        return WRONG
    except BrokenPipeError:  # the reader has had enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="strictstep", description="What your training steps return: documented, checked."
    )
    parser.add_argument("--version", action="version", version=f"strictstep {version('strictstep')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_schema(commands)
    _add_docs(commands)
    _add_check(commands)
    _add_explain(commands)
    return parser


def _add_schema(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    schema = commands.add_parser("schema", help="JSON Schema of output models", description=schema_command.__doc__)
    _add_classes(schema)
    schema.add_argument("--stage", choices=MODELS, help="the built-in model of this stage")
    schema.add_argument("--recorded", action="store_true", help="the schema of the JSON form (to standard output)")
    schema.add_argument("-o", "--output", type=Path, metavar="DIR", help="write the files into this folder")
    schema.add_argument("--check", action="store_true", help="write nothing: exit 1 if a file in DIR is not fresh")
    schema.set_defaults(run=schema_command)


def _add_docs(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    docs = commands.add_parser("docs", help="readable pages of output models", description=docs_command.__doc__)
    _add_classes(docs)
    docs.add_argument("-o", "--output", type=Path, metavar="DIR", required=True, help="the folder of the pages")
    docs.add_argument("--format", choices=("md", "html"), default="md", help="Markdown (default) or HTML")
    docs.add_argument("--check", action="store_true", help="write nothing: exit 1 if a page is not fresh")
    docs.set_defaults(run=docs_command)


def _add_check(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    check = commands.add_parser("check", help="check recorded steps", description=check_command.__doc__)
    check.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN.jsonl", help="a run's history, one record on each line"
    )
    check.set_defaults(run=check_command)


def _add_explain(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    explain = commands.add_parser("explain", help="explain an error code", description=explain_command.__doc__)
    explain.add_argument("code", nargs="?", metavar="CODE", help="such as loss_no_grad; without one, all are listed")
    explain.set_defaults(run=explain_command)


def _add_classes(parser: argparse.ArgumentParser) -> None:
    text = "an output model, found here or installed; without one, the built-in models"
    parser.add_argument("classes", nargs="*", metavar="module:Class", help=text)


def schema_command(asked: argparse.Namespace) -> int:
    """Print the JSON Schema of output models, or write it into files; several classes print as an array."""
    models = _models(asked)
    if asked.output:
        return _written_or_checked(asked, list(schema_documents(models)))
    if asked.check:
        raise WrongUse("expected a folder to check: -o DIR")
    schemas = [json_schema(model, recorded=asked.recorded and issubclass(model, StepOutput)) for model in models]
    print(json.dumps(schemas if len(schemas) > 1 else schemas[0], indent=2, ensure_ascii=False))
    return FINE


def docs_command(asked: argparse.Namespace) -> int:
    """Write pages of output models; of the built-in ones, the coercion table and the error codes too."""
    asked.stage = None
    try:
        return _written_or_checked(asked, list(page_documents(_models(asked), asked.format)))
    except ImportError as error:
        raise WrongUse(str(error)) from None


def check_command(asked: argparse.Namespace) -> int:
    """Check recorded steps: every line a record that this version reads."""
    return max([_checked(History(run)) for run in asked.runs])


def explain_command(asked: argparse.Namespace) -> int:
    """Print the page of one error code: cause, example, cure; without a code, list them all."""
    if asked.code is None:
        width = max(map(len, EXPLANATIONS))
        print("\n".join(f"{code:{width}}  {first_sentence(code)}" for code in EXPLANATIONS))
        return FINE
    if asked.code not in EXPLANATIONS:
        near = nearest(asked.code, EXPLANATIONS)
        hint = f"the nearest is `{near}`" if near else "errors of `strictstep.loop` explain themselves under `help:`"
        raise WrongUse(f"there is no error code `{asked.code}`; {hint}")
    print(error_page(asked.code), end="")
    return FINE


def _models(asked: argparse.Namespace) -> Sequence[Documented]:
    if asked.stage and asked.classes:
        raise WrongUse("expected classes or --stage, got both")
    if asked.stage:
        return (MODELS[asked.stage],)
    return classes_named(asked.classes) or BUILT_IN


def _written_or_checked(asked: argparse.Namespace, documents: Sequence[Document]) -> int:
    with _readable_or_told(asked.output):
        if asked.check:
            return _fresh_or_diff(asked, stale(documents, asked.output))
        for path in write(documents, asked.output):
            print(path)
    return FINE


@contextmanager
def _readable_or_told(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into the line that says so."""
    try:
        yield
    except BrokenPipeError:  # that is the terminal, not the file
        raise
    except OSError as error:
        raise WrongUse(f"{error.filename or path}: {error.strerror}") from None


def _fresh_or_diff(asked: argparse.Namespace, lines: Iterator[str]) -> int:
    code = FINE
    for line in lines:
        color = {"+": GREEN, "-": RED}.get(line[0])
        print(_painted(line, color, sys.stdout) if color else line, end="")
        code = FOUND
    if code:
        print(f"not fresh; to mend it: {_command(asked)}", file=sys.stderr)
    return code


def _command(asked: argparse.Namespace) -> str:
    """The command that writes what was found to be stale."""
    name = "docs" if asked.run is docs_command else "schema"
    stage = ["--stage", asked.stage] if asked.stage else []
    form = ["--format", asked.format] if name == "docs" else []
    return shlex.join(["strictstep", name, *asked.classes, *stage, "-o", str(asked.output), *form])


def _checked(history: History) -> int:
    with _readable_or_told(history.path):
        findings = history.findings()
        shown = list(islice(findings, SHOWN))
        print("".join(_line(history.path, finding) for finding in shown), end="")
        more = sum(1 for _ in findings)
    if more:
        print(f"{history.path}: and {more} more")
    print(f"{history.path}: {_count(history.lines, 'line')}, {_count(len(shown) + more, 'finding')}", file=sys.stderr)
    return FOUND if shown else FINE


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _line(path: Path, finding: Finding) -> str:
    return f"{path}:{finding.line}: {finding.message}\n" if finding.line else f"{path}: {finding.message}\n"


def _painted(text: str, color: int, stream: TextIO) -> str:
    """The text in colour, for a terminal; plain where `NO_COLOR` is set (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or not stream.isatty():
        return text
    return f"\x1b[{color}m{text}\x1b[0m"
