"""Small models and adversarial optimizers, each named for what it does."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

torch.set_num_threads(1)


class CallsTwice(SGD):
    """Evaluates twice at the same parameters."""

    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            closure()
        return super().step(closure)


class NeverCalls(SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step()


class CallsUnderNoGrad(SGD):
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = closure()
        super().step()
        return loss


class CallsUnderInferenceMode(SGD):
    def step(self, closure: Any = None) -> Any:
        with torch.inference_mode():
            loss = closure()
        super().step()
        return loss


class SwallowsErrors(SGD):
    def step(self, closure: Any = None) -> Any:
        try:
            closure()
        except Exception:
            return None
        return super().step()


class SwallowsEverything(SGD):
    def step(self, closure: Any = None) -> Any:
        try:
            closure()
        except BaseException:
            return None
        return super().step()


class CallsLate(SGD):
    """Calls the closure of the step before."""

    kept: Any = None

    def step(self, closure: Any = None) -> Any:
        kept, self.kept = self.kept, closure
        return None if kept is None else kept()


class WithoutClosure(SGD):
    def step(self) -> None:  # type: ignore[override]
        super().step()


class KeywordOnly(SGD):
    def step(self, *, closure: Any = None) -> Any:  # type: ignore[override]
        return super().step(closure)


class PassesOn(SGD):
    def step(self, *args: Any, **kwargs: Any) -> Any:
        return super().step(*args, **kwargs)


class MovesWithoutGradients(SGD):
    """Decays its parameters whether or not they have a gradient."""

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.9)
        return loss


class SAM(Optimizer):
    """Sharpness-aware minimization that evaluates twice by its closure: at the parameters, and uphill of them."""

    def __init__(self, parameters: Any, lr: float = 0.05, rho: float = 0.05) -> None:
        super().__init__(parameters, {"lr": lr, "rho": rho})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        call = torch.enable_grad()(closure)
        loss = call()
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        uphill = [p.grad * (self.defaults["rho"] / norm) for p in parameters]
        for p, way in zip(parameters, uphill, strict=True):
            p.add_(way)
        call()
        for p, way in zip(parameters, uphill, strict=True):
            p.sub_(way).sub_(p.grad, alpha=self.defaults["lr"])
        return loss


class SAMAsCommonlyWritten(SAM):
    """Reads the gradients of an earlier backward before it calls its closure."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        torch.stack([p.grad.norm() for p in parameters]).norm()
        return torch.enable_grad()(closure)()


@pytest.fixture
def optimizers() -> SimpleNamespace:
    """The adversarial optimizers by name."""
    kinds = (
        CallsTwice,
        NeverCalls,
        CallsUnderNoGrad,
        CallsUnderInferenceMode,
        SwallowsErrors,
        SwallowsEverything,
        CallsLate,
        WithoutClosure,
        KeywordOnly,
        PassesOn,
        MovesWithoutGradients,
        SAM,
        SAMAsCommonlyWritten,
    )
    return SimpleNamespace(**{kind.__name__: kind for kind in kinds})


@pytest.fixture
def model() -> nn.Linear:
    """A linear model in float64."""
    torch.manual_seed(0)
    return nn.Linear(3, 1, dtype=torch.float64)


@pytest.fixture
def make_batch() -> Callable[..., tuple[Tensor, Tensor]]:
    """A regression batch of `n` examples in float64, by its seed."""

    def make(n: int = 8, seed: int = 0) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
        return x, x.sum(dim=1, keepdim=True) + 0.1 * torch.randn(n, 1, generator=generator, dtype=torch.float64)

    return make


@pytest.fixture
def training_step() -> Callable[..., Any]:
    """Mean squared error, its value logged."""

    def mse_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
        x, y = batch
        loss = (model(x) - y).pow(2).mean()
        return {"loss": loss, "log": {"mse": loss}}

    return mse_step
