"""The check for loops that need a loss from every step: what would be a skip elsewhere is an error there."""

from strictstep.schema.base import AnyOutput
from strictstep.schema.coerce import coerce
from strictstep.schema.describe import describe
from strictstep.schema.errors import Stage, StepOutputError
from strictstep.schema.explain import Arrived
from strictstep.schema.outputs import SkippedStep
from strictstep.schema.report import report_of_step
from strictstep.schema.translate import Found


def with_loss(
    returned: object,
    *,
    loop: str,
    stage: Stage,
    step: object,
    schema: type[AnyOutput] | None = None,
    strict: bool = False,
    epoch: int | None = None,
) -> AnyOutput | StepOutputError:
    """Return the checked output of a step that must have a loss, or the error: the caller has a frame to clear first.

    Args:
        returned: what the step returned.
        loop: the name of the loop that needs the loss, for the report.
        stage: as for `coerce`, and so are the others.
        step: the step function.
        schema: a model of your own.
        strict: make names beyond the five fields an error.
        epoch: number of the epoch.

    Example:
        >>> with_loss(0.25, loop="Trainer", stage="test", step=None).loss
        0.25
    """
    try:
        output: AnyOutput = coerce(
            returned, stage=stage, schema=schema, strict=strict, on_none="error", step=step, epoch=epoch
        )
    except StepOutputError as error:
        return error.with_traceback(None)
    if output.loss is not None:
        return output
    got = "SkippedStep" if isinstance(output, SkippedStep) else describe(returned)
    message = f"expected a loss, since `{loop}` needs one from every step, got {got}"
    help = "leave batches without a loss out, in the dataset or where they are collated"
    help = f"was a `return` forgotten? {help}" if returned is None else help
    found = [Found("loss_none", ("loss",), message, help, type(None))]
    return report_of_step(found, Arrived(type(returned)), stage=stage, step=step, epoch=epoch, batch_idx=None)
