"""skorch's nets, with their losses checked and every term of `log` in their history.

    @checked
    class DigitsNet(NeuralNetClassifier):
        def get_loss(self, y_pred, y_true, X=None, training=False):
            loss = super().get_loss(y_pred, y_true, X, training)
            return {"loss": loss + penalty, "log": {"penalty": penalty}}

Without methods of your own: `class DigitsNet(CheckedNet, NeuralNetClassifier): ...`.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar, overload

from skorch import NeuralNet

from strictstep.schema.base import AnyOutput
from strictstep.schema.errors import Stage, StepOutputError
from strictstep.schema.explain import Arrived
from strictstep.schema.integrations.required_loss import with_loss
from strictstep.schema.report import report_of_step
from strictstep.schema.translate import Found

AnyNet = TypeVar("AnyNet", bound=NeuralNet)


class CheckedNet(NeuralNet):  # type: ignore[misc]  # skorch has no types
    """A net whose `get_loss`, `train_step_single` and `validation_step` are checked.

    `get_loss` may return whatever a step may: a loss, or a mapping of the five fields. The two steps have run their own
    backward and return `loss` and `y_pred`; `log` may stand beside them. The terms of `log` are recorded for each batch
    as `train_...` and `valid_...`, of the first evaluation where an optimizer asks for several; skorch's
    `PassthroughScoring("train_penalty", on_train=True)` among the callbacks makes their mean over an epoch.

    Raises:
        StepOutputError: by `fit`, where a step returns something invalid or has no loss: skorch cannot skip a batch.
    """

    step_schema: ClassVar[type[AnyOutput] | None] = None
    """A training model of your own."""

    step_strict: ClassVar[bool] = False
    """Whether names beyond the five fields (and skorch's `y_pred`) are an error."""

    log_of_loss_: Mapping[str, Any]  # ends in `_`: skorch takes any other attribute for a parameter of the net

    def get_loss(self, y_pred: Any, y_true: Any, *args: Any, training: bool = False, **options: Any) -> Any:
        """Compute the loss as the net below does, and check it."""
        returned = super().get_loss(y_pred, y_true, *args, training=training, **options)
        outcome = self._checked(returned, "training" if training else "validation", super().get_loss)
        if isinstance(outcome, StepOutputError):
            del y_pred, y_true, args, options, returned  # a kept error keeps this frame
            raise outcome
        self.log_of_loss_ = outcome.log
        return outcome.loss

    def train_step_single(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        """Run the step as the net below does, and check what it returns."""
        return self._with_log(super().train_step_single, "manual", batch, fit_params)

    def train_step(self, batch: Any, **fit_params: Any) -> Any:
        """Run the step, and record the `log` of the evaluation that counts."""
        return self._recorded("train", super().train_step(batch, **fit_params))

    def validation_step(self, batch: Any, **fit_params: Any) -> Any:
        """Run the step as the net below does, check what it returns, and record its `log`."""
        return self._recorded("valid", self._with_log(super().validation_step, "validation", batch, fit_params))

    def _with_log(self, step: Any, stage: Stage, batch: Any, fit_params: dict[str, Any]) -> dict[str, Any]:
        self.log_of_loss_ = {}
        returned = step(batch, **fit_params)
        fields = {**returned} if isinstance(returned, Mapping) else None
        predicted = fields.pop("y_pred", None) if fields else None
        outcome = self._checked(returned if fields is None else fields, stage, step)
        if not isinstance(outcome, StepOutputError) and predicted is None:
            outcome = _without_prediction(stage, step)
        if isinstance(outcome, StepOutputError):
            del batch, fit_params, returned, fields, predicted
            raise outcome
        return {"loss": outcome.loss, "y_pred": predicted, "log": {**self.log_of_loss_, **outcome.log}}

    def _recorded(self, prefix: str, step: dict[str, Any]) -> dict[str, Any]:
        for name, value in step["log"].items():
            self.history.record_batch(f"{prefix}_{name}", float(value))
        return step

    def _checked(self, returned: object, stage: Stage, step: object) -> AnyOutput | StepOutputError:
        schema = self.step_schema if stage == "training" else None
        epoch = len(self.history)
        return with_loss(
            returned, loop="skorch", stage=stage, step=step, schema=schema, strict=self.step_strict, epoch=epoch
        )


def _without_prediction(stage: Stage, step: object) -> StepOutputError:
    message = "expected the key `y_pred`, which skorch gives to its callbacks, got none"
    found = [Found("key_missing", ("y_pred",), message, 'return `{"loss": loss, "y_pred": y_pred}`', type(None))]
    return report_of_step(found, Arrived(dict), stage=stage, step=step, epoch=None, batch_idx=None)


@overload
def checked(net: type[AnyNet], /) -> type[AnyNet]: ...
@overload
def checked(*, schema: type[AnyOutput] | None = ..., strict: bool = ...) -> Callable[[type[AnyNet]], type[AnyNet]]: ...
def checked(
    net: type[NeuralNet] | None = None, /, *, schema: type[AnyOutput] | None = None, strict: bool = False
) -> Any:
    """Check the steps of a net class: write it above the class, bare or with arguments.

    Args:
        net: a subclass of `NeuralNet`.
        schema: a training model of your own.
        strict: make names beyond the five fields an error.

    Returns:
        A subclass of it and of `CheckedNet`, under its name.

    Raises:
        TypeError: if the class, or one that it is derived from, is checked already.

    Example:
        >>> @checked
        ... class DigitsNet(NeuralNet):
        ...     '''A net with a loss of its own.'''
        >>> issubclass(DigitsNet, CheckedNet)
        True
    """

    def decorate(net: type[NeuralNet]) -> type[NeuralNet]:
        if issubclass(net, CheckedNet):
            raise TypeError(
                f"expected a class that is not checked yet, got `{net.__name__}`\n"
                "  help: check the last class alone, and derive it from those that are not checked"
            )
        names = {name: getattr(net, name) for name in ("__module__", "__qualname__", "__doc__")}
        options = {"step_schema": schema, "step_strict": strict}
        return type(net.__name__, (CheckedNet, net), {**names, **options})

    return decorate if net is None else decorate(net)
