"""The peers' loops of `loop_overhead.py`: the same model, step and optimizer, each as its documentation writes it."""

import logging
import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # all of it on the CPU, where Accelerate and Lightning would choose otherwise

import lightning
import torch
from accelerate import Accelerator
from ignite.engine import Engine, Events
from torch import nn

Step = Callable[[Any, Any], dict[str, Any]]
Read = Callable[[Any, Any], float]


class Module(lightning.LightningModule):
    """The model in Lightning, its three values logged by `self.log_dict`."""

    def __init__(self, model: nn.Module, step: Step) -> None:
        """Keep what is trained, and how."""
        super().__init__()
        self.model = model
        self.step = step

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """The step, as Lightning calls it."""
        output = self.step(self.model, batch)
        self.log_dict(output["log"])
        return output["loss"]

    def configure_optimizers(self) -> Any:
        """Plain descent."""
        return descent(self.model)


def descent(model: nn.Module) -> torch.optim.SGD:
    """The optimizer of all of them."""
    return torch.optim.SGD(model.parameters(), lr=0.01)


def lightnings(model: nn.Module, step: Step, batches: Iterable[Any]) -> None:
    """Lightning's Trainer, with nothing on that can be off."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the number of workers, and the like
        trainer.fit(Module(model, step), batches)


def ignites(model: nn.Module, step: Step, batches: Iterable[Any], read: Read) -> None:
    """An engine of Ignite, with a handler that reads the values."""
    optimizer = descent(model)

    def update(engine: Engine, batch: Any) -> Any:
        model.train()
        optimizer.zero_grad()
        output = step(model, batch)
        output["loss"].backward()
        optimizer.step()
        return output

    def log(engine: Engine) -> None:
        output: Any = engine.state.output
        read(output["loss"], output["log"])

    engine = Engine(update)
    engine.add_event_handler(Events.ITERATION_COMPLETED, log)
    engine.run(batches, max_epochs=1)


def accelerates(model: nn.Module, step: Step, batches: Iterable[Any], read: Read) -> None:
    """The loop of Accelerate's documentation."""
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, descent(model))
    for batch in batches:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            output = step(model, batch)
            accelerator.backward(output["loss"])
            optimizer.step()
        read(output["loss"], output["log"])


def fabrics(model: nn.Module, step: Step, batches: Iterable[Any], read: Read) -> None:
    """The loop of Fabric's documentation."""
    fabric: Any = lightning.Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(model, descent(model))
    for batch in batches:
        optimizer.zero_grad()
        output = step(model, batch)
        fabric.backward(output["loss"])
        optimizer.step()
        read(output["loss"], output["log"])
