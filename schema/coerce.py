"""From whatever a step returned to a checked output, or to one error that says everything that is wrong."""

from contextlib import suppress
from types import CoroutineType
from typing import Any, Literal, NamedTuple, TypeVar, cast, overload

from pydantic_core import ValidationError

from strictstep.schema import forms
from strictstep.schema.as_checked import fields_of, is_as_checked
from strictstep.schema.base import AnyOutput, StepOutput
from strictstep.schema.describe import describe
from strictstep.schema.errors import Stage, StepOutputError
from strictstep.schema.explain import Arrived
from strictstep.schema.faults import STOPS, faults_of, words_of
from strictstep.schema.notices import warn_of_moved_names, warn_of_none
from strictstep.schema.outputs import EvaluationOutput, ManualOutput, SkippedStep, TrainingOutput
from strictstep.schema.plain import plainly_checked
from strictstep.schema.report import report_of_step
from strictstep.schema.stages import MODELS, model_of
from strictstep.schema.translate import Found, problems_found

OnNone = Literal["skip", "error"]
Output = TypeVar("Output", bound=AnyOutput)

_SKIP: OnNone = "skip"


@overload
def coerce(
    returned: object,
    *,
    schema: type[Output],
    stage: Stage = ...,
    strict: bool = ...,
    on_none: OnNone = ...,
    step: object = ...,
    epoch: int | None = ...,
    batch_idx: int | None = ...,
) -> Output | SkippedStep: ...
@overload
def coerce(
    returned: object,
    *,
    stage: Literal["training"] = ...,
    schema: None = ...,
    strict: bool = ...,
    on_none: OnNone = ...,
    step: object = ...,
    epoch: int | None = ...,
    batch_idx: int | None = ...,
) -> TrainingOutput | SkippedStep: ...
@overload
def coerce(
    returned: object,
    *,
    stage: Literal["manual"],
    schema: None = ...,
    strict: bool = ...,
    on_none: OnNone = ...,
    step: object = ...,
    epoch: int | None = ...,
    batch_idx: int | None = ...,
) -> ManualOutput | SkippedStep: ...
@overload
def coerce(
    returned: object,
    *,
    stage: Literal["validation", "test"],
    schema: None = ...,
    strict: bool = ...,
    on_none: OnNone = ...,
    step: object = ...,
    epoch: int | None = ...,
    batch_idx: int | None = ...,
) -> EvaluationOutput | SkippedStep: ...
def coerce(
    returned: object,
    *,
    stage: Stage = "training",
    schema: type[AnyOutput] | None = None,
    strict: Any = False,
    on_none: Any = _SKIP,
    step: object = None,
    epoch: int | None = None,
    batch_idx: int | None = None,
) -> AnyOutput:
    """Turn what a step returned into a checked output.

    Args:
        returned: anything. A tensor is the `loss`; mappings, dataclasses, namedtuples, attrs and pydantic objects are
            read by name; names beyond the five fields move to `metrics`, with a warning.
        stage: what the step is for: `"training"` requires a differentiable `loss`.
        schema: a model of your own, a subclass of the stage's model.
        strict: make names beyond the five fields an error.
        on_none: in training, `None` is a `SkippedStep` and a warning (`"skip"`) or an error (`"error"`).
        step: the step function; it and the two numbers only make reports better.
        epoch: number of the epoch, for the report.
        batch_idx: number of the batch, for the report.

    Returns:
        The stage's model (or `schema`), or a `SkippedStep`. Tensors are those that were returned: the loss itself,
        everything else detached; none is copied and none is read.

    Raises:
        StepOutputError: with every problem at once.
        TypeError: if `schema` is not an output model, or `strict` no bool.
        ValueError: if `stage` or `on_none` is unknown, or `schema` is a model of another stage.

    Example:
        >>> import torch
        >>> loss = torch.nn.Linear(4, 1)(torch.ones(8, 4)).pow(2).mean()
        >>> coerce({"loss": loss, "log": {"images": 8}}).log
        {'images': 8}
        >>> coerce(0.25, stage="validation").loss
        0.25
    """
    model = model_of(stage, schema)
    if strict is not False or on_none is not _SKIP:  # nearly every call leaves both as they are
        refuse_unknown(strict, on_none)
    output = plainly_checked(returned, model)
    if output is not None:
        return output
    outcome = carefully_checked(returned, Call(model, stage, strict, cast(OnNone, on_none), step, epoch, batch_idx))
    if isinstance(outcome, StepOutputError):
        del returned, step  # a kept error keeps this frame, and with it everything that the frame holds
        raise outcome.at()
    return outcome


class Call(NamedTuple):
    """What a return is checked against, and what is known of the step for a report."""

    model: type[AnyOutput]
    stage: Stage
    strict: bool
    on_none: OnNone
    step: object
    epoch: int | None
    batch_idx: int | None


def refuse_unknown(strict: Any, on_none: Any) -> None:
    """Raise for options that `coerce` and `validate_step` do not know.

    Raises:
        ValueError: for another `on_none` than `"skip"` or `"error"`.
        TypeError: for a `strict` that is no bool.
    """
    if type(on_none) is not str or on_none not in ("skip", "error"):
        raise ValueError(f"expected 'skip' or 'error' as `on_none`, got {describe(on_none)}")
    if type(strict) is not bool:
        raise TypeError(f"expected True or False as `strict`, got {describe(strict)}")


def carefully_checked(returned: Any, call: Call) -> AnyOutput | StepOutputError:
    """Return the output, or the error instead of raising it: the caller has a frame to clear first."""
    try:
        outcome = _of_any_form(returned, call)
        if type(outcome) is not list:
            return cast(AnyOutput, outcome)
        arrived = Arrived(type(returned), forms.names_in(returned), forms.length_of(returned))
    except (Exception, *STOPS):
        raise
    except BaseException as error:  # of the value's own making, or pydantic-core's panic
        outcome, arrived = [forms.unreadable_form(returned, error)], Arrived(type(returned))
    return report_of_step(
        outcome, arrived, stage=call.stage, step=call.step, epoch=call.epoch, batch_idx=call.batch_idx
    )


def _of_any_form(returned: Any, call: Call) -> AnyOutput | list[Found]:
    if returned is None:
        return _of_none(call)
    if type(returned) is not call.model and issubclass(type(returned), (call.model, SkippedStep)):
        call = call._replace(model=type(returned))
    try:
        reading = _of_model(returned, call) if issubclass(type(returned), StepOutput) else _read(returned, call)
    except Exception as error:
        return [forms.unreadable_form(returned, error)]
    return _of_reading(reading, call) if type(reading) is forms.Reading else cast("AnyOutput | list[Found]", reading)


def _read(returned: Any, call: Call) -> forms.Reading | list[Found]:
    reading = forms.read(returned, call.stage, call.strict)
    if reading is not None:
        return reading
    _close(returned)
    return [forms.not_accepted(returned, call.stage)]


def _of_reading(reading: forms.Reading, call: Call) -> AnyOutput | list[Found]:
    try:
        output: AnyOutput = call.model.__pydantic_validator__.validate_python(reading.fields)
    except ValidationError as invalid:
        listed = call.model.listed_names()
        return [*reading.found, *problems_found(invalid, reading.fields, listed, reading.received or None)]
    if reading.found:
        return list(reading.found)
    if reading.moved:
        warn_of_moved_names(reading.moved, call.step)
    return output


def _of_none(call: Call) -> AnyOutput | list[Found]:
    if call.stage != "training":
        return _of_reading(forms.Reading({}, {}), call)
    if call.on_none == "error":
        help = "was a `return` forgotten? to skip a batch on purpose, return `SkippedStep(reason=...)`"
        return [
            Found("returned_none", (), "expected a tensor, a mapping or an output model, got None", help, type(None))
        ]
    warn_of_none(call.step)
    return SkippedStep(reason="returned None")


def _of_model(returned: AnyOutput, call: Call) -> AnyOutput | forms.Reading | list[Found]:
    fields = fields_of(returned)
    if type(returned) is call.model and is_as_checked(fields, call.model):
        return _with_loss_checked(returned, call.model)
    if issubclass(type(returned), (call.model, MODELS[call.stage])):
        return forms.Reading(fields, {})
    message = f"expected an output of the stage '{call.stage}', got `{type(returned).__name__}`"
    help = f"return `{MODELS[call.stage].__name__}`, or check the step with the stage that it is for"
    return [Found("wrong_stage", (), message, help, type(returned))]


def _with_loss_checked(returned: AnyOutput, model: type[AnyOutput]) -> AnyOutput | list[Found]:
    """Check the loss again: an output that was pickled has none that is attached."""
    loss = returned.__dict__.get("loss")
    found = [
        Found(fault.type, location, *words_of(fault))  # type: ignore[arg-type]
        for location, fault in faults_of(model._check_loss, loss, ("loss",))
    ]
    if found:
        return found
    checked_loss = model._check_loss(loss)
    return returned if checked_loss is loss else returned.model_copy(update={"loss": checked_loss})


def _close(returned: object) -> None:
    """Close a coroutine that nothing will await, so that Python does not warn of it besides."""
    if type(returned) is CoroutineType:
        with suppress(Exception):
            returned.close()
