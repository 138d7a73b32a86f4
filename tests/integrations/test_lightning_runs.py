"""What Lightning does around a step goes on working: copies, checkpoints, callbacks, compiled modules, Fabric."""

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.fabric.loggers.csv_logs import CSVLogger as FabricLogger
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader

from strictstep.schema import StepOutputError
from strictstep.schema.integrations.lightning import checked, checked_step

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers", "ignore:.*treespec, LeafSpec", "ignore:.*no `val_dataloader`"
)


class Net(LightningModule):
    """A layer that learns its batches, with a hyperparameter."""

    def __init__(self, lr: float = 0.1, broken: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        loss = self.layer(batch).pow(2).mean()
        return {"loss": loss.item() if self.hparams["broken"] else loss, "log": {"loss": loss}}

    def validation_step(self, batch: Tensor) -> Any:
        return {"log": {"val_loss": self.layer(batch).pow(2).mean()}, "progress_bar": ["val_loss"]}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])


class Decorated(Net):
    """The same, decorated."""

    training_step = checked_step(Net.training_step)
    validation_step = checked_step(Net.validation_step)


def rows(count: int = 24) -> DataLoader[Any]:
    """Batches of eight rows."""
    data: Any = torch.randn(8 * count, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader(data, batch_size=8)


def trainer(**options: Any) -> Trainer:
    """A quiet trainer for one epoch on the CPU."""
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return Trainer(**{"accelerator": "cpu", "max_epochs": 1, **quiet, **options})


def through_torch_save(module: Any) -> Any:
    """Save the whole module and load it again."""
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("make", [lambda: checked(Net(broken=True)), lambda: checked(Decorated(broken=True))])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it)), through_torch_save])
def test_the_check_is_copied_and_pickled_with_the_module(make: Callable[[], Net], copied: Callable[[Any], Any]) -> None:
    module = make()
    twin = copied(module)
    assert twin.training_step.module is twin
    assert twin.training_step.step.__self__ is twin
    with pytest.raises(StepOutputError, match="loss_not_tensor"):
        trainer().fit(twin, rows())


def test_the_class_and_other_modules_stay_unchecked() -> None:
    checked(Net())
    assert "training_step" not in vars(Net())
    assert Net(broken=True).training_step(torch.ones(1, 4), 0)["loss"] > 0


def test_a_module_that_is_checked_again_takes_the_new_options() -> None:
    module = checked(checked(Net()), log_options={"on_epoch": True})
    assert module.training_step.step.__func__ is Net.training_step  # type: ignore[attr-defined]
    run = trainer()
    run.fit(module, rows())
    assert set(run.callback_metrics) == {"loss", "loss_step", "loss_epoch"}


@pytest.mark.parametrize("make", [lambda: checked(Net(lr=0.5)), lambda: Decorated(lr=0.5)])
def test_callbacks_loggers_and_checkpoints_work(make: Callable[[], Net], tmp_path: Path) -> None:
    best = ModelCheckpoint(tmp_path / "best", monitor="val_loss")
    callbacks = [best, EarlyStopping("val_loss", patience=1), LearningRateMonitor()]
    options = {"callbacks": callbacks, "logger": CSVLogger(tmp_path), "log_every_n_steps": 1, "max_epochs": 2}
    module = make()
    trainer(enable_checkpointing=True, enable_progress_bar=True, **options).fit(module, rows(), rows(2))
    saved = torch.load(best.best_model_path, weights_only=True)
    assert saved["hyper_parameters"] == {"lr": 0.5, "broken": False}
    assert set(saved["state_dict"]) == {"layer.weight", "layer.bias"}
    again = type(module).load_from_checkpoint(best.best_model_path)
    assert again.hparams["lr"] == 0.5
    assert "val_loss" in (tmp_path / "lightning_logs/version_0/metrics.csv").read_text()


def test_a_checked_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    whole, first = checked(Net()), checked(Net())
    first.load_state_dict(whole.state_dict())
    trainer(max_epochs=2).fit(whole, rows())
    run = trainer()
    run.fit(first, rows())
    run.save_checkpoint(tmp_path / "first.ckpt")
    second = checked(Net())
    trainer(max_epochs=2).fit(second, rows(), ckpt_path=tmp_path / "first.ckpt")
    assert torch.equal(whole.layer.weight, second.layer.weight)


@pytest.mark.parametrize("stage", ["fit", "validate"])
def test_fast_dev_run_works(stage: str) -> None:
    getattr(trainer(fast_dev_run=True), stage)(checked(Net()), rows(2))


@pytest.mark.parametrize(
    "make",
    [
        lambda: checked(torch.compile(Net(), backend="eager")),
        lambda: torch.compile(checked(Net()), backend="eager"),
        lambda: torch.compile(Decorated(), backend="eager"),
    ],
    ids=["checked outside", "checked inside", "decorated"],
)
def test_compiled_modules_train_the_same_in_one_graph(make: Callable[[], Any]) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    plain = Net()
    trainer().fit(plain, rows(), rows(2))
    torch.manual_seed(0)
    run = trainer()
    run.fit(make(), rows(), rows(2))
    trained: Any = run.lightning_module
    assert torch.equal(plain.layer.weight, trained.layer.weight)
    assert set(run.callback_metrics) == {"loss", "val_loss"}
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 3  # training, and validation with its mode


def test_fabric_runs_a_checked_step_and_logs_it(tmp_path: Path) -> None:
    logger = FabricLogger(tmp_path)
    fabric = lightning.Fabric(accelerator="cpu", loggers=logger)
    module: Any = Decorated()
    module.fabric = fabric
    model, optimizer = fabric.setup(module, module.configure_optimizers())
    fabric.backward(model.training_step(torch.ones(8, 4), 0)["loss"])
    optimizer.step()
    logger.save()
    assert next(tmp_path.rglob("metrics.csv")).read_text().startswith("loss,step")
    module.hparams["broken"] = True
    with pytest.raises(StepOutputError, match=r"^training step `Decorated.training_step` .* at batch 3 \(1 problem\)"):
        model.training_step(torch.ones(8, 4), 3)
