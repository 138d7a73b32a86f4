"""A LightningModule whose steps are checked by one line each, on scikit-learn's handwritten digits.

    python examples/lightning_module.py

What a step returns under `log` goes to `self.log_dict`, under `progress_bar` to the bar, and the hooks get `metrics`.
"""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from typing_extensions import TypedDict

from strictstep.schema import Scalar, TrainingOutput
from strictstep.schema.integrations.lightning import checked_step

Batch = list[Tensor]


class DigitsLog(TypedDict):
    """What is logged of each batch."""

    loss: Scalar
    accuracy: Scalar


class DigitsOutput(TrainingOutput[DigitsLog]):
    """What the training step returns."""


class Digits(LightningModule):
    """Two layers over 8 x 8 pixels."""

    def __init__(self, lr: float = 3e-3) -> None:
        """Make the layers."""
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    @checked_step(schema=DigitsOutput)
    def training_step(self, batch: Batch) -> Any:
        """One batch; `loss` is the mean cross-entropy in nats."""
        images, labels = batch
        logits = self.layers(images)
        loss = nn.functional.cross_entropy(logits, labels)
        accuracy = (logits.argmax(dim=1) == labels).float().mean()
        return {"loss": loss, "log": {"loss": loss, "accuracy": accuracy}, "progress_bar": ["accuracy"]}

    @checked_step
    def test_step(self, batch: Batch) -> Any:
        """One batch without gradients."""
        images, labels = batch
        return {"log": {"held_out_accuracy": (self.layers(images).argmax(dim=1) == labels).float().mean()}}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])


def load_batches() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """The images and labels for training and the held-out ones."""
    digits: Any = load_digits()
    rows = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    train, held_out = random_split(rows, [0.8, 0.2], generator=torch.Generator().manual_seed(0))
    return DataLoader(train, batch_size=64, shuffle=True), DataLoader(held_out, batch_size=64)


def main() -> None:
    """Train, then print the held-out accuracy."""
    torch.manual_seed(0)
    train, held_out = load_batches()
    trainer = Trainer(accelerator="cpu", max_epochs=20, logger=False, enable_checkpointing=False)
    module = Digits()
    trainer.fit(module, train)
    [results] = trainer.test(module, held_out, verbose=False)
    print(f"held-out accuracy {results['held_out_accuracy']:.1%}")


if __name__ == "__main__":
    main()
