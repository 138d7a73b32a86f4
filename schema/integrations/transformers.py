"""The `Trainer` of Transformers, with its losses checked and every term of `log` in its logs.

    @checked
    class DigitsTrainer(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs)
            return {"loss": outputs.loss + penalty, "log": {"task": outputs.loss, "penalty": penalty}}

Without a `compute_loss` of your own, use `CheckedTrainer` for `Trainer`; the model may then return a mapping with
`loss` and `log` itself.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar, overload

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers.trainer import Trainer
from transformers.trainer_pt_utils import find_batch_size
from transformers.trainer_utils import EvalLoopOutput

from strictstep.schema.base import AnyOutput
from strictstep.schema.errors import Stage, StepOutputError
from strictstep.schema.integrations.log_terms import LogTerms
from strictstep.schema.integrations.required_loss import with_loss
from strictstep.schema.missing import FIELDS

AnyTrainer = TypeVar("AnyTrainer", bound=Trainer)

_batch_size: Any = find_batch_size  # it has no types


class CheckedTrainer(Trainer):
    """A `Trainer` whose `compute_loss` and `training_step` are checked, in training and in evaluation.

    `compute_loss` may return whatever a step may: a loss, or a mapping of the five fields, with or without the outputs
    beside it. The terms of `log`, and of a model's own output under `log`, are logged with the trainer's loss, over the
    same micro-batches and processes, by the mean or as `Reduce` declares; those of an evaluation get its prefix, and
    their mean is over examples. Names that the trainer logs itself (`loss`, `learning_rate`, ...) stay the trainer's.

    Raises:
        StepOutputError: by `train` and `evaluate`, where a step returns something invalid or has no loss: `Trainer`
            cannot skip a batch.
    """

    step_schema: ClassVar[type[AnyOutput] | None] = None
    """A training model of your own."""

    step_strict: ClassVar[bool] = False
    """Whether names beyond the five fields are an error."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take what `Trainer` takes."""
        reductions = self.step_schema.reductions().get("log", {}) if self.step_schema else {}
        self._trained = LogTerms(reductions)
        self._evaluated = LogTerms(reductions)
        super().__init__(*args, **options)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Compute the loss as the trainer below does, and check it."""
        training = model.training
        returned, outputs = self._computed(model, inputs, return_outputs, num_items_in_batch)
        outcome = self._checked(returned, "training" if training else "validation", super().compute_loss)
        if isinstance(outcome, StepOutputError):
            del model, inputs, returned, outputs  # a kept error keeps this frame
            raise outcome
        if training:
            self._trained.add(outcome.log)
        else:
            self._evaluated.add(outcome.log, _batch_size(inputs) or 1)
        loss = outcome.loss if training else torch.as_tensor(outcome.loss)
        return (loss, {"loss": loss, **outcome.metrics} if outputs is None else outputs) if return_outputs else loss

    def training_step(self, *args: Any, **options: Any) -> Any:
        """Run the step as the trainer below does, and check the loss that it reports."""
        outcome = self._checked(super().training_step(*args, **options), "manual", super().training_step)
        if isinstance(outcome, StepOutputError):
            del args, options
            raise outcome
        self._trained.add(outcome.log)
        return outcome.loss

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """Log, and beside the loss of training the terms of the steps that it is the mean of."""
        terms = self._trained.combined(gather_object([self._trained.take()])) if "loss" in logs else {}
        super().log({**terms, **logs}, *args, **options)

    def evaluation_loop(self, *args: Any, **options: Any) -> EvalLoopOutput:
        """Evaluate, and add the terms to the metrics."""
        self._evaluated.take()
        result = super().evaluation_loop(*args, **options)
        terms = self._evaluated.combined(gather_object([self._evaluated.take()]))
        own = {f"{options.get('metric_key_prefix', 'eval')}_{name}": value for name, value in terms.items()}
        return result._replace(metrics={**own, **(result.metrics or {})})

    def _computed(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool, num_items_in_batch: Any
    ) -> tuple[Any, Any]:
        """What stands for the step's return, and the outputs beside it, where there are any."""
        below: Any = super().compute_loss
        by_model = below.__func__ is Trainer.compute_loss
        returned = below(
            model, inputs, return_outputs=return_outputs or by_model, num_items_in_batch=num_items_in_batch
        )
        if not (return_outputs or by_model) or type(returned) is not tuple or len(returned) != 2:
            return returned, None
        loss, outputs = returned
        return self._with_fields(loss, outputs) if by_model else loss, outputs

    def _with_fields(self, loss: Any, outputs: Any) -> Any:
        """The loss with the fields of the model's output; all other names in there are the model's own affair."""
        if self.args.n_gpu > 1 and isinstance(loss, Tensor):
            loss = loss.mean()  # one for each replica of DataParallel; the trainer would do the same
        if not isinstance(outputs, Mapping):
            return loss
        return {**{name: outputs[name] for name in FIELDS if name in outputs}, "loss": loss}

    def _checked(self, returned: object, stage: Stage, step: object) -> AnyOutput | StepOutputError:
        schema = self.step_schema if stage == "training" else None
        epoch = int(self.state.epoch or 0)
        return with_loss(
            returned, loop="Trainer", stage=stage, step=step, schema=schema, strict=self.step_strict, epoch=epoch
        )


@overload
def checked(trainer: type[AnyTrainer], /) -> type[AnyTrainer]: ...
@overload
def checked(
    *, schema: type[AnyOutput] | None = ..., strict: bool = ...
) -> Callable[[type[AnyTrainer]], type[AnyTrainer]]: ...
def checked(
    trainer: type[Trainer] | None = None, /, *, schema: type[AnyOutput] | None = None, strict: bool = False
) -> Any:
    """Check the steps of a `Trainer` class: write it above the class, bare or with arguments.

    Args:
        trainer: a subclass of `Trainer`.
        schema: a training model of your own.
        strict: make names beyond the five fields an error.

    Returns:
        A subclass of it and of `CheckedTrainer`, under its name.

    Raises:
        TypeError: if the class, or one that it is derived from, is checked already.

    Example:
        >>> @checked
        ... class DigitsTrainer(Trainer):
        ...     '''A trainer with a loss of its own.'''
        >>> issubclass(DigitsTrainer, CheckedTrainer)
        True
    """

    def decorate(trainer: type[Trainer]) -> type[Trainer]:
        if issubclass(trainer, CheckedTrainer):
            raise TypeError(
                f"expected a class that is not checked yet, got `{trainer.__name__}`\n"
                "  help: check the last class alone, and derive it from those that are not checked"
            )
        names = {name: getattr(trainer, name) for name in ("__module__", "__qualname__", "__doc__")}
        options = {"step_schema": schema, "step_strict": strict}
        return type(trainer.__name__, (CheckedTrainer, trainer), {**names, **options})

    return decorate if trainer is None else decorate(trainer)
