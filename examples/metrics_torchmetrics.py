"""torchmetrics with `fit`: the step updates its metrics and returns them; they are computed and reset after each pass.

    python examples/metrics_torchmetrics.py

A perceptron learns scikit-learn's digits (1,797 real images of 8 x 8 pixels, shipped with that package). What is no
scalar at the end, the confusion matrix, goes to a function of our own. The F1 score is printed next to the one that
scikit-learn computes from the predictions. Takes a few seconds.
"""

from collections.abc import Iterator
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.metrics import f1_score
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score

from strictstep.loop import fit

EPOCHS = 15
BATCH_SIZE = 64
HELD_OUT = 360
CLASSES = 10

Batch = tuple[Tensor, Tensor]  # images float32[N, 64] in 0..1, labels int64[N]


class Perceptron(nn.Module):
    """A model that brings its steps and metrics along, as a LightningModule does."""

    def __init__(self) -> None:
        """One hidden layer; metrics for training, and others for validation."""
        super().__init__()
        self.logits = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, CLASSES))
        self.accuracy = MulticlassAccuracy(CLASSES, average="micro")
        self.scores = MetricCollection(
            {"f1": MulticlassF1Score(CLASSES, average="macro"), "confusion": MulticlassConfusionMatrix(CLASSES)}
        )

    def training_step(self, batch: Batch) -> dict[str, object]:
        """`accuracy` is that of the whole epoch, not the mean of its batches."""
        images, labels = batch
        logits = self.logits(images)
        self.accuracy.update(logits, labels)
        return {"loss": cross_entropy(logits, labels), "metrics": {"accuracy": self.accuracy}}

    def validation_step(self, batch: Batch) -> dict[str, object]:
        """Several metrics at once."""
        images, labels = batch
        logits = self.logits(images)
        self.scores.update(logits, labels)
        return {"loss": cross_entropy(logits, labels), "metrics": {"digits": self.scores}}


def worst_recall(outputs: dict[str, list[Any]], stage: str) -> dict[str, object]:
    """The recall of the class that is recognized worst, from the confusion matrix of a validation pass."""
    if stage != "validation":
        return {}
    (confusion,) = outputs["digits_confusion"]
    return {"worst_recall": (confusion.diagonal() / confusion.sum(dim=1)).min()}


class ShuffledBatches:
    """Batches in another order in each epoch."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        """Keep the data."""
        self._data = images, labels

    def __iter__(self) -> Iterator[Batch]:
        images, labels = self._data
        for chosen in torch.randperm(len(labels)).split(BATCH_SIZE):
            yield images[chosen], labels[chosen]


def main() -> None:
    """Train, then print the held-out scores."""
    torch.manual_seed(0)
    digits: Any = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    train, held_out = order[:-HELD_OUT], order[-HELD_OUT:]
    model = Perceptron()
    result = fit(
        model,
        model.training_step,
        ShuffledBatches(images[train], labels[train]),
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
        max_epochs=EPOCHS,
        validation_step=model.validation_step,
        validation_batches=[(images[chosen], labels[chosen]) for chosen in held_out.split(BATCH_SIZE)],
        epoch_end=worst_recall,
    )
    last = result.history[-1]
    predicted = model.logits(images[held_out]).argmax(dim=1)
    expected = f1_score(labels[held_out], predicted, average="macro")
    print(f"macro F1 {last['val_digits_f1']:.4f}, by scikit-learn {expected:.4f}")
    print(f"recall of the worst class {last['val_worst_recall']:.4f}")


if __name__ == "__main__":
    main()
