"""A run of `fit`: epoch after epoch, each trained, validated, recorded and saved."""

import warnings
from collections.abc import Mapping
from typing import Any

from strictstep.loop.calls import called, place_text
from strictstep.loop.early_stopping import Patience
from strictstep.loop.epoch_values import EpochValues, Ops, ops_of
from strictstep.loop.errors import LoopError, LoopWarning
from strictstep.loop.evaluate import Evaluation, shown
from strictstep.loop.finite import refuse_lost_parameters
from strictstep.loop.fit_result import FitResult, Stopped
from strictstep.loop.interrupt import Interrupt
from strictstep.loop.loader import Loader
from strictstep.loop.log_book import LogBook
from strictstep.loop.options import Options
from strictstep.loop.random_state import seed_all
from strictstep.loop.report import StepReport
from strictstep.loop.reporting import ProgressBar
from strictstep.loop.saved_run import SavedRun
from strictstep.loop.schedule import Schedule
from strictstep.loop.training_pass import TrainingPass
from strictstep.loop.watched_names import WatchedNames
from strictstep.loop.windows import ChunkWindows, Windows
from strictstep.schema.describe import names_text
from strictstep.schema.errors import Stage


class Run:
    """One call of `fit`, from its checked options."""

    def __init__(self, options: Options) -> None:
        """Put the parts together; nothing is iterated, nothing has moved."""
        ops = {} if options.schema is None else ops_of(options.schema)
        self._options = options
        self._book = LogBook(options.listed_loggers)
        self._schedule = Schedule(options.schedulers, options.scheduler_interval, options.scheduler_monitor)
        self._training = _training(options, self._schedule, ops, self._book)
        self._evaluation = None if options.validation_step is None else _evaluation(options, ops)
        self._validation_loader = Loader(options.validation_batches, "validation_batches")
        self._patience = None if options.early_stopping is None else Patience(options.early_stopping)
        loaders = [self._training.windows.loader, self._validation_loader]
        self._saved = SavedRun(options, self._training, self._schedule, self._patience, loaders, self._book)
        self._watched = WatchedNames(options)
        self._interrupt = Interrupt()
        self._hidden: set[str] = set()

    def __call__(self) -> FitResult:
        """Train until something ends it."""
        with self._training.values.kept, self._interrupt:
            self._begin()
            while (stopped := self._ended()) is None:
                self._run_epoch()
        if stopped == "max_steps":
            self._watched.after_run(self._saved.history)
        return FitResult(self._saved.history, self._global_step, stopped)

    def _begin(self) -> None:
        options = self._options
        if not options.model.training:  # else its modules keep their own modes: a frozen part may be in eval mode
            options.model.train()
        if options.seed is not None:
            seed_all(options.seed)
        self._saved.resume(options.resume)

    def _ended(self) -> Stopped | None:
        """Why there is no next epoch, if there is none; one that is open is brought to its end first."""
        if not self._saved.is_within:
            if self._patience is not None and self._patience.is_over:
                return "early_stopping"
            if self._has_all_steps():
                return "max_steps"
            if self._options.max_epochs is not None and self._saved.epoch >= self._options.max_epochs:
                return "max_epochs"
        return "interrupted" if self._interrupt.requested else None

    def _run_epoch(self) -> None:
        options, length = self._options, self._training.windows.length
        done = -(-self._training.outputs // options.gradient_accumulation_steps) if self._saved.is_within else 0
        bar = ProgressBar(length, self._saved.epoch, options.max_epochs, options.progress_bar, options.log_every, done)
        values: Mapping[str, float] = {}
        try:
            values = self._epoch_values(bar)
        finally:
            self._training.windows.loader.stop()
            bar.close(values)

    def _epoch_values(self, bar: ProgressBar) -> dict[str, float]:
        """Train, validate, record and save an epoch; empty if Ctrl-C came between."""
        self._saved.begin_epoch()
        self._train(bar)
        if self._interrupt.requested:
            self._saved.save_within()
            return {}
        is_saved = self._has_all_steps() and self._saved.save_within()
        held = self._saved.hold()
        values = self._training.close()
        if self._training.has_skipped_all:
            refuse_lost_parameters(self._options.model, self._saved.epoch)
        try:
            values = self._joined(values, self._validated())
        except _Interrupted:
            self._saved.save_held(held)
            return {}
        self._end_epoch(values, is_saved)
        return values

    def _train(self, bar: ProgressBar) -> None:
        """Take steps until the epoch ends, or the run does."""
        try:
            while not (self._interrupt.requested or self._has_all_steps()) and self._step(bar):
                pass
        except Exception:  # workers of a loader die of the same Ctrl-C
            if not (self._interrupt.requested and self._training.windows.loader.has_failed):
                raise

    def _step(self, bar: ProgressBar) -> bool:
        """Take one step; false at the end of the epoch. The report, and with it the outputs, is gone after it."""
        report = self._training.step()
        if report is None:
            return False
        options = self._options
        if report.stepped and not self._schedule.is_empty:
            self._schedule.after_step(self._place)
        if options.after_step is not None:
            called("after_step function", self._place, options.after_step, report)
        if options.progress_bar and bar.step():
            self._show(bar, report)
        if not self._watched.is_settled:
            self._watched.after_step(self._training.values, "")
        if report.stepped and self._saved.is_due():
            self._saved.save_within()
        return True

    def _show(self, bar: ProgressBar, report: StepReport) -> None:
        values, skipped = shown(report.output), self._training.skipped
        bar.show({**values, "skipped": skipped} if skipped else values)

    def _validated(self) -> dict[str, float]:
        epoch = self._saved.epoch
        if self._evaluation is None or not self._validates:
            return {}
        values = self._evaluation(self._validation_loader, epoch, self._global_step, after_batch=self._after_validation)
        return {f"val_{name}": value for name, value in values.items()}

    def _joined(self, trained: dict[str, float], validated: dict[str, float]) -> dict[str, float]:
        hidden = sorted((trained.keys() & validated.keys()) - self._hidden)
        if hidden:
            self._hidden.update(hidden)
            message = f"{names_text(hidden)} of the training step: hidden by validation's of that name: rename one"
            warnings.warn(message, LoopWarning, 2)
        return {**trained, **validated}

    def _after_validation(self, values: EpochValues) -> None:
        self._watched.after_step(values, "val_")
        if self._interrupt.requested:
            raise _Interrupted

    def _end_epoch(self, values: dict[str, float], is_saved: bool) -> None:
        epoch = self._saved.epoch
        self._watched.after_epoch(values, self._validates)
        if self._training.stepped:
            self._schedule.after_epoch(values, f"epoch {epoch}")
        elif self._options.max_epochs is None:
            message = f"expected an optimizer step in epoch {epoch}, got none: each of its batches was skipped"
            help = "with `max_steps` alone, training would never end: mend the data, or give `max_epochs`"
            raise LoopError("nothing_stepped", message, help)
        if self._patience is not None:
            self._patience.see(values)
        self._book.epoch(values, epoch, self._global_step)
        self._saved.end_epoch(values, is_saved)

    @property
    def _validates(self) -> bool:
        """Whether this epoch is one that is validated."""
        return self._evaluation is not None and (self._saved.epoch + 1) % self._options.validate_every == 0

    def _has_all_steps(self) -> bool:
        most = self._options.max_steps
        return most is not None and self._global_step >= most

    @property
    def _global_step(self) -> int:
        return self._training.optimization.global_step

    @property
    def _place(self) -> str:
        return place_text(self._saved.epoch, self._training.windows.first)


class _Interrupted(Exception):  # no error: it leaves a validation pass
    """Ctrl-C was pressed while validation ran."""


def _training(options: Options, schedule: Schedule, ops: Ops, book: LogBook) -> TrainingPass:
    loader = Loader(options.train_batches, "train_batches")
    windows = (
        Windows(loader, options.gradient_accumulation_steps)
        if options.tbptt is None
        else ChunkWindows(loader, *options.tbptt, is_saved=options.rule is not None)
    )
    stage: Stage = "manual" if options.is_manual else "training"
    on_step = book.step if options.listed_loggers else None
    values = EpochValues(stage, ops, options.epoch_end, options.log_every, on_step)
    keeps_hiddens = options.tbptt is not None or options.carry_hiddens
    return TrainingPass(options.optimization(), windows, values, schedule, keeps_hiddens, options.carry_hiddens)


def _evaluation(options: Options, ops: Ops) -> Evaluation:
    step: Any = options.validation_step
    return Evaluation(
        options.model,
        step,
        "validation",
        None,
        options.strict,
        options.precision,
        options.weights(),
        options.device,
        options.epoch_end,
        options.log_every,
        ops,
    )
