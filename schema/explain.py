"""The likely line of a fault, read from the step's own source after a check has failed.

The promise is "never claimed wrongly": a line is named only if the source is what ran, exactly one `return` fits what
arrived, and the way from there to the value is beyond doubt. Where doubt begins, the mark stays on the last expression
that is certain, at worst the returned one; where even that is open, nothing is claimed.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from types import AsyncGeneratorType, CoroutineType, GeneratorType, NoneType

from strictstep.schema.culprits import culprit
from strictstep.schema.scope import Path, Scope, is_key
from strictstep.schema.source import Likely, Place, function_of, place, trusted

__all__ = ["Arrived", "Likely", "Place", "likely", "place"]


OF_A_KEY = frozenset({"key_unknown", "key_missing", "key_twice"})


@dataclass(frozen=True, slots=True)
class Arrived:
    """What a step returned, without keeping any tensor: its type, the names in it, or how many elements."""

    kind: type
    keys: tuple[str, ...] | None = None
    length: int | None = None


def likely(step: object, code: str, path: Path, got: type | None, arrived: Arrived) -> Likely | None:
    """Name the likely line of the fault `code` at `path`, or None where that would be a guess.

    `path` is empty for the returned value itself; `got` is the type of what arrived at the path, None if nothing did.

    >>> likely(len, "wrong_return_type", (), int, Arrived(int)) is None
    True
    """
    try:
        function = function_of(step)
        source = None if function is None else trusted(function)
        if function is None or source is None:
            return None
        return _claim(Scope(function, source), code, path, got, arrived)
    except Exception:  # the report must come out, whatever the step is
        return None


class _DoubtError(Exception):
    """No claim may be made."""


def _claim(scope: Scope, code: str, path: Path, got: type | None, arrived: Arrived) -> Likely | None:
    if (unstarted := _unstarted(scope, arrived.kind)) is not None:
        return unstarted
    fitting = list(_fitting(scope, arrived))
    if len(fitting) != 1:
        return None
    [returned] = fitting
    if isinstance(returned, ast.expr):
        if arrived.keys is None and path[:1] == ("loss",):
            path = path[1:]  # a tensor returned by itself is the loss
        return _claim_in(scope, returned, code, path, got, arrived)
    return scope.source.mark_node(returned) if isinstance(returned, ast.Return) else scope.source.mark_definition()


def _claim_in(
    scope: Scope, returned: ast.expr, code: str, path: Path, got: type | None, arrived: Arrived
) -> Likely | None:
    chosen = _chosen(scope, returned, arrived)
    if chosen is None:
        return scope.source.mark_node(returned)
    if code in OF_A_KEY:
        return scope.source.mark_node(_key_at(*_narrow(scope, chosen, path[:-1]), path[-1:]))
    value, exact = _narrow(scope, chosen, path)
    if not exact:
        return scope.source.mark_node(value)
    kind = scope.kind(value)
    if got is not None and kind is not None and kind is not got:
        return None  # the source says otherwise than what arrived, so something in it was misread
    done = culprit(scope, value, code, got)
    if isinstance(done, ast.Call) and isinstance(done.func, ast.Attribute):
        return scope.source.mark_last(done.func, done)
    return scope.source.mark_node(value if done is None else done)


def _key_at(mapping: ast.expr, exact: bool, name: Path) -> ast.expr:
    """Give the key of that name in a dict display: a wrong name is no fault of the value under it."""
    keys = mapping.keys if exact and isinstance(mapping, ast.Dict) else []
    found = [key for key in keys if isinstance(key, ast.Constant) and name and is_key(key.value, name[0])]
    return found[0] if len(found) == 1 else mapping


def _unstarted(scope: Scope, kind: type) -> Likely | None:
    """Mark what makes a generator or a coroutine of the function."""
    yields = [node for node in scope.own() if isinstance(node, ast.Yield | ast.YieldFrom)]
    if yields:
        if kind is not GeneratorType and kind is not AsyncGeneratorType:
            raise _DoubtError
        return scope.source.mark_node(min(yields, key=lambda node: (node.lineno, node.col_offset)))
    if kind is CoroutineType and isinstance(scope.node, ast.AsyncFunctionDef):
        return scope.source.mark_definition(keyword=True)
    return None


def _fitting(
    scope: Scope, arrived: Arrived
) -> Iterator[ast.expr | ast.Return | ast.FunctionDef | ast.AsyncFunctionDef]:
    """List the returns that fit what arrived; the definition itself stands for falling off its end."""
    if isinstance(scope.node, ast.Lambda):
        if _fits(scope, scope.node.body, arrived):
            yield scope.node.body
        return
    for node in scope.own():
        if isinstance(node, ast.Return) and _fits(scope, node.value, arrived):
            yield node.value or node
    if arrived.kind is NoneType and _falls_through(scope.node.body):
        yield scope.node


def _falls_through(body: list[ast.stmt]) -> bool:
    match body[-1]:
        case ast.Return() | ast.Raise():
            return False
        case ast.If(body=yes, orelse=no):
            return not no or _falls_through(yes) or _falls_through(no)
    return True  # a loop may end, a `with` may swallow


def _fits(scope: Scope, expr: ast.expr | None, arrived: Arrived) -> bool:
    match expr:
        case None:
            return arrived.kind is NoneType
        case ast.NamedExpr(value=value):
            return _fits(scope, value, arrived)
        case ast.IfExp(body=body, orelse=orelse):
            return _fits(scope, body, arrived) or _fits(scope, orelse, arrived)
    kind = scope.kind(expr)
    return (kind is None or kind is arrived.kind) and _names_fit(scope, expr, arrived) and _length_fits(expr, arrived)


def _length_fits(expr: ast.expr, arrived: Arrived) -> bool:
    if arrived.length is None or not isinstance(expr, ast.Tuple | ast.List):
        return True
    single = [element for element in expr.elts if not isinstance(element, ast.Starred)]
    return len(single) <= arrived.length if len(single) < len(expr.elts) else len(single) == arrived.length


def _names_fit(scope: Scope, expr: ast.expr, arrived: Arrived) -> bool:
    if isinstance(expr, ast.Name):
        value = scope.binding(expr.id)
        alone = all(isinstance(scope.parents[use], ast.Return) for use in scope.uses[expr.id])
        return value is None or not alone or _names_fit(scope, value, arrived)
    names = _names(scope, expr)
    if arrived.keys is None or names is None:
        return True
    literal = set(names) - {None}
    return literal <= set(arrived.keys) if None in names else literal == set(arrived.keys)


def _names(scope: Scope, expr: ast.expr) -> list[str | None] | None:
    """List the names of a literal mapping, with None for what only the run knows."""
    match expr:
        case ast.Dict(keys=keys):
            return [key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None for key in keys]
        case ast.Call(func=func, args=args, keywords=keywords) if scope.is_builtin(func, "dict"):
            return [*(keyword.arg for keyword in keywords), *(None for _ in args)]
    return None


def _chosen(scope: Scope, expr: ast.expr, arrived: Arrived) -> ast.expr | None:
    """Choose the one branch of a conditional expression that fits; None if both do."""
    match expr:
        case ast.IfExp(body=body, orelse=orelse):
            fitting = [branch for branch in (body, orelse) if _fits(scope, branch, arrived)]
            return _chosen(scope, fitting[0], arrived) if len(fitting) == 1 else None
    return expr


def _narrow(scope: Scope, expr: ast.expr, path: Path) -> tuple[ast.expr, bool]:
    """Give the deepest certain expression on the way to `path`, and whether it is the value at its end."""
    if isinstance(expr, ast.Name | ast.NamedExpr):
        followed = scope.follow(expr, path)
        return (expr, not path) if followed is None else _narrow(scope, *followed)
    if not path:
        return expr, True
    inner = _entry(scope, expr, path[0])
    return (expr, False) if inner is None else _narrow(scope, inner, path[1:])


def _entry(scope: Scope, expr: ast.expr, key: str | int) -> ast.expr | None:
    """Give the expression that a display or a call with keywords has under a key."""
    match expr:
        case ast.Dict(keys=keys, values=values):
            return _dict_entry(keys, values, key)
        case ast.Tuple(elts=elements) | ast.List(elts=elements) if isinstance(key, int):
            exact = 0 <= key < len(elements) and not any(isinstance(e, ast.Starred) for e in elements[: key + 1])
            return elements[key] if exact else None
        case ast.Call(func=func, keywords=keywords) if scope.is_builtin(func, "dict") or scope.is_record_class(func):
            return next((keyword.value for keyword in keywords if keyword.arg == key), None)
    return None


def _dict_entry(keys: list[ast.expr | None], values: list[ast.expr], key: str | int) -> ast.expr | None:
    places = [at for at, node in enumerate(keys) if isinstance(node, ast.Constant) and is_key(node.value, key)]
    if len(places) > 1:
        raise _DoubtError
    # What follows and is not literal (`**rest`, `{name: x}`) may replace the entry.
    last = places and all(isinstance(node, ast.Constant) for node in keys[places[0] :])
    return values[places[0]] if last else None
