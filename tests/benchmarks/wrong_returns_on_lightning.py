"""Eighteen wrong returns of a training step in Lightning: the first line that the user sees, without and with a check.

    python tests/benchmarks/wrong_returns_on_lightning.py

"silence" is a run that ends as if all were well.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from eighteen import EIGHTEEN, OPTIONS, Wrong  # type: ignore[import-not-found]  # beside this file
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from strictstep.schema import StepOutputError
from strictstep.schema.integrations.lightning import checked

WIDTH = 110
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Net(LightningModule):
    """A linear layer whose training step returns what it is told to."""

    def __init__(self, returned: Wrong) -> None:
        """Keep what makes the return."""
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.returned = returned

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        """One wrong return."""
        return self.returned(self.layer, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain descent."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def first_line(run: Callable[[], object]) -> str:
    """The first line of the error (of ours, the first problem too), or of the warning, or that there was none."""
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("always")
        try:
            run()
        except StepOutputError as error:
            return f"{str(error).splitlines()[0]}\n             {str(error.problems[0]).splitlines()[0].strip()}"
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"[:WIDTH]
    about_the_step = [str(warning.message) for warning in caught if "training_step" in str(warning.message)]
    return f"silence, but for a warning: {about_the_step[0]}" if about_the_step else "silence"


def fit(module: LightningModule) -> None:
    """Train for three batches, as a user does."""
    Trainer(**QUIET, max_steps=3).fit(module, DataLoader(torch.randn(24, 4), batch_size=8))  # type: ignore[arg-type]


def without_and_with(name: str, returned: Wrong) -> tuple[str, str]:
    """What one return gives without a check and with it."""
    options = OPTIONS.get(name, {})
    return first_line(partial(fit, Net(returned))), first_line(lambda: fit(checked(Net(returned), **options)))


def main() -> None:
    """Print the table."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    for name, returned in EIGHTEEN.items():
        without, with_check = without_and_with(name, returned)
        print(f"{name}\n    without: {without}\n    with:    {with_check}")


if __name__ == "__main__":
    main()
