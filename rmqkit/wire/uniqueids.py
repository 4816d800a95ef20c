"""Unique message ids of one sender, one after the other (see `msgid.py` for the form).

The time in an id counts from the start of the month; wall time is passed in. Whose month is the sender's matter: Java
takes the local time zone, and its tools look for a message from that time on. Without `month_bounds` it is UTC's.

`next` may be called from several threads: the counter is one step of the interpreter.

Source: `common/.../message/MessageClientIDSetter.java`.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count

from rmqkit.wire.msgid import unique_id_prefix, unique_id_tail

#: wall time in ms -> start of its month and of the next one, in ms
MonthBounds = Callable[[int], tuple[int, int]]


class UniqueIds:
    """`ip` is 4 or 16 raw bytes; `salt` stands where Java has a class loader's hash code and tells restarts apart."""

    def __init__(self, ip: bytes, pid: int, salt: int, month_bounds: MonthBounds | None = None) -> None:
        self._prefix = unique_id_prefix(ip, pid, salt)
        self._counter = count(1)
        self._bounds = month_bounds or utc_month_bounds
        self._month = (0, 0)

    def next(self, wall_ms: int) -> str:
        start_ms, end_ms = self._month
        if not start_ms <= wall_ms < end_ms:
            start_ms, end_ms = self._month = self._bounds(wall_ms)
        return self._prefix + unique_id_tail(wall_ms - start_ms, next(self._counter))


def utc_month_bounds(wall_ms: int) -> tuple[int, int]:
    start = datetime.fromtimestamp(wall_ms / 1000, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    return int(start.timestamp()) * 1000, int(end.timestamp()) * 1000
