"""One step of a LightningModule, checked: the call, and what Lightning is given for it."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from strictstep.schema.base import AnyOutput, StepOutput
from strictstep.schema.coerce import carefully_checked
from strictstep.schema.errors import StepOutputError
from strictstep.schema.integrations.lightning_contract import Contract
from strictstep.schema.integrations.lightning_log import log_to
from strictstep.schema.integrations.lightning_place import place_of, trainer_of
from strictstep.schema.integrations.lightning_ranks import refusal
from strictstep.schema.missing import FIELDS
from strictstep.schema.outputs import SkippedStep
from strictstep.schema.plain import plainly_checked

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

_stepping: set[int] = set()  # the modules that are inside a checked step, by `id`


class CheckedMethod:
    """A step of one module, checked; it stands among the instance's attributes, and is copied and pickled with it."""

    def __init__(self, module: LightningModule, name: str, step: Callable[..., object], contract: Contract) -> None:
        """Keep what is needed for each call, and what Lightning reads: the function itself, `self` in front."""
        self.module, self.name, self.step, self.contract = module, name, step, contract
        self.__wrapped__: Callable[..., object] = inspect.unwrap(step)
        self.__signature__ = inspect.signature(self.__wrapped__)  # for the wrapper that dynamo puts around this one

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the function: pickle finds none that a decorator has replaced in its class."""
        return CheckedMethod, (self.module, self.name, self.step, self.contract)

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        """Call the step and check what it returns."""
        outcome = outcome_of(self.module, self.name, self.step, self.contract, args, kwargs)
        if isinstance(outcome, Exception):
            del self, args, kwargs  # a kept error keeps this frame, and with it the model and the batch
            raise outcome
        return outcome


def outcome_of(
    module: LightningModule, name: str, step: Callable[..., object], contract: Contract, args: Args, kwargs: Kwargs
) -> object:
    """Call a bound step, check and log what it returns: what Lightning is given for it, or the error, to be raised."""
    if id(module) in _stepping:
        return step(*args, **kwargs)  # called by another step, or by `super()`: that one's output is what counts
    # Inside a graph that is being compiled the check is left to run between graphs, not traced.
    checked = _checked_between_graphs if torch.compiler.is_compiling() else _checked
    return checked(module, name, step, contract, args, kwargs, _returned(module, step, args, kwargs))


def _returned(module: LightningModule, step: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    _stepping.add(id(module))
    try:
        return step(*args, **kwargs)
    finally:
        _stepping.discard(id(module))


def _checked(
    module: LightningModule,
    name: str,
    step: Callable[..., object],
    contract: Contract,
    args: Args,
    kwargs: Kwargs,
    returned: object,
) -> object:
    """Check and log: what Lightning is given, or the error; the caller has a frame to clear before it raises."""
    call, trainer = contract.call_for(module, name), trainer_of(module)
    place = partial(place_of, module, step, call.stage, args, kwargs)
    outcome: Any = plainly_checked(returned, call.model)
    if outcome is None:
        outcome = carefully_checked(returned, call._replace(step=step))
    if type(outcome) is StepOutputError:
        outcome = place().error(outcome)
    if trainer is not None and call.stage == "training":
        outcome = refusal(trainer, outcome, place) or outcome
    if isinstance(outcome, Exception):
        return outcome
    if _logs(module, name, trainer):
        log_to(module, outcome, contract.reductions, contract.log_options)
    return _given(outcome, returned)


_checked_between_graphs: Callable[..., object] = torch.compiler.disable(_checked)


def _logs(module: LightningModule, name: str, trainer: Trainer | None) -> bool:
    """Whether there is somewhere to log to: a trainer that runs this very step, or Fabric."""
    if trainer is None:
        return module.fabric is not None
    return module._current_fx_name == name and not trainer.barebones


def _given(output: AnyOutput, returned: object) -> object:
    """Lightning's own forms: nothing, the loss, or a dict whose other names reach the hooks as `outputs`."""
    if returned is None or isinstance(output, SkippedStep):
        return None
    fields = output.model_fields_set
    if fields == {"loss"} and (isinstance(returned, Tensor) or not isinstance(returned, (Mapping, StepOutput))):
        return output.loss
    given = {name: getattr(output, name) for name in FIELDS if name in fields}
    if output.loss is None:
        given.pop("loss", None)  # manual optimization would ask it for `.detach()`
    return {**output.metrics, **given}
