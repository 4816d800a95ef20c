"""Unique message ids of one sender, one after the other (see `msgid.py` for the form).

The time in an id counts from the start of the month, in UTC; wall time is passed in.

Source: `common/.../message/MessageClientIDSetter.java`.
"""

from datetime import UTC, datetime

from rmqkit.wire.msgid import unique_id_prefix, unique_id_tail


class UniqueIds:
    """`ip` is 4 or 16 raw bytes; `salt` stands where Java has a class loader's hash code and tells restarts apart."""

    def __init__(self, ip: bytes, pid: int, salt: int) -> None:
        self._prefix = unique_id_prefix(ip, pid, salt)
        self._counter = 0
        self._month_start_ms = 0
        self._month_end_ms = 0

    def next(self, wall_ms: int) -> str:
        if not self._month_start_ms <= wall_ms < self._month_end_ms:
            self._turn_month(wall_ms)
        self._counter = self._counter + 1 & 0xFFFF
        return self._prefix + unique_id_tail(wall_ms - self._month_start_ms, self._counter)

    def _turn_month(self, wall_ms: int) -> None:
        start = datetime.fromtimestamp(wall_ms / 1000, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        end = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
        self._month_start_ms = int(start.timestamp()) * 1000
        self._month_end_ms = int(end.timestamp()) * 1000
