"""What a step costs in each loop next to a bare PyTorch closure loop, as ratios within one run.

    python -m tests.benchmarks.loop_overhead [blocks] [loop ...]

Needs the extra `test` (lightning, pytorch-ignite, accelerate). A tiny MLP (20-32-5, batch 32, SGD, CPU, one thread),
whose step logs three values, which every loop reads as numbers. Each loop is given a loader that runs a block of the
bare loop between two of its own blocks, so that both are measured in the same moments of the same process. Pairs of
bare blocks that disagree by more than 6 % are left out, and the median of the ratios is given.
"""

import io
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from strictstep.loop import AutomaticOptimization, fit
from tests.benchmarks.overhead_peers import accelerates, fabrics, ignites, lightnings

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


def read(loss: Any, log: Any) -> float:
    """Read every value, as a logger does."""
    numbers = [value.item() if isinstance(value, Tensor) else value for value in log.values()]
    return sum(numbers, loss.item())


class Bare:
    """The closure loop that a careful author writes by hand, reading the loss and what is logged."""

    def __init__(self) -> None:
        """Make what it trains."""
        self._model = make_model()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)

    def __call__(self, batches: Iterator[Batch]) -> float:
        """Train on a block; the seconds that it took."""
        model, optimizer = self._model, self._optimizer
        start = time.perf_counter()
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
        return time.perf_counter() - start


class Blocks:
    """A loader of blocks, with a block of the bare loop before, between and after them.

    Attributes:
        own: the seconds of each of its own blocks.
        bare: the seconds of each bare block, one more.
    """

    def __init__(self, blocks: int) -> None:
        """Make the batches."""
        self._blocks = blocks
        self._batches = [(torch.randn(32, 20), torch.randint(0, 5, (32,))) for _ in range(STEPS)]
        self._bare = Bare()
        self.own: list[float] = []
        self.bare: list[float] = []

    def __iter__(self) -> Iterator[Batch]:
        """Give the batches, and time what is done with them; the first block of each only warms up."""
        yield from self._block()
        self._bare(self._block())
        self.bare.append(self._bare(self._block()))
        for _ in range(self._blocks):
            start = time.perf_counter()
            yield from self._block()
            self.own.append(time.perf_counter() - start)
            self.bare.append(self._bare(self._block()))

    def _block(self) -> Iterator[Batch]:
        """The batches of one block, by a generator for either loop: what it costs to be handed one is not theirs."""
        yield from self._batches

    def ratios(self) -> list[float]:
        """The ratio of each block to the mean of the two bare ones around it, where those agree."""
        around = zip(self.own, self.bare, self.bare[1:], strict=False)
        return [
            2 * own / (before + after)
            for own, before, after in around
            if max(before, after) <= AGREE * min(before, after)
        ]


def steps(batches: Blocks) -> None:
    """`AutomaticOptimization.step` in a loop of one's own."""
    model = make_model()
    optimization = AutomaticOptimization(model, training_step, torch.optim.SGD(model.parameters(), lr=0.01))
    for batch in batches:
        report = optimization.step(batch)
        read(report.loss, report.output.log)


def fits(batches: Blocks, progress_bar: bool = False) -> None:
    """`fit`, which reads and averages the values."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    fit(model, training_step, batches, optimizer=optimizer, max_epochs=1, progress_bar=progress_bar)


class Terminal(io.StringIO):
    """A terminal that nobody looks at."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def fits_with_bar(batches: Blocks) -> None:
    """`fit` with its bar on."""
    shown, sys.stderr = sys.stderr, Terminal()
    try:
        fits(batches, progress_bar=True)
    finally:
        sys.stderr = shown


LOOPS: dict[str, Callable[[Blocks], None]] = {
    "step": steps,
    "fit": fits,
    "fit+bar": fits_with_bar,
    "lightning": lambda batches: lightnings(make_model(), training_step, batches),
    "ignite": lambda batches: ignites(make_model(), training_step, batches, read),
    "accelerate": lambda batches: accelerates(make_model(), training_step, batches, read),
    "fabric": lambda batches: fabrics(make_model(), training_step, batches, read),
}


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    count, names = (int(sys.argv[1]), sys.argv[2:]) if len(sys.argv) > 1 else (60, [])
    print(f"{'loop':>12}  ratio  quartiles      bare   pairs")
    for name in names or LOOPS:
        blocks = Blocks(count)
        LOOPS[name](blocks)
        found = blocks.ratios()
        low, median, high = statistics.quantiles(found, n=4)
        bare = statistics.median(blocks.bare) / STEPS * 1e6
        print(f"{name:>12}  {median:.3f}  {low:.3f} to {high:.3f}  {bare:3.0f}us  {len(found)} of {count}")


if __name__ == "__main__":
    main()
