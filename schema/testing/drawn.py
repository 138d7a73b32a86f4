"""Values to put into the fields of an output, drawn by hypothesis: as the five fields allow, or as a schema narrows."""

from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pydantic.fields import FieldInfo
from torch import Tensor
from typing_extensions import is_typeddict

from strictstep.schema.describe import describe, numpy_type
from strictstep.schema.errors import Stage
from strictstep.schema.fields import SCALAR, bare, names_and_annotations

Draw = Callable[[SearchStrategy[Any]], Any]
Sizes = dict[str, Any]  # of the named dimensions of one output

NAMES = st.text("abcdefghij_/ 1", min_size=1, max_size=8)
NUMBERS = st.floats(-1e4, 1e4, width=32) | st.integers(-(2**40), 2**40) | st.booleans()
_LENGTHS = st.integers(1, 4)
_REAL = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_DTYPES = (*_REAL, torch.int64, torch.int32, torch.uint8, torch.bool)


def attached_losses() -> SearchStrategy[Tensor]:
    """Differentiable scalars: of each usual dtype, finite, of shape `[]` or another with one element."""
    return st.builds(_attached, st.floats(-10, 10, width=16), st.sampled_from(_REAL), _ONE_ELEMENT)


def losses(stage: Stage) -> SearchStrategy[Any]:
    """What may stand as `loss` in a return of a stage."""
    if stage == "training":
        return attached_losses()
    detached = attached_losses().map(Tensor.detach) | attached_losses() | st.none()
    return detached if stage == "manual" else detached | NUMBERS


def scalars() -> SearchStrategy[Any]:
    """Real numbers in every form that `log` takes."""
    of_numpy = numpy_type("float32") or float
    return NUMBERS | tensors(_ONE_ELEMENT) | attached_losses() | NUMBERS.map(of_numpy)


def tensors(shapes: SearchStrategy[Any], dtypes: Any = _DTYPES) -> SearchStrategy[Tensor]:
    """Small tensors without a graph."""
    return st.builds(_filled, shapes, st.sampled_from(dtypes), st.integers(0, 9))


def trees() -> SearchStrategy[Any]:
    """What may stand as `hiddens`: tensors and `None`, in lists, tuples and dicts."""
    leaves = st.none() | tensors(st.lists(_LENGTHS, max_size=3)) | attached_losses()
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(NAMES, inner, max_size=2),
        max_leaves=4,
    )


def value(draw: Draw, annotation: Any, sizes: Sizes) -> Any:
    """Draw a value for an annotation; dimensions of one name get one size.

    Raises:
        TypeError: for a shape that is written as a formula.
    """
    plain = bare(annotation)
    if SCALAR in getattr(annotation, "__metadata__", ()):
        return draw(scalars())
    if plain is Any or plain is object:
        return draw(scalars() | trees())
    if hasattr(plain, "dim_str"):
        return _shaped(draw, plain, sizes)
    if isinstance(plain, type) and issubclass(plain, Tensor):
        return draw(tensors(st.lists(_LENGTHS, max_size=3)))
    return _container(draw, annotation, plain, sizes)


def _container(draw: Draw, annotation: Any, plain: Any, sizes: Sizes) -> Any:
    kind, inside = get_origin(plain) or plain, get_args(plain)
    if is_typeddict(plain):
        return _typed_dict(draw, plain, sizes)
    if kind in (Union, UnionType):
        return value(draw, draw(st.sampled_from(inside)), sizes)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        hints = get_type_hints(kind, include_extras=True)
        return kind(*(value(draw, hints.get(name, Any), sizes) for name in kind._fields))
    if kind is list or (kind is tuple and inside[1:] == (...,)):
        return kind(value(draw, inside[0] if inside else Any, sizes) for _ in range(draw(_LENGTHS)))
    if kind is tuple:
        return tuple(value(draw, part, sizes) for part in inside)
    if isinstance(kind, type) and issubclass(kind, Mapping):
        names = draw(st.lists(NAMES, max_size=3, unique=True))
        return {name: value(draw, inside[-1] if inside else Any, sizes) for name in names}
    return None if kind in (None, NoneType) else draw(st.from_type(_with_bounds(annotation)))


def _typed_dict(draw: Draw, annotation: Any, sizes: Sizes) -> dict[str, Any]:
    return {
        name: value(draw, hint, sizes)
        for name, hint in names_and_annotations(annotation).items()
        if name in annotation.__required_keys__ or draw(st.booleans())
    }


def _with_bounds(annotation: Any) -> Any:
    """The annotation with the bounds of pydantic's `Field(ge=0)` where hypothesis looks for them."""
    extras = getattr(annotation, "__metadata__", ())
    bounds = [bound for extra in extras for bound in (extra.metadata if isinstance(extra, FieldInfo) else [extra])]
    return Annotated[bare(annotation), *bounds] if bounds else annotation


def _shaped(draw: Draw, annotation: Any, sizes: Sizes) -> Tensor:
    shape = [size for dim in annotation.dim_str.split() for size in _sizes(draw, dim, sizes)]
    named = [getattr(torch, str(name), None) for name in annotation.dtypes]
    dtypes = [dtype for dtype in _DTYPES if dtype in named] or [dtype for dtype in named if dtype] or _DTYPES
    tensor: Tensor = draw(tensors(st.just(shape), dtypes))
    return tensor


def _sizes(draw: Draw, dim: str, sizes: Sizes) -> tuple[int, ...]:
    name = dim.rpartition("=")[2].lstrip("#*?_.")
    if name.isdigit():
        return (int(name),)
    if name and not name.isidentifier():
        raise TypeError(
            f"expected a shape of names and numbers, got the formula {describe(dim)}\n"
            "  help: give the field a strategy of its own, for example `metrics=st.just({...})`"
        )
    several = "*" in dim or "..." in dim
    drawn: tuple[int, ...] = draw(st.lists(_LENGTHS, max_size=2).map(tuple) if several else st.tuples(_LENGTHS))
    return tuple(sizes.setdefault(name, drawn)) if name and "_" not in dim[:2] else drawn


_ONE_ELEMENT = st.sampled_from([(), (1,), (1, 1)])


def _attached(number: float, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    # By an operation, as a loss is made: a leaf would lead to no parameter.
    return torch.full(shape, number, dtype=dtype, requires_grad=True) * 1


def _filled(shape: Any, dtype: torch.dtype, number: int) -> Tensor:
    return torch.full(tuple(shape), number, dtype=dtype)
