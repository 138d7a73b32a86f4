"""One pass without gradients: the epoch's values by name."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn
from torch.fx import GraphModule

from strictstep.loop.checked_step import call_for, device_of, device_type_of, refuse_no_model
from strictstep.loop.device import moved
from strictstep.loop.epoch_values import EpochValues, Ops
from strictstep.loop.errors import LoopError, LoopWarning
from strictstep.loop.kept_metrics import EpochEnd
from strictstep.loop.loader import Loader
from strictstep.loop.notes import add_place
from strictstep.loop.precision import Precision, PrecisionName
from strictstep.loop.reporting import ProgressBar
from strictstep.loop.step import Step, stop_iteration
from strictstep.loop.weights import Weight, Weights
from strictstep.schema.base import AnyOutput
from strictstep.schema.coerce import carefully_checked
from strictstep.schema.describe import describe
from strictstep.schema.errors import StepOutputError
from strictstep.schema.plain import plainly_checked


def evaluate(
    model: nn.Module,
    validation_step: Callable[..., object],
    batches: Iterable[Any],
    *,
    stage: Literal["validation", "test"] = "validation",
    schema: type[AnyOutput] | None = None,
    strict: bool = False,
    precision: PrecisionName = "fp32",
    weight: Weight | None = None,
    device: torch.device | str | int | None = None,
    epoch_end: EpochEnd | None = None,
    log_every: int = 50,
    progress_bar: bool = False,
) -> dict[str, float]:
    """Run a step over batches, in eval mode and without gradients.

    Args:
        model: the module; each of its modules gets its own mode back, also after an error.
        validation_step: `validation_step(model, batch)`, or the bound method `model.validation_step(batch)`.
        batches: anything that can be iterated.
        stage: `"validation"` or `"test"`; for reports.
        schema: an `EvaluationOutput` of your own.
        strict: make names beyond the five fields an error.
        precision: `"fp32"`, or `"bf16-mixed"` or `"fp16-mixed"` for autocast.
        weight: how much a batch counts in means: a number, or a function of the batch; without it, its examples.
        device: where batches are moved; `None` leaves them where they are.
        epoch_end: gets the `metrics` that are no scalars, as a dict of lists, and may return scalars by name.
        log_every: after how many batches values that wait on an accelerator are read.
        progress_bar: show one.

    Returns:
        `loss`, and the names in `log`, `progress_bar` and scalar `metrics`, each reduced over the batches: by the
        weighted mean, or as `Reduce` declares; then what torchmetrics objects compute and `epoch_end` returns.
        A loss that is not finite is shown as it is.

    Raises:
        StepOutputError: for what the step returned wrongly.
        LoopError: for a wrong option, or a loader without batches.

    Example:
        >>> def validation_step(model, batch):
        ...     return {"loss": model(batch).abs().mean(), "log": {"largest": batch.max()}}
        >>> evaluate(torch.nn.Identity(), validation_step, [torch.ones(3, 1), 5 * torch.ones(1, 1)])
        {'loss': 2.0, 'largest': 2.0}
    """
    evaluation = Evaluation(
        model, validation_step, stage, schema, strict, precision, Weights(weight), device, epoch_end, log_every, {}
    )
    loader = Loader(batches, "batches")
    bar = ProgressBar(loader.length, None, None, progress_bar, log_every)
    try:
        values = evaluation(loader, 0, 0, bar)
    except BaseException:
        bar.close({})
        raise
    bar.close(values)
    return values


class Evaluation:
    """A validation step with everything that stays the same from pass to pass."""

    def __init__(
        self,
        model: nn.Module,
        step: Callable[..., object],
        stage: Literal["validation", "test"],
        schema: type[AnyOutput] | None,
        strict: bool,
        precision: PrecisionName,
        weights: Weights,
        device: torch.device | str | int | None,
        epoch_end: EpochEnd | None,
        log_every: int,
        ops: Ops,
    ) -> None:
        """Check everything that can be checked before the first batch."""
        refuse_no_model(model)
        if type(log_every) is not int or log_every < 1:
            message = f"expected a positive int as `log_every`, got {describe(log_every)}"
            raise LoopError("option", message, "count from 1")
        self._model = model
        self._step = Step(model, step)
        refuse_optimizers(self._step)
        self._call = call_for(stage, self._step, schema, strict, "skip")
        self._device = device_of(device)
        self._run = Precision(precision, device_type_of(model, self._device)).within(self._step.run)
        self._weights = weights
        self._values = EpochValues(stage, ops, epoch_end, log_every)
        self._may_return_none = epoch_end is not None
        self._nones = 0

    def __call__(
        self,
        loader: Loader,
        epoch: int,
        global_step: int,
        bar: ProgressBar | None = None,
        after_batch: Callable[[EpochValues], None] | None = None,
    ) -> dict[str, float]:
        """Run one pass and give its values.

        Args:
            loader: the batches.
            epoch: for steps that name it, and for reports.
            global_step: likewise.
            bar: is told of each batch.
            after_batch: called after each batch with the values so far; what it raises ends the pass.
        """
        values = self._values.restarted()
        self._nones = 0
        loader.start(epoch)
        with values.kept, evaluating(self._model):
            while (batch := loader.fetch()) is not loader.END:
                output, weight = self._checked(batch, epoch, loader.batches - 1, global_step)
                values.add((output,), (weight,))
                del batch
                if bar is not None and bar.step():
                    bar.show(shown(output))
                if after_batch is not None:
                    after_batch(values)
                del output
            found = values.close(epoch)
        if self._nones == loader.batches:
            self._warn_of_nones(loader.batches)
        return found

    def _warn_of_nones(self, count: int) -> None:
        """Say once that nothing was ever returned, unless `epoch_end` may read what the step has left elsewhere."""
        if not self._may_return_none:
            self._may_return_none = True
            batches = "1 batch" if count == 1 else f"{count} batches"
            message = f"`{self._step.name}` returned None from {batches}: was a `return` forgotten?"
            warnings.warn(message, LoopWarning, 2)

    def _checked(self, batch: Any, epoch: int, batch_idx: int, global_step: int) -> tuple[AnyOutput, float]:
        known = {"batch_idx": batch_idx, "epoch": epoch, "global_step": global_step, "evaluation": 0, "hiddens": None}
        named = {name: known[name] for name in self._step.names}
        try:
            weight = self._weights.of(batch)
            returned = self._run(moved(batch, self._device), **named)
        except StopIteration as error:
            raise self._noted(stop_iteration(f"step `{self._step.name}`", error), epoch, batch_idx) from error
        except Exception as error:
            self._noted(error, epoch, batch_idx)
            raise
        self._nones += returned is None
        output = plainly_checked(returned, self._call.model) or carefully_checked(returned, self._call)
        if isinstance(output, StepOutputError):
            del returned
            raise output.at(epoch, batch_idx)
        return output, weight

    def _noted(self, error: Exception, epoch: int, batch_idx: int) -> Exception:
        add_place(error, self._step.name, epoch, batch_idx, self._call.stage)
        return error


def shown(output: AnyOutput) -> Mapping[str, Any]:
    """What a bar shows of an output: its loss, and what it gave for the bar."""
    return output.progress_bar if output.loss is None else {"loss": output.loss, **output.progress_bar}


def refuse_optimizers(step: Step) -> None:
    """Raise for a validation step that names `optimizers`."""
    if "optimizers" in step.names:
        message = f"expected a validation step without optimizers, got `{step.name}`, which names `optimizers`"
        raise LoopError("step_signature", message, "validation moves nothing: leave it out")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode and no gradients; afterwards each module has its own mode again."""
    # A model that was frozen has no mode any more.
    modes = [(module, module.training) for module in model.modules() if hasattr(module, "training")]
    try:
        _to_eval(model)
        with torch.no_grad():
            yield
    finally:
        _bring_back(modes)


def _to_eval(model: nn.Module) -> None:
    try:
        model.eval()
    except NotImplementedError:
        if not isinstance(model, GraphModule):  # one that was exported has one mode alone
            raise


def _bring_back(modes: list[tuple[nn.Module, bool]]) -> None:
    try:
        for module, mode in modes:
            # Some do work in a `train` of their own: LoRA layers take their merged weights apart.
            if module.training is not mode and type(module).train is not nn.Module.train:
                module.train(mode)
    finally:
        for module, mode in modes:
            if module.training is not mode:
                module.training = mode
