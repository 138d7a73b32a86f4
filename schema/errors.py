"""What is wrong with an output, as data: codes, problems, and the one error that carries them.

    ValueError
    └── StepOutputError     every problem of one output, at once
    UserWarning
    └── StepOutputWarning   accepted, but probably not what was meant

The text of a report is put together here and nowhere else; nothing in this file sees a tensor.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

Stage = Literal["training", "manual", "validation", "test"]

ErrorCode = Literal[
    "loss_missing",
    "loss_none",
    "loss_not_tensor",
    "loss_not_scalar",
    "loss_not_floating",
    "loss_not_strided",
    "loss_no_grad",
    "loss_leaf",
    "loss_non_finite",
    "scalar_wrong_type",
    "scalar_not_single",
    "scalar_complex",
    "scalar_not_strided",
    "field_not_mapping",
    "key_not_string",
    "key_unknown",
    "key_missing",
    "key_twice",
    "progress_bar_unknown_name",
    "hiddens_not_tensor",
    "too_deep",
    "annotation_mismatch",
    "own_check_failed",
    "skip_with_loss",
    "reason_not_string",
    "wrong_stage",
    "wrong_return_type",
    "returned_none",
    "unreadable",
]

SHOWN = 20  # a list of 100,000 strings as `hiddens` has as many problems: all are kept, this many are shown


class StepOutputWarning(UserWarning):
    """A step's output was accepted, but is probably not what its author meant (an unknown key, a `None`)."""


class ProblemDict(TypedDict):
    """A `Problem` as plain JSON."""

    code: str
    path: str
    message: str
    help: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with an output.

    Attributes:
        code: stable name of the kind of mistake, such as `loss_not_scalar`.
        path: where it is: `loss`, `log.acc`, `log['top 1']`, `hiddens[1]`; empty for the returned value itself.
        message: what was expected and what arrived.
        help: how to mend it.
        likely: the source line that probably made the value, with a caret below it; empty where nothing is certain.
    """

    code: ErrorCode
    path: str
    message: str
    help: str
    likely: str = ""

    def __str__(self) -> str:
        """The lines of this problem in a report."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"  {self.path}: {self.message}  [{self.code}]" if self.path else f"  {self.message}  [{self.code}]"
        if self.likely:
            first, *rest = self.likely.splitlines()
            yield f"    likely: {first}"
            yield from (f"            {line}" for line in rest)
        if self.help:
            yield f"    help: {self.help}"


class StepOutputError(ValueError):
    """What a training step returned is not a valid output; carries every problem at once.

    It keeps descriptions only: no tensor, no graph and no user's object hangs on its attributes, its `__cause__`,
    its `__context__` or the frames of strictstep in its traceback, so it may be stored, logged and pickled.

    Attributes:
        problems: all problems found, in the order of the fields.
        stage: `"training"`, `"manual"`, `"validation"` or `"test"`; `None` when a model was called directly.
        step_name: name of the step function, or of the model that was called.
        where: file, line and name of the step (or of the call of the model), where known.
        epoch, batch_idx, rank: where known, else `None`.

    Example:
        >>> from strictstep.schema import coerce
        >>> try:
        ...     coerce({"loss": "0.3"})
        ... except StepOutputError as error:
        ...     print(error.problems[0].code, error.problems[0].path)
        loss_not_tensor loss
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        stage: Stage | None = None,
        step_name: str | None = None,
        where: str | None = None,
        epoch: int | None = None,
        batch_idx: int | None = None,
        rank: int | None = None,
    ) -> None:
        """Keep the problems and where they happened; all arguments are plain data."""
        super().__init__(tuple(problems), stage, step_name, where, epoch, batch_idx, rank)
        self.problems = tuple(problems)
        self.stage = stage
        self.step_name = step_name
        self.where = where
        self.epoch = epoch
        self.batch_idx = batch_idx
        self.rank = rank

    def errors(self) -> list[ProblemDict]:
        """The problems as JSON-serialisable dicts with the keys `code`, `path`, `message`, `help`."""
        return [{"code": p.code, "path": p.path, "message": p.message, "help": p.help} for p in self.problems]

    def at(self, epoch: int | None = None, batch_idx: int | None = None) -> "StepOutputError":
        """A copy of the error, with the numbers of epoch and batch where they are given.

        What is raised is always a copy: a frame that holds the error it raises would make a cycle of the two, and keep
        the callers' frames, with their batches, until the next garbage collection.
        """
        epoch = self.epoch if epoch is None else epoch
        batch_idx = self.batch_idx if batch_idx is None else batch_idx
        return StepOutputError(self.problems, self.stage, self.step_name, self.where, epoch, batch_idx, self.rank)

    def place(self, epoch: int | None, batch_idx: int | None) -> None:
        """Fill in the numbers that are not known yet, in the error itself: one that a step raised is the user's."""
        self.epoch = epoch if self.epoch is None else self.epoch
        self.batch_idx = batch_idx if self.batch_idx is None else self.batch_idx
        self.args = (*self.args[:4], self.epoch, self.batch_idx, self.rank)

    def __str__(self) -> str:
        """The report: a headline, the place, then each problem with its likely line and its help."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield self._headline()
        if self.where:
            yield f"  --> {self.where}"
        yield from (str(problem) for problem in self.problems[:SHOWN])
        if len(self.problems) > SHOWN:
            yield f"  ... and {len(self.problems) - SHOWN} more problems"

    def _headline(self) -> str:
        count = f"{len(self.problems)} problem{'s' if len(self.problems) != 1 else ''}"
        if self.stage is None:
            return f"`{self.step_name}` was given invalid values ({count})"
        kind = "manual training step" if self.stage == "manual" else f"{self.stage} step"
        name = f" `{self.step_name}`" if self.step_name else ""
        numbers = (("epoch", self.epoch), ("batch", self.batch_idx), ("rank", self.rank))
        known = ", ".join(f"{label} {number}" for label, number in numbers if number is not None)
        return f"{kind}{name} returned an invalid output{' at ' + known if known else ''} ({count})"
