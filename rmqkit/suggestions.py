"""The hint behind an unknown name: the known name that is closest to it."""

from collections.abc import Iterable
from difflib import get_close_matches

#: difflib's ratio: 1.0 is the same text; one wrong letter in four gives 0.75
_SIMILARITY_MIN = 0.6


def suggest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of an error's text: "; did you mean X?" with the known name closest to `word` in any case.

    If no name resembles it: "; OTHERWISE", in which `{known}` stands for all the names, or "" without one.
    """
    names = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), names, n=1, cutoff=_SIMILARITY_MIN)
    if found:
        return f"; did you mean {names[found[0]]}?"
    return f"; {otherwise.replace('{known}', ', '.join(names.values()) or 'none')}" if otherwise else ""
