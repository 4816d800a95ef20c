"""Request codes by the first Apache release that had them, and why rmqkit does not answer some.

The data comes from `RequestCode.java` at the releases' tags from 4.1.0 to 5.3.3, and from the
classes of 5.5.0. "4.1.0" includes earlier releases, "5.5.0" includes 5.4.
"""

from collections.abc import Iterable, Mapping


def _codes(text: str) -> tuple[int, ...]:
    """Parse numbers and inclusive ranges `a-b`, separated by spaces."""
    found: list[int] = []
    for part in text.split():
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


FIRST_SEEN: Mapping[str, Iterable[int]] = {
    "4.1.0": _codes("10-15 17 21-23 25-43 45 46 100-106 200-216 219-224 300-321"),
    "4.3.0": _codes("322"),
    "4.5.2": _codes("323"),
    "4.6.0": _codes("324-326"),
    "4.9.2": _codes("327"),
    "4.9.4": _codes("328 329"),
    "5.0.0": _codes("47 60 61 217 343 345 351-353 361 400-402 513 901-908 1001-1011 200050-200055"),
    "5.1.1": _codes("1012 1013"),
    "5.1.2": _codes("2001-2004"),
    "5.1.3": _codes("200151"),
    "5.3.0": _codes("18 3001-3010"),
    "5.3.1": _codes("225 354"),
    "5.3.2": _codes("355 370 200056"),
    "5.5.0": _codes("5001 200070-200079"),
}

#: reason -> codes that have no handler for that reason
REASONS: Mapping[str, Iterable[int]] = {
    "Apache 5.x does not answer it either": _codes("13 22 23 27 47 209-214 301 302"),
    "timers in RocksDB are not built": _codes("5001"),
    "the store of pop records in RocksDB is not built": _codes("200056"),
    "slaves do not record what their master has flushed (`syncMasterFlushOffsetWhenStartup`)": _codes("908"),
    "cold data control is not built": _codes("2001-2004"),
    "lite topics (5.5) are not built": _codes("200070-200079"),
}

SINCE = {code: version for version, codes in FIRST_SEEN.items() for code in codes}
WHY_NOT = {code: reason for reason, codes in REASONS.items() for code in codes}
