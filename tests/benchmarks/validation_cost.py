"""What validation costs, as ratios against what others do with the same return, in one interleaved run.

    python tests/benchmarks/validation_cost.py

Needs the extra `test` (lightning). Each round times every candidate once; the minimum over the rounds is kept.
"""

import timeit
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from torch import Tensor

from strictstep.schema import coerce

ROUNDS = 60
REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)
FIELDS = {"loss", "log", "progress_bar", "hiddens", "metrics"}


def by_hand(returned: Any) -> dict[str, Any]:
    """The same checks as a careful author would write them, with `isinstance`."""
    if isinstance(returned, Tensor):
        returned = {"loss": returned}
    if not isinstance(returned, Mapping):
        raise TypeError("expected a mapping")
    for key in returned:
        if not isinstance(key, str) or key not in FIELDS:
            raise KeyError(key)
    return {
        "loss": loss_by_hand(returned["loss"]),
        "log": scalars_by_hand(returned.get("log", {})),
        "progress_bar": scalars_by_hand(returned.get("progress_bar", {})),
        "hiddens": tree_by_hand(returned.get("hiddens")),
        "metrics": {name: metric_by_hand(value) for name, value in returned.get("metrics", {}).items()},
    }


def loss_by_hand(loss: Any) -> Tensor:
    """A differentiable scalar."""
    if not isinstance(loss, Tensor):
        raise TypeError("expected a tensor")
    if loss.numel() != 1 or loss.layout != torch.strided:
        raise ValueError("expected a scalar")
    if not loss.is_floating_point() or loss.grad_fn is None:
        raise ValueError("expected a differentiable scalar")
    return loss


def scalars_by_hand(values: Any) -> dict[str, Any]:
    """Names to scalars, detached."""
    if not isinstance(values, Mapping):
        raise TypeError("expected a mapping")
    checked = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise TypeError("expected a name")
        checked[name] = scalar_by_hand(value)
    return checked


def scalar_by_hand(value: Any) -> Any:
    """One real number."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.layout != torch.strided or value.dtype not in REAL:
            raise ValueError("expected a scalar")
        return value.detach()
    if isinstance(value, (bool, int, float)):
        return value
    raise TypeError("expected a scalar")


def tree_by_hand(value: Any) -> Any:
    """Tensors in containers, detached."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, (list, tuple)):
        return type(value)([tree_by_hand(child) for child in value])
    if isinstance(value, dict):
        return {key: tree_by_hand(child) for key, child in value.items()}
    if value is None:
        return value
    raise TypeError("expected a tensor")


def metric_by_hand(value: Any) -> Any:
    """Anything, tensors in containers detached."""
    if isinstance(value, (Tensor, list, tuple, dict)):
        return tree_by_hand(value)
    return value


def cost(candidates: dict[str, Callable[[], object]], number: int) -> dict[str, float]:
    """Microseconds per call, the minimum over interleaved rounds."""
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(ROUNDS):
        for name, candidate in candidates.items():
            best[name] = min(best[name], timeit.timeit(candidate, number=number) / number * 1e6)
    return best


def main() -> None:
    """Print a line per form: microseconds and ratios."""
    torch.set_num_threads(1)
    output = torch.nn.Linear(4, 1)(torch.randn(8, 4))
    loss = output.pow(2).mean()
    accuracy, state = torch.tensor(0.5), torch.zeros(2, 8)
    five = {
        "loss": loss,
        "log": {"loss": loss, "accuracy": accuracy, "lr": 0.1},
        "progress_bar": {"accuracy": accuracy},
        "hiddens": (state, state),
        "metrics": {"logits": output},
    }
    many = {"loss": loss, "log": {f"value_{index}": accuracy if index % 2 else 0.5 for index in range(1000)}}
    forms = {"tensor": loss, "{'loss': t}": {"loss": loss}, "five fields": five, "1,000 log keys": many}
    print(f"{'form':>16} {'strictstep':>11} {'lightning':>10} {'ratio':>6} {'by hand':>9} {'ratio':>6}")
    for name, returned in forms.items():
        candidates: dict[str, Callable[[], object]] = {
            "ours": partial(coerce, returned),
            "peer": partial(ClosureResult.from_training_step_output, returned),
            "hand": partial(by_hand, returned),
        }
        best = cost(candidates, 10 if name == "1,000 log keys" else 1000)
        ours, peer, hand = best["ours"], best["peer"], best["hand"]
        print(f"{name:>16} {ours:9.2f}us {peer:8.2f}us {ours / peer:6.2f} {hand:7.2f}us {ours / hand:6.2f}")


if __name__ == "__main__":
    main()
