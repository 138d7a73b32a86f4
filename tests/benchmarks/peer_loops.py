"""The loops that `peers.py` compares: one weight, trained for an epoch by each of them, and what it was trained by."""

import os
from collections.abc import Callable, Iterable
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # all of it on the CPU, where Accelerate and Lightning would choose otherwise

import lightning
import torch
from accelerate import Accelerator
from ignite.engine import Engine, supervised_training_step
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from strictstep.loop import fit

Step = Callable[[Any, Tensor], Any]


class Weight(lightning.LightningModule):
    """One weight; as a LightningModule it runs in Lightning's Trainer, and as a module everywhere else."""

    def __init__(self, step: Step, optimizer: type[Optimizer], **options: Any) -> None:
        """Keep the step, and make what it is trained by."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.step = step
        self.gradients: list[float] = []
        self.losses: list[float] = []
        self.batches = self.scheduler_steps = 0
        self.optimizer = noting(optimizer, self)([self.weight], **options)
        self.scheduler = LambdaLR(self.optimizer, self._rate)

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        """The step, as Lightning calls it."""
        self.batches += 1
        return self.step(self, batch)

    def configure_optimizers(self) -> Any:
        """As Lightning asks for them."""
        schedule = {"scheduler": self.scheduler, "interval": "step"}
        return {"optimizer": self.optimizer, "lr_scheduler": schedule}

    def on_train_batch_end(self, outputs: Any, batch: Tensor, batch_idx: int) -> None:
        """What Lightning shows its users of the loss."""
        if outputs:
            self.losses.append(float(outputs["loss"]))

    def forward(self, batch: Tensor) -> Tensor:
        """The loss itself."""
        return self.weight * batch.mean()

    def _rate(self, steps: int) -> float:
        self.scheduler_steps = steps
        return 1.0


def noting(kind: type[Optimizer], model: Weight) -> Any:
    """A class of optimizer that notes the gradient that each evaluation leaves, or the one it steps on."""

    def step(self: Any, closure: Callable[[], Any] | None = None) -> Any:
        def noted() -> Any:
            loss = closure() if closure is not None else None
            model.gradients += [] if model.weight.grad is None else [round(model.weight.grad.item(), 4)]
            return loss

        if kind is LBFGS:
            return kind.step(self, noted)
        noted()
        return kind.step(self)

    return type(kind.__name__, (kind,), {"step": step})


def lightnings(model: Weight, batches: list[float], accumulation: int = 1) -> lightning.Trainer:
    """One epoch in Lightning's Trainer."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        accumulate_grad_batches=accumulation,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader(batches))
    return trainer


def ours(model: Weight, batches: list[float], accumulation: int = 1) -> Any:
    """One epoch in `fit`."""

    def counted(model: Any, batch: Tensor) -> Any:
        return model.training_step(batch, 0)

    return fit(
        model,
        counted,
        loader(batches),
        optimizer=model.optimizer,
        scheduler=model.scheduler,
        scheduler_interval="step",
        max_epochs=1,
        gradient_accumulation_steps=accumulation,
        after_step=lambda report: model.losses.extend([] if report.loss is None else [report.loss.item()]),
        progress_bar=False,
    )


def ignites(model: Weight, batches: list[float], accumulation: int = 1) -> None:
    """One epoch in Ignite, by its own training step."""
    step = supervised_training_step(
        model,
        model.optimizer,
        lambda loss, _: loss,
        device="cpu",
        prepare_batch=lambda batch, device, non_blocking: (batch, batch),
        gradient_accumulation_steps=accumulation,
    )
    Engine(step).run(loader(batches), max_epochs=1)


def accelerates(model: Weight, batches: list[float], accumulation: int = 1) -> None:
    """One epoch in the loop that Accelerate's documentation shows."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    prepared, optimizer, data = accelerator.prepare(model, model.optimizer, loader(batches))
    for batch in data:
        with accelerator.accumulate(prepared):
            accelerator.backward(prepared(batch))
            optimizer.step()
            optimizer.zero_grad()


def loader(batches: Iterable[float]) -> Any:
    """Batches of one example."""
    return DataLoader([torch.tensor(value) for value in batches], batch_size=1)  # type: ignore[arg-type]
