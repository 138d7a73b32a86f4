"""The options of `fit` that must fit each other."""

from collections.abc import Iterator
from typing import Any, get_args

import torch
from torch import nn
from torch.optim import Optimizer

from strictstep.loop.early_stopping import check_monitor
from strictstep.loop.errors import LoopError
from strictstep.loop.option_findings import Found, int_or_zero, raised
from strictstep.loop.options import Options, is_steps_and_dim
from strictstep.loop.schedule import Interval, count_wanted, scheduled_by, wants_value
from strictstep.loop.step import Step
from strictstep.schema.describe import describe


def _manual(o: Options) -> Iterator[Found]:
    if not o.is_manual:
        return
    if isinstance(o.optimizer, Iterator):
        message = f"expected an optimizer, or several in a list or a dict, got {describe(o.optimizer)}"
        yield message, "for example `torch.optim.AdamW(model.parameters())`; of several, `list(...)`"
    refused = (("gradient_accumulation_steps", 1), ("max_grad_norm", None), ("engine", None))
    if len({id(optimizer) for optimizer in o.optimizers}) < len(o.optimizers):
        yield "expected each optimizer once, got one twice", "leave out the second"
    for name, default in refused:
        if getattr(o, name) != default:
            help = "do it in the step, which steps its optimizers itself; or pass one optimizer, not in a list"
            yield f"expected no `{name}` with several optimizers, got {describe(getattr(o, name))}", help


def _sequences(o: Options) -> Iterator[Found]:
    pair: Any = o.tbptt
    if pair is not None and not is_steps_and_dim(pair):
        help = "for chunks of 35 time steps along dimension 1: `tbptt=(35, 1)`"
        yield f"expected (steps, dim) as `tbptt`, got {describe(pair)}", help
    if (pair is not None or o.carry_hiddens is True) and int_or_zero(o.gradient_accumulation_steps) > 1:
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
        if not _is_scheduler(scheduler):
            help = "pass an instance, for example `StepLR(optimizer, step_size=10)`"
            yield f"expected a learning-rate scheduler, got {describe(scheduler)}", help
        elif (wanted := count_wanted(scheduler)) is not None:
            help = "wrap it in an object whose `step()` counts, and hands on the rest"
            yield f"expected a scheduler with a `step()`, got {describe(scheduler)}, which asks for `{wanted}`", help
        elif wants_value(scheduler):
            yield from _by_value(o, type(scheduler).__name__)
        scheduled = scheduled_by(scheduler)
        if isinstance(scheduled, Optimizer) and not _is_given(o, scheduled):
            message = f"expected a scheduler of the optimizer that trains, got {describe(scheduler)} of another one"
            yield message, "build it with the same optimizer that is passed as `optimizer`"


def _watches(scheduler: Any) -> bool:
    return not _is_scheduler(scheduler) or wants_value(scheduler)  # of one that is none more is said elsewhere


def _is_scheduler(scheduler: Any) -> bool:
    methods = ("step", "state_dict", "load_state_dict")
    return not isinstance(scheduler, type) and all(callable(getattr(scheduler, name, None)) for name in methods)


def _is_given(o: Options, scheduled: Optimizer) -> bool:
    groups = scheduled.param_groups  # which a wrapper shares with the optimizer that it wraps
    return not o.optimizers or any(
        scheduled is one or getattr(one, "param_groups", None) is groups for one in o.optimizers
    )


def _by_value(o: Options, name: str) -> Iterator[Found]:
    if o.scheduler_monitor is None:
        help = "name the value that it watches, as in the history: `scheduler_monitor='val_loss'`"
        yield f"expected `scheduler_monitor` for `{name}`, got None", help
    else:
        yield from raised(check_monitor, o.scheduler_monitor)
    if o.scheduler_interval == "step":
        yield f"expected 'epoch' as `scheduler_interval` for `{name}`, got 'step'", "its value is one of an epoch"


def _saved(o: Options) -> Iterator[Found]:
    """Whether a checkpoint holds all that is trained."""
    if o.checkpoint is None or not isinstance(o.model, nn.Module):
        return
    own = {id(parameter) for parameter in o.model.parameters()}
    for optimizer in o.optimizers:
        if not hasattr(optimizer, "param_groups"):
            continue  # said where it is looked at as an optimizer
        name = type(optimizer).__name__
        if not all(callable(getattr(optimizer, method, None)) for method in ("state_dict", "load_state_dict")):
            help = "hand on those of the optimizer that it wraps"
            yield f"expected `state_dict` and `load_state_dict` of `{name}`, to write checkpoints, got none", help
        trained = (p for group in optimizer.param_groups for p in group["params"] if p.requires_grad)
        if foreign := sum(id(parameter) not in own for parameter in trained):
            message = f"expected `{name}` to train parameters of the model alone, since a checkpoint holds the model, "
            help = "make them the model's: `model.scale = scale`, or `nn.ModuleDict({'g': g, 'd': d})` as the model"
            yield f"{message}got {foreign} of elsewhere", help


def _validated(o: Options) -> Iterator[Found]:
    """Whether validation comes before the end, where something waits for its values."""
    if (
        o.validation_step is None
        or o.max_steps is not None
        or not 0 < int_or_zero(o.max_epochs) < int_or_zero(o.validate_every)
    ):
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


PAIRS = (_manual, _sequences, _schedulers, _saved, _validated, _placed)
