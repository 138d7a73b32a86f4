"""Faulty steps, as text: `test_explain.py` writes each to a file, runs it and asks for the likely line.

The text between « and » is where the caret has to stand; a step without these marks is one where nothing may be
claimed. `step` is what the user would pass; it is called with `x`, eight ones that require grad.
"""

from typing import NamedTuple

Outcome = str  # "exact": the culprit; "certain": the entry, a binding or the returned expression; "silent"


class Case(NamedTuple):
    name: str
    outcome: Outcome
    code: str
    path: tuple[str | int, ...]
    source: str


LOSS = ("loss",)
NO_TENSOR, NO_GRAD, NO_FLOAT, NO_SCALAR = "loss_not_tensor", "loss_no_grad", "loss_not_floating", "loss_not_scalar"
WRONG = "wrong_return_type"

MANY = ", ".join(f'"name_{number}": {number}.5' for number in range(9))

# fmt: off
FAULTY = [
    # -- numbers in place of tensors
    Case("item in the entry", "exact", NO_TENSOR, LOSS, """
def step(x):
    loss = x.sum()
    return {"loss": «loss.item()», "log": {"acc": 1.0}}
"""),
    Case("item where the name is bound", "exact", NO_TENSOR, LOSS, """
def step(x):
    loss = «x.sum().item()»
    return {"loss": loss}
"""),
    Case("item through two names", "exact", NO_TENSOR, LOSS, """
def step(x):
    value: float = «x.sum().item()»
    loss = value
    return {"loss": loss}
"""),
    Case("float()", "exact", NO_TENSOR, LOSS, """
def step(x):
    return dict(loss=«float(x.sum())», log={})
"""),
    Case("int()", "exact", NO_TENSOR, LOSS, """
def step(x):
    return {"loss": «int(x.sum())»}
"""),
    Case("tolist of a vector", "exact", NO_TENSOR, LOSS, """
def step(x):
    return {"loss": «x.tolist()»}
"""),
    Case("an element of tolist", "exact", NO_TENSOR, LOSS, """
def step(x):
    return {"loss": «x.tolist()»[0]}
"""),
    Case("numpy", "exact", NO_TENSOR, LOSS, """
def step(x):
    return {"loss": «x.sum().detach().cpu().numpy()»}
"""),
    Case("numpy, then a method of numpy", "exact", NO_TENSOR, LOSS, """
def step(x):
    return {"loss": «x.detach().numpy()».mean()}
"""),
    Case("item divided by a number", "exact", NO_TENSOR, LOSS, """
def step(x):
    return {"loss": «x.sum().item()» / 4}
"""),
    Case("item divided by a length, rounded", "exact", NO_TENSOR, LOSS, """
def step(x):
    return {"loss": round(«x.sum().item()» / len(x), 3)}
"""),
    Case("the outermost of two", "exact", NO_TENSOR, LOSS, """
def step(x):
    return {"loss": «float(x.sum().item())»}
"""),
    Case("item returned alone", "exact", WRONG, (), """
def step(x):
    loss = x.sum()
    return «loss.item()»
"""),
    Case("item in hiddens", "exact", "hiddens_not_tensor", ("hiddens", 1), """
def step(x):
    hiddens = [x, «x.sum().item()»]
    return {"loss": x.sum(), "hiddens": hiddens}
"""),
    # -- no graph
    Case("detach in the entry", "exact", NO_GRAD, LOSS, """
def step(x):
    return {"loss": «x.sum().detach()»}
"""),
    Case("detach below other methods", "exact", NO_GRAD, LOSS, """
def step(x):
    loss = «x.detach()».pow(2).mean()
    return {"loss": loss, "log": {"half": loss / 2}}
"""),
    Case("data", "exact", NO_GRAD, (), """
def step(x):
    return «x.sum().data»
"""),
    Case("no_grad around the binding", "exact", NO_GRAD, LOSS, """
import torch

def step(x):
    with «torch.no_grad()»:
        loss = x.sum()
    return {"loss": loss}
"""),
    Case("no_grad as the second item, imported by name", "exact", NO_GRAD, LOSS, """
import torch
from torch import no_grad as without

def step(x):
    with torch.autocast("cpu"), «without()»:
        loss = x.sum()
    return {"loss": loss}
"""),
    Case("no_grad around autocast", "exact", NO_GRAD, LOSS, """
import torch

def step(x):
    with «torch.no_grad()»:
        with torch.autocast("cpu"):
            return {"loss": x.sum() * 2}
"""),
    Case("set_grad_enabled(False)", "exact", NO_GRAD, LOSS, """
import torch

def step(x):
    with «torch.set_grad_enabled(False)»:
        return {"loss": x.sum()}
"""),
    Case("a no_grad decorator", "exact", NO_GRAD, LOSS, """
import torch

@«torch.no_grad()»
def step(x):
    loss = x.sum()
    return {"loss": loss}
"""),
    Case("an inference_mode decorator and a loop", "exact", NO_GRAD, LOSS, """
import torch

@«torch.inference_mode()»
def step(x):
    loss = 0
    for _ in range(3):
        loss = loss + x.sum()
    return {"loss": loss}
"""),
    Case("a constructor", "exact", NO_GRAD, LOSS, """
import torch

def step(x):
    return {"loss": «torch.tensor(x.sum().item())»}
"""),
    Case("a constructor bound to a name", "exact", NO_GRAD, LOSS, """
import torch

def step(x):
    loss = «torch.zeros(())»
    return {"loss": loss * 2}
"""),
    Case("a faulty argument is not looked into", "certain", NO_GRAD, LOSS, """
import torch

def step(x):
    loss = «torch.square(x.detach()).sum()»
    return {"loss": loss}
"""),
    # -- leaves
    Case("requires_grad_()", "exact", "loss_leaf", LOSS, """
def step(x):
    return {"loss": «x.sum().detach().requires_grad_()»}
"""),
    Case("requires_grad=True", "exact", "loss_leaf", LOSS, """
import torch

def step(x):
    loss = «torch.tensor(1.0, requires_grad=True)»
    return {"loss": loss}
"""),
    Case("requires_grad as a statement", "exact", "loss_leaf", LOSS, """
def step(x):
    loss = x.sum().detach()
    «loss.requires_grad» = True
    return {"loss": loss}
"""),
    Case("requires_grad_() as a statement", "exact", "loss_leaf", LOSS, """
def step(x):
    loss = x.sum().detach()
    «loss.requires_grad_()»
    return {"loss": loss}
"""),
    # -- dtypes
    Case("long", "exact", NO_FLOAT, LOSS, """
def step(x):
    return {"loss": «x.sum().long()»}
"""),
    Case("argmax", "exact", NO_FLOAT, LOSS, """
def step(x):
    return {"loss": «x.argmax(0)»}
"""),
    Case("to an integer dtype", "exact", NO_FLOAT, LOSS, """
import torch

def step(x):
    loss = «x.to(torch.int64)».sum()
    return {"loss": loss}
"""),
    Case("a comparison", "exact", NO_FLOAT, LOSS, """
def step(x):
    return {"loss": («x > 0»).sum()}
"""),
    # -- shapes
    Case("reduction none", "exact", NO_SCALAR, LOSS, """
import torch.nn.functional as F

def step(x):
    loss = F.mse_loss(x, x * 2, «reduction="none"»)
    return {"loss": loss}
"""),
    Case("reduction none in the module", "exact", NO_SCALAR, LOSS, """
from torch import nn

def step(x):
    return {"loss": nn.MSELoss(«reduction="none"»)(x, x * 2) / 8}
"""),
    Case("no culprit: the entry", "certain", NO_SCALAR, LOSS, """
def step(x):
    return {"loss": «x.view(4, 2).sum(1)», "log": {}}
"""),
    Case("no culprit: the binding", "certain", NO_SCALAR, LOSS, """
def step(x):
    loss = «x.view(4, 2).sum(1)»
    return {"loss": loss}
"""),
    Case("a value in log", "certain", "scalar_not_single", ("log", "acc"), """
def step(x):
    acc = «x.detach()»
    return {"loss": x.sum(), "log": {"acc": acc, "n": 1}}
"""),
    Case("log made beforehand", "certain", "scalar_wrong_type", ("log", "acc"), """
def step(x):
    log = {"n": 1, "acc": «"warm"»}
    out = {"loss": x.sum(), "log": log}
    return out
"""),
    Case("log made by a call", "certain", "scalar_wrong_type", ("log", "acc"), """
def make_log():
    return {"acc": "warm"}

def step(x):
    return {"loss": x.sum(), "log": «make_log()»}
"""),
    # -- keys
    Case("loss missing", "certain", "loss_missing", LOSS, """
def step(x):
    return «{"lss": x.sum(), "log": {}}»
"""),
    Case("loss missing, over many lines", "certain", "loss_missing", LOSS, """
def step(x):
    return «{»  # no loss in here
        "lss": x.sum(),
        "log": {},
    }
"""),
    Case("loss missing in a followed dict", "certain", "loss_missing", LOSS, """
def step(x):
    out = «{"lss": x.sum()}»
    return out
"""),
    Case("loss is None", "certain", "loss_none", LOSS, """
def step(x):
    return {"loss": «None», "log": {}}
"""),
    Case("loss is None by a call", "certain", "loss_none", LOSS, """
def step(x):
    loss = «print("", end="")»
    return {"loss": loss}
"""),
    # -- other kinds of value
    Case("a tuple", "certain", WRONG, (), """
def step(x):
    loss = x.sum()
    return «loss, {"acc": 1}»
"""),
    Case("a tuple bound to a name", "certain", WRONG, (), """
def step(x):
    result = «(x.sum(), 3)»
    return result
"""),
    Case("a generator", "exact", WRONG, (), """
def step(x):
    for row in x:
        «yield row»
    yield x.sum()
"""),
    Case("a coroutine", "exact", WRONG, (), """
«async def» step(x):
    return {"loss": x.sum()}
"""),
    Case("a generator expression", "certain", WRONG, (), """
def step(x):
    return «(row for row in x)»
"""),
    Case("no return", "certain", "returned_none", (), """
def «step»(x):
    loss = x.sum()
    loss.backward()
"""),
    Case("a bare return", "certain", "returned_none", (), """
def step(x):
    if x.shape[0]:
        «return»
    return {"loss": x.sum()}
"""),
    Case("a branch without return", "certain", "returned_none", (), """
def «step»(x):
    if x.shape[0] == 0:
        return {"loss": x.sum()}
"""),
    # -- kinds of step
    Case("a method", "exact", NO_TENSOR, LOSS, """
class Digits:
    def training_step(self, x):
        self.__last = x.sum()
        return {"loss": «self.__last.item()»}

step = Digits().training_step
"""),
    Case("a method that uses super", "exact", NO_TENSOR, LOSS, """
class Base:
    def training_step(self, x):
        return x.sum()

class Digits(Base):
    def training_step(self, x):
        loss = super().training_step(x)
        return {"loss": «loss.item()»}

step = Digits().training_step
"""),
    Case("a static method and a partial of a partial", "exact", NO_TENSOR, LOSS, """
from functools import partial

class Digits:
    @staticmethod
    def training_step(scale, name, x):
        return {"loss": «(x.sum() * scale).item()»}

step = partial(partial(Digits.training_step, 2), "digits")
"""),
    Case("a callable instance", "exact", NO_TENSOR, LOSS, """
class Digits:
    def __call__(self, x):
        return {"loss": «x.sum().item()»}

step = Digits()
"""),
    Case("a module", "exact", NO_TENSOR, LOSS, """
import torch

class Digits(torch.nn.Module):
    def forward(self, x):
        return {"loss": «x.sum().item()»}

step = Digits()
"""),
    Case("a lambda", "exact", NO_TENSOR, LOSS, """
step = lambda x: {"loss": «x.sum().item()»}
"""),
    Case("a nested function", "exact", NO_TENSOR, LOSS, """
def make(scale):
    def step(x):
        loss = x.sum() * scale
        return {"loss": «loss.item()»}
    return step

step = make(2)
"""),
    Case("a decorator that only registers", "exact", NO_TENSOR, LOSS, """
STEPS = []

def register(name):
    def note(function):
        STEPS.append((name, function))
        return function
    return note

@register(
    "digits"
)
def step(x):
    '''Do not mind "loss": x.item().'''
    return {"loss": «x.sum().item()»}
"""),
    Case("future annotations", "exact", NO_TENSOR, LOSS, """
from __future__ import annotations

def step(x: Unknown) -> dict[str, Unknown]:
    return {"loss": «x.sum().item()»}
"""),
    # -- control flow
    Case("two returns, one of which fits", "exact", NO_TENSOR, LOSS, """
def step(x):
    if x.shape[0] == 0:
        return {"loss": x.sum(), "log": {}}
    return {"loss": «x.sum().item()»}
"""),
    Case("a return in a loop", "exact", NO_TENSOR, LOSS, """
def step(x):
    for row in x:
        return {"loss": «row.item()»}
"""),
    Case("a return in try", "exact", NO_TENSOR, LOSS, """
def step(x):
    try:
        return {"loss": «x.sum().item()»}
    except ValueError:
        return None
"""),
    Case("a nested function has returns of its own", "exact", NO_TENSOR, LOSS, """
def step(x):
    def closure():
        return {"loss": x.sum()}
    return {"loss": «closure()["loss"].item()»}
"""),
    Case("a conditional expression of two kinds", "exact", NO_TENSOR, LOSS, """
def step(x):
    return {"loss": «x.sum().item()»} if x.shape[0] else None
"""),
    Case("a walrus in the entry", "exact", NO_TENSOR, LOSS, """
def step(x):
    return {"loss": (loss := «x.sum().item()»), "log": {"loss": loss}}
"""),
    Case("match", "exact", NO_TENSOR, LOSS, """
def step(x):
    match x.shape:
        case (8,):
            return {"loss": «x.sum().item()»}
        case _:
            return x, x
"""),
    # -- spreads, stores, constructors
    Case("a spread before the key", "exact", NO_TENSOR, LOSS, """
def step(x):
    rest = {"log": {}}
    return {**rest, "loss": «x.sum().item()»}
"""),
    Case("a spread after the key", "certain", NO_TENSOR, LOSS, """
def step(x):
    rest = {"loss": x.sum().item()}
    return «{"loss": x.sum(), **rest}»
"""),
    Case("stored by subscript", "exact", NO_TENSOR, LOSS, """
def step(x):
    out = {"log": {}}
    out["loss"] = «x.sum().item()»
    out["metrics"] = {}
    return out
"""),
    Case("stored by subscript in a branch", "certain", NO_TENSOR, LOSS, """
def step(x):
    out = {"loss": x.sum()}
    if x.shape[0]:
        out["loss"] = x.sum().item()
    return «out»
"""),
    Case("changed by a method", "certain", NO_TENSOR, LOSS, """
def step(x):
    out = {"loss": x.sum()}
    out.update(loss=x.sum().item())
    return «out»
"""),
    Case("a dataclass", "exact", NO_TENSOR, LOSS, """
from dataclasses import dataclass, field

@dataclass
class Output:
    loss: object
    log: dict = field(default_factory=dict)

def step(x):
    out = Output(loss=«x.sum().item()», log={})
    return out
"""),
    Case("positional arguments of a dataclass", "certain", NO_TENSOR, LOSS, """
from dataclasses import dataclass

@dataclass
class Output:
    loss: object

def step(x):
    return «Output(x.sum().item())»
"""),
    # -- text
    Case("tabs", "exact", NO_TENSOR, LOSS, """
def step(x):
\tif True:
\t\treturn {"loss":\t«x.sum().item()»,\t"log":\t{}}
"""),
    Case("unicode before the caret", "exact", NO_TENSOR, LOSS, """
def step(x):
    größe = x.sum()
    return {"日本語": "é", "loss": «größe.item()»}
"""),
    Case("many lines: the line of the culprit", "exact", NO_TENSOR, LOSS, """
def step(x):
    return {
        "loss": (
            x.sum()
            .mean()
            «.item()»  # for the log
        ),
        "log": {},
    }
"""),
    Case("many lines: the culprit after an argument", "exact", NO_TENSOR, LOSS, """
def step(x):
    loss = x.view(
        8,
        1).sum()«.item()»
    return {"loss": loss}
"""),
    Case("many lines: the first of an entry", "certain", NO_SCALAR, LOSS, """
def step(x):
    return {
        "loss": «x.view(»  # rows
            4, 2
        ).sum(1),
    }
"""),
    Case("a very long line", "exact", NO_TENSOR, LOSS, f"""
def step(x):
    return {{"log": {{{MANY}}}, "loss": «x.sum().item()», "metrics": {{{MANY}}}}}
"""),
    Case("a caret too long for the line", "certain", NO_SCALAR, LOSS, f"""
def step(x):
    return {{"loss": «x.view(8 + 0 * len({{{MANY}}}))»}}
"""),
    # -- other uses of a name that leave its value
    Case("a list that another return gives", "exact", "hiddens_not_tensor", ("hiddens", 1), """
def step(x):
    hiddens = [x, «float(x.sum())»]
    if x is None:
        return hiddens
    return {"loss": x.sum(), "hiddens": hiddens}
"""),
    Case("fields and keys that are read", "exact", NO_TENSOR, LOSS, """
from dataclasses import dataclass

@dataclass
class Output:
    loss: object
    log: dict

def step(x):
    inner = {"loss": «x.sum().item()», "n": 1}
    print(inner["n"], end="")
    inner["n"] = 2
    out = Output(loss=inner["loss"], log={})
    print(out.log, end="")
    return inner
"""),
    Case("a field of an object that is read", "exact", NO_TENSOR, LOSS, """
from dataclasses import dataclass

@dataclass
class Output:
    loss: object
    log: dict

def step(x):
    out = Output(log={}, loss=«x.sum().item()»)
    print(out.log, out.loss.real, end="")
    return out
"""),
    Case("a tensor that is read", "exact", NO_GRAD, LOSS, """
def step(x):
    loss = «x.sum().detach()»
    print(loss[None].shape, end="")
    return {"loss": loss}
"""),
    Case("a generic output class", "exact", NO_TENSOR, LOSS, """
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

@dataclass
class Output(Generic[T]):
    loss: T

def step(x):
    return Output[float](loss=-«x.sum().item()»)
"""),
    Case("a class of another module", "exact", NO_TENSOR, LOSS, """
import collections

def step(x):
    return collections.OrderedDict(log={}, loss=2 * «x.sum().item()»)
"""),
    Case("a walrus around the returned dict", "exact", NO_TENSOR, LOSS, """
def step(x):
    return (out := {"loss": «x.sum().item()»})
"""),
    Case("the transpose of what has no graph", "exact", NO_GRAD, LOSS, """
def step(x):
    return {"loss": «x.detach()».view(1, 8).mT.mean()}
"""),
    Case("no_grad below a decorator that registers", "exact", NO_GRAD, LOSS, """
import torch

def register(function):
    return function

@register
@«torch.no_grad()»
@register
def step(x):
    return {"loss": x.sum()}
"""),
    Case("a shared autocast", "exact", NO_TENSOR, LOSS, """
import torch

@torch.autocast("cpu")
def step(x):
    return {"loss": «x.sum().item()»}
"""),
    # -- silent
    Case("two returns fit", "silent", NO_TENSOR, LOSS, """
def step(x):
    if x.shape[0]:
        return {"loss": x.sum().item()}
    return {"loss": x.sum()}
"""),
    Case("a key that stands twice", "silent", NO_TENSOR, LOSS, """
def step(x):
    return {"loss": x.sum(), "loss": x.sum().item()}
"""),
    Case("two lambdas on a line", "silent", NO_TENSOR, LOSS, """
steps = [lambda x: {"loss": x.sum().item()}, lambda x: {"loss": x.mean().item()}]
step = steps[0]
"""),
    Case("a foreign wrapper", "silent", NO_TENSOR, LOSS, """
import functools

def as_floats(function):
    @functools.wraps(function)
    def wrapper(x):
        return {name: float(value) for name, value in function(x).items()}
    return wrapper

@as_floats
def step(x):
    return {"loss": x.sum()}
"""),
    Case("executed without a source", "silent", NO_TENSOR, LOSS, """
names = {}
exec("def step(x):\\n    return {'loss': x.sum().item()}", names)
step = names["step"]
"""),
    Case("compiled by torch", "silent", NO_TENSOR, LOSS, """
import torch

def step(x):
    return {"loss": x.sum().item()}

step = torch.compile(step, backend="eager")
"""),
    Case("no source: a builtin", "silent", WRONG, (), """
step = len
"""),
]

# Steps made to lead to a wrong claim.
TRAPS = [
    Case("float is another function", "certain", NO_TENSOR, LOSS, """
def float(value):
    return 0.5

def step(x):
    return {"loss": «float(x.sum())»}
"""),
    Case("dict is another function", "certain", NO_TENSOR, LOSS, """
def dict(loss):
    return {"loss": 0.5}

def step(x):
    return «dict(loss=x.sum())»
"""),
    Case("a class-like function that makes something else", "certain", NO_SCALAR, LOSS, """
def step(x, float=lambda loss: loss):
    return {"loss": «float(x)»}
"""),
    Case("item in a dead branch", "certain", NO_TENSOR, LOSS, """
def step(x):
    loss = 0.5
    if x is None:
        loss = x.sum().item()
    return {"loss": «loss»}
"""),
    Case("item in a branch that does not run", "silent", NO_TENSOR, LOSS, """
def step(x):
    if x is None:
        return {"loss": x.sum().item()}
    return {"loss": float(x.sum())}
"""),
    Case("item in another entry", "certain", NO_TENSOR, LOSS, """
def step(x):
    return {"log": {"loss": x.sum().item()}, "loss": «"0.5"»}
"""),
    Case("item on another element of a line", "exact", NO_TENSOR, LOSS, """
def step(x):
    return {"log": {"loss": x.item() if x is None else 1}, "loss": «float(1)»}
"""),
    Case("detach in an argument", "certain", NO_GRAD, LOSS, """
import torch

def step(x):
    frozen = x.data
    return {"loss": «torch.dot(frozen.detach(), frozen)»}
"""),
    Case("detach on the other operand", "certain", NO_GRAD, LOSS, """
def step(x):
    frozen = x.data
    loss = «frozen.sum() - x.detach().mean()»
    return {"loss": loss}
"""),
    Case("item on the other operand", "certain", NO_TENSOR, LOSS, """
def step(x):
    baseline = x.mean().item()
    value = 3.0
    return {"loss": «value - baseline»}
"""),
    Case("a constructor as an operand", "certain", NO_GRAD, LOSS, """
import torch

def step(x):
    frozen = x.data
    return {"loss": «torch.tensor(0.0) + frozen.sum()»}
"""),
    Case("a name that is bound in a loop", "certain", NO_TENSOR, LOSS, """
def step(x):
    for row in x:
        loss = row.item()
    return {"loss": «loss»}
"""),
    Case("a name that is bound twice", "certain", NO_TENSOR, LOSS, """
def step(x):
    loss = x.sum().item()
    loss = 0.5
    return {"loss": «loss»}
"""),
    Case("a name that is changed in place by an operator", "certain", NO_TENSOR, LOSS, """
def step(x):
    loss = int(x.sum())
    loss += 0.5
    return {"loss": «loss»}
"""),
    Case("a name that is bound by a walrus as well", "certain", NO_TENSOR, LOSS, """
def step(x):
    loss = x.sum()
    print((loss := 0.5), end="")
    return {"loss": «loss»}
"""),
    Case("a name that is an argument", "certain", NO_TENSOR, LOSS, """
def step(x, loss=0.5):
    if x is None:
        loss = x.sum().item()
    return {"loss": «loss»}
"""),
    Case("a name that a nested function rebinds", "certain", NO_TENSOR, LOSS, """
def step(x):
    loss = x.sum()
    def closure():
        nonlocal loss
        loss = 0.5
    closure()
    return {"loss": «loss»}
"""),
    Case("a name that is global", "certain", NO_TENSOR, LOSS, """
loss = None

def step(x):
    global loss
    loss = 0.5
    return {"loss": «loss»}
"""),
    Case("a name that `except` binds", "certain", NO_TENSOR, LOSS, """
def step(x):
    loss = 0.5
    try:
        x.nothing
    except AttributeError as loss:
        return {"loss": «loss»}
"""),
    Case("a name unpacked from a tuple", "certain", NO_TENSOR, LOSS, """
def step(x):
    loss, acc = x.sum().item(), 1
    return {"loss": «loss»}
"""),
    Case("a name bound in match", "certain", NO_TENSOR, LOSS, """
def step(x):
    match {"loss": 0.5}:
        case {"loss": loss}:
            return {"loss": «loss»}
"""),
    Case("an alias that is changed", "certain", NO_TENSOR, LOSS, """
def step(x):
    out = {"loss": x.sum()}
    same = out
    same["loss"] = 0.5
    return «out»
"""),
    Case("a dict that a call changes", "certain", NO_TENSOR, LOSS, """
def spoil(out):
    out["loss"] = 0.5

def step(x):
    out = {"loss": x.sum().item()}
    spoil(out)
    return «out»
"""),
    Case("a dict that a nested function changes", "certain", NO_TENSOR, LOSS, """
def step(x):
    out = {"loss": x.sum().item()}
    def spoil():
        out["loss"] = 0.5
    spoil()
    return «out»
"""),
    Case("a computed key", "certain", NO_TENSOR, LOSS, """
def step(x):
    out = {"loss": x.sum().item()}
    key = "loss"
    out[key] = 0.5
    return «out»
"""),
    Case("a computed key in the display", "certain", NO_TENSOR, LOSS, """
def step(x):
    key = "loss"
    return «{"loss": x.sum().item(), key: 0.5}»
"""),
    Case("an inner dict changed through the outer", "certain", "scalar_wrong_type", ("log", "acc"), """
def step(x):
    out = {"loss": x.sum(), "log": {"acc": 1}}
    out["log"]["acc"] = "warm"
    return «out»
"""),
    Case("an inner dict changed after it was put in", "certain", "scalar_wrong_type", ("log", "acc"), """
def step(x):
    log = {"acc": 1}
    out = {"loss": x.sum(), "log": «log»}
    log["acc"] = "warm"
    return out
"""),
    Case("stored after an early return", "silent", NO_TENSOR, LOSS, """
def step(x):
    out = {"loss": 0.5}
    if x.shape[0]:
        return out
    out["loss"] = x.sum().item()
    return out
"""),
    Case("a list that grows", "certain", NO_TENSOR, LOSS, """
def step(x):
    losses = []
    losses.append(x.sum())
    return {"loss": «losses»}
"""),
    Case("a list whose element moves", "certain", "hiddens_not_tensor", ("hiddens", 0), """
def step(x):
    hiddens = [x, x.sum().item()]
    hiddens.reverse()
    return {"loss": x.sum(), "hiddens": «hiddens»}
"""),
    Case("a star before the element", "certain", "hiddens_not_tensor", ("hiddens", 2), """
def step(x):
    first = (x, x)
    return {"loss": x.sum(), "hiddens": «[*first, 0.5, x.sum().item()]»}
"""),
    Case("a tensor filled by a call", "certain", NO_GRAD, LOSS, """
import torch

def fill(into, value):
    into.add_(value.detach())

def step(x):
    loss = torch.zeros(())
    fill(loss, x.sum())
    return {"loss": «loss»}
"""),
    Case("a tensor filled in place", "certain", NO_GRAD, LOSS, """
import torch

def step(x):
    loss = torch.zeros(())
    loss.add_(x.sum().detach())
    return {"loss": «loss»}
"""),
    Case("no_grad around another value", "exact", NO_GRAD, LOSS, """
import torch

def step(x):
    frozen = «x.data»
    with torch.no_grad():
        acc = x.mean()
    loss = frozen.sum()
    return {"loss": loss, "log": {"acc": acc}}
"""),
    Case("no_grad around a mere name", "exact", NO_GRAD, LOSS, """
import torch

def step(x):
    made = «x.sum().detach()»
    with torch.no_grad():
        loss = made
    return {"loss": loss}
"""),
    Case("enable_grad within no_grad", "certain", NO_GRAD, LOSS, """
import torch

@torch.no_grad()
def step(x):
    with torch.enable_grad():
        loss = «torch.square(x.data).sum()»
    return {"loss": loss}
"""),
    Case("inference_mode(False)", "certain", NO_GRAD, LOSS, """
import torch

def step(x):
    with torch.inference_mode(False):
        return {"loss": «torch.square(x.data).sum()»}
"""),
    Case("no_grad of somebody else", "certain", NO_GRAD, LOSS, """
from contextlib import nullcontext as no_grad
import torch

def step(x):
    with no_grad():
        return {"loss": «torch.square(x.data).sum()»}
"""),
    Case("torch is another module", "certain", NO_GRAD, LOSS, """
import contextlib
from types import SimpleNamespace

torch = SimpleNamespace(no_grad=contextlib.nullcontext, tensor=lambda loss: loss.data)

def step(x):
    with torch.no_grad():
        return {"loss": «torch.tensor(x.sum())»}
"""),
    Case("data of a mapping", "certain", NO_GRAD, LOSS, """
from types import SimpleNamespace

def step(x):
    batch = SimpleNamespace(data={"loss": x.data.sum()})
    return {"loss": «batch.data["loss"]»}
"""),
    Case("an item method that gives an object", "certain", NO_TENSOR, LOSS, """
class Meter:
    def item(self):
        return self

    def value(self):
        return 0.5

def step(x):
    return {"loss": «Meter().item().value()»}
"""),
    Case("a dtype that takes long back", "certain", NO_FLOAT, LOSS, """
import torch

def step(x):
    return {"loss": «x.long().sum(dtype=torch.complex64)»}
"""),
    Case("a complex factor", "certain", NO_FLOAT, LOSS, """
def step(x):
    return {"loss": «x.sum().long() * 1j»}
"""),
    Case("reduction none that is reduced again", "certain", NO_SCALAR, LOSS, """
import torch.nn.functional as F

def step(x):
    return {"loss": «F.mse_loss(x, x * 2, reduction="none").mean().expand(3)»}
"""),
    Case("a decorator that changes the value, without a trace", "exact", NO_TENSOR, LOSS, """
def as_floats(function):
    def wrapper(x):
        return {"loss": «float(function(x)["loss"])»}
    return wrapper

@as_floats
def step(x):
    return {"loss": x.sum()}
"""),
    Case("a hook that changes what a module returns", "silent", NO_TENSOR, LOSS, """
import torch

class Digits(torch.nn.Module):
    def forward(self, x):
        return {"loss": x.sum()}

step = Digits()
step.register_forward_hook(lambda module, given, returned: {"loss": 0.5})
"""),
    Case("a base class whose call changes the value of forward", "certain", NO_TENSOR, LOSS, """
class Base:
    def __call__(self, x):
        return {"loss": «0.5»}

class Digits(Base):
    def forward(self, x):
        return {"loss": x.sum().item()}

step = Digits()
"""),
    Case("a return in finally", "exact", NO_TENSOR, LOSS, """
def step(x):
    try:
        return [x.sum().item()]
    finally:
        return {"loss": «x.sum().item()»}
"""),
    Case("a return that falls through instead", "silent", "returned_none", (), """
import contextlib

def compute(x):
    return None

def step(x):
    with contextlib.suppress(AttributeError):
        return compute(x.nothing)
"""),
    Case("a generator that somebody else ran", "silent", NO_TENSOR, LOSS, """
from functools import partial

class Runs:
    def __init__(self, function):
        self.__wrapped__ = function

    def __call__(self, x):
        *_, last = self.__wrapped__(x)
        if x is None:
            return {"loss": 0.5}
        return last

@Runs
def step(x):
    yield {"loss": x.sum().item()}
"""),
    Case("a name that a comprehension uses as well", "certain", NO_TENSOR, LOSS, """
def step(x):
    loss = 0.5
    print(*[loss for loss in x[:0]], end="")
    return {"loss": «loss»}
"""),
    Case("a spread whose keys are not known", "silent", NO_TENSOR, LOSS, """
def step(x):
    rest = {"loss": 0.5}
    if x.shape[0]:
        return {**rest}
    return {"loss": x.sum().item(), **rest}
"""),
    Case("a namedtuple is not a tuple display", "silent", WRONG, (), """
from typing import NamedTuple

class Pair(NamedTuple):
    first: object
    second: object

def make(x):
    return Pair(x, x)

def step(x):
    if x is None:
        return make(x)
    if x.shape[0]:
        return Pair(x, x)
    return x, x
"""),
    Case("a TypedDict is a dict", "silent", NO_TENSOR, LOSS, """
from typing import TypedDict

class Output(TypedDict):
    loss: object

def step(x):
    if x.shape[0]:
        return Output(loss=0.5)
    return {"loss": x.sum().item()}
"""),
    Case("deleted and made anew", "certain", NO_TENSOR, LOSS, """
def step(x):
    loss = x.sum().item()
    del loss
    loss = 0.5
    return {"loss": «loss»}
"""),
    Case("a capitalised function", "certain", NO_TENSOR, LOSS, """
def Output(loss):
    return {"loss": loss.item()}

def step(x):
    return «Output(loss=x.sum())»
"""),
    Case("a class that changes its fields", "certain", NO_TENSOR, LOSS, """
from dataclasses import dataclass

@dataclass
class Output:
    loss: object

    def __post_init__(self):
        self.loss = self.loss.item()

def step(x):
    out = «Output(loss=x.sum())»
    return out
"""),
    Case("an object whose field is set later", "certain", NO_TENSOR, LOSS, """
from dataclasses import dataclass

@dataclass
class Output:
    loss: object

def step(x):
    out = Output(loss=x.sum().item())
    out.loss = 0.5
    return «out»
"""),
    Case("two dicts that both fit", "certain", NO_TENSOR, LOSS, """
def step(x):
    return «{"loss": 0.5} if x.shape[0] else {"loss": x.sum().item()}»
"""),
    Case("a tensor that is written to by another", "certain", NO_GRAD, LOSS, """
import torch

def step(x):
    loss = torch.square(x.data).sum()
    torch.add(x.data.sum(), 1, out=loss)
    return {"loss": «loss»}
"""),
    Case("an element that is written to", "certain", NO_SCALAR, LOSS, """
def step(x):
    loss = x * 2
    loss[0] = 1
    return {"loss": «loss»}
"""),
    Case("a mean by reduction", "certain", NO_SCALAR, LOSS, """
import torch.nn.functional as F

def step(x):
    return {"loss": «F.mse_loss(x, x * 2, reduction="mean").expand(3)»}
"""),
    Case("requires_grad_(False)", "certain", NO_GRAD, LOSS, """
import torch

def step(x):
    loss = torch.square(x.data).sum()
    loss.requires_grad_(False)
    return {"loss": «loss»}
"""),
    Case("requires_grad_ in a branch", "certain", "loss_leaf", LOSS, """
def step(x):
    loss = x.sum().detach()
    if x.shape[0]:
        loss.requires_grad_()
    return {"loss": «loss»}
"""),
    Case("requires_grad_ twice", "certain", "loss_leaf", LOSS, """
def step(x):
    loss = x.sum().detach()
    loss.requires_grad_(False)
    loss.requires_grad = True
    return {"loss": «loss»}
"""),
    Case("an inner dict that a walrus names, and that changes", "certain", "scalar_wrong_type", ("log", "acc"), """
def step(x):
    out = {"loss": x.sum(), "log": («log := {"acc": 1}»)}
    log["acc"] = "warm"
    return out
"""),
    Case("a returned dict that `finally` changes", "certain", NO_TENSOR, LOSS, """
def step(x):
    try:
        return («out := {"loss": x.sum().item()}»)
    finally:
        out["loss"] = 0.5
"""),
    Case("a returned name that `finally` changes", "certain", NO_TENSOR, LOSS, """
def step(x):
    out = {"loss": x.sum().item()}
    try:
        return «out»
    finally:
        out["loss"] = 0.5
"""),
    Case("a store into what a walrus's name was before", "certain", NO_TENSOR, LOSS, """
def step(x):
    out = {}
    out["loss"] = x.sum().item()
    return («out := {"loss": 0.5}»)
"""),
    Case("a store into an alias, and one into what it is an alias of", "certain", NO_TENSOR, LOSS, """
def step(x):
    out = {"loss": x.sum()}
    same = out
    same["loss"] = x.sum().item()
    out.update(loss=0.5)
    return «same»
"""),
    Case("a dict with two names", "certain", NO_TENSOR, LOSS, """
def step(x):
    out = (same := {"loss": x.sum().item()})
    same["loss"] = 0.5
    return «out»
"""),
    Case("two keys stored at once", "certain", NO_TENSOR, LOSS, """
def step(x):
    out = {}
    out["loss"], out["log"] = 0.5, {"loss": x.sum().item()}
    return «out»
"""),
    Case("a key divided in place", "certain", NO_TENSOR, LOSS, """
def step(x):
    out = {"loss": x.sum().item()}
    out["loss"] /= 4
    return «out»
"""),
    Case("a key that a loop stores", "certain", NO_TENSOR, LOSS, """
def step(x):
    out = {"loss": x.sum().item()}
    for out["loss"] in (0.25, 0.5):
        pass
    return «out»
"""),
    Case("either of two values", "certain", NO_TENSOR, LOSS, """
def step(x):
    return {"loss": «0.5 if x.shape[0] else x.sum().item()»}
"""),
    Case("either of two values, by `or`", "certain", NO_TENSOR, LOSS, """
def step(x):
    return {"loss": «0.5 or x.sum().item()»}
"""),
    Case("no_grad around what is only looked up", "certain", NO_GRAD, LOSS, """
import torch

def step(x):
    losses = {"loss": torch.square(x.data).sum()}
    with torch.no_grad():
        loss = «losses.get("loss")»
    return {"loss": loss}
"""),
    Case("code put into another function", "silent", NO_TENSOR, LOSS, """
def other(x):
    return {"loss": 0.5}

def step(x):
    return {"loss": x.sum().item()}

step.__code__ = other.__code__.replace(co_name="step", co_firstlineno=5)
"""),
]
