"""What `AutomaticOptimization.step` costs next to a bare PyTorch closure loop, as a ratio within one run.

    python tests/benchmarks/loop_overhead.py [blocks]

A tiny MLP (20-32-5, batch 32, SGD, CPU, one thread) that logs three values. Blocks of ours stand between two blocks of
the bare loop, which reads the same values; pairs whose bare blocks disagree by more than 6 % are left out. The median
of the ratios is given, and how far they spread.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from strictstep.loop import AutomaticOptimization

STEPS = 400
AGREE = 1.06
Batch = tuple[Tensor, Tensor]


def make_model() -> nn.Module:
    """The tiny MLP."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))


def training_step(model: nn.Module, batch: Batch) -> dict[str, Any]:
    """Cross-entropy, and three values to log."""
    x, y = batch
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    accuracy = (logits.argmax(1) == y).float().mean()
    return {"loss": loss, "log": {"loss": loss, "accuracy": accuracy, "examples": len(y)}}


def bare_loop(batches: list[Batch]) -> Callable[[], None]:
    """The closure loop that a careful author writes by hand, reading the loss and what is logged."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> None:
        for batch in batches:
            kept: dict[str, Any] = {}

            def closure(batch: Batch = batch, kept: dict[str, Any] = kept) -> Tensor:
                optimizer.zero_grad()
                output = training_step(model, batch)
                output["loss"].backward()
                kept.update(output)
                return kept["loss"]  # type: ignore[no-any-return]

            optimizer.step(closure)
            read(kept["loss"], kept["log"])

    return run


def our_loop(batches: list[Batch]) -> Callable[[], None]:
    """The same steps by `AutomaticOptimization.step`."""
    model = make_model()
    optimization = AutomaticOptimization(model, training_step, torch.optim.SGD(model.parameters(), lr=0.01))

    def run() -> None:
        for batch in batches:
            report = optimization.step(batch)
            read(report.loss, report.output.log)

    return run


def read(loss: Any, log: Any) -> float:
    """Read every value, as a logger does."""
    numbers = [value.item() if isinstance(value, Tensor) else value for value in log.values()]
    return sum(numbers, loss.item())


def seconds(run: Callable[[], None]) -> float:
    """Time of one block."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def ratios(blocks: int) -> list[float]:
    """The ratio of each block of ours to the mean of the two bare blocks around it."""
    batches = [(torch.randn(32, 20), torch.randint(0, 5, (32,))) for _ in range(STEPS)]
    bare, ours = bare_loop(batches), our_loop(batches)
    bare()
    ours()
    found: list[float] = []
    before = seconds(bare)
    for _ in range(blocks):
        own, after = seconds(ours), seconds(bare)
        if max(before, after) <= AGREE * min(before, after):
            found.append(2 * own / (before + after))
        before = after
    print(f"bare: {before / STEPS * 1e6:.0f} us per step")
    return found


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    found = sorted(ratios(blocks))
    low, _, high = statistics.quantiles(found, n=4)
    print(f"ratio: median {statistics.median(found):.3f}, quartiles {low:.3f} to {high:.3f}, {len(found)} pairs")


if __name__ == "__main__":
    main()
