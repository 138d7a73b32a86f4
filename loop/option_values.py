"""The options of `fit`, each checked for itself."""

import os
import types
from collections.abc import Callable, Iterator
from typing import Any, cast, get_args

from torch import nn

from strictstep.loop.checked_step import call_for
from strictstep.loop.early_stopping import EarlyStopping
from strictstep.loop.evaluate import refuse_optimizers
from strictstep.loop.finite import FiniteWatch
from strictstep.loop.loader import length_of
from strictstep.loop.option_findings import Found, int_or_zero, raised
from strictstep.loop.options import Options
from strictstep.loop.precision import Precision
from strictstep.loop.setup import positive_norm
from strictstep.loop.step import Step
from strictstep.loop.weights import Weights
from strictstep.schema.coerce import OnNone
from strictstep.schema.describe import describe


def _counts(o: Options) -> Iterator[Found]:
    needed = {"gradient_accumulation_steps", "validate_every", "log_every"}
    for name in ("max_epochs", "max_steps", *sorted(needed)):
        value = getattr(o, name)
        if (value is not None or name in needed) and (type(value) is not int or value < 1):
            yield f"expected a positive int as `{name}`, got {describe(value)}", "count from 1"
    if o.max_epochs is None and o.max_steps is None:
        yield "expected an end of training, got None as `max_epochs` and as `max_steps`", "give one of them"
    if o.seed is not None and (type(o.seed) is not int or not 0 <= o.seed < 1 << 64):
        yield f"expected an int from 0 to 2**64 - 1 as `seed`, got {describe(o.seed)}", "or leave it out"


def _bools(o: Options) -> Iterator[Found]:
    for name in ("strict", "progress_bar", "carry_hiddens"):
        if type(getattr(o, name)) is not bool:
            yield f"expected True or False as `{name}`, got {describe(getattr(o, name))}", "write one of them"


def _functions(o: Options) -> Iterator[Found]:
    for name in ("after_step", "epoch_end"):
        value = getattr(o, name)
        if value is not None and not callable(value):
            yield f"expected a function as `{name}`, got {describe(value)}", "pass the function itself, not its result"
    for logger in o.listed_loggers:
        if not callable(getattr(logger, "log_metrics", None)):
            help = "pass a list of objects with `log_metrics(dict, step)`, such as `JSONLLogger(path)`"
            yield f"expected loggers, got {describe(logger)} among `loggers`", help


def _steps(o: Options) -> Iterator[Found]:
    model: Any = o.model
    if not isinstance(model, nn.Module):
        return
    yield from raised(Step, o.model, o.training_step)
    if o.validation_step is not None:
        yield from raised(_validation_step, o)
    if (o.validation_step is None) is not (o.validation_batches is None):
        given, missing = ("validation_step", "validation_batches")[:: 1 if o.validation_batches is None else -1]
        yield f"expected `{missing}` beside `{given}`, got None", "give both of them, or none"


def _validation_step(o: Options) -> None:
    step = Step(o.model, cast(Callable[..., object], o.validation_step))
    refuse_optimizers(step)
    call_for("validation", step, None, False, "skip")


def _batches(o: Options) -> Iterator[Found]:
    passes = int_or_zero(o.max_epochs) if o.max_steps is None else 1  # `max_steps` may end within the first epoch
    validations = passes // max(1, int_or_zero(o.validate_every))
    for name, times in (("train_batches", passes), ("validation_batches", validations)):
        batches = getattr(o, name)
        if batches is None and name == "validation_batches":
            continue
        if not (hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")):
            help = "pass a list or a loader: anything that `for` iterates"
            yield f"expected batches as `{name}`, got {describe(batches)}", help
        elif length_of(batches) == 0:
            yield f"expected at least one batch in `{name}`, got none", "look at the dataset's length"
        elif isinstance(batches, Iterator) and times > 1:
            help = "an iterator gives its batches once: pass a list, or a loader that can be iterated again"
            yield f"expected batches that can be iterated {times} times as `{name}`, got {describe(batches)}", help


def _policies(o: Options) -> Iterator[Found]:
    if o.on_none not in get_args(OnNone):
        yield f"expected 'skip' or 'error' as `on_none`, got {describe(o.on_none)}", "write one of them"
    yield from raised(FiniteWatch, o.on_non_finite)
    yield from raised(Precision, o.precision, "cpu")
    yield from raised(Weights, o.weight)
    if o.max_grad_norm is not None:
        yield from raised(positive_norm, o.max_grad_norm)


def _endings(o: Options) -> Iterator[Found]:
    stopping: Any = o.early_stopping
    if stopping is not None and not isinstance(stopping, EarlyStopping):
        help = "write `EarlyStopping('val_loss', patience=5)`"
        yield f"expected an `EarlyStopping` as `early_stopping`, got {describe(stopping)}", help
    yield from raised(lambda: o.rule)
    resume: Any = o.resume
    if not isinstance(resume, (str, os.PathLike, bool, types.NoneType)):
        yield (
            f"expected a path, or True, as `resume`, got {describe(resume)}",
            "name a file, or a folder of checkpoints",
        )
    if resume is True and o.checkpoint is None:
        yield "expected `checkpoint` with `resume=True`, got None", "name its folder, or give `resume` the file"


VALUES = (_counts, _bools, _functions, _steps, _batches, _policies, _endings)
