"""Handwritten digits with Accelerate: the decorator on the step is the one line; the loss goes to its `backward`.

    python examples/accelerate_loop.py

With Fabric it is the same: `fabric.setup`, `fabric.backward(output.loss)`, `fabric.log_dict({**output.log})`.
"""

from typing import Any

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from strictstep.schema import SkippedStep, validate_step

Batch = list[Tensor]  # images float32[N, 64] in 0..1, labels int64[N]


@validate_step
def training_step(model: nn.Module, batch: Batch) -> dict[str, object]:
    """One batch; `loss` is the mean cross-entropy in nats."""
    images, labels = batch
    logits = model(images)
    accuracy = (logits.argmax(dim=1) == labels).float().mean()
    return {"loss": cross_entropy(logits, labels), "log": {"accuracy": accuracy}}


def main() -> None:
    """Train for ten epochs, and print the accuracy of the last batch, over all processes."""
    torch.manual_seed(0)
    digits: Any = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(digits.target)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    loader = DataLoader(TensorDataset(images, labels), batch_size=64)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01), loader)
    accuracy = torch.zeros(())
    for _ in range(10):
        for batch in loader:
            with accelerator.accumulate(model):
                output = training_step(model, batch)
                if isinstance(output, SkippedStep):
                    continue
                accelerator.backward(output.loss)
                optimizer.step()
                optimizer.zero_grad()
                accuracy = accelerator.reduce(output.log["accuracy"], "mean")
    print(f"accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
