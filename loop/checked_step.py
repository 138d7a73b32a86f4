"""One micro-batch through the user's step: moved, run, checked, recorded. What comes out is an output or an error."""

from collections.abc import Callable
from math import isfinite
from typing import Any, get_args

import torch
from torch import Tensor, nn

from strictstep.loop.device import moved
from strictstep.loop.engine import Engine
from strictstep.loop.errors import LoopError
from strictstep.loop.finite import FiniteWatch, Origin, non_finite_loss
from strictstep.loop.precision import Precision
from strictstep.loop.snapshot import Snapshots
from strictstep.loop.step import Step, stop_iteration
from strictstep.schema.base import AnyOutput
from strictstep.schema.coerce import Call, OnNone, carefully_checked
from strictstep.schema.describe import describe
from strictstep.schema.errors import Stage, StepOutputError
from strictstep.schema.outputs import SkippedStep
from strictstep.schema.plain import plainly_checked
from strictstep.schema.stages import MODELS, model_of
from strictstep.schema.validate import decorated_stage

Outcome = tuple[AnyOutput | Exception, Tensor | None]


class CheckedStep:
    """The user's step with everything that stays the same from batch to batch.

    Attributes:
        step: the step and its signature.
        call: what its return is checked against.
        watch: the policy for losses that are not finite.
    """

    __slots__ = ("_checks", "_device", "_run", "_snapshots", "call", "step", "watch")

    def __init__(
        self,
        step: Step,
        call: Call,
        precision: Precision,
        engine: Engine | None,
        watch: FiniteWatch,
        snapshots: Snapshots,
        device: torch.device | None,
    ) -> None:
        """Put the parts together."""
        self.step = step
        self.call = call
        self.watch = watch
        self._checks = watch.policy != "keep"
        run = precision.within(step.run)
        self._run = run if engine is None else engine.wrap(run)
        self._snapshots = snapshots
        self._device = device

    def run(self, batch: Any, named: dict[str, Any], origin: Callable[[], Origin]) -> Outcome:
        """Run the step and check what it returns; errors are returned, since ranks must agree on them first.

        Args:
            batch: as the loader gave it.
            named: what the step gets by name.
            origin: asked only where there is something to tell.

        Returns:
            The detached record of the output (or a `SkippedStep`, or the error), and the attached loss, if any.
        """
        try:
            batch = moved(batch, self._device)
            run = self._run
            returned = run(batch, **named) if named else run(batch)
            output = plainly_checked(returned, self.call.model)
            if output is None:
                outcome = carefully_checked(returned, self.call)
                if isinstance(outcome, StepOutputError):
                    return outcome.at(*origin().numbers), None
                output = outcome
            loss: Any = output.loss
            # An ordinary loss of the CPU is read here, and nothing more is asked.
            if self._checks and loss is not None and not (loss.is_cpu and isfinite(loss.item())):
                refused = self._unless_finite(loss, returned, output, origin)
                if refused is not None:
                    return refused, None
            return self._snapshots.record(output, loss, output is returned), loss
        except StopIteration as error:  # it would end a `for` loop without a word
            return stop_iteration(f"step `{self.step.name}`", error), None
        except Exception as error:
            return error, None

    def _unless_finite(
        self, loss: Tensor, returned: object, output: AnyOutput, origin: Callable[[], Origin]
    ) -> AnyOutput | Exception | None:
        """What stands in place of an output whose loss is not finite; `None` if it is, or is read later."""
        if not self.watch.reads(loss):
            self.watch.wait(loss, "loss", origin())
            return None
        number = loss.item()
        if isfinite(number):
            return None
        if self.watch.policy == "skip":
            return SkippedStep(reason=f"the loss is {number}")
        return non_finite_loss(number, origin(), returned, output)

    def origin(self, epoch: int | None, batch_idx: int | None, evaluation: int) -> Origin:
        """Where a value came from, for its error."""
        return Origin(self.step.function, self.call.stage, epoch, batch_idx, evaluation)


def call_for(stage: Stage, step: Step, schema: type[AnyOutput] | None, strict: bool, on_none: OnNone) -> Call:
    """What the returns of a step are checked against.

    Raises:
        TypeError, ValueError: for a schema that is none, or is of another stage.
        LoopError: with the code `option`, for another `on_none` or `strict`, or a step decorated for another stage.
    """
    if on_none not in get_args(OnNone):
        message = f"expected 'skip' or 'error' as `on_none`, got {describe(on_none)}"
        raise LoopError("option", message, "write one of them")
    if type(strict) is not bool:
        raise LoopError("option", f"expected True or False as `strict`, got {describe(strict)}", "write one of them")
    _refuse_other_stage(step, stage)
    return Call(model_of(stage, schema), stage, strict, on_none, step.function, None, None)


def _refuse_other_stage(step: Step, stage: Stage) -> None:
    decorated = decorated_stage(step.function)
    if decorated is not None and MODELS[decorated] is not MODELS[stage]:
        message = f"expected a step for the stage '{stage}', got `{step.name}`, decorated for '{decorated}'"
        help = f"pass it undecorated, or `{step.name}.__wrapped__`: its returns are checked here, stage by stage"
        raise LoopError("option", message, help)


def device_type_of(model: nn.Module, device: torch.device | None) -> str:
    """Where the step computes: on the device that is given, else where the first parameter is."""
    if device is not None:
        return device.type
    first = next(model.parameters(), None)
    return "cpu" if first is None else first.device.type


def refuse_no_model(model: Any) -> None:
    """Raise for what is no module.

    Raises:
        LoopError: with the code `option`.
    """
    if not isinstance(model, nn.Module):
        raise LoopError("option", f"expected a `torch.nn.Module` as model, got {describe(model)}", "pass an instance")


def device_of(device: torch.device | str | int | None) -> torch.device | None:
    """The device as torch writes it; `None` leaves batches where they are.

    Raises:
        LoopError: with the code `option`, for what names no device.
    """
    try:
        return None if device is None else torch.device(device)
    except (RuntimeError, TypeError):
        help = 'write it as torch does: "cpu", "cuda:0"'
        raise LoopError("option", f"expected a device, got {describe(device)}", help) from None
