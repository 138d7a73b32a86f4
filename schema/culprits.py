"""Culprits: what was done to a value that explains its fault, such as `.item()` or a `with torch.no_grad()`."""

import ast
from collections.abc import Callable
from dataclasses import dataclass

from strictstep.schema.scope import EXACT_CALLS, INTEGERS, MODES, UNRELATED, Scope, words

Culprit = ast.expr | ast.keyword


NUMBERS = (float, int, bool, complex)


INTEGER_METHODS = words("long int short char byte bool")
INTEGER_OPERATIONS = words(
    "argmax argmin argsort count_nonzero eq ne lt le gt ge isnan isinf isfinite isclose "
    "logical_and logical_or logical_not logical_xor"
)
# Methods of tensors after which the receiver's fault is still there, whatever else they do.
RESHAPING = words("view reshape squeeze unsqueeze flatten contiguous clone cpu cuda abs neg clamp detach")
REDUCING = words("sum mean max min prod std var norm median")
CONVERTING = words("to float double half bfloat16 type_as")
ELEMENTWISE = words("exp log sqrt pow square sigmoid tanh relu softmax log_softmax logsumexp")


@dataclass(frozen=True, slots=True)
class _Trail:
    """How to go from a value inwards: what is looked for, and the methods after which it is still the culprit."""

    found: Callable[[Scope, ast.expr, type | None], Culprit | None]
    methods: frozenset[str] | None = frozenset()  # None: all
    operations: bool = True


def culprit(scope: Scope, expr: ast.expr | None, code: str, got: type | None) -> Culprit | None:
    """Go from the value inwards to the last thing done to it that explains the fault."""
    trail = TRAILS.get(code)
    if trail is PLAIN and got is not None and got.__module__ == "numpy":
        trail = NUMPY
    while trail is not None and expr is not None:
        if (found := trail.found(scope, expr, got)) is not None:
            return found
        expr = _onward(scope, expr, trail)
    return None


def _onward(scope: Scope, expr: ast.expr, trail: _Trail) -> ast.expr | None:
    match expr:
        case ast.Name() | ast.NamedExpr():
            followed = scope.follow(expr, ())
            return None if followed is None else followed[0]
        case ast.Call():
            return _through_call(scope, expr, trail) if trail.operations else None
    return _through_operation(scope, expr, trail) if trail.operations else None


def _through_operation(scope: Scope, expr: ast.expr, trail: _Trail) -> ast.expr | None:
    match expr:
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Invert(), operand=value):
            return value
        # With any other operand there is no telling whose fault it is.
        case ast.BinOp(left=value, right=ast.Constant(value=int() | float())):
            return value
        case ast.BinOp(left=ast.Constant(value=int() | float()), right=value):
            return value
        case ast.BinOp(left=value, right=ast.Call(func=func)) if scope.is_builtin(func, "len"):
            return value
        # `batch["loss"]` is made elsewhere; `losses[0]` is a part of the same tensor.
        case ast.Subscript(value=value, slice=index) if not _is_text(index):
            return value
        case ast.Attribute(value=value, attr=attr) if attr in ("T", "mT", "real") or trail.methods is None:
            return value
    return None


def _is_text(index: ast.expr) -> bool:
    return isinstance(index, ast.Constant) and isinstance(index.value, str)


def _through_call(scope: Scope, call: ast.Call, trail: _Trail) -> ast.expr | None:
    match call:
        case ast.Call(func=ast.Name(id="round" | "abs" as name) as func, args=[value, *_]):
            return value if scope.is_builtin(func, name) else None
        case ast.Call(func=ast.Attribute(value=value, attr=attr), keywords=keywords):
            plain = not any(keyword.arg in (None, "dtype") for keyword in keywords)
            return value if plain and (trail.methods is None or attr in trail.methods) else None
        case ast.Call(func=ast.Call() as made) if trail is SHAPE:
            return made  # `CrossEntropyLoss(reduction="none")(x, y)`
    return None


def _found_number(scope: Scope, expr: ast.expr, got: type | None) -> Culprit | None:
    number = any(got is kind for kind in NUMBERS)
    match expr:
        case ast.Call(func=ast.Attribute(attr="item"), args=[], keywords=[]) if number:
            return expr
        case ast.Call(func=ast.Attribute(attr="tolist"), args=[], keywords=[]) if number or got is list:
            return expr
        case ast.Call(func=ast.Name(id="float" | "int" | "bool" | "complex" as name) as func, args=[_]):
            return expr if scope.is_builtin(func, name) and got is EXACT_CALLS[name] else None
    return None


def _found_numpy(_scope: Scope, expr: ast.expr, _got: type | None) -> Culprit | None:
    match expr:
        case ast.Call(func=ast.Attribute(attr="numpy")):
            return expr
    return None


def _found_unreduced(_scope: Scope, expr: ast.expr, _got: type | None) -> Culprit | None:
    keywords = expr.keywords if isinstance(expr, ast.Call) else []
    for keyword in keywords:
        if keyword.arg == "reduction" and isinstance(keyword.value, ast.Constant) and keyword.value.value == "none":
            return keyword
    return None


def _found_integer(scope: Scope, expr: ast.expr, _got: type | None) -> Culprit | None:
    match expr:
        case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE()]):
            return expr
        case ast.Call(func=ast.Attribute(attr=attr), args=args, keywords=keywords):
            bare = not args and not keywords and attr in INTEGER_METHODS
            dtypes = [keyword.value for keyword in keywords if keyword.arg == "dtype"]
            dtypes += args if attr in ("to", "type") else []
            converted = any(scope.torch_name(dtype) in INTEGERS for dtype in dtypes)
            return expr if bare or converted or (attr in INTEGER_OPERATIONS and not dtypes) else None
    return None


def _found_leaf(scope: Scope, expr: ast.expr, _got: type | None) -> Culprit | None:
    match expr:
        case ast.Name():
            return _leaf_statement(scope, expr)
        case ast.Call(func=ast.Attribute(attr="requires_grad_")):
            return expr if _argument(expr, "requires_grad") in (None, True) else None
        case ast.Call(func=func, keywords=keywords):
            given = [keyword.value for keyword in keywords if keyword.arg == "requires_grad"]
            turned_on = any(isinstance(value, ast.Constant) and value.value is True for value in given)
            return expr if turned_on or scope.torch_name(func) == "Parameter" else None
    return None


def _leaf_statement(scope: Scope, name: ast.Name) -> ast.expr | None:
    """Find the one statement `loss.requires_grad_()` or `loss.requires_grad = True`, if it has certainly run."""
    links = [scope.parents[use] for use in scope.uses[name.id]]
    found = [
        link for link in links if isinstance(link, ast.Attribute) and link.attr in ("requires_grad_", "requires_grad")
    ]
    if len(found) != 1 or scope.bound[name.id] != 1:
        return None
    outer = scope.parents[found[0]]
    match outer, scope.parents[outer]:
        case ast.Call(), ast.Expr() as statement if _argument(outer, "requires_grad") in (None, True):
            mark: ast.expr = outer
        case ast.Assign(targets=[_], value=ast.Constant(value=True)) as statement, _:
            mark = found[0]
        case _:
            return None
    return mark if scope.parents[statement] is scope.node and statement.lineno < name.lineno else None


def _found_without_graph(scope: Scope, expr: ast.expr, _got: type | None) -> Culprit | None:
    match expr:
        case ast.Call(func=ast.Attribute(attr="detach" | "detach_"), args=[], keywords=[]) | ast.Attribute(attr="data"):
            return expr
        case ast.Call(keywords=keywords) if scope.is_constructed(expr):
            may_require = any(keyword.arg in (None, "requires_grad") for keyword in keywords)
            return None if may_require else expr
        case ast.Call(func=ast.Attribute(attr="get" | "pop")):
            return None  # nothing is computed here
        case ast.Call() | ast.BinOp():
            return _grad_off(scope, expr)
        case ast.Name(id=name) if scope.follow(expr, ()) is None and _is_made_here(scope, name):
            return _decorated_off(scope)
    return None


def _is_made_here(scope: Scope, name: str) -> bool:
    """Whether a name is the function's own, and gradients are nowhere switched on in it."""
    arguments = {node.arg for node in ast.walk(scope.node.args) if isinstance(node, ast.arg)}
    switched = {"enable_grad", "set_grad_enabled", "inference_mode"} & set(scope.function.__code__.co_names)
    return name in scope.bound and name not in arguments and not switched


def _grad_off(scope: Scope, expr: ast.expr) -> ast.expr | None:
    """Give the `with` item or the decorator under which the expression ran without gradients."""
    for context in scope.contexts(expr):
        mode = _mode(scope, context)
        if mode != "unrelated":
            return context if mode == "off" else None
    return _decorated_off(scope)


def _decorated_off(scope: Scope) -> ast.expr | None:
    decorators = [] if isinstance(scope.node, ast.Lambda) else scope.node.decorator_list
    for decorator in reversed(decorators):
        func = decorator.func if isinstance(decorator, ast.Call) else decorator
        if scope.torch_name(func) in MODES:
            return decorator if _mode(scope, decorator) == "off" else None
    return None


def _mode(scope: Scope, context: ast.expr) -> str:
    """Tell whether a context turns gradients `off`, is `unrelated` to them, or may turn them `on`."""
    name = scope.torch_name(context.func if isinstance(context, ast.Call) else context)
    argument = _argument(context, "mode")
    if name in UNRELATED:
        return "unrelated"
    off = name == "no_grad" or (name == "inference_mode" and argument in (None, True))
    return "off" if off or (name == "set_grad_enabled" and argument is False) else "on"


def _argument(call: ast.expr, name: str) -> object:
    """Give the constant that a call has as its only argument, None if it has none, a text if that is not constant."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)] if isinstance(call, ast.Call) else []
    named = all(keyword.arg == name for keyword in call.keywords) if isinstance(call, ast.Call) else True
    match given:
        case []:
            return None
        case [ast.Constant(value=bool() as value)] if named:
            return value
    return "unknown"


PLAIN = _Trail(_found_number)
NUMPY = _Trail(_found_numpy, methods=None)
SHAPE = _Trail(_found_unreduced, RESHAPING | CONVERTING | ELEMENTWISE)
TRAILS = {
    "wrong_return_type": PLAIN,
    "loss_not_tensor": PLAIN,
    "hiddens_not_tensor": PLAIN,
    "scalar_wrong_type": PLAIN,
    "loss_not_scalar": SHAPE,
    "scalar_not_single": SHAPE,
    "loss_not_floating": _Trail(_found_integer, RESHAPING | {"sum", "prod", "max", "min"}),
    "loss_no_grad": _Trail(_found_without_graph, RESHAPING | REDUCING | CONVERTING | ELEMENTWISE),
    "loss_leaf": _Trail(_found_leaf, operations=False),
}
