"""The JSON form of an output, read back: what histories hold, one record on each line.

A line of a history is one of two things, and `strictstep check` accepts both:

    {"loss": 0.31, "log": {...}, ...}                    a `StepRecord`: `output.model_dump_json()` as it is
    {"schema_version": 1, "kind": "step", ...}           a `HistoryRecord`: where in the run it was, and what of it

A loop that writes more on its lines derives its own model from `HistoryRecord`; `check` reads past the keys it does
not know, and refuses a `schema_version` that it does not know.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from strictstep.schema.base import AnyOutput
from strictstep.schema.json_types import Number, Value

SCHEMA_VERSION: Literal[1] = 1

Names = dict[str, Number]
Count = Annotated[int, Field(ge=0)]


class StepRecord(BaseModel):
    """One output in its JSON form: numbers for scalars, a few words for tensors and objects.

    It reads what `output.model_dump_json()` writes, and writes the same bytes again.

    Example:
        >>> from strictstep.schema import EvaluationOutput
        >>> text = EvaluationOutput(loss=0.25, log={"ratio": float("inf")}).model_dump_json()
        >>> record = StepRecord.model_validate_json(text)
        >>> record.loss, record.log["ratio"], record.model_dump_json() == text
        (0.25, inf, True)
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    loss: Number | None
    """The loss of the batch, as the step returned it; `null` where there was none."""

    log: Names
    """Names to numbers for the loggers."""

    progress_bar: Names
    """Names to numbers for the progress bar."""

    hiddens: Value
    """State for the next chunk of a sequence: the shapes of its tensors."""

    metrics: dict[str, Value]
    """Names to anything that is collated over the epoch."""

    reason: str | None = None
    """Why the batch was skipped; absent where it was not."""

    @classmethod
    def from_output(cls, output: AnyOutput) -> Self:
        """The record of an output; reads its scalars from their device."""
        return cls.model_validate_json(output.model_dump_json())

    @model_serializer(mode="wrap")
    def _without_absent_reason(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = written(self)
        if fields.get("reason") is None:
            fields.pop("reason", None)
        return fields


class HistoryRecord(BaseModel):
    """One line of a run's history: what an optimizer step or an epoch gave.

    A loop derives its own from it, and adds what it knows; other names are read past.

    Example:
        >>> HistoryRecord(kind="epoch", epoch=0, global_step=120, values={"val_loss": 0.5}).model_dump_json()
        '{"schema_version":1,"kind":"epoch","epoch":0,"global_step":120,"values":{"val_loss":0.5},"outputs":[]}'
    """

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True)

    schema_version: Literal[1] = SCHEMA_VERSION
    """The version of this form."""

    kind: Literal["step", "epoch"]
    """What the line is about."""

    epoch: Count
    """Number of the epoch, from 0."""

    global_step: Count
    """How many optimizer steps had happened when the line was written."""

    values: Names = {}
    """The named values as the loggers get them."""

    outputs: list[StepRecord] = []
    """What the steps of the window returned, one record for each micro-batch."""
