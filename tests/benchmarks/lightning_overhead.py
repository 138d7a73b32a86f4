"""What the check costs in each step of Lightning's Trainer, as a share of Lightning's own step, in one run.

    python tests/benchmarks/lightning_overhead.py [rounds]

A tiny MLP (20-32-5, batch 32, SGD, CPU, one thread), for which a step is cheap and the share the largest. The plain
module and the checked one log the same values, each as its authors write it. Each pair of fits gives one ratio; plain
and checked take turns in being first. A step's time is the CPU time between the ends of two batches, a fit's that which
a tenth of them stays below: on a machine that others use too, the clock on the wall and the mean would measure those.
"""

import logging
import statistics
import sys
import time
import warnings
from itertools import pairwise
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from strictstep.schema.integrations.lightning import checked

STEPS = 300


class Plain(LightningModule):
    """Cross-entropy; the loss and the accuracy are logged by hand, the accuracy also in the bar."""

    def __init__(self) -> None:
        """Make the tiny MLP."""
        super().__init__()
        self.model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
        self.ends: list[float] = []

    def loss_and_accuracy(self, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Both of one batch."""
        x, y = batch
        logits = self.model(x)
        return nn.functional.cross_entropy(logits, y), (logits.argmax(1) == y).float().mean()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        """Log by hand."""
        loss, accuracy = self.loss_and_accuracy(batch)
        self.log("loss", loss)
        self.log("accuracy", accuracy, prog_bar=True)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Note the time."""
        self.ends.append(time.process_time())

    def configure_optimizers(self) -> Any:
        """Plain descent."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Returning(Plain):
    """The same, returned."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        """Return what is to be logged."""
        loss, accuracy = self.loss_and_accuracy(batch)
        return {"loss": loss, "log": {"loss": loss, "accuracy": accuracy}, "progress_bar": ["accuracy"]}


class Silent(Plain):
    """The same, without anything logged."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        """Return the loss alone."""
        return self.loss_and_accuracy(batch)[0]


def microseconds(module: Plain, batches: DataLoader[Any]) -> float:
    """Time that a tenth of the steps of one fit stays below."""
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    options: dict[str, Any] = {"accelerator": "cpu", "max_epochs": 1, **quiet}
    Trainer(**options).fit(module, batches)
    times = [end - start for start, end in pairwise(module.ends)]
    return statistics.quantiles(times, n=10)[0] * 1e6


def compare(name: str, plain: type[Plain], returning: type[Plain], rounds: int) -> None:
    """Print the step without the check, and what the check adds to it."""
    rows = TensorDataset(torch.randn(32 * STEPS, 20), torch.randint(0, 5, (32 * STEPS,)))
    batches = DataLoader(rows, batch_size=32)
    before, added = [], []
    for number in range(rounds + 1):
        order = [plain(), checked(returning())][:: 1 if number % 2 else -1]
        times = [microseconds(module, batches) for module in order][:: 1 if number % 2 else -1]
        before.append(times[0])
        added.append(times[1] / times[0] - 1)
    low, middle, high = statistics.quantiles(added[1:], n=4)  # without the first, which warms up
    own = statistics.median(before[1:])
    print(f"{name}: Lightning {own:.0f} us per step; the check adds {middle:+.1%} (quartiles {low:+.1%}, {high:+.1%})")


def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    compare("loss and two logged values", Plain, Returning, rounds)
    compare("a tensor alone", Silent, Silent, rounds)


if __name__ == "__main__":
    main()
