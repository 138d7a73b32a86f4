"""The closure that an optimizer calls: as often as it likes, in whatever grad mode, reported once."""

from typing import Any

import torch
from torch import Tensor, is_grad_enabled, is_inference_mode_enabled

from strictstep.loop.errors import ClosureNotCalledError, LoopError
from strictstep.loop.report import StepReport
from strictstep.loop.window import NothingContributed, Window

_new: Any = object.__new__
_TAKEN: list[Any] = []  # stands for the batches of a window that was let go


class StepClosure(Window):
    """Evaluates one window of micro-batches whenever the optimizer calls it, and keeps the first evaluation's report.

    `AutomaticOptimization.step` makes and uses one. For a loop that calls `optimizer.step` itself:

        closure = optimization.closure([batch])
        optimizer.step(closure)
        report = closure.take()

    A call sets the gradients to `None`, takes every micro-batch through the step, the check and backward, and returns
    the weighted mean of the losses, detached, shape `[]`. It raises what the step raised;
    `StepOutputError` for what the step returned wrongly; `LoopError` where a rule is broken; and, where every
    micro-batch was skipped, `NothingContributed`, a `BaseException` that is meant to leave `optimizer.step`.

    Attributes:
        evaluations: how often the window has been evaluated.
        raised: what the last evaluation to fail raised, else `None`.

    Example:
        >>> from strictstep.loop import AutomaticOptimization
        >>> model = torch.nn.Linear(4, 1)
        >>> def training_step(model, batch):
        ...     return model(batch).pow(2).mean()
        >>> optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        >>> closure = AutomaticOptimization(model, training_step, optimizer).closure([torch.ones(8, 4)])
        >>> _ = optimizer.step(closure)
        >>> closure.take().evaluations
        3
    """

    __slots__ = ()

    def __call__(self) -> Tensor:
        """Evaluate the window, with gradients whatever the optimizer has switched off."""
        if self._batches is _TAKEN:
            message = "expected calls of a closure within one `optimizer.step`, got one after its report was taken"
            raise LoopError("closure_taken", message, "call the closure that `step` is given, and keep none")
        try:
            if is_grad_enabled() and not is_inference_mode_enabled():
                return self.evaluate()
            with torch.inference_mode(False), torch.enable_grad():
                return self.evaluate()
        except BaseException as error:
            self.raised = error  # the optimizer may swallow it, and go on: it shall find nothing to step on
            self._setup.gradients.clear()
            if isinstance(error, Exception):
                self.add_notes(error)
            raise

    def take(self, stepped: bool = True) -> StepReport:
        """Hand over the report, once; the window is let go.

        Args:
            stepped: whether the optimizer took its step, as far as its caller knows.

        Raises:
            ClosureNotCalledError: if the optimizer never called the closure.
            LoopError: `closure_taken` the second time; `skip_swallowed` if the optimizer went on where all was skipped.
            BaseException: what an evaluation raised and the optimizer swallowed, again.
        """
        if self._batches is _TAKEN:
            raise LoopError("closure_taken", "expected one `take()` of a report, got another", "keep what it gave")
        if self.raised is not None:
            self._raise_again(stepped)
        elif self.evaluations == 0:
            raise ClosureNotCalledError(self._setup.optimizer_step.name)
        outputs, self._outputs, self._batches = self._outputs, (), _TAKEN
        report = _new(StepReport)  # calling the class would leave the interpreter and enter it again, at every step
        report.__init__(outputs, self._loss, self._weights, stepped, self._skipped, self.evaluations, self._grad_norm)
        return report  # type: ignore[no-any-return]

    def close(self) -> None:
        """Let go of the window and of any error; a call from now on is one too late."""
        self._batches = _TAKEN
        self._outputs = ()
        self._hiddens = self.raised = None

    def _raise_again(self, stepped: bool) -> None:
        error = self.raised
        if error is not None and not isinstance(error, NothingContributed):
            self.close()
            raise error
        if stepped:
            self.close()
            name = self._setup.optimizer_step.name
            message = f"expected `{name}.step` to end where every micro-batch was skipped, got a step"
            raise LoopError("skip_swallowed", message, "let what the closure raises pass: catch no `BaseException`")
