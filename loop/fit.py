"""Training from batches to a history, in one call."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from strictstep.loop.checkpoint import Checkpoint
from strictstep.loop.early_stopping import EarlyStopping
from strictstep.loop.engine import Engine
from strictstep.loop.finite import OnNonFinite
from strictstep.loop.fit_result import FitResult
from strictstep.loop.kept_metrics import EpochEnd
from strictstep.loop.manual import Optimizers
from strictstep.loop.option_checks import check
from strictstep.loop.options import Options, PathLike
from strictstep.loop.precision import PrecisionName
from strictstep.loop.report import StepReport
from strictstep.loop.run import Run
from strictstep.loop.schedule import Interval
from strictstep.loop.weights import Weight
from strictstep.schema.base import AnyOutput
from strictstep.schema.coerce import OnNone


def fit(
    model: nn.Module,
    training_step: Callable[..., object],
    train_batches: Iterable[Any],
    *,
    optimizer: Optimizers,
    max_epochs: int | None,
    max_steps: int | None = None,
    gradient_accumulation_steps: int = 1,
    max_grad_norm: float | None = None,
    precision: PrecisionName = "fp32",
    scheduler: Any = None,
    scheduler_interval: Interval = "epoch",
    scheduler_monitor: str | None = None,
    validation_step: Callable[..., object] | None = None,
    validation_batches: Iterable[Any] | None = None,
    validate_every: int = 1,
    schema: type[AnyOutput] | None = None,
    strict: bool = False,
    on_none: OnNone = "skip",
    on_non_finite: OnNonFinite = "error",
    tbptt: tuple[int, int] | None = None,
    carry_hiddens: bool = False,
    weight: Weight | None = None,
    device: torch.device | str | int | None = None,
    after_step: Callable[[StepReport], object] | None = None,
    epoch_end: EpochEnd | None = None,
    loggers: Sequence[Any] = (),
    log_every: int = 50,
    progress_bar: bool = True,
    checkpoint: Checkpoint | PathLike | None = None,
    resume: PathLike | bool | None = None,
    early_stopping: EarlyStopping | None = None,
    seed: int | None = None,
    engine: Engine | None = None,
) -> FitResult:
    """Train a model on checked outputs.

    A model that is in eval mode is put into training mode; of one that is in training mode, each module keeps its own.
    Before the call, the model is at the device where it shall train, and the optimizer is made of its parameters.

    Args:
        model: the module.
        training_step: `training_step(model, batch)`, or the bound method `model.training_step(batch)`. It gets those
            of `batch_idx`, `epoch`, `global_step`, `evaluation`, `hiddens`, `optimizers` that its signature names.
        train_batches: anything that can be iterated, once for each epoch.
        optimizer: one, which is stepped for the step; or several, in a list or a dict, which a manual step uses itself.
        max_epochs: how many epochs; `None` for as many as `max_steps` takes.
        max_steps: how many optimizer steps at most; the epoch that they end in is recorded as far as it went.
        gradient_accumulation_steps: micro-batches to an optimizer step, each counting by its weight; the last window of
            an epoch may have fewer.
        max_grad_norm: clip the gradients of the optimizer's parameters to this norm.
        precision: `"fp32"`, `"bf16-mixed"` or `"fp16-mixed"`.
        scheduler: a learning-rate scheduler, or a list or a dict of them; each steps only after a step, or an epoch
            with a step.
        scheduler_interval: `"epoch"` or `"step"` (optimizer steps).
        scheduler_monitor: the value that a scheduler like `ReduceLROnPlateau` is given, as named in the history.
        validation_step: as for `evaluate`.
        validation_batches: its batches.
        validate_every: validate after every so many epochs.
        schema: a `TrainingOutput` (or `ManualOutput`) of your own; the reductions that it declares hold for
            values of the same names in validation too.
        strict: make names beyond the five fields an error.
        on_none: `None` skips the micro-batch (`"skip"`) or is an error (`"error"`).
        on_non_finite: a loss that is not finite is an error (`"error"`), skips its micro-batch (`"skip"`), or trains on
            (`"keep"`).
        tbptt: truncated backpropagation through time: `(steps, dim)` cuts each batch along dimension `dim` into chunks
            of `steps`, each with a step of its own, which gets the `hiddens` that the chunk before returned.
        carry_hiddens: give a batch's first chunk (without `tbptt`: each batch) the hiddens of the batch before it, for
            a step that names `hiddens`; each epoch begins without.
        weight: how much a micro-batch counts in gradients and means: a number, or a function of the batch; without it,
            its examples.
        device: where batches are moved, nested as they are, each at its turn; `None` leaves them where they are.
        after_step: called with each `StepReport`, after the scheduler.
        epoch_end: called after each pass, of training and of validation, with the `metrics` that are no scalars: a
            dict of lists. It gets `stage` and `epoch` if its signature names them, and may return scalars by name.
        loggers: objects with `log_metrics(dict, step)`, told of each optimizer step.
        log_every: optimizer steps between two refreshes of the bar, and between two reads of values of an accelerator.
        progress_bar: show a bar, or plain lines where there is no terminal.
        checkpoint: a folder, or a `Checkpoint`, which says more. It holds the model, so every parameter that is trained
            must be one of the model's.
        resume: a checkpoint to go on from: a file, or a folder with a `last.pt`; `True` for that of `checkpoint`, if
            there is one yet. The options must be those it was made with, as far as they decide what it holds; learning
            rates, and whatever else optimizer and scheduler hold, are those of the checkpoint.
        early_stopping: ends training when a value no longer gets better.
        seed: for Python's, numpy's and torch's generators, at the start of training; the model is initialised before.
        engine: runs the step on several ranks; `None` for a single process.

    Returns:
        The history, one dict for each epoch, and why training ended. Its names are those that the steps returned, with
        `val_` before those of validation; `loss` is the returned loss, `lr` the learning rate, `skipped` the number of
        skipped micro-batches. After Ctrl-C `fit` returns at the next step, as `"interrupted"`, with a checkpoint
        written; a second Ctrl-C is Python's own.

    Raises:
        LoopError: for wrong options, all of them in one error before the first batch; where a rule of the loop is
            broken; for a loader that gives nothing; for a checkpoint that does not fit.
        StepOutputError: for what a step returned wrongly.

    Example:
        >>> model = torch.nn.Linear(4, 1)
        >>> def training_step(model, batch):
        ...     return model(batch).pow(2).mean()
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> result = fit(model, training_step, [torch.ones(8, 4)] * 3, optimizer=optimizer, max_epochs=2,
        ...              progress_bar=False)
        >>> result.global_step, result.stopped, list(result.history[-1])
        (6, 'max_epochs', ['loss'])
    """
    options = Options(**locals())
    check(options)
    return Run(options)()
