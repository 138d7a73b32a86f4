"""The files that document output models: their JSON Schemas, their pages, and whether those on disk are still fresh."""

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import quote

from pydantic import BaseModel

from strictstep.schema.base import AnyOutput, StepOutput
from strictstep.schema.contracts import JsonSchema
from strictstep.schema.errors import ErrorCode
from strictstep.schema.html_pages import class_html, prose_html
from strictstep.schema.json_schema import prose
from strictstep.schema.outputs import EvaluationOutput, ManualOutput, SkippedStep, TrainingOutput
from strictstep.schema.pages import class_page, coercion_page, error_page, errors_page, index_page
from strictstep.schema.step_record import SCHEMA_VERSION, HistoryRecord, StepRecord

DIALECT = "https://json-schema.org/draft/2020-12/schema"

PageFormat = Literal["md", "html"]
Documented = type[AnyOutput] | type[StepRecord] | type[HistoryRecord]

BUILT_IN: tuple[Documented, ...] = (
    TrainingOutput,
    ManualOutput,
    EvaluationOutput,
    SkippedStep,
    StepRecord,
    HistoryRecord,
)


class Document(NamedTuple):
    """One file: its path below the folder that is asked for, and its text."""

    path: str
    text: str


def json_schema(model: type[BaseModel], *, recorded: bool = False) -> JsonSchema:
    """The JSON Schema of a model as a file has it, with `$schema` and `$id`.

    Args:
        model: an output model, or one of the records.
        recorded: of an output model, the schema of its JSON form instead of what a step may return.
    """
    mode: Any = "serialization" if recorded else "validation"
    of = f":{'recorded' if recorded else 'returned'}" if issubclass(model, StepOutput) else ""
    name = quote(f"{model.__module__}.{model.__qualname__}", safe=".")
    identity = f"urn:strictstep:schema:{SCHEMA_VERSION}:{name}{of}"
    return {"$schema": DIALECT, "$id": identity, **model.model_json_schema(mode=mode), "description": prose(model)}


def schema_documents(models: Iterable[Documented]) -> Iterator[Document]:
    """The schema files: two of an output model (as returned, and as recorded), one of a record."""
    for model in models:
        yield Document(f"{model.__name__}.schema.json", _text(json_schema(model)))
        if issubclass(model, StepOutput):
            yield Document(f"{model.__name__}.record.schema.json", _text(json_schema(model, recorded=True)))


def page_documents(models: Sequence[Documented], form: PageFormat) -> Iterator[Document]:
    """The pages, and the schema files that they link to.

    Of classes of one's own, their pages and an index; of the built-in ones, the coercion table and the error codes too.
    """
    with_rest = tuple(models) == BUILT_IN
    classes = [(model.__name__, json_schema(model)) for model in models]
    prose = [Document("index.md", index_page(classes, with_rest)), *(_rest() if with_rest else ())]
    yield from schema_documents(models)
    yield from prose if form == "md" else map(_in_html, prose)
    for model in models:
        yield _class_page(model, form)


def stale(documents: Iterable[Document], folder: Path) -> Iterator[str]:
    """The difference between each document and the file on disk, as lines of a unified diff; none where they agree.

    Raises:
        OSError: if a file cannot be read.
    """
    for document in documents:
        path = folder / document.path
        current = path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
        old, new = current.splitlines(keepends=True), document.text.splitlines(keepends=True)
        yield from difflib.unified_diff(old, new, f"{path} (on disk)", f"{path} (generated)")


def write(documents: Iterable[Document], folder: Path) -> Iterator[Path]:
    """Write the documents below a folder, and tell the path of each.

    Raises:
        OSError: if one cannot be written.
    """
    for document in documents:
        path = folder / document.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(document.text.encode("utf-8"))
        yield path


def _rest() -> Iterator[Document]:
    yield Document("returns.md", coercion_page())
    yield Document("errors.md", errors_page())
    for code in get_args(ErrorCode):
        yield Document(f"errors/{code}.md", error_page(code))


def _class_page(model: Documented, form: PageFormat) -> Document:
    name, recorded = model.__name__, json_schema(model, recorded=True) if issubclass(model, StepOutput) else None
    if form == "md":
        return Document(f"{name}.md", class_page(name, json_schema(model), recorded))
    return Document(f"{name}.html", class_html(json_schema(model), name, recorded))


def _in_html(page: Document) -> Document:
    title = page.text.partition("\n")[0].removeprefix("# ")
    return Document(page.path.removesuffix(".md") + ".html", prose_html(page.text, title))


def _text(schema: JsonSchema) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
