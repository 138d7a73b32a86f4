"""The hot path of the check: the two forms that nearly every step returns, and nothing that explains a fault."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from pydantic import BaseModel
from torch import Tensor

from strictstep.schema.base import AnyOutput
from strictstep.schema.faults import STOPS, is_of_values
from strictstep.schema.loss import evaluation_loss, manual_loss, training_loss
from strictstep.schema.missing import FIELDS
from strictstep.schema.outputs import EvaluationOutput, ManualOutput, TrainingOutput
from strictstep.schema.scalars import bar_scalars, scalars
from strictstep.schema.trees import check_hiddens, check_metrics

Output = TypeVar("Output", bound=AnyOutput)

_LOSS_CHECKS: dict[type[AnyOutput], Callable[[Any], Any]] = {
    TrainingOutput: training_loss,
    ManualOutput: manual_loss,
    EvaluationOutput: evaluation_loss,
}
_FIELD_SET = frozenset(FIELDS)
_new: Any = object.__new__
# The slots of every model, set past its refusal to be changed; `object.__setattr__` would look each of them up.
_set_fields_set, _set_extra, _set_private = (
    BaseModel.__dict__[slot].__set__
    for slot in ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


def plainly_checked(returned: Any, model: type[AnyOutput]) -> AnyOutput | None:
    """The output of the two forms that nearly every step returns: a tensor, and a dict of no keys but the five.

    Returns `None` for any other form and for anything wrong; `carefully_checked` then has the time for it.
    """
    kind = type(returned)
    if kind is Tensor:
        fields = {"loss": returned}
    elif kind is dict:
        fields = returned.copy()
    else:
        return None
    try:
        for name in fields:
            if type(name) is not str or name not in _FIELD_SET:  # a key of a StrEnum is written as plain text, later
                return None
        check_loss = _LOSS_CHECKS.get(model)
        return _validated(model, fields) if check_loss is None else _built(model, check_loss, fields)
    except Exception:  # whatever it was, the careful check meets it again and says where
        pass
    except STOPS:
        raise
    except BaseException as error:
        if not is_of_values(error, fields):
            raise
    return None


def _validated(model: type[AnyOutput], fields: dict[str, Any]) -> AnyOutput:
    return cast(AnyOutput, model.__pydantic_validator__.validate_python(fields))


def _built(model: type[Output], check_loss: Callable[[Any], Any], fields: dict[str, Any]) -> Output:
    """The output that pydantic would build, by the same checks and without its machinery.

    Between a forward and a backward, which leave no cache warm, that machinery is half the cost of the check. A model
    that is narrowed has more to check than this.
    """
    output: Output = _new(model)
    checked = output.__dict__
    checked["loss"] = check_loss(fields.get("loss"))
    log = checked["log"] = scalars(fields["log"]) if "log" in fields else {}
    checked["progress_bar"] = _bar(fields["progress_bar"], log) if "progress_bar" in fields else {}
    checked["hiddens"] = check_hiddens(fields["hiddens"]) if "hiddens" in fields else None
    checked["metrics"] = check_metrics(fields["metrics"]) if "metrics" in fields else {}
    _set_fields_set(output, {*fields})
    _set_extra(output, None)
    _set_private(output, None)
    return output


def _bar(values: Any, log: dict[str, Any]) -> dict[str, Any]:
    return scalars(values) if type(values) is dict else bar_scalars(values, log)
