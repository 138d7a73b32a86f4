"""Putting an error together, after a check has failed: where the step is, what of it is likely at fault.

Nothing here is on the hot path, and nothing here keeps a value: only types, names and source lines.
"""

import sys
from collections.abc import Sequence
from itertools import zip_longest
from types import FrameType

from torch import distributed

from strictstep.schema.describe import name_of, path_text
from strictstep.schema.errors import SHOWN, Problem, Stage, StepOutputError
from strictstep.schema.explain import Arrived, Likely, Place, likely, place
from strictstep.schema.source import shown
from strictstep.schema.translate import Found


def report_of_step(
    found: Sequence[Found],
    arrived: Arrived,
    *,
    stage: Stage,
    step: object,
    epoch: int | None,
    batch_idx: int | None,
) -> StepOutputError:
    """The error of a step that returned something invalid."""
    where = place(step)
    lines = [_likely(step, one, arrived) for one in found[:SHOWN]]
    problems = [_problem(one, line) for one, line in zip_longest(found, lines)]
    name = where.name if where else name_of(step)
    return StepOutputError(problems, stage, name, _place_text(where) if where else None, epoch, batch_idx, _rank())


def report_of_call(model_name: str, found: Sequence[Found]) -> StepOutputError:
    """The error of a model that was called with invalid values, at the line of that call."""
    problems = [_problem(one, None) for one in found]
    return StepOutputError(problems, step_name=f"{model_name}(...)", where=_callers_line(), rank=_rank())


def _problem(found: Found, source: Likely | None) -> Problem:
    return Problem(found.code, path_text(found.location), found.message, found.help, _likely_text(source))


def _likely(step: object, found: Found, arrived: Arrived) -> Likely | None:
    return likely(step, found.code, found.location, found.got, arrived)


def _likely_text(source: Likely | None) -> str:
    if source is None:
        return ""
    start = f"{source.file}:{source.line}   "
    return f"{start}{source.text}\n{' ' * (len(start) + source.column)}{'^' * source.width}"


def _place_text(where: Place) -> str:
    return f"{where.file}:{where.line}, in `{where.name}`"


def _callers_line() -> str | None:
    frame: FrameType | None = sys._getframe(1)
    while frame and str(frame.f_globals.get("__name__")).startswith(("strictstep.schema", "pydantic.")):
        frame = frame.f_back
    return frame and f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}, in `{frame.f_code.co_name}`"


def _rank() -> int | None:
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else None
