"""The models of each stage.

StepOutput                loss, log, progress_bar, hiddens, metrics
├── TrainingOutput        loss: required, a differentiable scalar
├── ManualOutput          loss: optional, detached
├── EvaluationOutput      loss: optional, detached, numbers allowed
└── SkippedStep           loss: None, and a reason
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, field_serializer, field_validator
from torch import Tensor

from strictstep.schema.base import StepOutput
from strictstep.schema.contracts import MANUAL_LOSS, NO_LOSS, TEXT_FORM, TRAINING_LOSS, Form
from strictstep.schema.faults import fault
from strictstep.schema.fields import Checked
from strictstep.schema.json_form import text_form
from strictstep.schema.loss import manual_loss, no_loss, training_loss
from strictstep.schema.narrowing import CHECKED, BarT, HiddensT, LogT, MetricsT


class TrainingOutput(StepOutput[LogT, MetricsT, HiddensT, BarT]):
    """What a training step returns: a differentiable `loss`, and what to log of it.

    Example:
        >>> import torch
        >>> from strictstep.schema import TrainingOutput
        >>> loss = torch.nn.Linear(4, 1)(torch.ones(8, 4)).pow(2).mean()
        >>> TrainingOutput(loss=loss, log={"lr": 0.1}, progress_bar=["lr"])
        TrainingOutput(loss=float32[] tensor on cpu, log={lr: float 0.1}, progress_bar={lr: float 0.1})
    """

    loss: Annotated[Tensor, CHECKED] = Field(description="The loss to descend, in the loss function's own unit.")

    _loss_form: ClassVar[Form] = TRAINING_LOSS

    _check_loss = field_validator("loss", mode="before")(training_loss)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            loss: Tensor,
            log: LogT = ...,
            progress_bar: BarT | Collection[str] = ...,
            hiddens: HiddensT = ...,
            metrics: MetricsT = ...,
        ) -> None: ...


class ManualOutput(StepOutput[LogT, MetricsT, HiddensT, BarT]):
    """What a step of manual optimization returns: it has run its own backward, so `loss` is only reported.

    Example:
        >>> from strictstep.schema import ManualOutput
        >>> ManualOutput(log={"images": 8})
        ManualOutput(log={images: int 8})
    """

    loss: Annotated[Tensor | None, CHECKED] = Field(
        default=None, description="The loss to report, in the loss function's own unit."
    )

    _loss_form: ClassVar[Form] = MANUAL_LOSS

    _check_loss = field_validator("loss", mode="before")(manual_loss)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            loss: Tensor | None = ...,
            log: LogT = ...,
            progress_bar: BarT | Collection[str] = ...,
            hiddens: HiddensT = ...,
            metrics: MetricsT = ...,
        ) -> None: ...


class EvaluationOutput(StepOutput[LogT, MetricsT, HiddensT, BarT]):
    """What a validation or test step returns: a `loss` of any real dtype, a Python number, or none.

    Example:
        >>> from strictstep.schema import EvaluationOutput
        >>> EvaluationOutput(loss=0.25, metrics={"names": ["a", "b"]})
        EvaluationOutput(loss=float 0.25, metrics={names: list[str, str]})
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            loss: Tensor | float | int | bool | None = ...,
            log: LogT = ...,
            progress_bar: BarT | Collection[str] = ...,
            hiddens: HiddensT = ...,
            metrics: MetricsT = ...,
        ) -> None: ...


class SkippedStep(StepOutput):
    """A deliberate skip: no loss, a reason, and whatever is worth logging of the batch.

    Example:
        >>> from strictstep.schema import SkippedStep
        >>> SkippedStep(reason="no boxes", log={"boxes": 0})
        SkippedStep(log={boxes: int 0}, reason=str 'no boxes')
    """

    loss: Annotated[None, CHECKED] = Field(default=None, description="Always `None`.")

    reason: Annotated[str, Checked(form=TEXT_FORM)] = Field(description="Why the batch was skipped.")

    _loss_form: ClassVar[Form] = NO_LOSS

    _check_loss = field_validator("loss", mode="before")(no_loss)

    @field_validator("reason", mode="before")
    @staticmethod
    def _check_reason(value: Any) -> str:
        if issubclass(type(value), str):
            return str.__str__(value)
        raise fault("reason_not_string", "a `reason` (str)", value, "say in words why the batch is skipped")

    @field_serializer("reason", when_used="json")
    def _written_reason(self, reason: str) -> Any:
        return text_form(reason)


# The docstrings of attributes are read where users define models of their own. Reading ours, which pydantic does by
# parsing this file, would cost a third of the import.
for _model in (StepOutput, TrainingOutput, ManualOutput, EvaluationOutput, SkippedStep):
    _model.model_config["use_attribute_docstrings"] = True
