"""What Lightning cannot go on from, said on every rank: a rank that raised alone would leave the others waiting for it.

RuntimeError
├── SkipRefusedError    a step was skipped where Lightning cannot skip
└── OtherRankError      another rank's step returned an invalid output; that rank has the report
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import distributed
from torch.optim import Optimizer

from strictstep.schema.errors import StepOutputError
from strictstep.schema.outputs import SkippedStep

TAKEN, SKIPPED, INVALID = 0, 1, 2


class SkipRefusedError(RuntimeError):
    """A training step was skipped where Lightning cannot skip: among several ranks, or under LBFGS and its like."""


class OtherRankError(RuntimeError):
    """The training step of another rank returned an invalid output, so the step ends on this rank too."""


def refusal(trainer: Trainer, checked: object, place: Callable[[], object]) -> Exception | None:
    """Why Lightning cannot go on from a training step, agreed by all ranks; `None` where it can.

    Every rank calls this in every training step, so `place` is written out only where it is needed.
    """
    own = INVALID if type(checked) is StepOutputError else SKIPPED if isinstance(checked, SkippedStep) else TAKEN
    outcomes = [own] if trainer.world_size == 1 else outcomes_of_ranks(own)
    if isinstance(checked, StepOutputError):
        return checked
    if INVALID in outcomes:
        ranks = ranks_text(outcomes, INVALID)
        return OtherRankError(f"{place()} returned an invalid output on {ranks}\n  help: read the report of {ranks}")
    return _refusal_to_skip(trainer, outcomes, place) if SKIPPED in outcomes else None


def _refusal_to_skip(trainer: Trainer, outcomes: Sequence[int], place: Callable[[], object]) -> Exception | None:
    if trainer.world_size > 1:
        return SkipRefusedError(
            f"{place()} was skipped on {ranks_text(outcomes, SKIPPED)}, "
            f"and Lightning cannot skip in a run of {trainer.world_size} ranks\n"
            "  help: return a loss of 0 that every parameter is part of, such as `0 * output.sum()`"
        )
    demanding = [type(optimizer).__name__ for optimizer in trainer.optimizers if demands_a_loss(optimizer)]
    if not demanding:
        return None
    return SkipRefusedError(
        f"{place()} was skipped, and `{demanding[0]}` demands a loss of every call of its closure\n"
        "  help: leave the batch out before it comes to the step, or use another optimizer"
    )


def outcomes_of_ranks(own: int) -> list[int]:
    """Tell all ranks how this one's step went, and hear how theirs went; on the host, without waiting for a device."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [own]  # a strategy of another engine than torch's: each rank speaks for itself
    told = torch.zeros(distributed.get_world_size(), dtype=torch.int64)
    told[distributed.get_rank()] = own
    distributed.all_reduce(told, group=_host_group(distributed.group.WORLD))
    return told.tolist()


@functools.lru_cache(maxsize=1)
def _host_group(world: Any) -> Any:
    """A group whose messages stay on the host: one of the devices would make every step wait for its device."""
    return world if distributed.get_backend(world) == "gloo" else distributed.new_group(backend="gloo")


def ranks_text(outcomes: Sequence[int], wanted: int) -> str:
    """The ranks with an outcome, in words.

    Example:
        >>> ranks_text([TAKEN, SKIPPED, SKIPPED], SKIPPED)
        'ranks 1 and 2'
    """
    *most, last = [str(rank) for rank, outcome in enumerate(outcomes) if outcome == wanted]
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"


def demands_a_loss(optimizer: Optimizer) -> bool:
    """Whether an optimizer's `step` has no default for its closure: it computes with what the closure returns.

    Example:
        >>> weights = [torch.zeros(2, requires_grad=True)]
        >>> demands_a_loss(torch.optim.LBFGS(weights)), demands_a_loss(torch.optim.SGD(weights))
        (True, False)
    """
    # Read from the class: schedulers patch the instance.
    parameters = inspect.signature(type(optimizer).step).parameters
    return "closure" in parameters and parameters["closure"].default is inspect.Parameter.empty
