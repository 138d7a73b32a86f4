"""How what a checked step returns is logged, and what the options of the Lightning check refuse."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader
from typing_extensions import TypedDict

from strictstep.schema import EvaluationOutput, ManualOutput, Reduce, Scalar, SkippedStep, StepOutputError
from strictstep.schema.integrations.lightning import checked, checked_step

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers", "ignore:.*treespec, LeafSpec", "ignore:.*no `val_dataloader`"
)


class Net(LightningModule):
    """A layer whose steps return what they are given to return."""

    def __init__(self, returned: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.returned = returned

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        return self.returned(self, batch)

    def validation_step(self, batch: Tensor, batch_idx: int) -> Any:
        return self.returned(self, batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def rows(count: int = 20) -> DataLoader[Any]:
    """Rows in batches of eight."""
    data: Any = torch.arange(4.0 * count).reshape(count, 4)
    return DataLoader(data, batch_size=8)


def trainer(**options: Any) -> Trainer:
    """A quiet trainer for one epoch on the CPU."""
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return Trainer(**{"accelerator": "cpu", "max_epochs": 1, **quiet, **options})


class CountLog(TypedDict):
    """A count that is summed over the epoch, and a share that is averaged."""

    images: Annotated[Scalar, Reduce("sum")]
    share: Scalar


class LastLog(TypedDict):
    """A value that Lightning has no reduction for."""

    rate: Annotated[Scalar, Reduce("last")]


class CountOutput(EvaluationOutput[CountLog]):
    """An evaluation with those names."""


def test_the_reductions_of_a_schema_are_lightnings() -> None:
    module = Net(lambda self, batch: {"log": {"images": len(batch), "share": len(batch) / 8}})
    [values] = trainer().validate(checked(module, schemas={"validation_step": CountOutput}), rows(), verbose=False)
    assert values == {"images": 20.0, "share": pytest.approx((8 + 8 + 4 * 0.5) / 20)}


def test_a_name_in_both_fields_is_the_value_of_log_and_one_in_the_bar_alone_is_not_logged(tmp_path: Path) -> None:
    def returned(self: Any, batch: Tensor) -> Any:
        loss = self.layer(batch).mean()
        return {"loss": loss, "log": {"a": 1.0, "b": 2.0}, "progress_bar": {"a": 9.0, "c": 3.0}}

    run = trainer(logger=CSVLogger(tmp_path), log_every_n_steps=1)
    run.fit(checked(Net(returned)), rows())
    assert run.progress_bar_metrics == {"a": 1.0, "c": 3.0}
    assert run.logged_metrics == {"a": 1.0, "b": 2.0}
    assert (tmp_path / "lightning_logs/version_0/metrics.csv").read_text().splitlines()[1] == "1.0,2.0,0,0"


def test_log_options_are_passed_on() -> None:
    module = Net(lambda self, batch: {"loss": self.layer(batch).mean(), "log": {"a": float(len(batch))}})
    run = trainer()
    run.fit(checked(module, log_options={"on_step": False, "on_epoch": True, "batch_size": 1}), rows())
    assert run.callback_metrics["a"] == (8 + 8 + 4) / 3


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")  # Lightning's, once in a process
def test_a_skipped_step_logs_and_trains_nothing() -> None:
    module = Net(lambda self, batch: SkippedStep(reason="no boxes", log={"boxes": 0}))
    before = module.layer.weight.detach().clone()
    run = trainer()
    run.fit(checked(module), rows())
    assert run.callback_metrics == {"boxes": 0.0}
    assert torch.equal(before, module.layer.weight)


def test_a_step_called_by_another_step_is_the_other_ones_business() -> None:
    calls: list[Any] = []

    class Shared(Net):
        @checked_step
        def validation_step(self, batch: Tensor, batch_idx: int) -> Any:
            calls.append(self.training_step(batch, batch_idx))
            return {"loss": calls[-1]["loss"], "log": {"val": 1.0}}

        @checked_step
        def training_step(self, batch: Tensor, batch_idx: int) -> Any:
            returned = super().training_step(batch, batch_idx)
            calls.append(returned)
            return {**returned, "log": {**returned["log"], "child": 2.0}}

    run = trainer()
    returned: Any = {"log": {"sum": 1.0}}
    run.fit(Shared(lambda self, batch: {**returned, "loss": self.layer(batch).mean()}), rows(), rows())
    assert set(run.callback_metrics) == {"val", "sum", "child"}
    assert all(list(call)[-1] in ("loss", "log") for call in calls)


def test_a_step_called_outside_a_run_is_checked_and_logs_nothing() -> None:
    module = checked(Net(lambda self, batch: {"loss": self.layer(batch).mean(), "log": {"a": 1}}))
    trainer().fit(module, rows())
    outputs: Any = module.training_step(torch.ones(2, 4), 0)
    assert outputs["log"] == {"a": 1}
    assert outputs["loss"].requires_grad
    with pytest.raises(StepOutputError, match=r"^training step `Net.training_step` returned an invalid output at bat"):
        checked(Net(lambda self, batch: 1.0)).training_step(torch.ones(2, 4), batch_idx=7)


def test_nothing_is_logged_in_a_barebones_run() -> None:
    module = checked(Net(lambda self, batch: {"loss": self.layer(batch).mean(), "log": {"a": 1}}))
    Trainer(accelerator="cpu", barebones=True, max_steps=2).fit(module, rows())


def test_strict_and_schemas_hold_for_the_steps_they_are_for() -> None:
    module = checked(Net(lambda self, batch: {"loss": self.layer(batch).mean(), "logs": {}}), strict=True)
    with pytest.raises(StepOutputError, match="key_unknown"):
        trainer().fit(module, rows())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"schema": dict}, TypeError, "expected a subclass of `TrainingOutput` as `schema`"),
        ({"schema": CountOutput}, ValueError, "expected a subclass of `TrainingOutput` for the stage 'training'"),
        ({"strict": 1}, TypeError, "expected True or False as `strict`, got int 1"),
        ({"on_none": "raise"}, ValueError, "expected 'skip' or 'error' as `on_none`, got str 'raise'"),
        ({"log_options": {"prog_bar": True}}, TypeError, r"expected options of `log_dict` \(add_dataloader_idx, .*got"),
    ],
)
def test_options_are_checked_at_decoration(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        checked_step(**options)(Net.training_step)


def test_a_reduction_that_lightning_lacks_is_refused() -> None:
    with pytest.raises(TypeError, match=r"got `last` for `rate`\n  help: log it with another reduction"):
        checked_step(schema=EvaluationOutput[LastLog])(Net.validation_step)


def test_what_is_no_step_or_no_lightning_module_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected a method named `training_step`, .*`forward`"):
        checked_step(Net.forward)
    with pytest.raises(TypeError, match="expected a LightningModule, got Linear"):
        checked(torch.nn.Linear(4, 1))
    with pytest.raises(TypeError, match=r"expected a module that defines .* got `LightningModule`"):
        checked(LightningModule())
    with pytest.raises(ValueError, match=r"expected schemas for .*, got one for `test_step`"):
        checked(Net(lambda self, batch: None), schemas={"test_step": EvaluationOutput})


def test_a_schema_for_the_other_way_of_optimization_is_said_at_the_first_step() -> None:
    module = checked(Net(lambda self, batch: None), schemas={"training_step": ManualOutput})
    with pytest.raises(TypeError, match=r"schema for the stage 'training' of `Net.training_step`, got `ManualOutput`"):
        trainer().fit(module, rows())
