"""Two ranks on the CPU train a checked module; each writes down what it ended with.

python tests/integrations/lightning_two_ranks.py CASE FOLDER
"""

import logging
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from strictstep.schema import SkippedStep
from strictstep.schema.integrations.lightning import checked


class Net(LightningModule):
    """A linear layer whose second batch is another thing on rank 1."""

    def __init__(self, case: str) -> None:
        """Take the case: `unchecked`, `valid`, `skip`, `skip-everywhere` or `invalid`."""
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.case = case

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        """A loss, but for the case at hand."""
        loss = self.layer(batch).pow(2).mean()
        here = batch_idx == 1 and (self.global_rank == 1 or self.case.endswith("everywhere"))
        if here and self.case.startswith("skip"):
            return SkippedStep(reason="no boxes")
        return loss.item() if here and self.case == "invalid" else {"loss": loss, "log": {"loss": loss}}

    def configure_optimizers(self) -> Any:
        """Plain descent."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Writer(Callback):
    """Writes each rank's end: its error, or its parameters."""

    def __init__(self, folder: Path) -> None:
        """Take the folder to write to."""
        self.folder = folder

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Write the error."""
        text = f"{type(exception).__name__}: {exception}"
        (self.folder / f"rank{trainer.global_rank}.txt").write_text(text)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the parameters."""
        numbers = [value for parameter in pl_module.parameters() for value in parameter.flatten().tolist()]
        (self.folder / f"rank{trainer.global_rank}.txt").write_text(str(numbers))


def main(case: str, folder: Path) -> None:
    """Train 24 steps on each of two ranks."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    module = Net(case) if case == "unchecked" else checked(Net(case))
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    options: Any = {"accelerator": "cpu", "strategy": "ddp", "devices": 2, "max_epochs": 1, **quiet}
    rows: Any = torch.randn(2 * 24 * 4, 4)
    Trainer(callbacks=Writer(folder), **options).fit(module, DataLoader(rows, batch_size=4))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
