"""The nearest of some known names, for help texts; never used to accept a wrong one."""

from collections.abc import Iterable
from difflib import get_close_matches

NEAR = 0.8  # `logs` is near `log` (0.86) and `losses` near `loss` (0.8), `logits` is not near `log` (0.67)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` is probably meant to be, regardless of case and outer spaces.

    Example:
        >>> nearest("Hidden ", ["loss", "log", "hiddens"])
        'hiddens'
        >>> nearest("logits", ["loss", "log"])
    """
    folded = {_folded(candidate): candidate for candidate in known}
    matches = get_close_matches(_folded(name), list(folded), 1, NEAR)
    return folded[matches[0]] if matches else None


def _folded(name: str) -> str:
    return name[:80].strip().casefold()  # difflib takes quadratic time
