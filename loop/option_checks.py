"""The options of `fit`, checked all at once, before the first batch, without iterating anything."""

import os
import types
from collections.abc import Callable, Iterator
from typing import Any, cast, get_args

import torch
from torch import nn
from torch.optim import Optimizer

from strictstep.loop.checked_step import call_for
from strictstep.loop.early_stopping import EarlyStopping, check_monitor
from strictstep.loop.errors import LoopError
from strictstep.loop.evaluate import refuse_optimizers
from strictstep.loop.finite import FiniteWatch
from strictstep.loop.loader import length_of
from strictstep.loop.options import Options, is_steps_and_dim
from strictstep.loop.precision import Precision
from strictstep.loop.schedule import Interval, count_wanted, wants_value
from strictstep.loop.setup import positive_norm
from strictstep.loop.step import Step
from strictstep.loop.weights import Weights
from strictstep.schema.coerce import OnNone
from strictstep.schema.describe import describe

Found = tuple[str, str]  # a message, and a help


def check(options: Options) -> None:
    """Raise one error for everything that is wrong.

    Raises:
        LoopError: with the code `option`.
    """
    found = list(dict.fromkeys(_found(options)))
    if len(found) == 1:
        raise LoopError("option", *found[0])
    if found:
        message = f"expected right options, got {len(found)} wrong ones"
        problems = "".join(f"\n  {number}. {problem}" for number, (problem, _) in enumerate(found, 1))
        helps = "".join(f"\n    {number}. {help}" for number, (_, help) in enumerate(found, 1))
        raise LoopError("option", message + problems, "one for each" + helps)


def _found(options: Options) -> Iterator[Found]:
    for check in _CHECKS:
        yield from check(options)
    # What only putting it together shows; what was found above stands there once.
    yield from _raised(options.optimization)


def _raised(check: Callable[..., object], *args: Any) -> Iterator[Found]:
    """What a check of another file raises, as a message and a help."""
    try:
        check(*args)
    except LoopError as error:
        yield error.message, error.help
    except (TypeError, ValueError) as error:
        message, _, help = str(error).partition("\n  help: ")
        yield message, help or "see the traceback"


def _counts(o: Options) -> Iterator[Found]:
    needed = {"gradient_accumulation_steps", "validate_every", "log_every"}
    for name in ("max_epochs", "max_steps", *sorted(needed)):
        value = getattr(o, name)
        if (value is not None or name in needed) and (type(value) is not int or value < 1):
            yield f"expected a positive int as `{name}`, got {describe(value)}", "count from 1"
    if o.max_epochs is None and o.max_steps is None:
        yield "expected an end of training, got None as `max_epochs` and as `max_steps`", "give one of them"
    if o.seed is not None and (type(o.seed) is not int or not 0 <= o.seed < 1 << 64):
        yield f"expected an int from 0 to 2**64 - 1 as `seed`, got {describe(o.seed)}", "or leave it out"


def _bools(o: Options) -> Iterator[Found]:
    for name in ("strict", "progress_bar", "carry_hiddens"):
        if type(getattr(o, name)) is not bool:
            yield f"expected True or False as `{name}`, got {describe(getattr(o, name))}", "write one of them"


def _functions(o: Options) -> Iterator[Found]:
    for name in ("after_step", "epoch_end"):
        value = getattr(o, name)
        if value is not None and not callable(value):
            yield f"expected a function as `{name}`, got {describe(value)}", "pass the function itself, not its result"
    for logger in o.listed_loggers:
        if not callable(getattr(logger, "log_metrics", None)):
            help = "pass a list of objects with `log_metrics(dict, step)`, such as `JSONLLogger(path)`"
            yield f"expected loggers, got {describe(logger)} among `loggers`", help


def _steps(o: Options) -> Iterator[Found]:
    model: Any = o.model
    if not isinstance(model, nn.Module):
        return
    yield from _raised(Step, o.model, o.training_step)
    if o.validation_step is not None:
        yield from _raised(_validation_step, o)
    if (o.validation_step is None) is not (o.validation_batches is None):
        given, missing = ("validation_step", "validation_batches")[:: 1 if o.validation_batches is None else -1]
        yield f"expected `{missing}` beside `{given}`, got None", "give both of them, or none"


def _validation_step(o: Options) -> None:
    step = Step(o.model, cast(Callable[..., object], o.validation_step))
    refuse_optimizers(step)
    call_for("validation", step, None, False, "skip")


def _batches(o: Options) -> Iterator[Found]:
    passes = _int(o.max_epochs) if o.max_steps is None else 1  # `max_steps` may end within the first epoch
    validations = passes // max(1, _int(o.validate_every))
    for name, times in (("train_batches", passes), ("validation_batches", validations)):
        batches = getattr(o, name)
        if batches is None and name == "validation_batches":
            continue
        if not (hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")):
            help = "pass a list or a loader: anything that `for` iterates"
            yield f"expected batches as `{name}`, got {describe(batches)}", help
        elif length_of(batches) == 0:
            yield f"expected at least one batch in `{name}`, got none", "look at the dataset's length"
        elif isinstance(batches, Iterator) and times > 1:
            help = "an iterator gives its batches once: pass a list, or a loader that can be iterated again"
            yield f"expected batches that can be iterated {times} times as `{name}`, got {describe(batches)}", help


def _policies(o: Options) -> Iterator[Found]:
    if o.on_none not in get_args(OnNone):
        yield f"expected 'skip' or 'error' as `on_none`, got {describe(o.on_none)}", "write one of them"
    yield from _raised(FiniteWatch, o.on_non_finite)
    yield from _raised(Precision, o.precision, "cpu")
    yield from _raised(Weights, o.weight)
    if o.max_grad_norm is not None:
        yield from _raised(positive_norm, o.max_grad_norm)


def _manual(o: Options) -> Iterator[Found]:
    if not o.is_manual:
        return
    if isinstance(o.optimizer, Iterator):
        message = f"expected an optimizer, or several in a list or a dict, got {describe(o.optimizer)}"
        yield message, "for example `torch.optim.AdamW(model.parameters())`"
    refused = (("gradient_accumulation_steps", 1), ("max_grad_norm", None), ("engine", None))
    listed = [] if isinstance(o.optimizer, Iterator) else o.optimizers
    if len({id(optimizer) for optimizer in listed}) < len(listed):
        yield "expected each optimizer once, got one twice", "it would be stepped and saved twice"
    for name, default in refused:
        if getattr(o, name) != default:
            help = "do it in the step, which steps its optimizers itself; or pass one optimizer, not in a list"
            yield f"expected no `{name}` with several optimizers, got {describe(getattr(o, name))}", help


def _sequences(o: Options) -> Iterator[Found]:
    pair: Any = o.tbptt
    if pair is not None and not is_steps_and_dim(pair):
        help = "for chunks of 35 time steps along dimension 1: `tbptt=(35, 1)`"
        yield f"expected (steps, dim) as `tbptt`, got {describe(pair)}", help
    if (pair is not None or o.carry_hiddens is True) and _int(o.gradient_accumulation_steps) > 1:
        option = "tbptt" if pair is not None else "carry_hiddens"
        message = f"expected `gradient_accumulation_steps` of 1 with `{option}`, got {o.gradient_accumulation_steps}"
        yield message, "a chunk is a micro-batch, and the next one needs its hiddens"
    if o.carry_hiddens is True and isinstance(o.model, nn.Module) and not _names_hiddens(o):
        yield "expected a step that names `hiddens`, to carry them, got one that does not", "add `hiddens` to it"


def _names_hiddens(o: Options) -> bool:
    try:
        return "hiddens" in Step(o.model, o.training_step).names
    except LoopError:
        return True  # said where the step is checked


def _schedulers(o: Options) -> Iterator[Found]:
    if o.scheduler_interval not in get_args(Interval):
        message = f"expected 'step' or 'epoch' as `scheduler_interval`, got {describe(o.scheduler_interval)}"
        yield message, "write one of them"
    if o.scheduler_monitor is not None and not any(_watches(scheduler) for scheduler in o.schedulers):
        help = "leave it out, or pass a scheduler by value, such as `ReduceLROnPlateau(optimizer)`"
        yield f"expected a scheduler that watches {describe(o.scheduler_monitor)}, got none", help
    for scheduler in o.schedulers:
        methods = ("step", "state_dict", "load_state_dict")
        if isinstance(scheduler, type) or not all(callable(getattr(scheduler, name, None)) for name in methods):
            help = "pass an instance, for example `StepLR(optimizer, step_size=10)`"
            yield f"expected a learning-rate scheduler, got {describe(scheduler)}", help
        elif (count := count_wanted(scheduler)) is not None:
            help = "wrap it in an object whose `step()` counts, and hands on the rest"
            yield f"expected a scheduler with a `step()`, got {describe(scheduler)}, which asks for `{count}`", help
        elif wants_value(scheduler):
            yield from _by_value(o, type(scheduler).__name__)
        scheduled = getattr(scheduler, "optimizer", None)
        if isinstance(scheduled, Optimizer) and not _is_given(o, scheduled):
            message = f"expected a scheduler of the optimizer that trains, got {describe(scheduler)} of another one"
            yield message, "build it with the same optimizer that is passed as `optimizer`"


def _watches(scheduler: Any) -> bool:
    return not isinstance(scheduler, type) and callable(getattr(scheduler, "step", None)) and wants_value(scheduler)


def _is_given(o: Options, scheduled: Optimizer) -> bool:
    groups = scheduled.param_groups  # which a wrapper shares with the optimizer that it wraps
    return isinstance(o.optimizer, Iterator) or any(
        scheduled is one or getattr(one, "param_groups", None) is groups for one in o.optimizers
    )


def _by_value(o: Options, name: str) -> Iterator[Found]:
    if o.scheduler_monitor is None:
        help = "name the value that it watches, as in the history: `scheduler_monitor='val_loss'`"
        yield f"expected `scheduler_monitor` for `{name}`, got None", help
    else:
        yield from _raised(check_monitor, o.scheduler_monitor)
    if o.scheduler_interval == "step":
        yield f"expected 'epoch' as `scheduler_interval` for `{name}`, got 'step'", "its value is one of an epoch"


def _endings(o: Options) -> Iterator[Found]:
    stopping: Any = o.early_stopping
    if stopping is not None and not isinstance(stopping, EarlyStopping):
        help = "write `EarlyStopping('val_loss', patience=5)`"
        yield f"expected an `EarlyStopping` as `early_stopping`, got {describe(stopping)}", help
    yield from _raised(lambda: o.rule)
    resume: Any = o.resume
    if not isinstance(resume, (str, os.PathLike, bool, types.NoneType)):
        yield (
            f"expected a path, or True, as `resume`, got {describe(resume)}",
            "name a file, or a folder of checkpoints",
        )
    if resume is True and o.checkpoint is None:
        yield "expected `checkpoint` with `resume=True`, got None", "name its folder, or give `resume` the file"


def _saved(o: Options) -> Iterator[Found]:
    """Whether a checkpoint can be written, and holds all that is trained."""
    if o.checkpoint is None or not isinstance(o.model, nn.Module) or isinstance(o.optimizer, Iterator):
        return
    folder = getattr(o.checkpoint, "folder", o.checkpoint)
    if isinstance(folder, (str, os.PathLike)) and os.path.exists(folder) and not os.path.isdir(folder):
        yield f"expected a folder as `checkpoint`, got the file `{os.fspath(folder)!s}`", "name another folder"
    own = {id(parameter) for parameter in o.model.parameters()}
    for optimizer in o.optimizers:
        name = type(optimizer).__name__
        if not all(callable(getattr(optimizer, method, None)) for method in ("state_dict", "load_state_dict")):
            help = "hand on those of the optimizer that it wraps"
            yield f"expected `state_dict` and `load_state_dict` of `{name}`, to write checkpoints, got none", help
        groups: Any = getattr(optimizer, "param_groups", ())
        if foreign := sum(id(parameter) not in own for group in groups for parameter in group["params"]):
            message = f"expected `{name}` to train parameters of the model alone, since a checkpoint holds the model, "
            help = "make them the model's: `model.scale = scale`, or `nn.ModuleDict({'g': g, 'd': d})` as the model"
            yield f"{message}got {foreign} of elsewhere", help


def _validated(o: Options) -> Iterator[Found]:
    """Whether validation comes before the end, where something waits for its values."""
    if o.max_steps is not None or not 0 < _int(o.max_epochs) < _int(o.validate_every):
        return
    watching = (getattr(o.early_stopping, "monitor", None), getattr(o.checkpoint, "monitor", None), o.scheduler_monitor)
    for name in watching:
        if isinstance(name, str) and name.startswith("val_"):
            message = f"expected a validation within {o.max_epochs} epochs, since `{name}` is watched, got none: "
            yield f"{message}`validate_every` is {o.validate_every}", "validate more often"


def _placed(o: Options) -> Iterator[Found]:
    """Whether the model is where its batches go."""
    if o.device is None or not isinstance(o.model, nn.Module):
        return
    try:
        device = torch.device(o.device)
    except (RuntimeError, TypeError):
        return  # said where the optimization is put together
    places = {parameter.device for parameter in o.model.parameters()}
    if places and not any(place.type == device.type and device.index in (None, place.index) for place in places):
        help = f"move it before its optimizer is made: `model.to({str(device)!r})`"
        if device.type == "cuda" and not torch.cuda.is_available():
            help = "this torch finds no CUDA device: leave `device` out to train where the model is"
        yield f"expected a model on {device}, where its batches go, got one on {places.pop()}", help


_CHECKS = (
    *(_counts, _bools, _functions, _steps, _batches, _policies),
    *(_manual, _sequences, _schedulers, _endings, _saved, _validated, _placed),
)


def _int(value: Any) -> int:
    return value if type(value) is int else 0
