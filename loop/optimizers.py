"""What an optimizer's class says of its closure, read once."""

import inspect
from collections.abc import Callable
from typing import Any, Literal

from torch.optim import Optimizer

from strictstep.loop.errors import LoopError
from strictstep.schema.describe import describe

Passing = Literal["positional", "keyword", "none"]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class OptimizerStep:
    """One optimizer and how its `step` takes a closure, which its class decides: schedulers patch instances.

    Attributes:
        optimizer: the optimizer.
        name: the name of its class.
        passing: how the closure is given: `"positional"`, `"keyword"`, or `"none"` where `step` has no parameter
            for it; then the closure runs first, and `step()` after it.
        demands_closure: whether `step` cannot be called without one, as that of LBFGS.
        is_torchs: whether it is one of `torch.optim`; another may change the loss that it is given.

    Raises:
        LoopError: with the code `option`, for what is no optimizer.

    Example:
        >>> import torch
        >>> step = OptimizerStep(torch.optim.LBFGS([torch.nn.Parameter(torch.ones(2))]))
        >>> step.name, step.passing, step.demands_closure
        ('LBFGS', 'positional', True)
    """

    __slots__ = ("_pre_hooks", "demands_closure", "is_torchs", "name", "optimizer", "passing")

    def __init__(self, optimizer: Optimizer) -> None:
        """Read the signature of the class's `step`."""
        refuse_no_optimizer(optimizer)
        self.optimizer = optimizer
        self.name = type(optimizer).__name__
        self.is_torchs = type(optimizer).__module__.startswith("torch.optim.")
        self.passing, self.demands_closure = _reading(type(optimizer).step)
        can_do_without = self.is_torchs and not self.demands_closure
        self._pre_hooks = getattr(optimizer, "_optimizer_step_pre_hooks", {}) if can_do_without else {}

    def take(self, closure: Callable[[], Any]) -> None:
        """Take a step, through the instance: a scheduler counts it there.

        A hook of `register_step_pre_hook` (one that clips) comes before the closure and would find no gradient, so
        that the closure runs first for an optimizer that can do without it.
        """
        if self._pre_hooks:
            closure()
            self.optimizer.step()
        elif self.passing == "positional":
            self.optimizer.step(closure)
        elif self.passing == "keyword":
            self.optimizer.step(closure=closure)
        else:
            closure()
            self.optimizer.step()


def refuse_no_optimizer(optimizer: Any) -> None:
    """Raise for anything without a `step` and `param_groups`."""
    if not callable(getattr(type(optimizer), "step", None)) or not hasattr(optimizer, "param_groups"):
        help = "pass an instance, for example `torch.optim.AdamW(model.parameters())`"
        raise LoopError("option", f"expected an optimizer of torch's protocol, got {describe(optimizer)}", help)


def _reading(step: Callable[..., Any]) -> tuple[Passing, bool]:
    """How the closure is passed, and whether it has to be."""
    parameters = list(inspect.signature(step).parameters.values())
    if parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        del parameters[0]  # `self`
    for parameter in parameters:
        if "closure" in parameter.name:
            by_name = parameter.kind is inspect.Parameter.KEYWORD_ONLY or parameter is not parameters[0]
            return "keyword" if by_name else "positional", parameter.default is parameter.empty
    # By another name it is a closure only if `step` cannot do without it; `*args` passes it on to an inner optimizer.
    required = [p for p in parameters if p.kind in _POSITIONAL and p.default is p.empty]
    if required:
        return "positional", True
    takes_any = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    return "positional" if takes_any else "none", False
