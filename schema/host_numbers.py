"""Python numbers in annotated `metrics`: numbers of numpy become them, and nothing else is read as one.

pydantic's own `float` calls `__float__` even in strict mode, which would read a tensor's value from its device.
"""

from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

from torch import Tensor

from strictstep.schema.describe import Location, describe
from strictstep.schema.faults import Fault, fault_saying, gathered, guarded
from strictstep.schema.fields import accepts_tensors, bare, is_number, names_and_annotations, nested
from strictstep.schema.scalars import host_number


def mentions_numbers(annotation: Any) -> bool:
    """Tell whether a Python number is annotated anywhere in an annotation."""
    return any(map(is_number, nested(annotation)))


def refuse_numbers_or_tensors(owner: str, annotation: Any) -> None:
    """Refuse `float | Tensor`: pydantic tries a tensor as a float first, and so reads its value.

    Raises:
        TypeError: saying what to annotate instead.
    """
    for part in nested(annotation):
        members = get_args(bare(part)) if get_origin(bare(part)) in (Union, UnionType) else ()
        if any(bare(member) is float for member in members) and any(map(accepts_tensors, members)):
            raise TypeError(
                f"{owner}: expected a number or a tensor in `metrics`, got an annotation of either\n"
                "  help: annotate with `Scalar`, which takes both"
            )


def with_host_numbers(annotation: Any, value: Any) -> Any:
    """Return the value with Python numbers where they are annotated.

    Raises:
        ValidationError: gathering each place where something else would be read as a float.
    """
    faults: list[Fault] = []
    converted = _converted(annotation, value, (), faults)
    if faults:
        raise gathered(faults, value)
    return converted


def _converted(annotation: Any, value: Any, location: Location, faults: list[Fault]) -> Any:
    if is_number(annotation):
        return _number(annotation, value, location, faults)
    hint = bare(annotation)
    if get_origin(hint) in (Union, UnionType):
        return _of_union(get_args(hint), value, location, faults)
    inner = _inner(hint, value)
    if inner is None:
        return value
    entries = value.items() if type(value) is dict else enumerate(value)
    made = {key: _converted(inner(key), entry, (*location, key), faults) for key, entry in entries}
    return made if type(value) is dict else type(value)(made.values())


def _number(annotation: Any, value: Any, location: Location, faults: list[Fault]) -> Any:
    number = guarded(host_number, value)
    if number is None and bare(annotation) is float and hasattr(type(value), "__float__"):
        help = "return a number of the host, or annotate with `Scalar`, which takes tensors too"
        message = f"expected a valid number, got {describe(value)}"
        faults.append((location, fault_saying("annotation_mismatch", message, value, help)))
    return value if number is None else number


def _of_union(members: tuple[Any, ...], value: Any, location: Location, faults: list[Fault]) -> Any:
    numbers = [member for member in members if is_number(member)]
    if numbers and not (issubclass(type(value), Tensor) and any(map(accepts_tensors, members))):
        value = _number(numbers[0] if float not in map(bare, numbers) else float, value, location, faults)
    for member in members:
        value = value if is_number(member) else _converted(member, value, location, faults)
    return value


def _inner(hint: Any, value: Any) -> Callable[[Any], Any] | None:
    """The annotation of each entry of a container, by its key; nothing where the container is not the annotated one."""
    names = names_and_annotations(hint)
    if names and type(value) is dict:
        return lambda key: names.get(key, Any)
    kind, arguments = get_origin(hint), get_args(hint)
    if not isinstance(kind, type) or not arguments:
        return None
    if issubclass(kind, Mapping) and type(value) is dict:
        return lambda key: arguments[-1]
    if kind is tuple and arguments[-1] is not Ellipsis and type(value) is tuple:
        return lambda position: arguments[position] if position < len(arguments) else Any
    if issubclass(kind, Sequence) and type(value) in (list, tuple):
        return lambda position: arguments[0]
    return None
