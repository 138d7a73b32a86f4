"""The nearest of some known names, for help texts; never used to accept a wrong one."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

NEAR = 0.8  # `logs` is near `log` (0.86) and `losses` near `loss` (0.8), `logits` is not near `log` (0.67)

# Small letters that look like those of ASCII: Cyrillic ones, and the Greek omicron, which nobody uses as a symbol.
_OF_OTHER_SCRIPTS = "\u0430\u0441\u0501\u0435\u04bb\u0456\u0458\u04cf\u043e\u0440\u051b\u0455\u051d\u0445\u0443\u03bf"
_LOOKALIKES = str.maketrans(_OF_OTHER_SCRIPTS, "acdehijlopqswxyo")
_MIXED = re.compile(f"[a-z][{_OF_OTHER_SCRIPTS}]|[{_OF_OTHER_SCRIPTS}][a-z]")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` is probably meant to be, regardless of case and outer spaces.

    Example:
        >>> nearest("Hidden ", ["loss", "log", "hiddens"])
        'hiddens'
        >>> nearest("logits", ["loss", "log"])
    """
    candidates = {folded(candidate): candidate for candidate in known}
    matches = get_close_matches(folded(name), list(candidates), 1, NEAR)
    return candidates[matches[0]] if matches else None


def folded(name: str) -> str:
    """A name without what is overlooked in it: case, outer spaces, letters of other scripts that look like ASCII."""
    return name[:80].strip().casefold().translate(_LOOKALIKES)  # difflib takes quadratic time


def looks_like_ascii(name: str) -> bool:
    r"""Tell whether a word of ASCII letters has one of another script in it that looks like them.

    Example:
        >>> looks_like_ascii("l\u043ess"), looks_like_ascii("loss_\u043f\u0442")
        (True, False)
    """
    return _MIXED.search(name.casefold()) is not None
