"""Handwritten digits with Ignite: the step is checked before backward, and its fields feed the metrics and the bar.

python examples/ignite_loop.py
"""

from typing import Any

import torch
from ignite.engine import Engine
from ignite.handlers import ProgressBar
from ignite.metrics import RunningAverage
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from strictstep.schema import validate_step

Batch = tuple[Tensor, Tensor]  # images float32[N, 64] in 0..1, labels int64[N]


@validate_step  # the one line; the output is what the engine keeps as `engine.state.output`
def training_step(model: nn.Module, batch: Batch) -> dict[str, object]:
    """One batch; `loss` is the mean cross-entropy in nats."""
    images, labels = batch
    logits = model(images)
    accuracy = (logits.argmax(dim=1) == labels).float().mean()
    return {"loss": cross_entropy(logits, labels), "log": {"accuracy": accuracy}, "progress_bar": ["accuracy"]}


def main() -> None:
    """Train for ten epochs, and print the running accuracy."""
    torch.manual_seed(0)
    digits: Any = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def update(engine: Engine, batch: Batch) -> object:
        output = training_step(model, batch)
        if output.loss is not None:  # it is None in a `SkippedStep`
            optimizer.zero_grad()
            output.loss.backward()
            optimizer.step()
        return output

    trainer = Engine(update)
    RunningAverage(output_transform=lambda output: output.log["accuracy"]).attach(trainer, "accuracy")
    ProgressBar().attach(trainer, output_transform=lambda output: output.progress_bar)
    trainer.run(list(zip(images.split(64), labels.split(64), strict=True)), max_epochs=10)
    print(f"running accuracy {trainer.state.metrics['accuracy']:.1%}")


if __name__ == "__main__":
    main()
