"""A step's names: what its source binds them to, and what may have changed that since."""

import ast
import builtins
import inspect
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType

from strictstep.schema.source import Definition, Source

Path = tuple[str | int, ...]

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


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set of names."""
    return frozenset(text.split())


INTEGERS = words("int8 int16 short int32 int int64 long uint8 uint16 uint32 uint64 bool")
MODES = words("no_grad inference_mode enable_grad set_grad_enabled")
# Contexts of torch's that leave gradients as they are.
UNRELATED = words("autocast record_function profile device")
CONSTRUCTORS = words(
    "tensor scalar_tensor from_numpy zeros ones full empty rand randn arange linspace eye normal "
    "zeros_like ones_like full_like empty_like rand_like randn_like"
)
NEW_METHODS = words("new_tensor new_zeros new_ones new_full new_empty")


class Scope:
    """One step's source, and what its statements do to the names in it."""

    def __init__(self, function: FunctionType, source: Source) -> None:
        self.function = function
        self.source = source
        self.node: Definition = source.node
        self._builtins: dict[str, object] = function.__builtins__
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
                return bool(path) and is_key(key, path[0])
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
                return reads or (bool(path) and not is_key(key, path[0]))
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


def is_key(value: object, key: str | int) -> bool:
    return type(value) is type(key) and value == key
