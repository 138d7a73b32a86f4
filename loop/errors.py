"""What goes wrong in the loop itself, as opposed to what a step returned.

    RuntimeError
    └── LoopError                    a rule of the loop was broken; `code` names which
        └── ClosureNotCalledError    the optimizer never evaluated the closure
    UserWarning
    └── LoopWarning                  training goes on, but probably not as it was meant

What a step returned wrongly is a `StepOutputError` of `strictstep.schema`, in the loop too.
"""

from typing import Literal

LoopCode = Literal[
    "all_returned_none",
    "checkpoint_differs",
    "checkpoint_missing",
    "checkpoint_unreadable",
    "checkpoint_unsavable",
    "closure_not_called",
    "closure_taken",
    "epoch_end_return",
    "fp16_needs_one_evaluation",
    "fp16_with_manual",
    "grad_norm_non_finite",
    "gradient_sparse",
    "gradients_before_closure",
    "gradients_changed",
    "graph_used_twice",
    "hiddens_with_accumulation",
    "loader_empty",
    "loader_ended_early",
    "loader_used_up",
    "monitor_unknown",
    "no_gradient",
    "nothing_stepped",
    "nothing_to_train",
    "option",
    "parameters_non_finite",
    "scale_vanished",
    "skip_swallowed",
    "skipped_later",
    "step_signature",
    "stop_iteration",
    "tbptt_dimension",
    "value_too_large",
    "weight_not_positive",
    "weight_unreadable",
    "window_changed",
    "window_empty",
]


class LoopError(RuntimeError):
    """A rule of the loop was broken, by an optimizer, by the step or by an option.

    Attributes:
        code: stable name of the kind of mistake, such as `no_gradient`.
        message: what was expected and what happened.
        help: how to mend it.

    Example:
        >>> print(LoopError("window_empty", "expected a window of at least one batch, got none", "pass `[batch]`"))
        expected a window of at least one batch, got none  [window_empty]
          help: pass `[batch]`
    """

    def __init__(self, code: LoopCode, message: str, help: str) -> None:
        """Keep the three parts; they are plain text, so the error holds no tensor and can be pickled."""
        super().__init__(code, message, help)
        self.code = code
        self.message = message
        self.help = help

    def __str__(self) -> str:
        """The message with its code, and the help on a line of its own."""
        return f"{self.message}  [{self.code}]\n  help: {self.help}"


class ClosureNotCalledError(LoopError):
    """The optimizer's `step` returned without having called the closure, so nothing was trained.

    Example:
        >>> ClosureNotCalledError("Ranger").code
        'closure_not_called'
    """

    def __init__(self, optimizer_name: str) -> None:
        """Name the optimizer's class."""
        message = f"expected `{optimizer_name}.step` to call its closure, got no call of it"
        super().__init__("closure_not_called", message, "call it and return what it gives: `loss = closure()`")
        self.args = (optimizer_name,)


class LoopWarning(UserWarning):
    """Training goes on, but probably not as it was meant."""
