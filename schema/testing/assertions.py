"""One run of a step, held to its contract: the check of its return, and what only a run can show."""

import copy
import functools
import inspect
import math
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from strictstep.schema.base import AnyOutput
from strictstep.schema.coerce import coerce
from strictstep.schema.describe import describe, name_of, names_text
from strictstep.schema.errors import Stage
from strictstep.schema.missing import FIELDS
from strictstep.schema.outputs import SkippedStep
from strictstep.schema.records import same


def assert_step(
    step: Callable[..., object],
    model: nn.Module,
    batch: object,
    *,
    stage: Stage = "training",
    schema: type[AnyOutput] | None = None,
    strict: bool = False,
    seed: int = 0,
) -> AnyOutput:
    """Run a step, and hold it to its contract.

    The step returns a valid output with a finite loss; in training, backward brings a gradient to every parameter
    that requires one; and a second run from the same seed gives the same output. The model's parameters, buffers and
    gradients, and the random number generators, are as before when this returns.

    Args:
        step: a function of the model and the batch, or a method of the model, of the batch; decorated or not. It gets
            `batch_idx=0` and `epoch=0` where it names them.
        model: the model, in the mode that it is to run in.
        batch: what the step gets; each run gets a shallow copy.
        stage: what the step is for; validation and test steps run without gradients.
        schema: a model of your own.
        strict: make names beyond the five fields an error.
        seed: of the generators of torch, Python and numpy.

    Returns:
        The checked output of the first run; its graph is used up.

    Raises:
        StepOutputError: if the output is not valid.
        AssertionError: naming whatever else does not hold, all of it at once.

    Example:
        >>> def training_step(model, batch):
        ...     return {"loss": model(batch).pow(2).mean(), "log": {"rows": len(batch)}}
        >>> assert_step(training_step, nn.Linear(4, 1), torch.ones(8, 4)).log
        {'rows': 8}
    """
    check = functools.partial(coerce, stage=stage, schema=schema, strict=strict, on_none="error", step=step)
    run = functools.partial(_run, step, model, batch, check, stage, seed)
    with _restored(model):
        output: AnyOutput = run()
        wrong = [*_wrong_loss(output), *_without_gradient(output, model, stage)]
    with _restored(model):
        wrong += _difference(output, run(), seed)
    if wrong:
        raise AssertionError("\n".join((f"{stage} step `{name_of(step)}` does not hold", *wrong)))
    return output


def _run(
    step: Callable[..., object],
    model: nn.Module,
    batch: object,
    check: Callable[..., AnyOutput],
    stage: Stage,
    seed: int,
) -> AnyOutput:
    named = inspect.signature(step).parameters
    numbers = {name: 0 for name in ("batch_idx", "epoch") if name in named}
    models = () if getattr(step, "__self__", None) is model else (model,)
    with _seeded(seed), torch.set_grad_enabled(stage in ("training", "manual")):
        # A copy: a step may take the labels out of a dict, and would not find them in the second run.
        return check(step(*models, copy.copy(batch), **numbers))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    numpy: Any = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy and numpy.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy:
            numpy.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Give the model its parameters, buffers and gradients back; inside, it has no gradients yet."""
    state = {name: value.clone() for name, value in _tensors(model).items()}
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, value in _tensors(model).items():
                value.copy_(state[name])
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _wrong_loss(output: AnyOutput) -> Iterator[str]:
    if isinstance(output, SkippedStep):
        yield f"  it skipped the batch ({output.reason}): nothing can be shown of a skip"
    elif output.loss is not None:
        loss = torch.as_tensor(output.loss).item()
        if not math.isfinite(loss):
            yield f"  expected a finite loss, got {loss}"


def _without_gradient(output: AnyOutput, model: nn.Module, stage: Stage) -> Iterator[str]:
    if stage != "training" or not isinstance(output.loss, Tensor):
        return
    output.loss.backward()
    left = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if left:
        yield f"  expected a gradient for every parameter that requires one, got none for {names_text(left)}"
        yield "    help: use them in the loss, or freeze them with `requires_grad_(False)`"


def _difference(first: AnyOutput, second: AnyOutput, seed: int) -> Iterator[str]:
    if type(first) is not type(second):
        yield f"  expected one output from one seed ({seed}), got {describe(first)} and {describe(second)}"
        return
    changed = [name for name in FIELDS if not same(getattr(first, name), getattr(second, name))]
    if changed:
        yield f"  expected two runs from one seed ({seed}) to agree, got another {names_text(changed)}"
        yield "    help: draw random numbers from the seeded generators, and keep nothing between steps"
