"""The lines of a run's history: one for each optimizer step, one for each epoch.

Both are `HistoryRecord`s, so that `strictstep check` reads them, and have a JSON Schema of their own:

    {"schema_version":1,"kind":"step","epoch":0,"global_step":1,"values":{"loss":2.31},"outputs":[]}
    {"schema_version":1,"kind":"epoch","epoch":0,"global_step":23,"values":{"loss":0.54,"val_loss":0.15},"outputs":[]}
"""

from typing import Literal

from pydantic import ConfigDict

from strictstep.schema.step_record import HistoryRecord


class LoggedStep(HistoryRecord):
    """What one optimizer step gave.

    Example:
        >>> LoggedStep(epoch=0, global_step=1, values={"loss": 2.5}).kind
        'step'
    """

    model_config = ConfigDict(extra="forbid")

    kind: Literal["step"] = "step"  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen: it may narrow
    """The line is about one optimizer step."""


class LoggedEpoch(HistoryRecord):
    """What one epoch gave: means, sums and the like over its steps, and the values of its validation.

    Example:
        >>> LoggedEpoch(epoch=0, global_step=23, values={"val_loss": 0.15}).values["val_loss"]
        0.15
    """

    model_config = ConfigDict(extra="forbid")

    kind: Literal["epoch"] = "epoch"  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen: it may narrow
    """The line is about a whole epoch."""
