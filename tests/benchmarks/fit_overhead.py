"""What `fit` costs next to a bare PyTorch closure loop, as a ratio within one run.

    python tests/benchmarks/fit_overhead.py [blocks] [bar]

The tiny MLP of `loop_overhead.py` (20-32-5, batch 32, SGD, CPU, one thread, three logged values). A block of ours is
one epoch of `fit`, its start and its record included; it stands between two blocks of the bare loop, which reads the
same values. Pairs whose bare blocks disagree by more than 6 % are left out. With `bar` the bar is on, to a terminal
that is thrown away.
"""

import io
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from strictstep.loop import fit

STEPS = 2000
AGREE = 1.06
Batch = tuple[Tensor, Tensor]


class Terminal(io.StringIO):
    """A terminal that nobody looks at."""

    def isatty(self) -> bool:
        """Say so."""
        return True


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
                return output["loss"]  # type: ignore[no-any-return]

            optimizer.step(closure)
            read(kept["loss"], kept["log"])

    return run


def read(loss: Any, log: Any) -> float:
    """Read every value, as a logger does."""
    numbers = [value.item() if isinstance(value, Tensor) else value for value in log.values()]
    return sum(numbers, loss.item())


def our_loop(batches: list[Batch], bar: bool) -> Callable[[], None]:
    """The same steps by `fit`."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> None:
        fit(model, training_step, batches, optimizer=optimizer, max_epochs=1, progress_bar=bar)

    return run


def seconds(run: Callable[[], None]) -> float:
    """Time of one block."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def ratios(blocks: int, bar: bool) -> list[float]:
    """The ratio of each block of ours to the mean of the two bare blocks around it."""
    batches = [(torch.randn(32, 20), torch.randint(0, 5, (32,))) for _ in range(STEPS)]
    bare, ours = bare_loop(batches), our_loop(batches, bar)
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
    blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    bar = "bar" in sys.argv
    if bar:
        sys.stderr = Terminal()
    found = sorted(ratios(blocks, bar))
    low, _, high = statistics.quantiles(found, n=4)
    print(f"ratio: median {statistics.median(found):.3f}, quartiles {low:.3f} to {high:.3f}, {len(found)} pairs")


if __name__ == "__main__":
    main()
