"""Manual optimization: the user's step goes backward and steps its optimizers itself; its return is checked."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from strictstep.loop.errors import LoopError
from strictstep.loop.finite import OnNonFinite
from strictstep.loop.notes import add_place
from strictstep.loop.optimization import Optimization
from strictstep.loop.optimizers import refuse_no_optimizer
from strictstep.loop.precision import PrecisionName
from strictstep.loop.report import StepReport
from strictstep.loop.weights import Weight, Weights
from strictstep.schema.base import AnyOutput
from strictstep.schema.coerce import OnNone
from strictstep.schema.describe import describe
from strictstep.schema.outputs import SkippedStep

Optimizers = Optimizer | Iterable[Optimizer] | Mapping[str, Optimizer]


class ManualOptimization(Optimization):
    """Runs steps that use their optimizers themselves: GANs, several backwards, whatever a closure cannot say.

    The step names `optimizers` and gets them as they were given here. It clears gradients, goes backward and steps;
    what it returns (often nothing) is checked as a `ManualOutput`, and only reported.

    Args:
        model: the module that the step trains.
        training_step: as for `AutomaticOptimization`.
        optimizers: one optimizer, a list of them, or a dict by name.
        schema: a `ManualOutput` of your own.
        strict: make names beyond the five fields an error.
        on_none: of no effect, since a manual step need not return anything; here to be exchangeable.
        on_non_finite: as for `AutomaticOptimization`; but the step has moved its parameters by then, so `"skip"`
            leaves out the values only.
        precision: `"fp32"` or `"bf16-mixed"`; not `"fp16-mixed"`, whose scaler would have to be the step's own.
        weight: how much a batch counts in means.
        device: where batches are moved; `None` leaves them where they are.

    Attributes:
        global_step: how many batches had a step of some optimizer in them.
        batches_seen: how many batches have been given.

    Raises:
        LoopError: for a wrong option, or a step that cannot be called.
        TypeError, ValueError: for a `schema` that is none, or is of another stage.

    Example:
        >>> model = torch.nn.Linear(4, 1)
        >>> def training_step(model, batch, optimizers):
        ...     optimizers.zero_grad()
        ...     loss = model(batch).pow(2).mean()
        ...     loss.backward()
        ...     optimizers.step()
        ...     return loss
        >>> optimization = ManualOptimization(model, training_step, torch.optim.SGD(model.parameters(), lr=0.1))
        >>> optimization.step(torch.ones(8, 4)).stepped
        True
    """

    def __init__(
        self,
        model: nn.Module,
        training_step: Callable[..., object],
        optimizers: Optimizers,
        *,
        schema: type[AnyOutput] | None = None,
        strict: bool = False,
        on_none: OnNone = "skip",
        on_non_finite: OnNonFinite = "error",
        precision: PrecisionName = "fp32",
        weight: Weight | Weights | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        """Check everything that can be checked before the first batch."""
        if precision == "fp16-mixed":
            message = 'expected "fp32" or "bf16-mixed" for manual optimization, got "fp16-mixed"'
            help = "scale in the step itself, with a `GradScaler` of your own"
            raise LoopError("fp16_with_manual", message, help)
        self._optimizers = optimizers
        self._listed = _listed(optimizers)
        super().__init__(
            model,
            training_step,
            "manual",
            self._listed,
            schema=schema,
            strict=strict,
            on_none=on_none,
            on_non_finite=on_non_finite,
            precision=precision,
            weight=weight,
            device=device,
            engine=None,
        )

    def step(
        self, batch: Any, *, hiddens: Any = None, batch_idx: int | None = None, epoch: int | None = None
    ) -> StepReport:
        """Run the step on one batch.

        Args:
            batch: whatever the step takes.
            hiddens: for a step that names it.
            batch_idx: for a step that names it, and for reports.
            epoch: likewise; a step that names it gets 0 where it is not given.

        Returns:
            A report whose `stepped` tells whether any of the optimizers took a step.

        Raises:
            StepOutputError: for what the step returned wrongly; its optimizers may have stepped before.
        """
        try:
            weight = self._weights.of(batch)
        except Exception as error:
            self._add_notes(error, epoch, batch_idx, stepped=False)
            raise
        named = self._named(hiddens, batch_idx, epoch)
        # The optimizers' own word, not the step's: it may have gone through a `GradScaler` that left its step out.
        with _steps_of(self._listed) as steps, torch.inference_mode(False), torch.enable_grad():
            outcome, _ = self._checked_step.run(batch, named, lambda: self._checked_step.origin(epoch, batch_idx, 0))
        if isinstance(outcome, Exception):
            self._add_notes(outcome, epoch, batch_idx, bool(steps))
            raise outcome
        self.batches_seen += 1
        self.global_step += bool(steps)
        loss: Any = outcome.loss  # detached by the check
        return StepReport((outcome,), loss, (weight,), bool(steps), int(isinstance(outcome, SkippedStep)))

    @property
    def has_one_optimizer(self) -> bool:
        """Whether its step has one optimizer alone."""
        return len(self._listed) == 1

    def _named(self, hiddens: Any, batch_idx: int | None, epoch: int | None) -> dict[str, Any]:
        values = {
            "batch_idx": self.batches_seen if batch_idx is None else batch_idx,
            "epoch": epoch or 0,
            "evaluation": 0,
            "global_step": self.global_step,
            "hiddens": hiddens,
            "optimizers": self._optimizers,
        }
        return {name: values[name] for name in self._checked_step.step.names}

    def _add_notes(self, error: Exception, epoch: int | None, batch_idx: int | None, stepped: bool) -> None:
        add_place(error, self._checked_step.step.name, epoch, batch_idx)
        if stepped:
            error.add_note("an optimizer had stepped before: the parameters stand where it put them")


def _listed(optimizers: Optimizers) -> tuple[Optimizer, ...]:
    if isinstance(optimizers, Iterator):
        message = f"expected an optimizer, or several in a list or a dict, got {describe(optimizers)}"
        raise LoopError(
            "option", message, "for example `torch.optim.AdamW(model.parameters())`; of several, `list(...)`"
        )
    several = optimizers.values() if isinstance(optimizers, Mapping) else optimizers
    listed: list[Any] = list(several) if isinstance(several, Iterable) else [several]
    for optimizer in listed:
        refuse_no_optimizer(optimizer)
        if not hasattr(optimizer, "_optimizer_step_post_hooks"):  # by which its steps are counted
            message = f"expected an optimizer derived from `torch.optim.Optimizer`, got {describe(optimizer)}"
            raise LoopError("option", message, "derive it, and call `super().__init__`; or pass the one that it wraps")
    if not listed:
        raise LoopError("option", "expected at least one optimizer, got none", "pass those that the step uses")
    return tuple(listed)


@contextmanager
def _steps_of(optimizers: tuple[Optimizer, ...]) -> Iterator[list[str]]:
    """The names of the optimizers that step meanwhile, as they do."""
    stepped: list[str] = []
    hooks = [
        optimizer.register_step_post_hook(lambda stepping, _args, _kwargs: stepped.append(type(stepping).__name__))
        for optimizer in optimizers
    ]
    try:
        yield stepped
    finally:
        for hook in hooks:
            hook.remove()
