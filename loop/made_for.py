"""What a checkpoint was made for: it is refused by a run that would go on otherwise."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from strictstep.loop.errors import LoopError
from strictstep.loop.options import Options
from strictstep.schema.describe import names_text

SHOWN = 3
LAZY = "lazy"  # in place of a shape


def made_for(options: Options, loggers: int, is_stateful: bool) -> dict[str, Any]:
    """The options that decide what the state of a checkpoint means.

    Args:
        options: those of `fit`.
        loggers: how many go on with their file.
        is_stateful: whether the loader says and takes its position itself.
    """
    optimizers = options.optimizers
    return {
        "gradient_accumulation_steps": options.gradient_accumulation_steps,
        "model": _fingerprint(options.model),
        "optimizer": options.optimizer_names,
        "parameter groups": [[len(group["params"]) for group in o.param_groups] for o in optimizers],
        "places of parameters": _places_of(options.model, optimizers),
        "scheduler": [type(scheduler).__name__ for scheduler in options.schedulers],
        "scheduler_interval": options.scheduler_interval if options.schedulers else None,
        "scheduler_monitor": options.scheduler_monitor,
        "precision": options.precision,
        "loggers that go on with their file": loggers,
        "tbptt": None if options.tbptt is None else list(options.tbptt),
        "train_batches that keep their position": is_stateful,
    }


def _fingerprint(model: nn.Module) -> dict[str, list[int] | str]:
    """The names and shapes of a model's state, by which another model is told apart."""
    state: Mapping[str, Any] = model.state_dict()
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return {name: LAZY if is_lazy(value) else list(value.shape) for name, value in tensors.items()}


def _places_of(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, list[int]]:
    """Where each parameter of a model stands: its optimizer, its group there, its place in it."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names.get(id(parameter), f"(unnamed) {o}.{g}.{i}"): [o, g, i]
        for o, optimizer in enumerate(optimizers)
        for g, group in enumerate(optimizer.param_groups)
        for i, parameter in enumerate(group["params"])
    }


def require_same(made_for: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise if a checkpoint was made for other options than those of now.

    Raises:
        LoopError: with the code `checkpoint_differs`, naming each difference.
    """
    different = [name for name in now if not _agree(made_for.get(name), now[name])]
    if not different:
        return
    texts = [_difference(name, made_for.get(name), now[name]) for name in different]
    message = f"expected the run that the checkpoint was made for, got another: {'; '.join(texts)}"
    raise LoopError("checkpoint_differs", message, "resume with what it was made with, or start anew without `resume`")


def _agree(then: Any, now: Any) -> bool:
    return not _changed(then, now) if isinstance(then, dict) and isinstance(now, dict) else bool(then == now)


def _changed(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The names of what differs; what is lazy now takes the shape that was."""
    unshaped = {name for name in then if now.get(name) == LAZY}
    return [name for name in {**then, **now} if name not in unshaped and then.get(name) != now.get(name)]


def _difference(name: str, then: Any, now: Any) -> str:
    if not (isinstance(then, dict) and isinstance(now, dict)):
        return f"`{name}` was {then!r}, is {now!r}"
    changed = _changed(then, now)
    shapes = [f"{key} {then.get(key, 'missing')} -> {now.get(key, 'missing')}" for key in changed[:SHOWN]]
    return f"`{name}` differs in {names_text(shapes)}" + (" and more" if len(changed) > SHOWN else "")
