"""Suggest the known name that is closest to an unknown one, for error messages."""

from collections.abc import Iterable
from difflib import get_close_matches

#: difflib's ratio: 1.0 for equal texts; one wrong letter in four gives 0.75
_SIMILARITY_MIN = 0.6


def suggest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of an error message: "; did you mean X?" with the closest known name.

    The comparison ignores case. If no name is similar, return "; OTHERWISE", where `{known}` stands
    for all known names, or "" if `otherwise` is empty.
    """
    names = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), names, n=1, cutoff=_SIMILARITY_MIN)
    if found:
        return f"; did you mean {names[found[0]]}?"
    return f"; {otherwise.replace('{known}', ', '.join(names.values()) or 'none')}" if otherwise else ""
