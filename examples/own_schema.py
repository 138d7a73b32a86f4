"""A team's own output model: which names the step logs, how they are reduced, which shapes it hands over.

    python examples/own_schema.py

The schema and the page beside this file are made from the class below, and checked to be fresh:

    cd examples
    strictstep docs own_schema:DigitsOutput -o own_schema --format html
    strictstep docs own_schema:DigitsOutput -o own_schema --format html --check
"""

from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import TypedDict

from strictstep.schema import Reduce, Scalar, StepOutputError, TrainingOutput, validate_step

CLASSES = 10


class DigitsLog(TypedDict):
    """What every step of the digits model logs."""

    accuracy: Scalar
    """Share of the batch that is classified right, from 0 to 1."""

    images: Annotated[Scalar, Reduce("sum")]
    """How many images the step has seen."""

    worst_loss: Annotated[Scalar, Reduce("max")]
    """The largest loss of one image, in nats."""


class DigitsMetrics(TypedDict):
    """What is collated over the epoch."""

    logits: Float[Tensor, "batch classes"]  # noqa: F722, the dimensions' names
    """The model's output, before softmax."""

    labels: Int[Tensor, "batch"]  # noqa: F821, the dimension's name
    """The digits on the images, from 0 to 9."""


class DigitsOutput(TrainingOutput[DigitsLog, DigitsMetrics]):
    """What a training step of the digits model returns.

    `logits` and `labels` are of one batch: their first dimensions agree.
    """


@validate_step(schema=DigitsOutput)
def digits_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> object:
    images, labels = batch
    logits = model(images)
    losses = cross_entropy(logits, labels, reduction="none")
    accuracy = (logits.argmax(dim=1) == labels).float().mean()
    return {
        "loss": losses.mean(),
        "log": {"accuracy": accuracy, "images": len(images), "worst_loss": losses.max()},
        "progress_bar": ["accuracy"],
        "metrics": {"logits": logits, "labels": labels},
    }


def digits() -> tuple[Tensor, Tensor]:
    """The handwritten digits: images float32[1797, 64] from 0 to 1, labels int64[1797]."""
    data: Any = load_digits()
    return torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)


@validate_step(schema=DigitsOutput)
def careless_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> object:
    images, labels = batch
    logits = model(images)
    loss = cross_entropy(logits, labels)
    accuracy = (logits.argmax(dim=1) == labels).float().mean()
    return {
        "loss": loss,
        "log": {"acuracy": accuracy, "images": len(images), "worst_loss": loss},
        "metrics": {"logits": logits, "labels": labels[1:]},
    }


def main() -> None:
    """Train for a few steps, show what the last one gave and how it is recorded, and what a careless one is told."""
    torch.manual_seed(0)
    images, labels = digits()
    batch = images[:1024], labels[:1024]
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    output = digits_step(model, batch)
    for _ in range(30):
        optimizer.zero_grad()
        assert isinstance(output, DigitsOutput)
        output.loss.backward()
        optimizer.step()
        output = digits_step(model, batch)
    print(repr(output))
    print(output.model_dump_json())
    print(DigitsOutput.reductions()["log"])
    try:
        careless_step(model, batch)
    except StepOutputError as error:
        print(error)


if __name__ == "__main__":
    main()
