"""The same pages in HTML, each in one file that asks nothing of the network.

Needs the extra `docs`: classes are rendered by json-schema-for-humans, prose by the Markdown reader that it brings.
"""

import contextlib
import io
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from strictstep.schema.contracts import JsonSchema
from strictstep.schema.pages import class_notes, type_words

STYLE = """\
body { font: 16px/1.55 system-ui, sans-serif; color: #1f2328; max-width: 60rem; margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.8rem; border-bottom: 1px solid #d1d9e0; padding-bottom: .3rem; }
h2, h3 { font-size: 1.05rem; margin: 0; }
h2.handle { font-size: .9rem; color: #59636e; font-weight: 600; margin-top: .6rem; }
a { color: #0a5cad; text-decoration: none; } a:hover { text-decoration: underline; }
p { margin: .5rem 0; } br { display: none; }
code, pre, .property-name { font-family: ui-monospace, monospace; font-size: .92em; }
code { background: #f0f2f5; border-radius: 4px; padding: .1em .3em; }
pre { background: #f6f8fa; border: 1px solid #d1d9e0; border-radius: 6px; padding: .8rem; overflow-x: auto; }
pre code { background: none; padding: 0; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { border: 1px solid #d1d9e0; padding: .35rem .7rem; text-align: left; vertical-align: top; }
th { background: #f6f8fa; }
.card { border: 1px solid #d1d9e0; border-radius: 6px; margin: .8rem 0; }
.card-header { background: #f6f8fa; border-bottom: 1px solid #d1d9e0; padding: .5rem .9rem; }
.card-body { padding: .5rem .9rem; }
.card > h3 { padding: .5rem .9rem 0; }
.badge { display: inline-block; font-size: .8rem; border-radius: 1rem; padding: .05rem .6rem; background: #e7ecf1; }
.value-type { background: #ddf0e3; } .required-property { background: #ffe9c7; } .no-additional { background: #e6e6fa; }
"""


def prose_html(markdown: str, title: str) -> str:
    """A page of prose in HTML; links to Markdown pages lead to the HTML pages.

    Raises:
        ImportError: without the extra `docs`.
    """
    return _html(title, _prose(markdown))


def class_html(schema: JsonSchema, name: str, recorded: JsonSchema | None) -> str:
    """The page of one class in HTML, from its JSON Schema.

    Args:
        schema: the schema of what a step returns, or of a record.
        name: the name of its files.
        recorded: the schema of its JSON form, where that is another.

    Raises:
        ImportError: without the extra `docs`.
    """
    body = re.sub(r"(?s).*<body[^>]*>(.*)</body>.*", r"\1", _rendered(for_readers(schema, schema.get("$defs", {}))))
    return _html(schema["title"], re.sub(r"[ \t]+\n", "\n", body) + _prose(class_notes(name, recorded)))


def for_readers(schema: Any, definitions: JsonSchema) -> Any:
    """A schema as it is best shown: a tensor with a type, a union of plain types in one line, a reduction in words.

    Args:
        schema: any part of a schema; it is not changed.
        definitions: its `$defs`.
    """
    if isinstance(schema, list):
        return [for_readers(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    shown = _with_definition(schema, definitions)
    if "x-tensor" in shown or _is_plain_union(shown):
        shown = {**_without_union(shown), "type": type_words(shown).replace("`", "")}
    return {key: for_readers(value, definitions) for key, value in shown.items()}


def _with_definition(schema: JsonSchema, definitions: JsonSchema) -> JsonSchema:
    """A part with what is said of its type and of its reduction, too; a plain union takes the place of its name."""
    defined = definitions.get(str(schema.get("$ref")).rpartition("/")[2], {})
    shown = {**schema, **_union_of(defined)} if _is_plain_union(defined) else schema
    reduced = f"Reduced over batches and ranks by: {schema['x-reduce']}." if "x-reduce" in schema else None
    said = [text for text in (schema.get("description"), defined.get("description"), reduced) if text]
    return {**shown, "description": "\n\n".join(said)} if said else shown


def _is_plain_union(schema: JsonSchema) -> bool:
    return bool(_union_of(schema)) and all("$ref" not in part and "items" not in part for part in schema["anyOf"])


def _union_of(schema: JsonSchema) -> JsonSchema:
    return {"anyOf": schema["anyOf"]} if "anyOf" in schema else {}


def _without_union(schema: JsonSchema) -> JsonSchema:
    return {key: value for key, value in schema.items() if key not in ("anyOf", "$ref")}


def _prose(markdown: str) -> str:
    body = str(_reader()(markdown, extras=["tables", "fenced-code-blocks", "cuddled-lists"]))
    return re.sub(r'href="([^":]+)\.md"', r'href="\1.html"', body)


def _rendered(schema: JsonSchema) -> str:
    generate, configuration = _renderer()
    options = configuration(
        template_name="flat", with_footer=False, show_breadcrumbs=False, copy_css=False, copy_js=False
    )
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        source, page = Path(folder, "schema.json"), Path(folder, "page.html")
        source.write_text(json.dumps(schema), encoding="utf-8")
        with source.open(encoding="utf-8") as read, page.open("w", encoding="utf-8") as written:
            generate(read, written, config=options)
        return page.read_text(encoding="utf-8")


def _html(title: str, body: str) -> str:
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n<title>{title}</title>\n'
        f"<style>\n{STYLE}</style>\n</head>\n<body>\n{body.strip()}\n</body>\n</html>\n"
    )


def _renderer() -> tuple[Callable[..., Any], Callable[..., Any]]:
    try:
        from json_schema_for_humans.generate import generate_from_file_object
        from json_schema_for_humans.generation_configuration import GenerationConfiguration
    except ImportError:
        raise _without_docs() from None
    return generate_from_file_object, GenerationConfiguration


def _reader() -> Callable[..., Any]:
    try:
        import markdown2
    except ImportError:
        raise _without_docs() from None
    return markdown2.markdown  # type: ignore[no-any-return]


def _without_docs() -> ImportError:
    return ImportError("expected json-schema-for-humans for HTML pages\n  help: pip install 'strictstep[docs]'")
