"""The likely line of a fault, read from the step's own source after a check has failed.

The promise is "never claimed wrongly": a line is named only if the source is what ran, exactly one `return` fits what
arrived, and the way from there to the value is beyond doubt. Where doubt begins, the mark stays on the last expression
that is certain, at worst the returned one; where even that is open, nothing is claimed.
"""

import ast
import builtins
import inspect
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType, ModuleType, NoneType

from strictstep.schema.source import Definition, Likely, Place, Source, function_of, place, trusted

__all__ = ["Arrived", "Likely", "Place", "likely", "place"]

Path = tuple[str | int, ...]
Culprit = ast.expr | ast.keyword

LITERALS: dict[type[ast.expr], type] = {
    ast.Dict: dict,
    ast.DictComp: dict,
    ast.List: list,
    ast.ListComp: list,
    ast.Tuple: tuple,
    ast.Set: set,
    ast.SetComp: set,
    ast.Lambda: FunctionType,
    ast.JoinedStr: str,
}
EXACT_CALLS = {kind.__name__: kind for kind in (dict, list, tuple, set, frozenset, float, int, bool, complex, str)}
NUMBERS = (float, int, bool, complex)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


INTEGERS = _words("int8 int16 short int32 int int64 long uint8 uint16 uint32 uint64 bool")
INTEGER_METHODS = _words("long int short char byte bool")
INTEGER_OPERATIONS = _words(
    "argmax argmin argsort count_nonzero eq ne lt le gt ge isnan isinf isfinite isclose "
    "logical_and logical_or logical_not logical_xor"
)
MODES = _words("no_grad inference_mode enable_grad set_grad_enabled")
# Contexts of torch's that leave gradients as they are.
UNRELATED = _words("autocast record_function profile device")
CONSTRUCTORS = _words(
    "tensor scalar_tensor from_numpy zeros ones full empty rand randn arange linspace eye normal "
    "zeros_like ones_like full_like empty_like rand_like randn_like"
)
NEW_METHODS = _words("new_tensor new_zeros new_ones new_full new_empty")
# Methods of tensors after which the receiver's fault is still there, whatever else they do.
RESHAPING = _words("view reshape squeeze unsqueeze flatten contiguous clone cpu cuda abs neg clamp detach")
REDUCING = _words("sum mean max min prod std var norm median")
CONVERTING = _words("to float double half bfloat16 type_as")
ELEMENTWISE = _words("exp log sqrt pow square sigmoid tanh relu softmax log_softmax logsumexp")


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
        return _claim(_Scope(function, source), code, path, got, arrived)
    except Exception:  # the report must come out, whatever the step is
        return None


class _DoubtError(Exception):
    """No claim may be made."""


# -- the claim: which `return`, which value in it, what made it so


def _claim(scope: "_Scope", code: str, path: Path, got: type | None, arrived: Arrived) -> Likely | None:
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
    scope: "_Scope", returned: ast.expr, code: str, path: Path, got: type | None, arrived: Arrived
) -> Likely | None:
    chosen = _chosen(scope, returned, arrived)
    if chosen is None:
        return scope.source.mark_node(returned)
    value, exact = _narrow(scope, chosen, path)
    if not exact:
        return scope.source.mark_node(value)
    kind = scope.kind(value)
    if got is not None and kind is not None and kind is not got:
        return None  # the source says otherwise than what arrived, so something in it was misread
    culprit = _culprit(scope, value, code, got)
    if culprit is None:
        return scope.source.mark_node(value)
    if isinstance(culprit, ast.Call) and isinstance(culprit.func, ast.Attribute):
        return scope.source.mark_last(culprit.func, culprit)
    return scope.source.mark_node(culprit)


def _unstarted(scope: "_Scope", kind: type) -> Likely | None:
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
    scope: "_Scope", arrived: Arrived
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


def _fits(scope: "_Scope", expr: ast.expr | None, arrived: Arrived) -> bool:
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


def _names_fit(scope: "_Scope", expr: ast.expr, arrived: Arrived) -> bool:
    if isinstance(expr, ast.Name):
        value = scope.binding(expr.id)
        alone = all(isinstance(scope.parents[use], ast.Return) for use in scope.uses[expr.id])
        return value is None or not alone or _names_fit(scope, value, arrived)
    names = _names(scope, expr)
    if arrived.keys is None or names is None:
        return True
    literal = set(names) - {None}
    return literal <= set(arrived.keys) if None in names else literal == set(arrived.keys)


def _names(scope: "_Scope", expr: ast.expr) -> list[str | None] | None:
    """List the names of a literal mapping, with None for what only the run knows."""
    match expr:
        case ast.Dict(keys=keys):
            return [key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None for key in keys]
        case ast.Call(func=func, args=args, keywords=keywords) if scope.is_builtin(func, "dict"):
            return [*(keyword.arg for keyword in keywords), *(None for _ in args)]
    return None


def _chosen(scope: "_Scope", expr: ast.expr, arrived: Arrived) -> ast.expr | None:
    """Choose the one branch of a conditional expression that fits; None if both do."""
    match expr:
        case ast.IfExp(body=body, orelse=orelse):
            fitting = [branch for branch in (body, orelse) if _fits(scope, branch, arrived)]
            return _chosen(scope, fitting[0], arrived) if len(fitting) == 1 else None
    return expr


def _narrow(scope: "_Scope", expr: ast.expr, path: Path) -> tuple[ast.expr, bool]:
    """Give the deepest certain expression on the way to `path`, and whether it is the value at its end."""
    if isinstance(expr, ast.Name | ast.NamedExpr):
        followed = scope.follow(expr, path)
        return (expr, not path) if followed is None else _narrow(scope, *followed)
    if not path:
        return expr, True
    inner = _entry(scope, expr, path[0])
    return (expr, False) if inner is None else _narrow(scope, inner, path[1:])


def _entry(scope: "_Scope", expr: ast.expr, key: str | int) -> ast.expr | None:
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
    places = [at for at, node in enumerate(keys) if isinstance(node, ast.Constant) and _is_key(node.value, key)]
    if len(places) > 1:
        raise _DoubtError
    # What follows and is not literal (`**rest`, `{name: x}`) may replace the entry.
    last = places and all(isinstance(node, ast.Constant) for node in keys[places[0] :])
    return values[places[0]] if last else None


def _is_key(value: object, key: str | int) -> bool:
    return type(value) is type(key) and value == key


# -- the function's names: what they are bound to, and what may have changed it since


class _Scope:
    """One step's source, and what its statements do to the names in it."""

    def __init__(self, function: FunctionType, source: Source) -> None:
        self.function = function
        self.source = source
        self.node: Definition = source.node
        self._builtins: dict[str, object] = function.__builtins__  # type: ignore[attr-defined]  # typeshed lacks it
        self.parents = {child: parent for parent in ast.walk(self.node) for child in ast.iter_child_nodes(parent)}
        # Nested functions and comprehensions count too: a name that is bound a second time anywhere is not followed.
        self.bound = Counter(name for node in self.parents for name in _binds(node))
        self.uses: dict[str, list[ast.Name]] = defaultdict(list)
        for node in self.parents:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self.uses[node.id].append(node)

    def own(self) -> Iterator[ast.AST]:
        """Walk the function's own body, not that of functions and classes inside it."""
        body = self.node.body
        waiting: list[ast.AST] = [body] if isinstance(body, ast.expr) else [*body]
        while waiting:
            node = waiting.pop()
            yield node
            if not isinstance(node, Definition | ast.ClassDef):
                waiting.extend(ast.iter_child_nodes(node))

    def kind(self, expr: ast.expr) -> type | None:
        """Tell the type that an expression is bound to have, None where only the run knows."""
        match expr:
            case ast.Constant(value=value):
                return type(value)
            case ast.UnaryOp(op=ast.Not()) | ast.Compare(ops=[ast.Is() | ast.IsNot() | ast.In() | ast.NotIn()]):
                return bool
            case ast.Name(id=name):
                bound = self.binding(name)
                return None if bound is None else self.kind(bound)
            case ast.Call(func=ast.Name(id=name) as func):
                return EXACT_CALLS.get(name) if self.is_builtin(func, name) else _instances_of(self.known(name))
        return LITERALS.get(type(expr))

    def binding(self, name: str) -> ast.expr | None:
        """Give what a name is bound to, if it is bound once and that is beyond loops and branches."""
        if self.bound[name] != 1 or isinstance(self.node, ast.Lambda):
            return None
        for statement in _straight(self.node.body):
            match statement:
                case (
                    ast.Assign(targets=[ast.Name(id=found)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value)
                ) if found == name:
                    return None if isinstance(value, ast.NamedExpr) else value  # a second name, to change it by
        return None

    def follow(self, name: ast.Name | ast.NamedExpr, path: Path) -> tuple[ast.expr, Path] | None:
        """Go from a name to what it is bound to, if nothing in between may have changed that."""
        target, value = (name.target, name.value) if isinstance(name, ast.NamedExpr) else (name, self.binding(name.id))
        if value is None:
            return None
        others = [use for use in self.uses[target.id] if use is not name]
        if path or self._is_container(value):
            # What is done to a walrus's name may have been done to what it was bound to before.
            doubtful = isinstance(name, ast.NamedExpr) and (self.bound[target.id] > 1 or len(others) > 0)
            return None if doubtful else self._follow_container(target, value, path, others)
        # A tensor that torch made empty may be filled by whoever gets it; any other keeps its fault.
        harmless = self._is_only_read if self.is_constructed(value) else self._is_not_changed
        return (value, path) if all(map(harmless, others)) else None

    def _is_container(self, value: ast.expr) -> bool:
        mutable = ast.Dict | ast.List | ast.Tuple | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp
        if isinstance(value, ast.Call):
            of_builtin = any(self.is_builtin(value.func, name) for name in ("dict", "list", "set"))
            return of_builtin or self._is_record(value)
        return isinstance(value, mutable)

    def _is_record(self, value: ast.expr) -> bool:
        return isinstance(value, ast.Call) and self.is_record_class(value.func)

    def _follow_container(
        self, name: ast.Name, value: ast.expr, path: Path, others: list[ast.Name]
    ) -> tuple[ast.expr, Path] | None:
        stores = [use for use in others if self._is_store(use, path)]
        if not all(self._leaves(use, value, path) for use in others if use not in stores):
            return None
        if not stores:
            return value, path
        statement = self.parents[self.parents[stores[0]]]
        if len(stores) > 1 or not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
            return None
        if not isinstance(value, ast.Call | ast.Dict | ast.List):
            return None  # `same = out`: what has another name may be stored to by that
        # Only a statement of the function itself, further up, has certainly run.
        certain = self.parents[statement] is self.node and statement.lineno < name.lineno
        return (statement.value, path[1:]) if certain else None

    def _is_store(self, use: ast.Name, path: Path) -> bool:
        match self.parents[use]:
            case ast.Subscript(value=value, slice=ast.Constant(value=key), ctx=ast.Store()) if value is use:
                return bool(path) and _is_key(key, path[0])
        return False

    def _leaves(self, use: ast.Name, value: ast.expr, path: Path) -> bool:
        """Whether this use of a container's name leaves what stands at `path`."""
        parent = self.parents[use]
        match parent:
            case ast.Return():
                return True
            case ast.Subscript(value=container, slice=ast.Constant(value=key), ctx=ctx) if container is use:
                # Reading a list that stands inside may lead to changing it.
                reads = isinstance(ctx, ast.Load) and len(path) < 2
                return reads or (bool(path) and not _is_key(key, path[0]))
            case ast.Attribute(attr=attr, ctx=ast.Load()) if self._is_record(value):
                call = self.parents[parent]
                is_method = isinstance(call, ast.Call) and call.func is parent
                return not is_method and (len(path) < 2 or attr != path[0])
        return False

    def _is_not_changed(self, use: ast.AST) -> bool:
        """Whether this use of a tensor's name leaves it in place: no `x[0] = `, `x.grad = `, `x.add_()`, `out=x`."""
        parent = self.parents[use]
        match parent:
            case ast.Attribute(attr=attr, ctx=ctx):
                in_place = attr.endswith("_") and not attr.endswith("__")
                return isinstance(ctx, ast.Load) and not in_place and self._is_not_changed(parent)
            case ast.Subscript(value=value, ctx=ctx) if value is use:
                return isinstance(ctx, ast.Load) and self._is_not_changed(parent)
            case ast.keyword(arg="out"):
                return False
        return True

    def _is_only_read(self, use: ast.AST) -> bool:
        readers = ast.Return | ast.BinOp | ast.Compare | ast.FormattedValue | ast.Attribute
        return isinstance(self.parents[use], readers) and self._is_not_changed(use)

    def is_local(self, name: str) -> bool:
        code = self.function.__code__
        return name in self.bound or name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars)

    def known(self, name: str) -> object:
        """Give the global of that name; None for a name of the function's own or of one around it."""
        return None if self.is_local(name) else self.function.__globals__.get(name)

    def is_builtin(self, func: ast.expr, name: str) -> bool:
        """Whether a call's function is the builtin of that name, not something else that was given the name."""
        if not isinstance(func, ast.Name) or func.id != name or self.is_local(name):
            return False
        found = self.function.__globals__.get(name, self._builtins.get(name))
        return found is not None and found is vars(builtins).get(name)

    def torch_name(self, expr: ast.expr) -> str:
        """Give `zeros` for `torch.zeros`, however torch was imported; empty for anything that is not torch's."""
        root = expr
        while isinstance(root, ast.Attribute):
            root = root.value
        known = self.known(root.id) if isinstance(root, ast.Name) else None
        if known is None or "torch" not in sys.modules:
            return ""
        if isinstance(expr, ast.Attribute):
            return expr.attr if _module_name(known).partition(".")[0] == "torch" else ""
        torch = vars(sys.modules["torch"])
        return next((name for name in MODES | UNRELATED | CONSTRUCTORS | INTEGERS if torch.get(name) is known), "")

    def is_constructed(self, expr: ast.expr) -> bool:
        """Whether the expression makes a new tensor that belongs to no graph."""
        if not isinstance(expr, ast.Call):
            return False
        new = isinstance(expr.func, ast.Attribute) and expr.func.attr in NEW_METHODS
        return new or self.torch_name(expr.func) in CONSTRUCTORS

    def is_record_class(self, func: ast.expr) -> bool:
        """Whether a call is that of a class which keeps its keywords: `TrainingOutput`, `outputs.Step`, `Step[Log]`."""
        match func:
            case ast.Subscript(value=value):
                return self.is_record_class(value)
            case ast.Name(id=name):
                known = self.known(name)
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                known = _in_module(self.known(module), name)
            case _:
                return False
        capitalised = name.lstrip("_")[:1].isupper()
        return capitalised and (known is None or _keeps_keywords(known))

    def contexts(self, expr: ast.AST) -> Iterator[ast.expr]:
        """List the `with` items around an expression, innermost first."""
        child, parent = expr, self.parents.get(expr)
        while parent is not None:
            if isinstance(parent, ast.With | ast.AsyncWith) and child in parent.body:
                yield from (item.context_expr for item in reversed(parent.items))
            child, parent = parent, self.parents.get(parent)


def _binds(node: ast.AST) -> Iterable[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name) | ast.ExceptHandler(name=str() as name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name) | ast.MatchMapping(rest=str() as name):
            return [name]
        case ast.alias(name=name, asname=asname):
            return [(asname or name).partition(".")[0]]
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            return names
    return []


def _straight(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """List the statements that are beyond loops and branches."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.With | ast.AsyncWith):
            yield from _straight(statement.body)


def _instances_of(known: object) -> type | None:
    """Give the class itself if calling it is sure to make an instance of just that class."""
    if not issubclass(type(known), type):
        return None  # a TypedDict is a class, and makes a dict
    makes = inspect.getattr_static(type(known), "__call__") is type.__dict__["__call__"]
    plain = inspect.getattr_static(known, "__new__", None) is object.__dict__["__new__"]
    return known if makes and plain and isinstance(known, type) else None


def _keeps_keywords(known: object) -> bool:
    """Whether a known object is a class, and not one that changes its fields once more."""
    return issubclass(type(known), type) and inspect.getattr_static(known, "__post_init__", None) is None


def _in_module(module: object, name: str) -> object:
    return vars(module).get(name) if isinstance(module, ModuleType) else None


def _module_name(known: object) -> str:
    return str(vars(known).get("__name__")) if isinstance(known, ModuleType) else ""


# -- culprits: what was done to the value that explains the fault


@dataclass(frozen=True, slots=True)
class _Trail:
    """How to go from a value inwards: what is looked for, and the methods after which it is still the culprit."""

    found: Callable[[_Scope, ast.expr, type | None], Culprit | None]
    methods: frozenset[str] | None = frozenset()  # None: all
    operations: bool = True


def _culprit(scope: _Scope, expr: ast.expr | None, code: str, got: type | None) -> Culprit | None:
    """Go from the value inwards to the last thing done to it that explains the fault."""
    trail = TRAILS.get(code)
    if trail is PLAIN and got is not None and got.__module__ == "numpy":
        trail = NUMPY
    while trail is not None and expr is not None:
        if (found := trail.found(scope, expr, got)) is not None:
            return found
        expr = _onward(scope, expr, trail)
    return None


def _onward(scope: _Scope, expr: ast.expr, trail: _Trail) -> ast.expr | None:
    match expr:
        case ast.Name() | ast.NamedExpr():
            followed = scope.follow(expr, ())
            return None if followed is None else followed[0]
        case ast.Call():
            return _through_call(scope, expr, trail) if trail.operations else None
    return _through_operation(scope, expr, trail) if trail.operations else None


def _through_operation(scope: _Scope, expr: ast.expr, trail: _Trail) -> ast.expr | None:
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


def _through_call(scope: _Scope, call: ast.Call, trail: _Trail) -> ast.expr | None:
    match call:
        case ast.Call(func=ast.Name(id="round" | "abs" as name) as func, args=[value, *_]):
            return value if scope.is_builtin(func, name) else None
        case ast.Call(func=ast.Attribute(value=value, attr=attr), keywords=keywords):
            plain = not any(keyword.arg in (None, "dtype") for keyword in keywords)
            return value if plain and (trail.methods is None or attr in trail.methods) else None
        case ast.Call(func=ast.Call() as made) if trail is SHAPE:
            return made  # `CrossEntropyLoss(reduction="none")(x, y)`
    return None


def _found_number(scope: _Scope, expr: ast.expr, got: type | None) -> Culprit | None:
    number = any(got is kind for kind in NUMBERS)
    match expr:
        case ast.Call(func=ast.Attribute(attr="item"), args=[], keywords=[]) if number:
            return expr
        case ast.Call(func=ast.Attribute(attr="tolist"), args=[], keywords=[]) if number or got is list:
            return expr
        case ast.Call(func=ast.Name(id="float" | "int" | "bool" | "complex" as name) as func, args=[_]):
            return expr if scope.is_builtin(func, name) and got is EXACT_CALLS[name] else None
    return None


def _found_numpy(_scope: _Scope, expr: ast.expr, _got: type | None) -> Culprit | None:
    match expr:
        case ast.Call(func=ast.Attribute(attr="numpy")):
            return expr
    return None


def _found_unreduced(_scope: _Scope, expr: ast.expr, _got: type | None) -> Culprit | None:
    keywords = expr.keywords if isinstance(expr, ast.Call) else []
    for keyword in keywords:
        if keyword.arg == "reduction" and isinstance(keyword.value, ast.Constant) and keyword.value.value == "none":
            return keyword
    return None


def _found_integer(scope: _Scope, expr: ast.expr, _got: type | None) -> Culprit | None:
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


def _found_leaf(scope: _Scope, expr: ast.expr, _got: type | None) -> Culprit | None:
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


def _leaf_statement(scope: _Scope, name: ast.Name) -> ast.expr | None:
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


def _found_without_graph(scope: _Scope, expr: ast.expr, _got: type | None) -> Culprit | None:
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


def _is_made_here(scope: _Scope, name: str) -> bool:
    """Whether a name is the function's own, and gradients are nowhere switched on in it."""
    arguments = {node.arg for node in ast.walk(scope.node.args) if isinstance(node, ast.arg)}
    switched = {"enable_grad", "set_grad_enabled", "inference_mode"} & set(scope.function.__code__.co_names)
    return name in scope.bound and name not in arguments and not switched


def _grad_off(scope: _Scope, expr: ast.expr) -> ast.expr | None:
    """Give the `with` item or the decorator under which the expression ran without gradients."""
    for context in scope.contexts(expr):
        mode = _mode(scope, context)
        if mode != "unrelated":
            return context if mode == "off" else None
    return _decorated_off(scope)


def _decorated_off(scope: _Scope) -> ast.expr | None:
    decorators = [] if isinstance(scope.node, ast.Lambda) else scope.node.decorator_list
    for decorator in reversed(decorators):
        func = decorator.func if isinstance(decorator, ast.Call) else decorator
        if scope.torch_name(func) in MODES:
            return decorator if _mode(scope, decorator) == "off" else None
    return None


def _mode(scope: _Scope, context: ast.expr) -> str:
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
