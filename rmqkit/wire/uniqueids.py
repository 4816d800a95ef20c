"""Generate unique message ids for one sender (`msgid.py` describes the form).

The time in an id is counted from the start of the month; the caller passes in the wall time. Which
time zone defines the month depends on the sender: Java uses the local one, and its tools search for
a message from the time in its id on. Without `month_bounds` the month is UTC's.

Several threads may call `next`: the counter advances in one step of the interpreter.

Source: `common/.../message/MessageClientIDSetter.java`.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count

from rmqkit.wire.msgid import unique_id_prefix, unique_id_tail

#: wall time in ms -> start of its month and of the next one, in ms
MonthBounds = Callable[[int], tuple[int, int]]


class UniqueIds:
    """A source of unique ids.

    `ip` is 4 or 16 raw bytes. `salt` takes the place of Java's class loader hash; it distinguishes
    restarts of one process.
    """

    def __init__(self, ip: bytes, pid: int, salt: int, month_bounds: MonthBounds | None = None) -> None:
        self._prefix = unique_id_prefix(ip, pid, salt)
        self._counter = count(1)
        self._bounds = month_bounds or utc_month_bounds
        self._month = (0, 0)

    def next(self, wall_ms: int) -> str:
        """Return the next unique id, for a message sent at `wall_ms`."""
        start_ms, end_ms = self._month
        if not start_ms <= wall_ms < end_ms:
            start_ms, end_ms = self._month = self._bounds(wall_ms)
        return self._prefix + unique_id_tail(wall_ms - start_ms, next(self._counter))


def utc_month_bounds(wall_ms: int) -> tuple[int, int]:
    """Return the start of the UTC month of `wall_ms` and of the next month, in Unix ms."""
    start = datetime.fromtimestamp(wall_ms / 1000, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    return int(start.timestamp()) * 1000, int(end.timestamp()) * 1000
