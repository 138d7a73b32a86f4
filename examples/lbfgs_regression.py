"""Linear regression by LBFGS with gradient accumulation: it reaches the closed-form least-squares solution.

    python examples/lbfgs_regression.py

The data are scikit-learn's diabetes records: 442 patients, ten measurements each, shipped with that package. A window
of seven micro-batches, the last of them shorter, holds them all; LBFGS evaluates it many times in one step, each time
whole. Takes a few seconds.
"""

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from strictstep.loop import StepReport, fit

MICRO_BATCH = 64
STEPS = 5

Batch = tuple[Tensor, Tensor]  # measurements float64[N, 10], disease progression float64[N]


def training_step(model: nn.Module, batch: Batch) -> Tensor:
    """Mean squared error of one micro-batch."""
    measurements, progression = batch
    return mse_loss(model(measurements).squeeze(1), progression)


def load_data() -> Batch:
    """The records; each column with mean 0 and variance 1."""
    measurements, progression = load_diabetes(return_X_y=True)
    columns = np.column_stack([measurements, progression])
    scaled = torch.tensor((columns - columns.mean(axis=0)) / columns.std(axis=0))
    return scaled[:, :-1], scaled[:, -1]


def least_squares(data: Batch) -> Tensor:
    """The exact weights, and the intercept behind them: float64[11]."""
    measurements, progression = (values.numpy() for values in data)
    columns = np.column_stack([measurements, np.ones(len(measurements))])
    return torch.tensor(np.linalg.lstsq(columns, progression, rcond=None)[0])


def main() -> None:
    """Fit, then print how far the weights are from the exact ones."""
    torch.manual_seed(0)
    data = load_data()
    batches: list[Any] = list(zip(*(values.split(MICRO_BATCH) for values in data), strict=True))
    model = nn.Linear(10, 1).double()
    evaluations: list[int] = []

    def count(report: StepReport) -> None:
        evaluations.append(report.evaluations)

    fit(
        model,
        training_step,
        batches,
        optimizer=torch.optim.LBFGS(model.parameters(), tolerance_change=1e-15, line_search_fn="strong_wolfe"),
        max_epochs=STEPS,
        gradient_accumulation_steps=len(batches),
        after_step=count,
    )
    exact = least_squares(data)
    found = torch.cat([model.weight.detach().flatten(), model.bias.detach()])
    distance = float((found - exact).norm() / exact.norm())
    print(f"micro-batches of {[len(batch[0]) for batch in batches]} patients, {sum(evaluations)} evaluations")
    print(f"relative distance to the least-squares solution: {distance:.1e}")


if __name__ == "__main__":
    main()
