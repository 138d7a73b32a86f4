"""Reading and rebuilding what users nest: mappings with text keys, and trees of tensors.

Containers are rebuilt, tensors are detached and never copied, and the user's own objects are left as they are. Which
container an object is, is decided by its exact type, so no code of a subclass runs. The walk that every step pays for
stops at the first fault; only then a second one lists them all.
"""

import functools
import itertools
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from strictstep.schema.describe import Location, describe
from strictstep.schema.faults import Fault, fault, fault_saying, faults_of, gathered
from strictstep.schema.keys import key_text

MAX_DEPTH = 64

MOST_ITEMS = 1_000_000  # an `items()` of a user's own may have no end

Check = Callable[[Any], Any]
Item = TypeVar("Item")

_NEW = (None, -1)
_BUSY = object()  # stands for a container that is being rebuilt: to meet it again below itself is a cycle


def listed(values: Iterable[Item]) -> list[Item]:
    """Return the values as a list; what has no end raises, instead of filling the memory."""
    items = list(itertools.islice(values, MOST_ITEMS + 1))
    if len(items) > MOST_ITEMS:
        raise OverflowError(f"more than {MOST_ITEMS} items")
    return items


def items_of(values: Any) -> Collection[tuple[Any, Any]]:
    """Return the pairs of any `Mapping`, asking it for nothing but `items()`."""
    if type(values) is dict:
        return values.items()
    if not issubclass(type(values), Mapping):
        help = "leave the field out when there is nothing to say" if values is None else "return a dict of names"
        raise fault("field_not_mapping", "a mapping of names to values", values, help)
    return listed(values.items())


def checked_mapping(values: Any, check: Check) -> dict[str, Any]:
    """Return a new dict of `check(value)` under text keys, in the same order.

    Raises:
        ValidationError: gathering every fault, each at its key.
    """
    try:
        items = values.items() if type(values) is dict else items_of(values)
        checked = {}
        for key, value in items:
            checked[key if type(key) is str else key_text(key)] = check(value)
        if len(checked) == len(items):
            return checked
    except Exception:  # whatever it was, the walk below meets it again and says where
        pass
    raise gathered(_mapping_faults(values, check), values)


def detached_tree(value: Any, check_leaf: Check) -> Any:
    """Return a tree of the same containers with every tensor detached and `check_leaf(leaf)` for everything else.

    List, tuple, dict, `OrderedDict` and namedtuples (with `torch.return_types`) are containers, up to 64 levels of
    them; one that appears twice appears twice in the result too, as one object.

    Raises:
        ValidationError: gathering every fault, each at its place.
    """
    try:
        return _rebuilt(value, check_leaf, {}, MAX_DEPTH)
    except Exception:  # whatever it was, the walk below meets it again and says where
        pass
    raise gathered(_tree_faults(value, check_leaf, (), frozenset(), {}), value)


def rebuilt(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return a tree of the same containers with `leaf(x)` for everything else, tensors too; sharing is kept."""
    return _mapped(value, leaf, {})


def leaves(value: Any) -> list[Any]:
    """What stands at the ends of a tree, tensors and all else; of what is shared, once."""
    found: list[Any] = []
    rebuilt(value, found.append)
    return found


def _mapped(value: Any, leaf: Callable[[Any], Any], made: dict[int, Any]) -> Any:
    if not is_container(type(value)):
        return leaf(value)
    if id(value) not in made:
        made[id(value)] = _like(type(value), value, [_mapped(child, leaf, made) for child in values_in(value)])
    return made[id(value)]


def values_in(value: Any) -> Iterable[Any]:
    """The values that a dict, list or tuple holds, which an `__iter__` of a namedtuple's own may not give."""
    kind = type(value)
    if issubclass(kind, dict):
        return cast(Iterable[Any], value.values())
    return (list if issubclass(kind, list) else tuple).__iter__(value)


def _mapping_faults(values: Any, check: Check) -> Iterator[Fault]:
    yield from faults_of(items_of, values)
    seen: set[str] = set()
    for key, value in _items_or_nothing(values):
        wrong_key = list(faults_of(key_text, key))
        yield from wrong_key
        name = key_text(key) if not wrong_key else describe(key)
        if name in seen:
            yield (name,), fault_saying("key_twice", "expected each name once, got it twice", key, "rename one of them")
        seen.add(name)
        yield from faults_of(check, value, (name,))


def _items_or_nothing(values: Any) -> Iterable[tuple[Any, Any]]:
    try:
        return list(items_of(values))
    except Exception:
        return ()


def is_container(kind: type) -> bool:
    """Tell whether values of exactly this type are rebuilt; anything else is a leaf."""
    return kind in _PLAIN or _is_named_tuple(kind)


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and (hasattr(kind, "_fields") or _is_struct_sequence(kind))


_PLAIN = frozenset({list, tuple, dict, OrderedDict})
# What `x.max(dim=1)` returns: tuples with names, which are made by their own types.
_STRUCT_SEQUENCES = frozenset(kind for kind in vars(torch.return_types).values() if isinstance(kind, type))
_requires_grad: Any = torch._C.TensorBase.requires_grad


def _is_struct_sequence(kind: type) -> bool:
    return kind in _STRUCT_SEQUENCES


def detached(value: Tensor) -> Tensor:
    """Return a tensor detached; one of a subclass that answers with anything else raises."""
    if type(value) is Tensor:
        return value.detach() if value.requires_grad else value
    bare = value.detach() if value.requires_grad else value
    with torch._C.DisableTorchFunctionSubclass():
        if not issubclass(type(bare), Tensor) or _requires_grad.__get__(bare):
            raise TypeError("a tensor that does not detach")
    return bare


def _leaf(value: Any, check_leaf: Check) -> Any:
    return detached(value) if issubclass(type(value), Tensor) else check_leaf(value)


def _held(kind: type, value: Any) -> Any:
    """A snapshot of a container: a tensor of a subclass runs code of its own when read, which may change the container.

    A namedtuple is read as the tuple that it is, and not by an `__iter__` of its own.
    """
    return value.copy() if kind in _PLAIN else tuple(tuple.__iter__(value))


def _rebuilt(value: Any, check_leaf: Check, made: dict[int, tuple[Any, int]], levels: int) -> Any:
    kind = type(value)
    if kind not in _PLAIN and not _is_named_tuple(kind):
        return _leaf(value, check_leaf)
    known, reached = made.get(id(value), _NEW) if made else _NEW
    if known is not None and known is not _BUSY and reached <= levels:
        return known
    if levels == 0 or known is _BUSY:
        raise RecursionError
    made[id(value)] = _BUSY, levels
    held = value if kind is tuple else _held(kind, value)
    children = [
        child if type(child) is Tensor and not child.requires_grad else _rebuilt(child, check_leaf, made, levels - 1)
        for child in (held.values() if kind is dict or kind is OrderedDict else held)
    ]
    # What was met before is walked again only where it lies deeper now: it may be too deep there.
    if known is None:
        known = tuple(children) if kind is tuple else _like(kind, held, children)
    made[id(value)] = known, levels
    return known


def _like(kind: type, value: Any, children: list[Any]) -> Any:
    """A container like `value`, with other children."""
    if kind is list:
        return children
    if kind is tuple:
        return kind(children)
    if kind in _PLAIN:
        return kind(zip(value, children, strict=True))
    # A namedtuple is made as tuple makes it: PackedSequence and others have a `__new__` of their own.
    make: Any = kind if _is_struct_sequence(kind) else functools.partial(tuple.__new__, kind)
    return make(children)


def _tree_faults(
    value: Any, check_leaf: Check, location: Location, above: frozenset[int], done: dict[int, int]
) -> Iterator[Fault]:
    if not is_container(type(value)):
        yield from faults_of(lambda leaf: _leaf(leaf, check_leaf), value, location)
    elif len(location) == MAX_DEPTH or id(value) in above:
        expected = f"at most {MAX_DEPTH} levels of containers, none inside itself"
        yield location[:2], fault("too_deep", expected, value, "return a flatter structure")
    elif len(location) > done.get(id(value), -1):
        for label, child in _children(value):
            yield from _tree_faults(child, check_leaf, (*location, label), above | {id(value)}, done)
        done[id(value)] = len(location)


def _children(value: Any) -> Iterator[tuple[str | int, Any]]:
    kind = type(value)
    held = value if kind is tuple else _held(kind, value)
    if issubclass(kind, dict):
        return ((_label(key), child) for key, child in held.items())
    names = getattr(kind, "_fields", None) or range(len(held))
    return zip(map(_label, names), held, strict=False)


def _label(key: object) -> str | int:
    if type(key) is str:
        return key
    return key if type(key) is int and key.bit_length() < 63 else describe(key)
