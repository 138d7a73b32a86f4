"""Over arbitrary nested objects and tensors: a model or a StepOutputError, inputs unchanged, storages shared.

`pytest --hypothesis-profile=long tests/schema/test_properties.py` runs 20,000 examples of each property.
"""

import dataclasses
import json
import pickle
import warnings
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Iterator
from enum import StrEnum
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given, note
from hypothesis import strategies as st
from torch import Tensor

from strictstep.schema import (
    EvaluationOutput,
    ManualOutput,
    SkippedStep,
    StepOutput,
    StepOutputError,
    StepOutputWarning,
    TrainingOutput,
    coerce,
)

STAGES: dict[Any, Any] = {TrainingOutput: "training", ManualOutput: "manual", EvaluationOutput: "validation"}
FIELDS = ("loss", "log", "progress_bar", "hiddens", "metrics")
Pair = namedtuple("Pair", "loss log")
DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.long,
    torch.bool,
    torch.uint8,
    torch.complex64,
)


@dataclasses.dataclass
class Record:
    """A return by fields."""

    loss: Any
    metrics: Any


class Named(Tensor):
    """A subclass of a tensor without any behaviour of its own."""


def _tensor(shape: tuple[int, ...], dtype: torch.dtype, graph: str, form: str) -> Tensor:
    made = torch.ones(shape).to(dtype)
    if dtype.is_floating_point or dtype.is_complex:
        made = made.requires_grad_(graph != "none")
        made = made * 2 if graph == "attached" else made
    if form == "subclass":
        return made.as_subclass(Named)
    if form == "sparse" and not dtype.is_complex:  # torch cannot make a complex one with a graph
        return made.to_sparse()
    return made.to("meta") if form == "meta" else made


tensors = st.builds(
    _tensor,
    st.sampled_from([(), (), (1,), (1, 1), (0,), (3,), (2, 2)]),
    st.sampled_from(DTYPES),
    st.sampled_from(["attached", "leaf", "none"]),
    st.sampled_from(["plain", "plain", "plain", "subclass", "sparse", "meta"]),
)
attached = st.builds(lambda: torch.ones((), requires_grad=True) * 2)
numbers = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.complex_numbers(),
    st.floats(width=32).map(np.float32),
    st.integers(-5, 5).map(np.int16),
    st.integers(-5, 5).map(np.array),
    st.just(10**4000),
)
atoms = st.one_of(
    tensors,
    attached,
    numbers,
    st.none(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.builds(object),
    st.sampled_from([int, len, torch, Ellipsis, StepOutput]),
)
names = st.one_of(
    st.sampled_from([*FIELDS, "Loss", "logs", "acc", "loss_box", "top 1"]),
    st.text(st.characters(), max_size=4),
    st.sampled_from([1, None, ("a",), np.str_("acc"), True, 2.5]),
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(names, inner, max_size=3),
        st.dictionaries(names, inner, max_size=3).map(OrderedDict),
        st.dictionaries(names, inner, max_size=3).map(UserDict),
        st.dictionaries(names, inner, max_size=3).map(MappingProxyType),
        st.builds(Pair, inner, inner),
        st.builds(Record, inner, inner),
        st.builds(lambda value: SimpleNamespace(loss=value, extra=value), inner),
        st.builds(lambda value: [value, value, (value,)], inner),
    )


short_atoms = st.deferred(lambda: atoms)  # deferred: hypothesis writes out a strategy in full otherwise
trees = st.deferred(lambda: st.recursive(short_atoms, _containers, max_leaves=8))
scalars = st.one_of(attached, tensors, numbers)
nearly_right = st.fixed_dictionaries(
    {},
    optional={
        "loss": st.one_of(attached, attached, attached, tensors, st.none()),
        "log": st.one_of(st.dictionaries(st.text(max_size=3), scalars, max_size=3), trees),
        "progress_bar": st.one_of(st.lists(st.text(max_size=3), max_size=3), trees),
        "hiddens": st.one_of(
            st.recursive(st.deferred(lambda: tensors), lambda inner: st.lists(inner) | st.tuples(inner)), trees
        ),
        "metrics": st.one_of(st.dictionaries(st.text(max_size=3), trees, max_size=3), trees),
        "extra": trees,
        "logs": trees,
    },
)
returns = st.one_of(trees, st.deferred(lambda: nearly_right), st.deferred(lambda: nearly_right))
stages = st.sampled_from(["training", "manual", "validation", "test"])


def _children(value: Any) -> list[Any]:
    if isinstance(value, (dict, UserDict, MappingProxyType)):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, (Record, SimpleNamespace, StepOutput)):
        return list(vars(value).values())
    return []


def structure(value: Any) -> list[int]:
    """The identities of everything in a value, in order; with the facts of each tensor that one could change."""
    facts = [id(value)]
    if isinstance(value, Tensor):
        facts += [value.requires_grad, id(value.grad_fn), value._version, hash(value.dtype), *value.shape]
    return facts + [fact for child in _children(value) for fact in structure(child)]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in the containers of a value."""
    if isinstance(value, Tensor):
        yield value
    for child in _children(value):
        yield from tensors_in(child)


def storage(tensor: Tensor) -> int:
    """What identifies the memory of a tensor: for sparse ones, that of their values."""
    dense = tensor._values() if tensor.layout is torch.sparse_coo else tensor
    identity: int = dense.untyped_storage()._cdata
    return identity


def rebuilt_containers(value: Any) -> Iterator[Tensor]:
    """The tensors in those containers that are rebuilt; other objects in `metrics` are kept as they are."""
    if isinstance(value, Tensor):
        yield value
    elif type(value) in (dict, list, tuple, OrderedDict, Pair):
        for child in value.values() if isinstance(value, dict) else value:
            yield from rebuilt_containers(child)


@given(returns, stages, st.booleans(), st.sampled_from(["skip", "error"]))
def test_any_return_gives_a_model_or_a_step_output_error(returned: Any, stage: Any, strict: bool, on_none: Any) -> None:
    before = structure(returned)
    storages = {storage(tensor) for tensor in tensors_in(returned)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepOutputWarning)
        try:
            output = coerce(returned, stage=stage, strict=strict, on_none=on_none)
        except StepOutputError as error:
            _check_report(error)
            output = None
    assert structure(returned) == before
    if output is not None:
        note(repr(output))
        _check_output(output, storages)


@given(st.dictionaries(st.sampled_from([*FIELDS, "reason", "other"]), trees, max_size=4))
def test_any_call_of_a_model_gives_it_or_a_step_output_error(fields: dict[str, Any]) -> None:
    before = structure(fields)
    storages = {storage(tensor) for tensor in tensors_in(fields)}
    for model in (TrainingOutput, SkippedStep):
        try:
            output: Any = model(**fields)
        except StepOutputError as error:
            _check_report(error)
        else:
            _check_output(output, storages)
    assert structure(fields) == before


@given(returns, st.sampled_from(list(STAGES)))
def test_coercing_a_dict_of_fields_gives_what_calling_the_model_gives(returned: Any, model: Any) -> None:
    fields = {name: returned[name] for name in FIELDS if name in returned} if type(returned) is dict else {}
    coerced, called = (_made(lambda: coerce(fields, schema=model, stage=STAGES[model])), _made(lambda: model(**fields)))
    assert (coerced is None) == (called is None)
    if coerced is not None:
        assert repr(coerced) == repr(called)
        assert list(vars(coerced)) == list(FIELDS)
        assert coerced.model_fields_set == called.model_fields_set == set(fields)
        assert (coerced.__pydantic_extra__, coerced.__pydantic_private__) == (None, None)
        assert list(map(storage, tensors_in(coerced))) == list(map(storage, tensors_in(called)))


def _made(make: Any) -> Any:
    try:
        return make()
    except StepOutputError:
        return None


def _check_report(error: StepOutputError) -> None:
    assert error.problems
    assert all(line.isprintable() for line in str(error).split("\n"))
    assert json.loads(json.dumps(error.errors())) == error.errors()
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert (error.__cause__, error.__context__) == (None, None)


def _check_output(output: Any, storages: set[int]) -> None:
    assert {storage(tensor) for tensor in tensors_in(output)} <= storages
    for field in ("log", "progress_bar", "hiddens", "metrics"):
        assert not any(tensor.requires_grad for tensor in rebuilt_containers(getattr(output, field)))
    for name, value in [*output.log.items(), *output.progress_bar.items()]:
        assert type(name) is str
        assert type(value) in (int, float, bool) or (issubclass(type(value), Tensor) and value.shape == ())
    if isinstance(output, TrainingOutput):
        loss: Any = output.loss
        assert loss.shape == ()
        assert loss.grad_fn is not None


def test_a_dict_under_keys_that_only_equal_the_names_gives_the_names() -> None:
    class Key(StrEnum):
        LOSS = "loss"

    assert set(map(type, coerce({Key.LOSS: 0.5}, stage="test").model_fields_set)) == {str}
