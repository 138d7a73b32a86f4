"""Wrong numbers that loops give in silence, next to what strictstep gives: a table, from one run.

    python -m tests.benchmarks.peers

Needs the extra `test` (lightning, pytorch-ignite, accelerate). The model is one weight at 1 and the loss is
`weight * batch`, so that every gradient is the mean of the batches: what is right can be told by counting.
"""

import logging
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import LBFGS, SGD

from strictstep.loop import AutomaticOptimization, LoopError
from strictstep.schema import StepOutputError
from tests.benchmarks.peer_loops import Step, Weight, accelerates, ignites, lightnings, ours

NAN = float("nan")


def loss_of(model: Any, batch: Tensor) -> Any:
    """A step without a fault."""
    return model(batch)


class Row(NamedTuple):
    """A line of the table."""

    defect: str
    right: str
    peer: str
    peer_gives: str
    ours_gives: str


def lbfgs_with_accumulation() -> Iterable[Row]:
    """Two micro-batches to a step, gradient 1 each, wherever the weight is."""
    found = [Weight(loss_of, LBFGS, max_iter=4, lr=0.01) for _ in range(2)]
    for run, model in zip((lightnings, ours), found, strict=True):
        run(model, [1.0, 1.0], 2)
    gradients = [texts(model.gradients) for model in found]
    yield Row("LBFGS, accumulation 2: gradient at each evaluation", "1, 1, 1, 1", "lightning", *gradients)


def short_last_window() -> Iterable[Row]:
    """Five micro-batches at accumulation 4: the last step is on one alone."""
    own = Weight(loss_of, SGD, lr=0.0)
    ours(own, [1.0] * 5, 4)
    for name, run in (("lightning", lightnings), ("ignite", ignites), ("accelerate", accelerates)):
        model = Weight(loss_of, SGD, lr=0.0)
        run(model, [1.0] * 5, 4)
        yield Row(
            "gradients of 5 batches at accumulation 4", "1, 1", name, texts(model.gradients), texts(own.gradients)
        )


def loss_that_is_seen() -> Iterable[Row]:
    """A loss of 1 in each of four micro-batches of one step; strictstep reports once for each step."""
    peer, own = (Weight(loss_of, SGD, lr=0.0) for _ in range(2))
    lightnings(peer, [1.0] * 4, 4)
    ours(own, [1.0] * 4, 4)
    yield Row("loss that a hook sees, accumulation 4", "1", "lightning", texts(peer.losses[-1:]), texts(own.losses))


def step_of_none() -> Iterable[Row]:
    """Three batches, the last two skipped by `None`."""

    def step(model: Weight, batch: Tensor) -> Any:
        return model(batch) if model.batches == 1 else None

    peer, own = (Weight(step, SGD, lr=0.5, momentum=0.9) for _ in range(2))
    counted = (lightnings(peer, [1.0] * 3).global_step, ours(own, [1.0] * 3).global_step)
    given = [f"{count}, {model.scheduler_steps}" for count, model in zip(counted, (peer, own), strict=True)]
    yield Row("global_step, scheduler steps after 1 step and 2 of `None`", "1, 1", "lightning", *given)


def stop_iteration() -> Iterable[Row]:
    """A step that raises `StopIteration` at its second batch of five."""

    def step(model: Weight, batch: Tensor) -> Any:
        return model(batch) if model.batches == 1 else next(iter(()))

    given = [f"{outcome(run, step, [1.0] * 5)}" for run in (lightnings, ours)]
    yield Row("`StopIteration` in the step, batch 1 of 5", "an error", "lightning", *given)


def not_a_number() -> Iterable[Row]:
    """A batch of NaN, the second of three."""
    own = outcome(ours, loss_of, [1.0, NAN, 1.0])
    for name, run in (("lightning", lightnings), ("ignite", ignites), ("accelerate", accelerates)):
        yield Row("NaN in batch 1 of 3", "an error", name, outcome(run, loss_of, [1.0, NAN, 1.0]), own)


def scaler_with_closure() -> Iterable[Row]:
    """A gradient of 0.01, and a scale of 65,536."""
    peer, own = (Weight(loss_of, SGD, lr=0.0) for _ in range(2))
    batch, scaler = torch.tensor(0.01), torch.amp.GradScaler("cpu")

    def closure() -> Tensor:
        peer.optimizer.zero_grad()
        loss: Tensor = peer(batch)
        scaler.scale(loss).backward()
        return loss

    closure()
    scaler.step(peer.optimizer, closure)
    AutomaticOptimization(own, loss_of, own.optimizer, precision="fp16-mixed").step(batch)
    given = texts(peer.gradients), texts(own.gradients)
    yield Row("gradient behind `GradScaler.step(optimizer, closure)`", "0.01", "torch", *given)


def outcome(run: Callable[[Weight, list[float]], Any], step: Step, batches: list[float]) -> str:
    """How a run ended: its error, or how far it came."""
    model = Weight(step, SGD, lr=0.5)
    try:
        run(model, batches)
    except StepOutputError as error:
        return f"`{error.problems[0].code}`, weight {model.weight.item():g}"
    except LoopError as error:
        return f"`{error.code}`, weight {model.weight.item():g}"
    return f"no error, {len(model.gradients)} steps, weight {model.weight.item():g}"


def texts(numbers: list[float]) -> str:
    """Numbers on one line."""
    return ", ".join(f"{number:g}" for number in numbers)


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    kinds = (lbfgs_with_accumulation, short_last_window, loss_that_is_seen, step_of_none, stop_iteration, not_a_number)
    print("| what is looked at | right | peer | peer gives | strictstep gives |\n|---|---|---|---|---|")
    for rows in (*kinds, scaler_with_closure):
        for row in rows():
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
