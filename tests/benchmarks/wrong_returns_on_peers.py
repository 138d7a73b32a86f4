"""Eighteen wrong returns of a training step on each peer: the first line that the user sees, without and with a check.

    python tests/benchmarks/wrong_returns_on_peers.py

"silence" is a run of three steps that ends as if all were well. What is written by hand in these loops, it writes as
each peer's guide does: the loss is what was returned, or stands under `loss`.
"""

import contextlib
import functools
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"  # Keras reads it once, when it is imported

import keras
import torch
from accelerate import Accelerator
from eighteen import EIGHTEEN, OPTIONS, Wrong  # type: ignore[import-not-found]  # beside this file
from ignite.engine import Engine
from lightning.fabric import Fabric
from skorch import NeuralNet
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from strictstep.schema import StepOutputError, TrainingOutput, validate_step
from strictstep.schema.integrations import skorch, transformers

WIDTH = 100
X: Any = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))


def loss_of(returned: Any) -> Any:
    """The loss, as loops written by hand read it."""
    if isinstance(returned, TrainingOutput):
        return returned.loss
    return returned["loss"] if isinstance(returned, dict) else returned


def own_loop(step: Wrong) -> None:
    """Three steps of plain torch."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in X.split(8):
        loss = loss_of(step(model, batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def ignite(step: Wrong) -> None:
    """The step inside a process function."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update(engine: Engine, batch: Tensor) -> object:
        returned = step(model, batch)
        optimizer.zero_grad()
        loss_of(returned).backward()
        optimizer.step()
        return returned

    engine = Engine(update)
    engine.logger.setLevel(logging.CRITICAL)
    engine.run(X.split(8), max_epochs=1)


def accelerate(step: Wrong) -> None:
    """A loop of one's own, prepared."""
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(4, 1)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(X, batch_size=8)
    )
    for batch in loader:
        loss = loss_of(step(model, batch))
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()


def fabric(step: Wrong) -> None:
    """A loop of one's own, set up."""
    runs = Fabric(accelerator="cpu", devices=1)
    model = nn.Linear(4, 1)
    prepared, optimizer = runs.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in X.split(8):
        loss = loss_of(step(prepared, batch))
        optimizer.zero_grad()
        runs.backward(loss)
        optimizer.step()


class Model(nn.Module):
    """A model that takes its input by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """To one number for each row."""
        y: Tensor = self.layer(x)
        return y


def by_trainer(step: Wrong, check: Callable[[Any], Any]) -> None:
    """A `compute_loss` of one's own."""

    class Own(Trainer):
        """Its loss is the return."""

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            """The return itself."""
            return step(model, inputs["x"])

    with tempfile.TemporaryDirectory() as folder:
        quiet: Any = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
        arguments = TrainingArguments(output_dir=folder, max_steps=3, per_device_train_batch_size=8, **quiet)
        rows: Any = [{"x": row} for row in X]
        check(Own)(model=Model(), args=arguments, train_dataset=rows).train()


def by_skorch(step: Wrong, check: Callable[[Any], Any]) -> None:
    """A `get_loss` of one's own."""

    class Own(NeuralNet):  # type: ignore[misc]  # skorch has no types
        """Its loss is the return."""

        def get_loss(self, y_pred: Any, y_true: Any, X: Any = None, training: bool = False) -> Any:
            """The return itself."""
            return step(self.module_, X)

    net = check(Own)(Model, nn.MSELoss, batch_size=8, max_epochs=1, verbose=0, train_split=None)
    net.fit(X.numpy(), X[:, :1].numpy())


def by_keras(step: Wrong) -> None:
    """A `train_step` of one's own, as Keras's guide for torch has it."""

    class Own(keras.Model):  # type: ignore[misc]  # Keras has no types
        """Its loss is the return."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = keras.layers.Dense(1)

        def call(self, x: Tensor) -> Any:
            """To one number for each row."""
            return self.layer(x)

        def train_step(self, data: Any) -> Any:
            """Backward, and the optimizer."""
            loss = loss_of(step(self, data[0]))
            self.zero_grad()
            loss.backward()
            with torch.no_grad():
                weights = self.trainable_weights[:]
                self.optimizer.apply([weight.value.grad for weight in weights], weights)
            return {"loss": loss.detach()}

    model: Any = Own()
    model.compile(optimizer="sgd")
    model.fit(X, X[:, :1], batch_size=8, verbose=0)


Run = Callable[[Wrong], None]


def in_a_loop(run: Run) -> tuple[Run, Callable[..., Run]]:
    """A peer whose users call their step themselves: the decorator is above that step."""
    return run, lambda **options: lambda step: run(validate_step(stage="training", **options)(step))


def in_a_class(run: Callable[..., None], checked: Callable[[Any], Any]) -> tuple[Run, Callable[..., Run]]:
    """A peer whose users derive a class: the decorator is above that class; without it, they take the loss out."""

    def plain(step: Wrong) -> None:
        run(lambda model, batch: loss_of(step(model, batch)), check=lambda kind: kind)

    return plain, lambda **options: functools.partial(run, check=checked)


PEERS: dict[str, tuple[Run, Callable[..., Run]]] = {
    "own loop": in_a_loop(own_loop),
    "Ignite": in_a_loop(ignite),
    "Accelerate": in_a_loop(accelerate),
    "Fabric": in_a_loop(fabric),
    "Transformers": in_a_class(by_trainer, transformers.checked),
    "skorch": in_a_class(by_skorch, skorch.checked),
    "Keras": in_a_loop(by_keras),
}


def first_line(run: Run, step: Wrong) -> str:
    """The first line of the error (of ours, the first problem), or that there was none."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            run(step)
        except StepOutputError as error:
            return "ours: " + str(error.problems[0]).splitlines()[0].strip()
        except Exception as error:
            text = str(error).strip().splitlines() or [""]
            return f"{type(error).__name__}: {text[0]}"[:WIDTH]
    return "silence"


def main() -> None:
    """Print the table, and count the cells."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    seen: dict[str, list[str]] = {"without": [], "with": []}
    for name, step in EIGHTEEN.items():
        print(name)
        for peer, (plain, checked) in PEERS.items():
            cells = {"without": first_line(plain, step), "with": first_line(checked(**OPTIONS.get(name, {})), step)}
            for column, cell in cells.items():
                seen[column].append(cell)
            print(f"    {peer:12} without  {cells['without']}\n    {'':12} with     {cells['with']}")
    for column, all_cells in seen.items():
        ours = sum(cell.startswith("ours: ") for cell in all_cells)
        print(f"{column}: {len(all_cells)} cells, {all_cells.count('silence')} silence, {ours} ours")


if __name__ == "__main__":
    main()
