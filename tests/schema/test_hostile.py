"""Whatever a step returns, `coerce` answers with a model or a StepOutputError, in bounded time.

Each hostile value stands at every place where a value can stand. The report must then work too: `str`, JSON, pickle.
"""

import dataclasses
import decimal
import enum
import fractions
import itertools
import json
import pickle
import random
import signal
import threading
import types
import warnings
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import attrs
import numpy as np
import pydantic
import pydantic_core
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import UninitializedParameter

from strictstep.schema import (
    EvaluationOutput,
    SkippedStep,
    StepOutput,
    StepOutputError,
    StepOutputWarning,
    TrainingOutput,
    coerce,
    containers,
    validate_step,
)

SECONDS = 60  # many times what it takes alone: the machine may be busy
STAGES = ("training", "manual", "validation", "test")


class Boom(Exception):
    """What hostile objects raise."""


class Panic(BaseException):
    """An exception that `except Exception` does not catch, as pydantic-core's own panic."""


def loss() -> Tensor:
    return (torch.ones(2, requires_grad=True) * 2).sum()


@contextmanager
def time_limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt  # the only kind that nothing on the way may catch

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(call: Callable[[], object]) -> StepOutput | StepOutputError:
    """What a call gives; anything but a model or a StepOutputError with a whole report fails here."""
    with time_limit(), warnings.catch_warnings():
        warnings.simplefilter("ignore", StepOutputWarning)
        try:
            made = call()
        except StepOutputError as error:
            _check_report(error)
            return error
        except KeyboardInterrupt:
            pytest.fail(f"no outcome after {SECONDS} seconds")
    assert issubclass(type(made), StepOutput)
    return cast(StepOutput, made)


@contextmanager
def noting(*facts: object) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"at {facts}")
        raise


def _check_report(error: StepOutputError) -> None:
    report = str(error)
    assert all(line.isprintable() for line in report.split("\n")), report
    assert len(report) < 40_000
    assert error.problems
    assert json.loads(json.dumps(error.errors())) == error.errors()
    assert str(pickle.loads(pickle.dumps(error))) == report
    assert (error.__cause__, error.__context__) == (None, None)


def codes(made: StepOutput | StepOutputError) -> set[str]:
    assert isinstance(made, StepOutputError)
    return {problem.code for problem in made.problems}


# -- objects whose methods raise or lie


def _raise(*_: Any, **__: Any) -> Any:
    raise Boom


SPECIAL = (
    *("__eq__", "__hash__", "__repr__", "__str__", "__bool__", "__len__", "__iter__", "__getitem__", "__contains__"),
    *("__call__", "__float__", "__int__", "__index__", "__array__", "__format__", "__ne__", "__lt__", "__dir__"),
    *("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__torch_function__", "__length_hint__"),
    *("keys", "items", "values", "get", "copy", "detach", "item", "dim", "_fields", "__dataclass_fields__"),
)


def raising(base: type, *names: str, **more: Any) -> type:
    return types.new_class(
        "Raising", (base,), exec_body=lambda space: space.update(dict.fromkeys(names, _raise), **more)
    )


def raises_on_every_attribute() -> object:
    return raising(object, "__getattribute__")()


def raises_on_missing_attributes() -> object:
    return raising(object, "__getattr__")()


def class_is(kind: object) -> object:
    return type("Liar", (), {"__class__": property(lambda self: kind)})()


def class_raises() -> object:
    return type("Liar", (), {"__class__": property(_raise)})()


class RaisingMeta(type):
    """A class of this kind raises when it is hashed, compared or asked for anything."""

    __hash__ = __eq__ = __instancecheck__ = __subclasscheck__ = __repr__ = __len__ = __iter__ = _raise


# Made once: Python prints what a metaclass raises while a weak reference to its class is dropped.
RAISING_CLASS = RaisingMeta("Raising", (), {})
RAISING_TUPLE = RaisingMeta("Raising", (tuple,), {})
RAISING_DICT = RaisingMeta("Raising", (dict,), {})


class LyingMeta(type):
    """A class of this kind claims to be every other."""

    def __getattribute__(cls, name: str) -> Any:
        if name in (
            "__mro__",
            "__module__",
            "__name__",
            "__qualname__",
            "_fields",
            "__dict__",
            "__hash__",
            "__bases__",
        ):
            raise Boom
        return super().__getattribute__(name)

    def __hash__(cls) -> int:
        return hash(dict)

    def __eq__(cls, other: object) -> bool:
        return True

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class EndlessMapping(Mapping[str, Any]):
    """`items()` never ends."""

    def __getitem__(self, key: str) -> Any:
        return 1

    def __iter__(self) -> Iterator[str]:
        return map(str, itertools.count())

    def __len__(self) -> int:
        return 3


class EndlessSet(Set[Any]):
    """Iterating it never ends."""

    def __contains__(self, value: object) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return map(str, itertools.count())

    def __len__(self) -> int:
        return 1


class RaisingMapping(Mapping[str, Any]):
    """Every question raises the given exception."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __getitem__(self, key: str) -> Any:
        raise self._error

    def __iter__(self) -> Iterator[str]:
        raise self._error

    def __len__(self) -> int:
        raise self._error


class ItemsAre(UserDict[Any, Any]):
    """`items()` gives whatever was put in."""

    def __init__(self, given: Any) -> None:
        super().__init__()
        self._given = given

    def items(self) -> Any:
        return self._given


def pydantics_error() -> Exception:
    with pytest.raises(pydantic.ValidationError) as raised:
        pydantic.TypeAdapter(int).validate_python("x")
    return raised.value


ERRORS: dict[str, Callable[[], BaseException]] = {
    "Boom": Boom,
    "ValueError": ValueError,
    "AssertionError": AssertionError,
    "AttributeError": AttributeError,
    "KeyError": KeyError,
    "StopIteration": StopIteration,
    "RecursionError": RecursionError,
    "MemoryError": MemoryError,
    "UnicodeError": lambda: UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates"),
    "ExceptionGroup": lambda: ExceptionGroup("group", [ValueError(), ExceptionGroup("inner", [Boom()])]),
    "pydantic's ValidationError": pydantics_error,
    "a custom error with a code of ours": lambda: pydantic_core.PydanticCustomError("loss_none", "x"),
    "a custom error with no code of ours": lambda: pydantic_core.PydanticCustomError("evil", "{x}", {"x": 1}),
    "PydanticOmit": pydantic_core.PydanticOmit,
    "PydanticUseDefault": pydantic_core.PydanticUseDefault,
    "a StepOutputError": lambda: StepOutputError([]),
    "Panic": Panic,
    "GeneratorExit": GeneratorExit,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("group", [Panic()]),
}


def named_hostile() -> Any:
    pair = namedtuple("pair", "loss log")
    return type("Pair", (pair,), {"__iter__": lambda self: itertools.count(), "__len__": _raise, "__getattr__": _raise})


def recursive_dict() -> Any:
    inner: dict[str, Any] = {}
    inner.update(log=inner, metrics=inner, hiddens=inner)
    return inner


def recursive_list() -> Any:
    inner: list[Any] = []
    inner += [inner, (inner, [inner])]
    return inner


def complete_graph() -> Any:
    nodes: list[Any] = [[] for _ in range(30)]
    for node in nodes:
        node.extend(nodes)
    return nodes[0]


def nested(levels: int) -> Any:
    return nested_in(levels, lambda inner: [inner])


def nested_in(levels: int, kind: Callable[[Any], Any]) -> Any:
    made: Any = torch.ones(())
    for _ in range(levels):
        made = kind(made)
    return made


@dataclasses.dataclass
class BrokenDataclass:
    loss: Any = None
    log: Any = None

    def __getattribute__(self, name: str) -> Any:
        if name in ("loss", "log"):
            raise Boom
        return super().__getattribute__(name)


@attrs.define
class BrokenAttrs:
    loss: Any = None

    def __getattribute__(self, name: str) -> Any:
        raise Boom


class BrokenPydantic(pydantic.BaseModel):
    loss: Any = None

    def __getattribute__(self, name: str) -> Any:
        if name == "loss":
            raise Boom
        return super().__getattribute__(name)


class BrokenOutput(EvaluationOutput):
    def __getattribute__(self, name: str) -> Any:
        raise Boom


def broken_output() -> Any:
    made = EvaluationOutput()
    object.__setattr__(made, "__class__", BrokenOutput)
    return made


class WithBrokenAttributes:
    def __init__(self) -> None:
        self.loss = 1

    def __getattribute__(self, name: str) -> Any:
        raise Boom


class ManyFields(tuple[Any, ...]):
    _fields = cast(Any, EndlessSet())


class Half(enum.IntEnum):
    ONE = 1


class RaisingFloat(float):
    __float__ = __repr__ = __str__ = __format__ = __eq__ = __hash__ = __pos__ = __bool__ = _raise


class RaisingInt(int):
    __int__ = __index__ = __repr__ = __str__ = __eq__ = __hash__ = __pos__ = __bool__ = bit_length = _raise


class RaisingStr(str):
    __str__ = __repr__ = __eq__ = __hash__ = __len__ = isidentifier = isprintable = casefold = strip = _raise


class RaisingDict(dict[Any, Any]):
    __iter__ = __len__ = __getitem__ = keys = items = values = get = copy = __repr__ = __contains__ = _raise


class RaisingList(list[Any]):
    __iter__ = __len__ = __getitem__ = __repr__ = __contains__ = copy = _raise


class EndlessList(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat("x")


def odd_name(name: str) -> object:
    kind = type("Odd", (), {})
    kind.__qualname__ = name
    return kind()


def hostile_name() -> object:
    kind = type("Odd", (), {})
    kind.__qualname__ = RaisingStr("<locals>.Raising")
    return kind()


def self_containing_array() -> Any:
    array = np.empty((), dtype=object)
    array[()] = array
    return array


def object_array() -> Any:
    array = np.empty((), dtype=object)
    array[()] = raises_on_every_attribute()
    return array


OBJECTS: dict[str, Callable[[], Any]] = {
    **{f"{name} raises": lambda name=name: raising(object, name)() for name in SPECIAL},  # type: ignore[misc]
    "every special method raises": lambda: raising(object, *SPECIAL)(),
    "__getattribute__ raises": raises_on_every_attribute,
    "__getattr__ raises": raises_on_missing_attributes,
    "__class__ raises": class_raises,
    "__class__ is Tensor": lambda: class_is(Tensor),
    "__class__ is dict": lambda: class_is(dict),
    "__class__ is float": lambda: class_is(float),
    "__class__ is TrainingOutput": lambda: class_is(TrainingOutput),
    "__class__ is an instance": lambda: class_is(3),
    "a metaclass that raises": lambda: RAISING_CLASS(),
    "a metaclass that lies": lambda: LyingMeta("Lying", (), {})(),
    "a tuple with a metaclass that raises": lambda: RAISING_TUPLE((1, 2)),
    "a tuple with a metaclass that lies": lambda: LyingMeta("Lying", (tuple,), {})((1, 2)),
    "a dict with a metaclass that raises": lambda: RAISING_DICT(loss=1),
    "a class with a metaclass that raises": lambda: RAISING_CLASS,
    "a class with a metaclass that lies": lambda: LyingMeta("Lying", (), {}),
    "endless items": EndlessMapping,
    "endless set": EndlessSet,
    "endless list": EndlessList,
    "endless generator": itertools.count,
    "endless _fields": lambda: ManyFields((1, 2)),
    **{f"a mapping that raises {name}": lambda error=error: RaisingMapping(error()) for name, error in ERRORS.items()},  # type: ignore[misc]
    "items() of numbers": lambda: ItemsAre([1, 2]),
    "items() of triples": lambda: ItemsAre([("loss", 1, 2)]),
    "items() of texts": lambda: ItemsAre("loss"),
    "items() that is None": lambda: ItemsAre(None),
    "items() that repeats a name": lambda: ItemsAre([("loss", 1), ("loss", 2), ("a", 1), ("a", 1)]),
    "a namedtuple that lies": lambda: named_hostile()(1, 2),
    "a recursive dict": recursive_dict,
    "a recursive list": recursive_list,
    "lists that all hold each other": complete_graph,
    "5,000 nested lists": lambda: nested(5000),
    "5,000 nested dicts": lambda: nested_in(5000, lambda inner: {"log": inner}),
    "1,000 nested UserDicts": lambda: nested_in(1000, lambda inner: UserDict({"metrics": inner})),
    "a dataclass with broken attributes": BrokenDataclass,
    "an attrs object with broken attributes": lambda: BrokenAttrs.__new__(BrokenAttrs),
    "a pydantic object with broken attributes": BrokenPydantic,
    "an output with broken attributes": broken_output,
    "an output without a state": lambda: TrainingOutput.__new__(TrainingOutput),
    "an object with broken attributes": WithBrokenAttributes,
    "Decimal": lambda: decimal.Decimal("1.5"),
    "Decimal NaN": lambda: decimal.Decimal("sNaN"),
    "Fraction": lambda: fractions.Fraction(1, 3),
    "IntEnum": lambda: Half.ONE,
    "timedelta64": lambda: np.timedelta64(1, "s"),
    "datetime64": lambda: np.datetime64("2026-01-01"),
    "longdouble": lambda: np.longdouble("1e4000"),
    "complex64": lambda: np.complex64(1j),
    "numpy void": lambda: np.zeros(1, dtype=[("a", "i4")])[0],
    "numpy structured array": lambda: np.zeros((), dtype=[(f"field_{index}", "i4") for index in range(500)]),
    "numpy object array": object_array,
    "numpy array that holds itself": self_containing_array,
    "numpy str": lambda: np.str_("a"),
    "complex": lambda: 1j,
    "a huge int": lambda: 10**5000,
    "minus a huge int": lambda: -(10**5000),
    "float subclass": lambda: RaisingFloat(1.5),
    "int subclass": lambda: RaisingInt(3),
    "str subclass": lambda: RaisingStr("loss"),
    "dict subclass": lambda: RaisingDict(loss=1),
    "list subclass": lambda: RaisingList([1]),
    "NotImplemented": lambda: NotImplemented,
    "Ellipsis": lambda: ...,
    "lone surrogate": lambda: "\ud800",
    "control characters": lambda: "\x00\x1b[31m\n\r\u202e",
    "a long text": lambda: "x" * 1_000_000,
    "a type name of control characters": lambda: odd_name("a\nb\x1b\ud800{}`"),
    "a long type name": lambda: odd_name("a" * 1_000_000),
    "a type name that raises": hostile_name,
    "memoryview": lambda: memoryview(b"ab"),
    "an exception": lambda: Boom("x"),
    "a weak thing": lambda: threading.local(),
    "a frame": lambda: __import__("sys")._getframe(),
    "a Random": lambda: random.Random(0),
}


# -- tensors


class Wrapped(Tensor):
    """A tensor whose `__torch_function__` raises."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise Boom


class Panicking(Tensor):
    """A tensor whose `__torch_function__` raises what `except Exception` does not catch."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise Panic


class Nonsense(Tensor):
    """A tensor that answers every question with a text."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        return "nonsense"


class Clinging(Tensor):
    """A tensor that does not detach."""

    def detach(self) -> Tensor:
        return self


class Property(Tensor):
    """A tensor with attributes that raise or never end."""

    dtype = layout = device = grad_fn = property(_raise)  # pyright: ignore[reportAssignmentType]
    shape = property(lambda self: itertools.count())  # pyright: ignore[reportAssignmentType]


def subclass(kind: type[Tensor]) -> Tensor:
    return torch.ones(()).as_subclass(kind)


def in_vmap() -> Tensor:
    kept: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x * 2)
        return x

    torch.vmap(keep)(torch.ones(3))
    return kept[0]


def in_func_grad() -> Tensor:
    kept: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x * 2)
        return x * 2

    torch.func.grad(keep)(torch.ones(()))
    return kept[0]


def fake() -> Tensor:
    with FakeTensorMode():
        return torch.ones((), requires_grad=True) * 2


@pytest.fixture
def _soon_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "MOST_ITEMS", 1000)  # the whole limit takes a second, at each of many places


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse|The PyTorch API of nested|.*quantiz|TypedStorage", UserWarning)
        warnings.filterwarnings("ignore", category=UserWarning, module="torch")
        yield


TENSORS: dict[str, Callable[[], Any]] = {
    "meta": lambda: torch.ones((), device="meta", requires_grad=True) * 2,
    "coo": lambda: torch.ones(2, 2).to_sparse(),
    "coo with a graph": lambda: torch.ones(2, 2, requires_grad=True).to_sparse() * 2,
    "coo scalar": lambda: torch.sparse_coo_tensor(torch.zeros(0, 1, dtype=torch.long), torch.ones(1), ()),
    "csr": lambda: torch.ones(2, 2).to_sparse_csr(),
    "mkldnn": lambda: torch.ones(2, 2).to_mkldnn(),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(()), 0.1, 0, torch.qint8),
    "complex": lambda: torch.ones((), dtype=torch.complex64, requires_grad=True) * 2,
    "nested strided": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], requires_grad=True),
    "nested jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "left over from vmap": in_vmap,
    "left over from func.grad": in_func_grad,
    "fake": fake,
    "__torch_function__ raises": lambda: subclass(Wrapped),
    "__torch_function__ panics": lambda: subclass(Panicking),
    "__torch_function__ answers nonsense": lambda: subclass(Nonsense),
    "does not detach": lambda: (torch.ones((), requires_grad=True) * 2).as_subclass(Clinging),
    "attributes raise": lambda: subclass(Property),
    "uninitialized parameter": UninitializedParameter,
    "parameter": lambda: torch.nn.Parameter(torch.ones(())),
    "no elements": lambda: torch.ones(0, requires_grad=True) * 2,
    "many dimensions": lambda: torch.ones([1] * 40, requires_grad=True) * 2,
    "a million elements": lambda: torch.ones(1).expand(1_000_000),
    "conjugate view": lambda: torch.ones((), dtype=torch.complex64).conj(),
    "negative view": lambda: torch._neg_view(torch.ones(())),  # pyright: ignore[reportPrivateImportUsage]
    "no storage": lambda: torch.ones(()).untyped_storage().resize_(0) and torch.ones(()),
    "float8": lambda: torch.ones(()).to(torch.float8_e5m2),
    "uint16": lambda: torch.ones((), dtype=torch.uint16),
    "inference": torch.inference_mode()(lambda: torch.ones(())),
    "a storage": lambda: torch.ones(2).untyped_storage(),
    "a dtype": lambda: torch.float32,
    "a generator": lambda: torch.Generator(),
    "the class Tensor": lambda: Tensor,
    "the module torch": lambda: torch,
}

VALUES = {**OBJECTS, **TENSORS}


@dataclasses.dataclass
class Record:
    loss: Any
    log: Any = dataclasses.field(default_factory=dict)


PLACES: dict[str, Callable[[Any], Any]] = {
    "returned": lambda value: value,
    "loss": lambda value: {"loss": value},
    "log": lambda value: {"loss": loss(), "log": value},
    "progress_bar": lambda value: {"loss": loss(), "progress_bar": value},
    "hiddens": lambda value: {"loss": loss(), "hiddens": value},
    "metrics": lambda value: {"loss": loss(), "metrics": value},
    "in log": lambda value: {"loss": loss(), "log": {"a": value, "b": value}},
    "in progress_bar": lambda value: {"loss": loss(), "progress_bar": {"a": value}},
    "among progress_bar's names": lambda value: {"loss": loss(), "log": {"a": 1}, "progress_bar": [value, "a"]},
    "in hiddens": lambda value: {"loss": loss(), "hiddens": [value, {"a": (value,)}, OrderedDict(a=value)]},
    "in metrics": lambda value: {"loss": loss(), "metrics": {"a": value, "b": [value, {"c": value}]}},
    "beside the five": lambda value: {"loss": loss(), "extra": value},
    "instead of loss": lambda value: {"extra": value, "other": {"a": value}},
    "in a tuple": lambda value: (loss(), value),
    "in a list": lambda value: [value],
    "everywhere at once": lambda value: dict.fromkeys(("loss", "log", "progress_bar", "hiddens", "metrics"), value),
    "in a UserDict": lambda value: UserDict(loss=loss(), log=value, metrics=value),
    "in a dataclass": lambda value: Record(value, value),
    "in a constructed output": lambda value: TrainingOutput.model_construct(loss=value, log=value),
}


@pytest.mark.usefixtures("_soon_endless")
@pytest.mark.parametrize("name", VALUES)
def test_any_value_anywhere_gives_a_model_or_a_step_output_error(name: str) -> None:
    for place, put in PLACES.items():
        for stage in STAGES if place in ("returned", "loss", "in a constructed output") else STAGES[:1]:
            with noting(place, stage):
                returned = put(VALUES[name]())
                outcome(lambda: coerce(returned, stage=stage, on_none="error"))  # type: ignore[call-overload] # noqa: B023


@pytest.mark.usefixtures("_soon_endless")
@pytest.mark.parametrize("name", VALUES)
def test_calling_a_model_with_any_value_gives_it_or_a_step_output_error(name: str) -> None:
    for field in ("loss", "log", "progress_bar", "hiddens", "metrics", "other"):
        for model in (TrainingOutput, EvaluationOutput):
            with noting(field, model):
                fields = {"loss": loss(), field: VALUES[name]()}
                outcome(lambda: model(**fields))  # noqa: B023
                outcome(lambda: model.model_validate(fields))  # noqa: B023
        with noting(field):
            outcome(lambda: SkippedStep(**{"reason": "x", field: VALUES[name]()}))  # noqa: B023
    outcome(lambda: SkippedStep(reason=VALUES[name]()))


@pytest.mark.usefixtures("_soon_endless")
@pytest.mark.parametrize("name", VALUES)
def test_a_decorated_step_may_return_any_value(name: str) -> None:
    decorated = validate_step(lambda: VALUES[name]())
    outcome(decorated)


# -- keys


def hashable(value: Any) -> bool:
    try:
        hash(value)
    except BaseException:
        return False
    return True


class Once:
    """Equal to any other key of its hash, or raising; its hash works once, so that it gets into a dict."""

    def __init__(self, text: str, hashes: int = 1) -> None:
        self._hash, self._left = hash(text), hashes

    def __hash__(self) -> int:
        self._left -= 1
        if self._left < 0:
            raise Boom
        return self._hash

    def __eq__(self, other: object) -> bool:
        raise Boom


class OnceText(str):
    """A text that raises when it is hashed a second time."""

    def __new__(cls, text: str) -> "OnceText":
        made = super().__new__(cls, text)
        made.left = 1
        return made

    left: int

    def __hash__(self) -> int:
        self.left -= 1
        if self.left < 0:
            raise Boom
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        raise Boom


class OtherText(str):
    """A text that claims to be another."""

    def __str__(self) -> str:
        return "loss"

    def __hash__(self) -> int:
        return hash("loss")

    def __eq__(self, other: object) -> bool:
        return True


KEYS: dict[str, Callable[[], Any]] = {
    "hash works once": lambda: Once("loss"),
    "hash works ten times": lambda: Once("log", 10),
    "a text whose hash works once": lambda: OnceText("loss"),
    "another text whose hash works once": lambda: OnceText("a"),
    "a text that claims to be another": lambda: OtherText("acc"),
    "None": lambda: None,
    "int": lambda: 1,
    "huge int": lambda: 10**5000,
    "nan": lambda: float("nan"),
    "bytes": lambda: b"loss",
    "tuple": lambda: ("loss", 1),
    "frozenset": lambda: frozenset({1}),
    "tensor": loss,
    "empty": lambda: "",
    "surrogate": lambda: "\ud800",
    "loss with a surrogate": lambda: "loss\ud800",
    "control characters": lambda: "loss\n\x1b[2J\x00",
    "spaces around": lambda: "\tloss\n",
    "right to left": lambda: "\u202eloss",
    "braces": lambda: "{message} {} {0} {help!r:>{width}}",
    "backticks": lambda: "`loss`",
    "quotes": lambda: "'\"\\",
    "long": lambda: "a" * 1_000_000,
    "long and odd": lambda: "a b" * 1_000_000,
    "numpy text": lambda: np.str_("acc"),
    "enum": lambda: Half.ONE,
    "type": lambda: dict,
    "dunder": lambda: "__class__",
    "self": lambda: "self",
    "StrEnum": lambda: enum.StrEnum("Name", ["acc"]).acc,  # type: ignore[attr-defined]
    **{name: make for name, make in OBJECTS.items() if hashable(make())},
}

KEY_PLACES: dict[str, Callable[[Any], Any]] = {
    "returned": lambda key: {"loss": loss(), key: 1},
    "returned without loss": lambda key: {key: 1},
    "returned without loss, attached": lambda key: {key: loss()},
    "returned without loss, attached below": lambda key: {"a": {key: loss()}},
    "returned beside metrics": lambda key: {"loss": loss(), key: 1, "metrics": {"a": 1}},
    "log": lambda key: {"loss": loss(), "log": {key: 1}},
    "log with a wrong value": lambda key: {"loss": loss(), "log": {key: "x"}},
    "progress_bar": lambda key: {"loss": loss(), "progress_bar": {key: "x"}},
    "progress_bar's names": lambda key: {"loss": loss(), "log": {"acc": 1, "loss": 1}, "progress_bar": [key]},
    "hiddens": lambda key: {"loss": loss(), "hiddens": {key: {key: "x"}}},
    "good hiddens": lambda key: {"loss": loss(), "hiddens": {key: loss()}},
    "metrics": lambda key: {"loss": loss(), "metrics": {key: {key: loss()}}},
    "too deep": lambda key: {"loss": loss(), "metrics": {"a": nested_in(80, lambda inner: {key: inner})}},
    "twice": lambda key: ItemsAre([("loss", loss()), (key, 1), (key, 2), ("metrics", {"a": 1})]),
    "UserDict": lambda key: UserDict({"loss": loss(), key: 1}),
}


@pytest.mark.parametrize("name", KEYS)
def test_any_key_anywhere_gives_a_model_or_a_step_output_error(name: str) -> None:
    for place, put in KEY_PLACES.items():
        for strict in (False, True):
            try:
                returned = put(KEYS[name]())
            except (Boom, Panic):  # Python itself cannot make this dict
                continue
            with noting(place):
                outcome(lambda: coerce(returned, strict=strict))  # noqa: B023


@pytest.mark.parametrize("name", KEYS)
def test_a_model_may_be_called_with_any_key(name: str) -> None:
    key = KEYS[name]()
    try:
        fields = {"loss": loss(), key: 1}
    except Boom:  # Python itself cannot make this dict
        fields = {KEYS[name](): 1}
    outcome(lambda: TrainingOutput.model_validate(fields))
    if type(key) is str:
        given: dict[str, Any] = {"loss": loss(), key: 1}
        outcome(lambda: TrainingOutput(**given))


# -- containers that change while they are read


class Changing(Tensor):
    """A tensor that does something to a container whenever torch is asked about it."""

    change: Callable[[], object]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if cls.change is not None:  # pyright: ignore[reportAttributeAccessIssue]
            cls.change()  # pyright: ignore[reportAttributeAccessIssue]
        parent: Any = super()
        return parent.__torch_function__(func, types, args, kwargs or {})


def changing(change: Callable[[], object]) -> Tensor:
    kind = type("Changing", (Changing,), {"change": staticmethod(change)})
    return torch.ones((), requires_grad=True).as_subclass(kind)


CHANGES: dict[str, Callable[[dict[Any, Any]], object]] = {
    "grows": lambda changed: changed.update({object(): 1 for _ in range(3)}),
    "grows by names": lambda changed: changed.update({str(random.random()): 1}),
    "is cleared": lambda changed: changed.clear(),
    "loses a key": lambda changed: changed and changed.popitem(),
    "is replaced": lambda changed: [*map(changed.pop, list(changed)), changed.update(a="x")],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("field", ["loss", "log", "progress_bar", "hiddens", "metrics", "extra"])
def test_a_dict_may_change_while_it_is_read(field: str, change: str) -> None:
    for outer in (False, True):
        for method in (coerce, TrainingOutput.model_validate):
            returned = _changing_dict(field, CHANGES[change], outer)
            outcome(lambda: method(returned))  # noqa: B023


def _changing_dict(field: str, change: Callable[[dict[Any, Any]], object], outer: bool) -> dict[Any, Any]:
    inner: dict[Any, Any] = {}
    returned: dict[Any, Any] = {"loss": loss()}
    tensor = changing(lambda: change(returned if outer else inner))
    inner.update(a=tensor, b=tensor, c=torch.ones(()))
    returned[field] = tensor if field == "loss" else inner
    return returned


@pytest.mark.parametrize("field", ["hiddens", "metrics"])
def test_a_list_that_grows_while_it_is_read_comes_to_an_end(field: str) -> None:
    inner: list[Any] = []
    tensor = changing(lambda: inner.append(tensor))
    inner.append(tensor)
    made = outcome(lambda: coerce({"loss": loss(), field: inner if field == "hiddens" else {"a": inner}}))
    assert isinstance(made, StepOutput)


def test_a_log_that_grows_while_it_is_read_is_not_half_read() -> None:
    log: dict[str, Any] = {}
    log["a"] = changing(lambda: log.update({str(len(log)): 1}))
    made = outcome(lambda: coerce({"loss": loss(), "log": log}))
    assert codes(made) == {"unreadable"}


def test_a_returned_dict_may_be_changed_by_another_thread() -> None:
    returned: dict[str, Any] = {"loss": loss(), "log": {}, "metrics": {}}
    done = threading.Event()

    def change() -> None:
        for index in itertools.count():
            if done.is_set():
                return
            returned["log"][f"{index % 50}"] = 1
            returned["metrics"].pop(f"{index % 7}", None)
            returned["metrics"][f"{index % 5}"] = [torch.ones(2)]

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            outcome(lambda: coerce(returned))
    finally:
        done.set()
        thread.join()


# -- many


def extras(count: int) -> dict[str, Any]:
    return {f"losses{index}": index for index in range(count)}


MANY: dict[str, Callable[[int], Any]] = {
    "wrong values": lambda count: {"loss": loss(), "log": dict.fromkeys(extras(count), "x")},
    "wrong leaves": lambda count: {"loss": loss(), "hiddens": ["x"] * count},
    "wrong keys": lambda count: {"loss": loss(), "log": dict.fromkeys(range(count), 1)},
    "wrong names": lambda count: {"loss": loss(), "log": extras(1000), "progress_bar": list(map(str, range(count)))},
    "near names": lambda count: {
        "loss": loss(),
        "log": extras(1000),
        "progress_bar": list(extras(count)),
    },
    "keys twice": lambda count: {"loss": loss(), **extras(count), "metrics": extras(count)},
}


@pytest.mark.parametrize("name", MANY)
def test_every_one_of_many_wrong_values_is_kept_and_twenty_are_shown(name: str) -> None:
    count = 100_000 if name == "wrong values" else 10_000
    made = outcome(lambda: coerce(MANY[name](count)))
    assert isinstance(made, StepOutputError)
    assert len(made.problems) == (count - 1000 if name == "near names" else count)
    assert len(str(made).splitlines()) <= 2 + 20 * 5 + 1


def test_many_unknown_keys_are_each_reported_in_strict_mode() -> None:
    made = outcome(lambda: coerce({"loss": loss(), **extras(10_000)}, strict=True))
    assert isinstance(made, StepOutputError)
    assert len(made.problems) == 10_000


@pytest.mark.parametrize("prefix", ["losses", "los", "acc"])
def test_a_hundred_thousand_keys_instead_of_loss_are_searched_in_bounded_time(prefix: str) -> None:
    made = outcome(lambda: coerce({f"{prefix}{index}": index for index in range(100_000)}))
    assert codes(made) == {"loss_missing"}


# -- what goes through, and what must not


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("place", ["returned", "log", "progress_bar", "metrics", "in a UserDict"])
def test_keyboard_interrupt_and_system_exit_pass_through(place: str, stop: type[BaseException]) -> None:
    error = stop()
    with pytest.raises(stop) as raised:
        coerce(PLACES[place](RaisingMapping(error)))
    assert raised.value is error


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_keyboard_interrupt_and_system_exit_pass_through_a_model(stop: type[BaseException]) -> None:
    error = stop()
    with pytest.raises(stop) as raised:
        TrainingOutput(loss=loss(), log=cast(Any, RaisingMapping(error)))
    assert raised.value is error


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_keyboard_interrupt_that_comes_once_is_not_lost(stop: type[BaseException]) -> None:
    class Once(EndlessMapping):
        errors: ClassVar[list[BaseException]] = []

        def items(self) -> Any:
            if self.errors:
                raise self.errors.pop()
            return []

    calls: tuple[Callable[[Any], object], ...] = (coerce, TrainingOutput.model_validate, validate_step(lambda x: x))
    for call in calls:
        for field in ("log", "progress_bar", "metrics"):
            Once.errors.append(stop())
            with pytest.raises(stop):
                call({"loss": loss(), field: Once()})


# Python makes a RuntimeError of a StopIteration in a generator.
@pytest.mark.parametrize("name", sorted(ERRORS.keys() - {"StopIteration"}))
def test_what_a_value_raises_is_named_in_the_report(name: str) -> None:
    error = ERRORS[name]()
    made = outcome(lambda: coerce({"loss": loss(), "log": RaisingMapping(error)}))
    assert codes(made) == {"unreadable"}
    assert f"that raised {type(error).__name__}  [unreadable]" in str(made)


def test_what_a_users_own_validator_raises_is_the_users_to_see() -> None:
    class Own(TrainingOutput):
        @pydantic.field_validator("metrics", mode="after")
        @staticmethod
        def _own(value: Any) -> Any:
            raise Boom("a bug in the schema")

    with pytest.raises(Boom, match=r"^a bug in the schema$"):
        coerce({"loss": loss(), "metrics": {"a": 1}}, schema=Own)


# -- the contract at hostile values, where it says what comes out


def test_a_lying_class_is_not_believed() -> None:
    made = outcome(lambda: coerce(class_is(Tensor)))
    assert codes(made) == {"wrong_return_type"}
    assert "got Liar object" in str(made)


def test_int_subclasses_and_enums_become_plain_ints() -> None:
    made = coerce({"loss": loss(), "log": {"a": RaisingInt(3), "b": Half.ONE, "c": RaisingFloat(1.5), "d": 10**5000}})
    assert [(type(value), value) for value in made.log.values()] == [(int, 3), (int, 1), (float, 1.5), (int, 10**5000)]


def test_text_subclasses_become_plain_names() -> None:
    made = coerce({"loss": loss(), "log": {np.str_("a"): 1, OtherText("b"): 2}})
    assert [(type(name), name) for name in made.log] == [(str, "a"), (str, "b")]


def test_a_tensor_that_does_not_detach_is_not_kept() -> None:
    made = outcome(lambda: coerce({"loss": loss(), "hiddens": TENSORS["does not detach"](), "log": {}}))
    assert codes(made) == {"unreadable"}


def test_each_wrong_key_is_a_problem_of_its_own() -> None:
    made = outcome(lambda: coerce({"loss": loss(), "log": {1: 1, 2: 2, None: 3}}))
    assert isinstance(made, StepOutputError)
    assert [problem.code for problem in made.problems] == ["key_not_string"] * 3


@pytest.mark.parametrize("returned", [EndlessMapping(), {"log": EndlessMapping()}, {"progress_bar": EndlessSet()}])
def test_what_never_ends_is_unreadable(returned: Any) -> None:
    made = outcome(lambda: coerce(returned))
    assert "unreadable" in codes(made)
    assert "that raised OverflowError" in str(made)


def test_two_lists_inside_each_other_are_too_deep_and_not_endless() -> None:
    made = outcome(lambda: coerce({"loss": loss(), "hiddens": recursive_list()}))
    assert codes(made) == {"too_deep"}


@pytest.mark.parametrize(("levels", "code"), [(64, None), (65, "too_deep"), (100_000, "too_deep")])
def test_sixty_four_levels_are_rebuilt_and_more_are_too_deep(levels: int, code: str | None) -> None:
    made = outcome(lambda: coerce({"loss": loss(), "hiddens": nested(levels)}))
    assert (codes(made) if isinstance(made, StepOutputError) else None) == ({code} if code else None)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("meta", None),
        ("coo with a graph", "loss_not_strided"),
        ("csr", "loss_not_strided"),
        ("mkldnn", "loss_not_strided"),
        ("nested strided", "loss_not_strided"),
        ("nested jagged", "loss_not_strided"),
        ("quantised", "loss_not_floating"),
        ("complex", "loss_not_floating"),
        ("no elements", "loss_not_scalar"),
        ("many dimensions", None),
        ("fake", None),
        ("parameter", "loss_leaf"),
        ("uninitialized parameter", "unreadable"),
        ("__torch_function__ raises", "unreadable"),
    ],
)
def test_each_kind_of_tensor_has_its_code_as_loss(name: str, code: str | None) -> None:
    made = outcome(lambda: coerce(TENSORS[name]()))
    assert (codes(made) if isinstance(made, StepOutputError) else None) == ({code} if code else None)


def test_a_subclass_that_answers_nonsense_is_described_by_what_it_is() -> None:
    made = outcome(lambda: coerce({"loss": subclass(Nonsense)}))
    assert "Nonsense float32[] tensor on cpu" in str(made)


def test_a_coroutine_is_closed_without_noise() -> None:
    async def step() -> None: ...

    returned = step()
    assert codes(outcome(lambda: coerce(returned))) == {"wrong_return_type"}
    returned.close()


@pytest.mark.parametrize("name", VALUES)
def test_any_object_may_be_given_as_the_step(name: str) -> None:
    step = VALUES[name]()
    outcome(lambda: coerce({"loss": loss(), "unknown": 1}, step=step))
    outcome(lambda: coerce(None, step=step))
    outcome(lambda: coerce("x", step=step))


@pytest.mark.parametrize("option", ["on_none", "stage"])
@pytest.mark.parametrize("name", VALUES)
def test_any_object_as_an_option_is_refused_in_our_own_words(name: str, option: str) -> None:
    with time_limit(), pytest.raises(ValueError, match=r"^expected "):
        coerce(None, **{option: VALUES[name]()})


@pytest.mark.parametrize("name", VALUES)
def test_any_object_as_strict_or_schema_is_refused_in_our_own_words(name: str) -> None:
    with time_limit(), pytest.raises(TypeError, match=r"^expected "):
        coerce(None, strict=VALUES[name]())
    with time_limit(), pytest.raises(TypeError, match=r"^expected "):
        coerce(None, schema=VALUES[name]())


def test_the_time_limit_of_these_tests_is_noticed() -> None:
    def endless() -> None:
        with time_limit():
            signal.alarm(1)
            for _ in itertools.count():
                pass

    with pytest.raises(KeyboardInterrupt):
        endless()
