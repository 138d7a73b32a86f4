"""The options of `fit`, checked all at once, before the first batch, without iterating anything."""

from collections.abc import Iterator

from strictstep.loop.errors import LoopError
from strictstep.loop.option_findings import Found, raised
from strictstep.loop.option_pairs import PAIRS
from strictstep.loop.option_values import VALUES
from strictstep.loop.options import Options


def check(options: Options) -> None:
    """Raise one error for everything that is wrong.

    Raises:
        LoopError: with the code `option`.
    """
    found = list(dict.fromkeys(_found(options)))
    if len(found) == 1:
        raise LoopError("option", *found[0])
    if found:
        message = f"expected right options, got {len(found)} wrong ones"
        problems = "".join(f"\n  {number}. {problem}" for number, (problem, _) in enumerate(found, 1))
        helps = "".join(f"\n    {number}. {help}" for number, (_, help) in enumerate(found, 1))
        raise LoopError("option", message + problems, "one for each" + helps)


def _found(options: Options) -> Iterator[Found]:
    for check in (*VALUES, *PAIRS):
        yield from check(options)
    # What only putting it together shows; what was found above stands there once.
    yield from raised(options.optimization)
