"""Handwritten digits with skorch: a loss of two terms, the second in skorch's history and its table.

python examples/skorch_loop.py
"""

from typing import Any

import torch
from sklearn.datasets import load_digits
from skorch import NeuralNetClassifier
from skorch.callbacks import PassthroughScoring
from torch import nn

from strictstep.schema.integrations.skorch import checked


@checked  # the one line
class DigitsNet(NeuralNetClassifier):  # type: ignore[misc]  # skorch has no types
    """A classifier with a penalty on its weights."""

    def get_loss(self, y_pred: Any, y_true: Any, X: Any = None, training: bool = False) -> Any:
        """The loss and its term; skorch itself takes no mapping."""
        penalty = sum(weights.pow(2).mean() for weights in self.module_.parameters()) * 0.1
        return {"loss": super().get_loss(y_pred, y_true, X, training) + penalty, "log": {"penalty": penalty}}


def main() -> None:
    """Train for ten epochs, and print skorch's table and the accuracy on its held-out part."""
    torch.manual_seed(0)
    digits: Any = load_digits()
    criterion: Any = nn.CrossEntropyLoss
    net = DigitsNet(
        nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        criterion=criterion,
        optimizer=torch.optim.AdamW,
        lr=0.01,
        max_epochs=10,
        callbacks=[PassthroughScoring("train_penalty", on_train=True)],
    )
    net.fit((digits.data / 16).astype("float32"), digits.target)
    print(f"held-out accuracy {net.history[-1, 'valid_acc']:.1%}")


if __name__ == "__main__":
    main()
