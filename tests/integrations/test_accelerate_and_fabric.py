"""Checked steps in a loop of one's own that Accelerate or Fabric prepares."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import DataLoader

from strictstep.schema import StepOutputError, validate_step

DATA: Any = torch.randn(160, 4, generator=torch.Generator().manual_seed(1))

# Each peer's own, and nothing of ours.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"),
]


class Net(nn.Module):
    """A small net with dropout, so that random numbers count too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Linear(4, 1))

    def forward(self, batch: Tensor) -> Tensor:
        """To one number for each row."""
        y: Tensor = self.layers(batch)
        return y

    @validate_step
    def training_step(self, batch: Tensor) -> object:
        """A step that is a method."""
        return {"loss": self(batch).pow(2).mean()}


def training_step(model: nn.Module, batch: Tensor) -> dict[str, Any]:
    """One batch, its `loss` and what to log of it."""
    loss = model(batch).pow(2).mean()
    return {"loss": loss, "log": {"rms": loss.detach().sqrt(), "rows": len(batch)}}


def by_accelerate(step: Callable[..., Any], read_loss: Callable[[Any], Tensor], **options: Any) -> nn.Module:
    """A model after two epochs of ten batches, accumulated by pairs."""
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, **options)
    model = Net()
    prepared, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=0.01), DataLoader(DATA, batch_size=8)
    )
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(prepared):
                output = step(prepared, batch)
                accelerator.backward(read_loss(output))
                optimizer.step()
                optimizer.zero_grad()
    return model


def by_fabric(step: Callable[..., Any], read_loss: Callable[[Any], Tensor], **options: Any) -> nn.Module:
    """A model after two epochs of twenty batches."""
    fabric = Fabric(accelerator="cpu", devices=1, **options)
    model = Net()
    prepared, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    loader = fabric.setup_dataloaders(DataLoader(DATA, batch_size=8))
    for _ in range(2):
        for batch in loader:
            output = step(prepared, batch)
            optimizer.zero_grad()
            fabric.backward(read_loss(output))
            optimizer.step()
    return model


@pytest.mark.parametrize("train", [by_accelerate, by_fabric])
@pytest.mark.parametrize("options", [{}, {"bf16": True}], ids=["fp32", "bf16"])
def test_parameters_are_those_of_the_unchecked_run(train: Callable[..., nn.Module], options: dict[str, bool]) -> None:
    bf16 = {"mixed_precision": "bf16"} if train is by_accelerate else {"precision": "bf16-mixed"}
    given = bf16 if options else {}
    plain = train(training_step, lambda output: output["loss"], **given)
    checked = train(validate_step(training_step), lambda output: output.loss, **given)
    assert not torch.equal(next(Net().parameters()), next(checked.parameters()))
    for reference, parameter in zip(plain.parameters(), checked.parameters(), strict=True):
        assert torch.equal(reference, parameter)


def test_accelerate_logs_and_gathers_what_the_fields_hold() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True)
    output = validate_step(training_step)(Net(), DATA[:8])
    gathered: Any = accelerator.gather({"rms": output.log["rms"]})
    assert gathered["rms"].shape == ()
    accelerator.log({**output.log}, step=0)


def test_a_checked_method_runs_through_fabrics_wrapper() -> None:
    fabric = Fabric(accelerator="cpu", devices=1)
    model: Any = fabric.setup_module(Net())
    model.mark_forward_method("training_step")
    output = model.training_step(DATA[:8])
    fabric.backward(output.loss)
    assert model.layers[0].weight.grad is not None


@pytest.mark.parametrize("train", [by_accelerate, by_fabric])
def test_a_wrong_return_stops_the_run_with_the_report(train: Callable[..., nn.Module]) -> None:
    @validate_step
    def wrong(model: nn.Module, batch: Tensor) -> object:
        return {"loss": model(batch).pow(2)}

    with pytest.raises(
        StepOutputError, match=r"loss: expected a differentiable scalar \(shape `\[\]`\), got float32\[8"
    ):
        train(wrong, lambda output: output.loss)
