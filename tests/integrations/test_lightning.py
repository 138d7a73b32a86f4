"""Checked LightningModules in Lightning's own Trainer: what is trained, logged and handed to the hooks."""

import copy
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from strictstep.schema import StepOutputError
from strictstep.schema.integrations.lightning import checked, checked_step

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:.*treespec, LeafSpec",
    "ignore:.*no `val_dataloader`",
    "ignore:.*none of the five fields.*`foo`",
)

EIGHTEEN = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks/eighteen.py"))
STEPS = 24
Batch = Tensor


class Net(LightningModule):
    """Two layers with dropout, whose steps return all five fields and a name of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
        self.outputs: list[Any] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        output = self.layers(batch)
        loss = output.pow(2).mean()
        return {
            "loss": loss,
            "log": {"loss": loss, "images": len(batch), "positive": (output > 0).sum()},
            "progress_bar": {"loss": loss, "batch": batch_idx},
            "hiddens": output,
            "metrics": {"predictions": output},
            "foo": 123,
        }

    def validation_step(self, batch: Batch) -> Any:
        return {"loss": self.layers(batch).pow(2).mean(), "log": {"total": self.layers(batch).sum()}}

    def test_step(self, batch: Batch) -> Any:
        return self.layers(batch).pow(2).mean()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.outputs.append(outputs)

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.outputs.append(outputs)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.05)


class Decorated(Net):
    """The same steps, decorated."""

    training_step = checked_step(Net.training_step)
    validation_step = checked_step(Net.validation_step)
    test_step = checked_step(Net.test_step)


class ByHand(Net):
    """The same step in manual optimization."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        returned = super().training_step(batch, batch_idx)
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(returned["loss"])
        optimizer.step()
        return returned


def batches(count: int = STEPS) -> DataLoader[Any]:
    """As many batches of eight rows."""
    rows: Any = torch.randn(8 * count, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader(rows, batch_size=8)


def trainer(**options: Any) -> Trainer:
    """A quiet trainer for one epoch on the CPU."""
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return Trainer(**{"accelerator": "cpu", "max_epochs": 1, **quiet, **options})


def seeded(make: Callable[[], LightningModule], **options: Any) -> dict[str, Tensor]:
    """The parameters after training from one seed."""
    torch.manual_seed(0)
    module = make()
    trainer(**options).fit(module, batches(), batches(2))
    assert module.global_step >= STEPS // options.get("accumulate_grad_batches", 1)
    return module.state_dict()


@pytest.mark.parametrize(
    ("unchecked", "with_check"),
    [
        (Net, lambda: checked(Net())),
        (Net, Decorated),
        (Net, lambda: checked(Decorated())),
        (ByHand, lambda: checked(ByHand())),
    ],
    ids=["checked", "decorated", "both", "manual"],
)
def test_training_is_identical_with_and_without_the_check(unchecked: Any, with_check: Any) -> None:
    expected, found = seeded(unchecked), seeded(with_check)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("options", [{"accumulate_grad_batches": 4}, {"precision": "bf16-mixed"}], ids=str)
def test_training_is_identical_with_accumulation_and_in_bfloat16(options: dict[str, Any]) -> None:
    expected, found = seeded(Net, **options), seeded(lambda: checked(Net()), **options)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("make", [lambda: checked(Net()), Decorated, lambda: checked(ByHand())])
def test_log_and_progress_bar_reach_the_trainer(make: Callable[[], Net]) -> None:
    run, module = trainer(), make()
    run.fit(module, batches(3), batches(2))
    assert set(run.logged_metrics) == {"loss", "images", "positive", "total"}
    assert set(run.progress_bar_metrics) == {"loss", "batch"}
    assert run.callback_metrics["images"] == 8
    assert run.callback_metrics["loss"] == module.outputs[-3]["loss"]


@pytest.mark.parametrize("make", [lambda: checked(Net()), Decorated, lambda: checked(ByHand())])
def test_the_hooks_get_what_was_returned_without_a_graph(make: Callable[[], Net]) -> None:
    module = make()
    trainer().fit(module, batches(2))
    outputs = module.outputs[-1]
    assert set(outputs) == {"loss", "log", "progress_bar", "hiddens", "metrics", "predictions", "foo"}
    assert outputs["foo"] == outputs["metrics"]["foo"] == 123
    assert outputs["predictions"] is outputs["metrics"]["predictions"]
    tensors = [outputs["loss"], outputs["hiddens"], outputs["predictions"], outputs["log"]["loss"]]
    assert [tensor.requires_grad for tensor in tensors] == [False] * 4


def test_a_tensor_stays_a_tensor_and_a_dict_a_dict_in_evaluation() -> None:
    module = checked(Net())
    run = trainer()
    run.validate(module, batches(1), verbose=False)
    assert list(module.outputs[-1]) == ["loss", "log"]
    seen: list[Any] = []
    module.on_test_batch_end = lambda outputs, *_: seen.append(outputs)  # type: ignore[method-assign]
    run.test(module, batches(1), verbose=False)
    assert type(seen[0]) is Tensor


@pytest.mark.parametrize(("name", "returned"), EIGHTEEN["EIGHTEEN"].items(), ids=EIGHTEEN["EIGHTEEN"])
def test_every_wrong_return_is_ours_and_trains_nothing(name: str, returned: Any) -> None:
    class Wrong(Net):
        def training_step(self, batch: Batch, batch_idx: int) -> Any:
            return returned(self.layers, batch)

    module = checked(Wrong(), **EIGHTEEN["OPTIONS"].get(name, {}))
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(StepOutputError, match=r"^training step `Wrong.training_step` returned an invalid output at"):
        trainer().fit(module, batches(2))
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())


@pytest.mark.parametrize(
    ("make", "kind"), [(Net, "training step"), (ByHand, "manual training step")], ids=["automatic", "manual"]
)
def test_the_headline_names_module_stage_epoch_batch_and_rank(make: type[Net], kind: str) -> None:
    class Digits(make):  # type: ignore[misc,valid-type]
        @checked_step
        def training_step(self, batch: Batch) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return (self.trainer.global_step, 0) if self.current_epoch else self.layers(batch).sum()

    with pytest.raises(StepOutputError) as caught:
        trainer(max_epochs=2).fit(Digits(), batches(2))
    first, second = str(caught.value).splitlines()[:2]
    assert first == f"{kind} `Digits.training_step` returned an invalid output at epoch 1, batch 0, rank 0 (1 problem)"
    assert second.startswith("  --> ")
    assert second.endswith("Digits.training_step`")


def test_the_batch_of_an_evaluation_step_that_names_none_is_the_trainers() -> None:
    class Digits(Net):
        @checked_step
        def validation_step(self, batch: Batch) -> Any:
            return {"log": {"late": "x" if len(batch) < 8 else 1}}

    rows: Any = torch.ones(20, 4)
    with pytest.raises(StepOutputError, match=r"validation step `Digits.validation_step` .* batch 2, rank 0"):
        trainer().validate(Digits(), DataLoader(rows, batch_size=8), verbose=False)
