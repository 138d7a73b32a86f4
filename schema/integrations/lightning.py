"""Checked steps in Lightning: one line makes what the steps of a LightningModule return a checked thing.

    class Digits(LightningModule):
        @checked_step
        def training_step(self, batch, batch_idx): ...

    trainer.fit(checked(SomebodysModule()))         for a module that cannot be edited

It works on `training_step`, `validation_step` and `test_step`, in automatic and in manual optimization. Of what they
return, `log` goes to `self.log_dict` and `progress_bar` to the bar; the hooks get all of it as `outputs`, detached, and
each name of `metrics` by itself too. `SkippedStep` skips the batch, or is refused on every rank where Lightning cannot.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, TypeVar, overload

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

from strictstep.schema.base import AnyOutput
from strictstep.schema.coerce import OnNone
from strictstep.schema.describe import describe, name_of, names_text
from strictstep.schema.integrations.lightning_contract import STAGES, contract_of
from strictstep.schema.integrations.lightning_log import NO_OPTIONS
from strictstep.schema.integrations.lightning_ranks import OtherRankError, SkipRefusedError
from strictstep.schema.integrations.lightning_steps import CheckedMethod, outcome_of
from strictstep.schema.validate import AsItIs

__all__ = ["OtherRankError", "SkipRefusedError", "checked", "checked_step"]

Module = TypeVar("Module", bound=Callable[..., Any])  # `torch.compile` is annotated to return a callable
Step = TypeVar("Step", bound=Callable[..., object])


@overload
def checked_step(step: Step, /) -> Step: ...
@overload
def checked_step(
    *,
    schema: type[AnyOutput] | None = ...,
    strict: bool = ...,
    on_none: OnNone = ...,
    log_options: Mapping[str, Any] = ...,
) -> AsItIs: ...
def checked_step(
    step: Callable[..., object] | None = None,
    /,
    *,
    schema: type[AnyOutput] | None = None,
    strict: bool = False,
    on_none: OnNone = "skip",
    log_options: Mapping[str, Any] = NO_OPTIONS,
) -> Any:
    """Check what a step of a LightningModule returns, and log it. Use it bare or with arguments, on the method.

    Args:
        step: the method `training_step`, `validation_step` or `test_step`; its name gives the stage.
        schema: a model of your own; its reductions are Lightning's `reduce_fx`.
        strict: make names beyond the five fields an error.
        on_none: in automatic optimization, `None` is a `SkippedStep` and a warning (`"skip"`) or an error (`"error"`).
        log_options: passed on to `self.log_dict`, such as `{"on_epoch": True, "batch_size": 32}`.

    Raises:
        StepOutputError: by the step, with every problem at once.
        SkipRefusedError: by the step, for a skip where Lightning cannot skip; on every rank.
        OtherRankError: by the step, if another rank's returned an invalid output.
        TypeError: at decoration, for another kind of schema or option.
        ValueError: at decoration, for a method of another name, or a schema of another stage.

    Example:
        >>> import torch
        >>> class Regression(LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = torch.nn.Linear(4, 1)
        ...     @checked_step
        ...     def training_step(self, batch, batch_idx):
        ...         loss = self.layer(batch).pow(2).mean()
        ...         return {"loss": loss, "log": {"loss": loss}}
        >>> outputs = Regression().training_step(torch.ones(8, 4), 0)
        >>> outputs["loss"].requires_grad, outputs["log"]["loss"].requires_grad
        (True, False)
    """

    def decorate(step: Callable[..., object]) -> Callable[..., object]:
        name = name_of(step)
        if name not in STAGES:
            raise ValueError(f"expected a method named {names_text(STAGES)}, got {describe(step)} `{name}`")
        contract = contract_of(name, schema, strict, on_none, log_options)

        @functools.wraps(step)
        def checked_method(self: LightningModule, *args: Any, **kwargs: Any) -> object:
            outcome = outcome_of(self, name, MethodType(step, self), contract, args, kwargs)
            if isinstance(outcome, Exception):
                del self, args, kwargs  # a kept error keeps this frame, and with it the model and the batch
                raise outcome
            return outcome

        # For Lightning, which looks below one wrapper only, and dynamo puts another around this one.
        checked_method.__signature__ = inspect.signature(step)  # type: ignore[attr-defined]
        return checked_method

    return decorate if step is None else decorate(step)


def checked(
    module: Module,
    *,
    schemas: Mapping[str, type[AnyOutput]] = NO_OPTIONS,
    strict: bool = False,
    on_none: OnNone = "skip",
    log_options: Mapping[str, Any] = NO_OPTIONS,
) -> Module:
    """Check the steps of one LightningModule, whose class stays as it is; returns the module itself.

    The check is copied and pickled with the module. A checkpoint holds none: what `load_from_checkpoint` makes is a new
    module, to be passed to `checked` again. A module out of `torch.compile` may be given too.

    Args:
        module: the module; every step that its class defines is checked.
        schemas: models of your own, by the name of the method: `{"training_step": DigitsOutput}`.
        strict: as in `checked_step`.
        on_none: as in `checked_step`.
        log_options: as in `checked_step`; the same for all steps.

    Raises:
        TypeError: if `module` is no LightningModule or defines no step, and as `checked_step` does.
        ValueError: for a schema of a step that the module does not define, and as `checked_step` does.

    Example:
        >>> import torch
        >>> class Regression(LightningModule):
        ...     def training_step(self, batch, batch_idx):
        ...         return 0.25
        >>> try:
        ...     checked(Regression()).training_step(torch.ones(8, 4), 3)
        ... except ValueError as error:
        ...     print(str(error).splitlines()[0])
        training step `Regression.training_step` returned an invalid output at batch 3 (1 problem)
    """
    original = getattr(module, "_orig_mod", module)  # `torch.compile` wraps a module, and Lightning unwraps it again
    if not isinstance(original, LightningModule):
        raise TypeError(f"expected a LightningModule, got {describe(module)}")
    defined = [name for name in STAGES if is_overridden(name, original)]
    if not defined:
        raise TypeError(f"expected a module that defines {names_text(STAGES)}, got `{type(original).__name__}`")
    others = [name for name in schemas if name not in defined]
    if others:
        raise ValueError(f"expected schemas for {names_text(defined)}, got one for {names_text(others)}")
    for name in defined:
        step = getattr(original, name)
        step = step.step if type(step) is CheckedMethod else step
        contract = contract_of(name, schemas.get(name), strict, on_none, log_options)
        setattr(original, name, CheckedMethod(original, name, step, contract))
    return module
