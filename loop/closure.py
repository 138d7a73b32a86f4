"""The closure that an optimizer calls: as often as it likes, in whatever grad mode, reported once."""

import torch
from torch import Tensor

from strictstep.loop.errors import ClosureNotCalledError, LoopError
from strictstep.loop.report import StepReport
from strictstep.loop.window import NothingContributed, Window


class StepClosure:
    """Evaluates one window of micro-batches whenever the optimizer calls it, and keeps the first evaluation's report.

    `AutomaticOptimization.step` makes and uses one. For a loop that calls `optimizer.step` itself:

        closure = optimization.closure([batch])
        optimizer.step(closure)
        report = closure.take()

    A call runs the step on every micro-batch, checks what it returns, sets the gradients to `None` before the first
    backward, and returns the weighted mean of the losses, detached, shape `[]`. It raises what the step raised;
    `StepOutputError` for what the step returned wrongly; `LoopError` where a rule is broken; and, where every
    micro-batch was skipped, `NothingContributed`, a `BaseException` that is meant to leave `optimizer.step`.

    Args:
        window: the micro-batches.

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

    __slots__ = ("_error", "_window")

    def __init__(self, window: Window) -> None:
        """Hold the window; nothing is run before the first call."""
        self._window: Window | None = window
        self._error: BaseException | None = None

    @property
    def evaluations(self) -> int:
        """How often the window has been evaluated; 0 once it has been taken."""
        return 0 if self._window is None else self._window.evaluations

    @property
    def raised(self) -> BaseException | None:
        """What the last evaluation to fail raised."""
        return self._error

    def __call__(self) -> Tensor:
        """Evaluate the window, with gradients whatever the optimizer has switched off."""
        window = self._window
        if window is None:
            message = "expected calls of a closure within one `optimizer.step`, got one after its report was taken"
            raise LoopError("closure_taken", message, "call the closure that `step` is given, and keep none")
        try:
            if torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
                return window.evaluate()
            with torch.inference_mode(False), torch.enable_grad():
                return window.evaluate()
        except BaseException as error:
            self._error = error  # the optimizer may swallow it
            if isinstance(error, Exception):
                window.add_notes(error)
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
        window = self._window
        if window is None:
            raise LoopError("closure_taken", "expected one `take()` of a report, got another", "keep what it gave")
        if self._error is not None:
            self._raise_again(self._error, window.optimizer_name, stepped)
        elif window.evaluations == 0:
            raise ClosureNotCalledError(window.optimizer_name)
        self.close()
        return window.report(stepped)

    def close(self) -> None:
        """Let go of the window and of any error; a call from now on is one too late."""
        self._window = self._error = None

    def _raise_again(self, error: BaseException, optimizer_name: str, stepped: bool) -> None:
        if not isinstance(error, NothingContributed):
            self.close()
            raise error
        if stepped:
            self.close()
            message = f"expected `{optimizer_name}.step` to end where every micro-batch was skipped, got a step"
            raise LoopError("skip_swallowed", message, "let what the closure raises pass: catch no `BaseException`")
