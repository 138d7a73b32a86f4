"""What trains nothing, or something else than was meant, is an error instead of a plausible history."""

import pytest
import torch
from torch import nn

from strictstep.loop import AutomaticOptimization, LoopError, fit
from strictstep.loop.early_stopping import require_known


@pytest.mark.parametrize("max_epochs", [1, None])
def test_optimizers_that_no_step_steps_are_an_error_and_not_a_run_without_training(max_epochs: int | None) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).pow(2).mean()  # type: ignore[no-any-return]

    with pytest.raises(LoopError, match=r"got none in 3 batches  \[nothing_stepped\]"):
        fit(
            model,
            step,
            [torch.ones(8, 4)] * 3,
            optimizer=[optimizer],
            max_epochs=max_epochs,
            max_steps=5,
            progress_bar=False,
        )


def test_a_scheduler_of_another_optimizer_is_refused() -> None:
    model = nn.Linear(4, 1)
    optimizer, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    scheduler = torch.optim.lr_scheduler.StepLR(other, 1)
    with pytest.raises(LoopError, match=r"expected a scheduler of the optimizer that trains"):
        fit(
            model,
            lambda model, batch: model(batch).mean(),
            [torch.ones(8, 4)],
            optimizer=optimizer,
            max_epochs=1,
            scheduler=scheduler,
            progress_bar=False,
        )


def test_a_tensor_is_no_window_of_batches() -> None:
    model = nn.Linear(4, 1)
    optimization = AutomaticOptimization(
        model, lambda model, batch: model(batch).mean(), torch.optim.SGD(model.parameters(), lr=0.1)
    )
    with pytest.raises(LoopError, match=r"expected a list of batches as window, got float32\[8, 4\] tensor on cpu"):
        optimization.step_window(torch.ones(8, 4))  # type: ignore[arg-type]


@pytest.mark.parametrize("monitor", ["valid_loss", "validation_loss"])
def test_the_name_that_another_library_gives_a_validation_value_is_near(monitor: str) -> None:
    with pytest.raises(LoopError, match=r"help: write `val_loss`"):
        require_known(monitor, "early_stopping", ["loss", "val_loss"])


def test_a_validation_value_without_validation_gets_its_own_help() -> None:
    with pytest.raises(LoopError, match=r"help: .*give `validation_step` and `validation_batches`"):
        require_known("val_accuracy", "early_stopping", ["loss", "accuracy"])
