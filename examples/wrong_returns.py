"""Every error code of a return, with a step that triggers it and the report that it gives.

    python examples/wrong_returns.py

The steps are short on purpose; each mistake is one that people made.
"""

import inspect
from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
from annotated_types import Ge
from pydantic import field_validator
from torch import Tensor, nn
from typing_extensions import TypedDict

from strictstep.schema import EvaluationOutput, Scalar, SkippedStep, StepOutputError, TrainingOutput, validate_step

Step = Callable[[nn.Module, Tensor], object]


def mean_square(model: nn.Module, batch: Tensor) -> Tensor:
    """A loss that is right: float32[], attached to the graph."""
    return model(batch).pow(2).mean()  # type: ignore[no-any-return]


def other_spelling(model: nn.Module, batch: Tensor) -> object:
    loss = mean_square(model, batch)
    return {"Loss": loss}


def parts_of_the_loss(model: nn.Module, batch: Tensor) -> object:
    loss = mean_square(model, batch)
    return {"loss_cls": loss, "loss_box": loss * 2}


def other_name(model: nn.Module, batch: Tensor) -> object:
    objective = mean_square(model, batch)
    return {"train_objective": objective, "log": {"train_objective": objective}}


def model_without_labels(model: nn.Module, batch: Tensor) -> object:
    return {"logits": model(batch)}


def loss_of_none(model: nn.Module, batch: Tensor) -> object:
    return {"loss": None}


def loss_by_item(model: nn.Module, batch: Tensor) -> object:
    loss = mean_square(model, batch)
    return {"loss": loss.item()}


def loss_of_no_terms(model: nn.Module, batch: Tensor) -> object:
    terms: list[Tensor] = []
    return {"loss": sum(terms)}


def loss_of_parts(model: nn.Module, batch: Tensor) -> object:
    loss = mean_square(model, batch)
    return {"loss": {"cls": loss, "box": loss}}


def loss_per_sample(model: nn.Module, batch: Tensor) -> object:
    loss = nn.functional.mse_loss(model(batch), batch[:, :1], reduction="none")
    return {"loss": loss}


def loss_of_integers(model: nn.Module, batch: Tensor) -> object:
    return {"loss": mean_square(model, batch).long()}


def loss_of_complex_numbers(model: nn.Module, batch: Tensor) -> object:
    return {"loss": mean_square(model, batch).to(torch.complex64)}


def sparse_loss(model: nn.Module, batch: Tensor) -> object:
    return {"loss": mean_square(model, batch).reshape(1).to_sparse()}


def detached_loss(model: nn.Module, batch: Tensor) -> object:
    loss = mean_square(model, batch).detach()
    return {"loss": loss}


def loss_without_grad_mode(model: nn.Module, batch: Tensor) -> object:
    with torch.no_grad():
        loss = mean_square(model, batch)
    return {"loss": loss}


@torch.inference_mode()
def loss_of_inference(model: nn.Module, batch: Tensor) -> object:
    return {"loss": mean_square(model, batch)}


def constant_loss(model: nn.Module, batch: Tensor) -> object:
    return {"loss": torch.tensor(0.0, requires_grad=True)}


def wrong_log_values(model: nn.Module, batch: Tensor) -> object:
    return {
        "loss": mean_square(model, batch),
        "log": {"recalls": [0.2, 0.8], "note": "warm", "error": model(batch).squeeze(1)},
    }


def recall_per_class(model: nn.Module, batch: Tensor) -> object:
    return {"loss": mean_square(model, batch), "log": {"recall": torch.tensor([0.2, 0.8])}}


def complex_log_value(model: nn.Module, batch: Tensor) -> object:
    return {"loss": mean_square(model, batch), "log": {"phase": torch.tensor(1j)}}


def sparse_log_value(model: nn.Module, batch: Tensor) -> object:
    return {"loss": mean_square(model, batch), "log": {"count": torch.ones(1).to_sparse()}}


def log_of_none(model: nn.Module, batch: Tensor) -> object:
    return {"loss": mean_square(model, batch), "log": None}


def numbered_log(model: nn.Module, batch: Tensor) -> object:
    return {"loss": mean_square(model, batch), "log": {0: 0.5}}


def misspelt_field(model: nn.Module, batch: Tensor) -> object:
    return {"loss": mean_square(model, batch), "logs": {"accuracy": 0.5}}


def missing_log_key(model: nn.Module, batch: Tensor) -> object:
    return {"loss": mean_square(model, batch), "log": {"acuracy": 0.5}}


def name_at_two_places(model: nn.Module, batch: Tensor) -> object:
    logits = model(batch)
    return {"loss": mean_square(model, batch), "logits": logits, "metrics": {"logits": logits}}


def unknown_bar_name(model: nn.Module, batch: Tensor) -> object:
    return {"loss": mean_square(model, batch), "log": {"accuracy": 0.5}, "progress_bar": ["acc", "accuracies"]}


def text_among_hiddens(model: nn.Module, batch: Tensor) -> object:
    return {"loss": mean_square(model, batch), "hiddens": (batch, "cell")}


def list_inside_itself(model: nn.Module, batch: Tensor) -> object:
    endless: list[Any] = [batch]
    endless.append(endless)
    return {"loss": mean_square(model, batch), "hiddens": endless}


def wrong_metric(model: nn.Module, batch: Tensor) -> object:
    return {"loss": mean_square(model, batch), "log": {"accuracy": 0.5}, "metrics": {"images": batch.shape}}


def refused_by_the_schema(model: nn.Module, batch: Tensor) -> object:
    return {"loss": mean_square(model, batch), "log": {"accuracy": 50}, "metrics": {"images": 8}}


def skip_that_has_a_loss(model: nn.Module, batch: Tensor) -> object:
    return SkippedStep(loss=mean_square(model, batch), reason="no boxes")  # type: ignore[arg-type]


def skip_without_a_reason(model: nn.Module, batch: Tensor) -> object:
    return SkippedStep()  # type: ignore[call-arg]


def output_of_another_stage(model: nn.Module, batch: Tensor) -> object:
    return EvaluationOutput(loss=mean_square(model, batch))


def loss_and_accuracy(model: nn.Module, batch: Tensor) -> object:
    loss = mean_square(model, batch)
    accuracy = torch.tensor(0.5)
    return loss, accuracy


def loss_and_log(model: nn.Module, batch: Tensor) -> object:
    return mean_square(model, batch), {"accuracy": 0.5}


def bare_number(model: nn.Module, batch: Tensor) -> object:
    return mean_square(model, batch).item()


def generator(model: nn.Module, batch: Tensor) -> Iterator[object]:
    yield {"loss": mean_square(model, batch)}


def the_model_itself(model: nn.Module, batch: Tensor) -> object:
    return model


def forgotten_return(model: nn.Module, batch: Tensor) -> None:
    mean_square(model, batch)


class Closed(UserDict[str, object]):
    """A mapping that cannot be read any more."""

    def items(self) -> Any:
        """Fail, as a closed file does."""
        raise OSError("closed")


def closed_mapping(model: nn.Module, batch: Tensor) -> object:
    return Closed(loss=mean_square(model, batch))


class OwnLog(TypedDict):
    """The names that this project logs."""

    accuracy: Scalar


class OwnMetrics(TypedDict):
    """What this project collates."""

    images: Annotated[int, Ge(0)]


class OwnOutput(TrainingOutput[OwnLog, OwnMetrics]):
    """A schema of one's own, with a check of one's own."""

    @field_validator("log")
    @classmethod
    def accuracy_is_a_share(cls, log: OwnLog) -> OwnLog:
        """Python numbers can be compared; a tensor would be read from its device."""
        if isinstance(log["accuracy"], (int, float)) and log["accuracy"] > 1:
            raise ValueError("expected an accuracy of at most 1, got a percentage")
        return log


CATALOGUE: dict[str, list[Step]] = {
    "loss_missing": [other_spelling, parts_of_the_loss, other_name, model_without_labels],
    "loss_none": [loss_of_none],
    "loss_not_tensor": [loss_by_item, loss_of_no_terms, loss_of_parts],
    "loss_not_scalar": [loss_per_sample],
    "loss_not_floating": [loss_of_integers, loss_of_complex_numbers],
    "loss_not_strided": [sparse_loss],
    "loss_no_grad": [detached_loss, loss_without_grad_mode, loss_of_inference],
    "loss_leaf": [constant_loss],
    "scalar_wrong_type": [wrong_log_values],
    "scalar_not_single": [recall_per_class],
    "scalar_complex": [complex_log_value],
    "scalar_not_strided": [sparse_log_value],
    "field_not_mapping": [log_of_none],
    "key_not_string": [numbered_log],
    "key_unknown": [misspelt_field],
    "key_missing": [missing_log_key],
    "key_twice": [name_at_two_places],
    "progress_bar_unknown_name": [unknown_bar_name],
    "hiddens_not_tensor": [text_among_hiddens],
    "too_deep": [list_inside_itself],
    "annotation_mismatch": [wrong_metric],
    "own_check_failed": [refused_by_the_schema],
    "skip_with_loss": [skip_that_has_a_loss],
    "reason_not_string": [skip_without_a_reason],
    "wrong_stage": [output_of_another_stage],
    "wrong_return_type": [loss_and_accuracy, loss_and_log, bare_number, generator, the_model_itself],
    "returned_none": [forgotten_return],
    "unreadable": [closed_mapping],
}

OPTIONS: dict[Step, dict[str, Any]] = {
    misspelt_field: {"strict": True},
    missing_log_key: {"schema": OwnOutput},
    wrong_metric: {"schema": OwnOutput},
    refused_by_the_schema: {"schema": OwnOutput},
    forgotten_return: {"on_none": "error"},
}


def report(step: Step) -> StepOutputError:
    """Run a step once on a small model, and return the error that it ends in."""
    torch.manual_seed(0)
    checked = validate_step(**OPTIONS.get(step, {}))(step)
    try:
        checked(nn.Linear(4, 1), torch.ones(8, 4))
    except StepOutputError as error:
        return error
    raise AssertionError(f"{step.__name__} returned a valid output")


def main() -> None:
    """Print each code, the source of its steps, and their reports."""
    for code, steps in CATALOGUE.items():
        print(f"## {code}\n")
        for step in steps:
            print(inspect.getsource(step))
            print(report(step), end="\n\n")


if __name__ == "__main__":
    main()
