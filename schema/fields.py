"""The annotated types for users' own models, and what an annotation may say.

class DigitsLog(TypedDict):
accuracy: Scalar
images: Annotated[Scalar, Reduce("sum")]
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, Required, get_args, get_origin

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema
from torch import Tensor
from typing_extensions import ReadOnly, get_type_hints, is_typeddict

from strictstep.schema.contracts import HIDDENS_FORM, SCALAR_FORM, TRAINING_LOSS, Form, JsonSchema
from strictstep.schema.faults import guarded
from strictstep.schema.loss import training_loss
from strictstep.schema.scalars import scalar
from strictstep.schema.trees import check_hiddens

ReduceOp = Literal["mean", "sum", "min", "max", "last"]


class Checked:
    """Metadata that makes pydantic validate by one of this room's checks (or by none: an earlier one has done it)."""

    def __init__(self, check: Callable[[Any], Any] | None = None, form: Form | None = None) -> None:
        """Keep the check, and how the value is documented; without a check, any value passes."""
        self._check = check
        self._form = form

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate by the check alone; the annotated type is for type checkers."""
        if self._check is None:
            return core_schema.any_schema()
        return core_schema.no_info_plain_validator_function(functools.partial(guarded, self._check))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """Document the value by its form; without one, the field's own form stands for it."""
        if self._form is None:
            return {}
        reduced = {"x-reduce": "mean"} if self._form is SCALAR_FORM else {}
        return {**self._form.schema(handler), **reduced}


SCALAR = Checked(scalar, SCALAR_FORM)

Scalar = Annotated[Tensor | float | int | bool, SCALAR]
"""One real number: a tensor with one element (detached, shape `[]`, on its device), or a Python or numpy number."""

Loss = Annotated[Tensor, Checked(training_loss, TRAINING_LOSS)]
"""A differentiable scalar: shape `[]`, a real floating dtype, made by an operation of a graph; kept as it is."""

Hiddens = Annotated[Any, Checked(check_hiddens, HIDDENS_FORM)]
"""A tensor, or lists, tuples, namedtuples and dicts of tensors and `None`, each tensor detached."""


@dataclass(frozen=True, slots=True)
class Reduce:
    """How a value is reduced over the batches of an epoch and over ranks; without it, by the weighted mean.

    Args:
        op: `"mean"`, `"sum"`, `"min"`, `"max"` or `"last"`.

    Raises:
        ValueError: for another name.

    Example:
        >>> from typing import Annotated
        >>> from typing_extensions import TypedDict
        >>> class Log(TypedDict):
        ...     images: Annotated[Scalar, Reduce("sum")]
    """

    op: ReduceOp = "mean"

    def __post_init__(self) -> None:
        """Refuse an unknown name where it is written, not where it is used."""
        if self.op not in get_args(ReduceOp):
            raise ValueError(f"expected one of {', '.join(get_args(ReduceOp))} as reduction, got {self.op!r}")

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """Document the reduction as `x-reduce`."""
        return {**handler(schema), "x-reduce": self.op}


def names_and_annotations(annotation: Any) -> dict[str, Any]:
    """The names that a TypedDict lists, with their annotations; empty for any other annotation."""
    if not is_typeddict(annotation):
        return {}
    return _listed(annotation)


@functools.cache
def _listed(typed_dict: Any) -> dict[str, Any]:
    return {name: _unqualified(hint) for name, hint in get_type_hints(typed_dict, include_extras=True).items()}


def reduction(annotation: Any) -> ReduceOp:
    """The reduction that an annotation declares, the mean if it declares none."""
    declared = [extra.op for extra in _metadata(annotation) if isinstance(extra, Reduce)]
    return declared[-1] if declared else "mean"


def is_number(annotation: Any) -> bool:
    """Tell whether an annotation is a Python number, with or without bounds."""
    return any(bare(annotation) is number for number in (int, float, bool)) and SCALAR not in _metadata(annotation)


def refuse_unchecked_scalars(owner: str, field: str, annotation: Any) -> None:
    """Refuse annotations by which pydantic would read a tensor's value: `float`, bounds, anything but scalars.

    Raises:
        TypeError: naming each such annotation.
    """
    wrong = [f"`{field}.{name}`" for name, hint in _scalar_hints(annotation) if not _is_scalar(hint)]
    if wrong:
        raise TypeError(
            f"{owner}: expected `Scalar` for {', '.join(wrong)}, got another annotation\n"
            '  help: write `Scalar`, or `Annotated[Scalar, Reduce("sum")]`: a `float` or bounds would read the device'
        )


def has_alias(info: FieldInfo) -> bool:
    """Tell whether a value would be read, or written, under another name than its own."""
    return any(name is not None for name in (info.alias, info.validation_alias, info.serialization_alias))


def has_shapes(annotation: Any) -> bool:
    """Tell whether a jaxtyping annotation stands anywhere in an annotation."""
    return any(getattr(type(bare(part)), "__module__", "").startswith("jaxtyping") for part in nested(annotation))


def nested(annotation: Any, above: frozenset[Any] = frozenset()) -> Iterator[Any]:
    """An annotation and those inside it; a TypedDict that names itself is entered once."""
    if any(isinstance(extra, Checked) for extra in _metadata(annotation)):
        return  # a check of this room's own takes the place of what is annotated
    yield annotation
    plain = bare(annotation)
    names = {} if any(plain is kind for kind in above) else names_and_annotations(plain)
    within = above | {plain} if names else above
    for part in (*names.values(), *get_args(plain)):
        yield from nested(part, within)


def accepts_tensors(annotation: Any) -> bool:
    """Tell whether a tensor itself may stand where an annotation is."""
    plain = bare(annotation)
    return plain is Any or (isinstance(plain, type) and (issubclass(plain, Tensor) or has_shapes(plain)))


def _scalar_hints(annotation: Any) -> Iterator[tuple[str, Any]]:
    if is_typeddict(annotation):
        yield from names_and_annotations(annotation).items()
    elif isinstance(get_origin(annotation), type) and issubclass(get_origin(annotation), Mapping):
        yield "*", get_args(annotation)[-1]
    else:
        yield "*", annotation


def _is_scalar(hint: Any) -> bool:
    texts = {extra for extra in _metadata(hint) if type(extra) is str}
    if texts.intersection(get_args(ReduceOp)) and reduction(hint) not in texts:  # `Annotated[Scalar, "sum"]`: a mean
        return False
    extras = [extra for extra in _metadata(hint) if not isinstance(extra, (Reduce, Checked, str))]
    if any(not isinstance(extra, FieldInfo) or extra.metadata or has_alias(extra) for extra in extras):
        return False
    if SCALAR in _metadata(hint):
        return True
    return accepts_tensors(hint)


def _unqualified(hint: Any) -> Any:
    while get_origin(hint) in (Required, NotRequired, ReadOnly):
        (hint,) = get_args(hint)
    return hint


def bare(annotation: Any) -> Any:
    """An annotation without its metadata."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _metadata(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
