"""No growth: the memory of a long run is flat after its first steps."""

import gc
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from strictstep.loop import fit


def training_step(model: Any, batch: Any, hiddens: Any) -> Any:
    loss = model(batch).pow(2).mean()
    return {"loss": loss, "log": {"a": loss * 2, "n": 8}, "metrics": {"m": loss * 3}, "hiddens": loss + 1}


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def growth(steps: int) -> tuple[int, int]:
    """How many bytes and live tensors a run has gained between its first thousand steps and its end."""
    torch.set_num_threads(1)
    model = nn.Linear(4, 1)
    batch = torch.ones(8, 4)
    seen: list[tuple[int, int]] = []
    steps_left = iter(range(1, steps + 1))

    def after_step(report: Any) -> None:
        # Counting takes memory itself, the first time.
        if next(steps_left) in (500, 1000, steps):
            seen.append((resident_bytes(), live_tensors()))

    batches = [batch] * 500
    options: dict[str, Any] = {"after_step": after_step, "carry_hiddens": True, "log_every": 50}
    fit(
        model, training_step, batches, optimizer=SGD(model.parameters(), lr=1e-6), max_epochs=steps // 500,
        progress_bar=False, **options,
    )  # fmt: skip
    _, (bytes_before, tensors_before), (bytes_after, tensors_after) = seen
    return bytes_after - bytes_before, tensors_after - tensors_before


def test_a_run_of_three_thousand_steps_does_not_grow() -> None:
    grown, tensors = growth(3_000)
    assert tensors == 0
    assert grown < 1 << 20


@pytest.mark.slow
def test_a_run_of_fifty_thousand_steps_does_not_grow() -> None:
    grown, tensors = growth(50_000)
    print(f"{grown} bytes, {tensors} live tensors more after 50,000 steps than after 1,000")
    assert tensors == 0
    assert grown < 1 << 20
