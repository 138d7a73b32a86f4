"""The step function's own source: where it is, and whether it may be trusted.

A file may have changed since it was imported, and a decorator may stand between the source and what ran. So a source
counts only if it compiles to the very bytecode that is running. Nothing here calls the user's code: attributes are
read statically, and a hostile `__getattr__` or `__class__` is never asked.
"""

import __future__

import ast
import functools
import inspect
import io
import linecache
import os
import re
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

LONGEST_TEXT = 100
# Decorators of torch's own that change the mode but hand the value through, so that the function below still made it.
TRANSPARENT = {("torch.utils._contextlib", "decorate_context"), ("torch.amp.autocast_mode", "decorate_autocast")}
FUTURES = functools.reduce(
    int.__or__, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
# What makes two code objects the same. The line table is one of them: an edit that only moves a line, or an expression
# within a line, leaves the bytecode alone and would shift the caret.
SAMENESS = (
    *("co_name", "co_qualname", "co_firstlineno", "co_linetable", "co_code", "co_exceptiontable", "co_flags"),
    *("co_names", "co_varnames", "co_cellvars", "co_freevars"),
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step is defined: the line of its `def`, not of a decorator."""

    file: str
    line: int
    name: str


@dataclass(frozen=True, slots=True)
class Likely:
    """The likely line of a fault; the caret stands under `text[column : column + width]`."""

    file: str
    line: int
    text: str
    column: int
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A definition whose source was found to compile to the code that runs."""

    file: str
    node: Definition
    first: int
    lines: tuple[str, ...]

    def mark(self, line: int, start: int, end: int | None = None) -> Likely:
        """Point at the characters from `start` to `end` (None: to the end of the line's code)."""
        raw = self.lines[line - self.first]
        end = len(_without_comment(raw)) if end is None else end
        indent = len(raw) - len(raw.lstrip())
        # One character for one, so that the caret stays under its place whatever a tab or control character shows as.
        text = "".join(char if char.isprintable() else " " for char in raw.strip())
        return Likely(shown(self.file), line, *_window(text, start - indent, max(1, end - start)))

    def column(self, line: int, offset: int) -> int:
        """Turn an offset of `ast`, which counts UTF-8 bytes, into characters."""
        return len(self.lines[line - self.first].encode()[:offset].decode())

    def mark_node(self, node: ast.expr | ast.stmt | ast.keyword) -> Likely:
        """Point at a node: all of it if it stands on one line, else its first line."""
        start = self.column(node.lineno, node.col_offset)
        if node.end_lineno == node.lineno and node.end_col_offset is not None:
            return self.mark(node.lineno, start, self.column(node.lineno, node.end_col_offset))
        return self.mark(node.lineno, start)

    def mark_last(self, node: ast.Attribute, whole: ast.expr) -> Likely:
        """Point at `whole`, on the line where the attribute of its last link stands: `.item()` of a long chain."""
        line = node.end_lineno or node.lineno
        if whole.lineno == line:
            start = self.column(line, whole.col_offset)
        elif node.value.end_lineno == line:
            start = self.column(line, node.value.end_col_offset or 0)
        else:
            raw = self.lines[line - self.first]
            start = len(raw) - len(raw.lstrip())
        end = self.column(line, whole.end_col_offset or 0) if whole.end_lineno == line else None
        return self.mark(line, start, end)

    def mark_definition(self, *, keyword: bool = False) -> Likely:
        """Point at the name in the `def` line, or at its `async def`."""
        start = self.column(self.node.lineno, self.node.col_offset)
        head = re.match(r"((?:async\s+)?def)\s+(\w+)", self.lines[self.node.lineno - self.first][start:])
        if head is None:
            return self.mark(self.node.lineno, start)
        group = 1 if keyword else 2
        return self.mark(self.node.lineno, start + head.start(group), start + head.end(group))


def place(step: object) -> Place | None:
    """Say where a step is defined, looking through partials and wrappers; None where that cannot be known.

    >>> place(print) is None
    True
    >>> import textwrap
    >>> place(functools.partial(textwrap.dedent, "text")).name
    'dedent'
    """
    try:
        function = function_of(step, through_wrappers=True)
        return None if function is None else _place_of(function)
    except Exception:  # the report must come out, whatever the step is
        return None


def _place_of(function: FunctionType) -> Place:
    code = function.__code__
    source = trusted(function)
    line = _guessed_line(code) if source is None else source.node.lineno
    return Place(shown(code.co_filename), line, code.co_qualname.rpartition("<locals>.")[2])


def _guessed_line(code: CodeType) -> int:
    """Skip the decorators of a source that is not trusted: pytest rewrites test modules but leaves the lines."""
    first = code.co_firstlineno
    if not linecache.getline(code.co_filename, first).lstrip().startswith("@"):
        return first
    head = re.compile(rf"\s*(async\s+)?def\s+{re.escape(code.co_name)}\b")
    following = (line for line in range(first, first + 50) if head.match(linecache.getline(code.co_filename, line)))
    return next(following, first)


def shown(file: str) -> str:
    """Write a file's name relative to the current directory if it stands inside it."""
    try:
        relative = os.path.relpath(file)
    except (OSError, ValueError):  # the current directory was deleted, or another drive on Windows
        return file
    inside = os.path.isabs(file) and not relative.startswith(os.pardir)
    return relative if inside else file


def function_of(step: object, *, through_wrappers: bool = False) -> FunctionType | None:
    """Find the function that makes the step's value; None where a wrapper that may change it stands in between."""
    for _ in range(32):  # a chain that refers to itself ends here
        if type(step) is FunctionType:
            attributes = step.__dict__
            if "__wrapped__" not in attributes:
                return step
            if not (through_wrappers or (step.__globals__.get("__name__"), step.__code__.co_name) in TRANSPARENT):
                return None
            step = attributes["__wrapped__"]
        else:
            step = _called(step, through_wrappers)
    return None


def _called(step: object, through_wrappers: bool) -> object:
    """Go one link down: what a call of this object calls."""
    if type(step) is MethodType:
        return step.__self__ if _of_torch_module(step.__func__) else step.__func__
    if type(step) is functools.partial:
        return step.func
    if type(step) in (staticmethod, classmethod):
        return inspect.getattr_static(step, "__func__").__get__(step)
    if issubclass(type(step), type):
        return None  # calling a class makes an instance; no function returned it
    call: object = inspect.getattr_static(type(step), "__call__", None)
    if _of_torch_module(call):
        return _forward(step, through_wrappers)
    if type(call) in (FunctionType, staticmethod, classmethod):
        return call
    return inspect.getattr_static(step, "__wrapped__", None) if through_wrappers else None  # functools.lru_cache


def _of_torch_module(call: object) -> bool:
    return type(call) is FunctionType and call.__globals__.get("__name__") in (
        "torch.nn.modules.module",
        "torch._dynamo.eval_frame",
    )


def _forward(module: object, through_wrappers: bool) -> object:
    """Find the `forward` of a `torch.nn.Module`, unless a hook or the compiler may change what it returns."""
    own: dict[str, object] = object.__getattribute__(module, "__dict__")
    hooks = inspect.getattr_static(type(module), "__call__").__globals__.get("_global_forward_hooks")
    changed = own.get("_forward_hooks") or own.get("_compiled_call_impl") or hooks
    if changed and not through_wrappers:
        return None
    return own.get("forward") or inspect.getattr_static(type(module), "forward", None)


def trusted(function: FunctionType) -> Source | None:
    """Find the function's source, and give it only if it compiles to the bytecode that runs."""
    code = function.__code__
    linecache.lazycache(code.co_filename, function.__globals__)  # for modules in a zip file
    return _read(code, code.co_filename, code.co_linetable)


# The file name and the line table are part of the key: two code objects may be equal and differ in these.
@functools.lru_cache(maxsize=64)
def _read(code: CodeType, file: str, linetable: bytes) -> Source | None:
    linecache.checkcache(file)
    lines = tuple(linecache.getlines(file))
    if not lines:
        return None
    try:
        tree, module = _compiled("".join(lines), file, code.co_flags & FUTURES)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the file changed, and is now something else
        return None
    nodes = [node for node in ast.walk(tree) if isinstance(node, Definition) and _begins(node, code)]
    # Two lambdas on one line: no telling which of them ran.
    if len(nodes) != 1 or not any(_same(code, candidate) for candidate in _nested(module)):
        return None
    first, last = code.co_firstlineno, nodes[0].end_lineno
    return Source(file, nodes[0], first, lines[first - 1 : last])


def _compiled(text: str, file: str, flags: int) -> tuple[ast.Module, CodeType]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `"\d"` in the user's file is not ours to report a second time
        tree = ast.parse(text, file)
        return tree, compile(tree, file, "exec", flags, dont_inherit=True)


def _begins(node: Definition, code: CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    # Python counts a function's lines from its first decorator.
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return code.co_name == node.name and first == code.co_firstlineno


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)


def _same(one: CodeType, other: CodeType) -> bool:
    facts = all(getattr(one, fact) == getattr(other, fact) for fact in SAMENESS)
    return facts and _same_constants(one.co_consts, other.co_consts)


def _same_constants(ones: tuple[object, ...], others: tuple[object, ...]) -> bool:
    return len(ones) == len(others) and all(map(_same_constant, ones, others))


def _same_constant(one: object, other: object) -> bool:
    if isinstance(one, CodeType):
        return isinstance(other, CodeType) and _same(one, other)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and _same_constants(one, other)
    if isinstance(one, frozenset):
        return one == other  # its order, and so its repr, may differ
    return type(one) is type(other) and repr(one) == repr(other)  # 1 == True, and 0.0 == -0.0


def _without_comment(line: str) -> str:
    """Cut the comment at the end of a line, whose code may be only a part of a statement."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(line).readline):
            if token.type == tokenize.COMMENT:
                return line[: token.start[1]].rstrip()
    except (tokenize.TokenError, SyntaxError):  # an open bracket: the tokens up to the end of the line were read
        pass
    return line.rstrip()


def _window(text: str, column: int, width: int) -> tuple[str, int, int]:
    """Cut a long line around its caret."""
    if len(text) <= LONGEST_TEXT:
        return text, column, min(width, len(text) - column)
    room = LONGEST_TEXT - 2 * len("...")
    start = 0 if column + width <= room else max(0, column - 20)
    before, after = "..." if start else "", "..." if start + room < len(text) else ""
    text = text[start : start + room]
    return before + text + after, column - start + len(before), min(width, len(text) - (column - start))
