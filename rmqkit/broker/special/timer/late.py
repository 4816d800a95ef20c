"""LateTimers: timers that are outside the wheel, because their slot has passed.

There are few: a put failed and is retried, the clock was set back, or this member takes over and
the progress that it knows does not cover them. They are put in the order of their offsets. Each
stays here, and in the progress, until it is stored.

A delete marker that is late is not put; its key removes late timers of the same slot.
"""

from collections.abc import Iterator


class LateTimer:
    """One timer. Its fields are those of its record; `offset` is its offset in the timer topic."""

    __slots__ = (
        "enqueued_ms", "failures", "is_delete", "is_roll", "offset", "phy_offset", "queue", "retry_ms", "size", "slot_ms",
    )  # fmt: skip

    def __init__(
        self, offset: int, phy_offset: int, size: int, slot_ms: int, *, is_roll: bool, is_delete: bool = False
    ) -> None:
        self.offset = offset
        self.phy_offset = phy_offset
        self.size = size
        self.slot_ms = slot_ms
        self.is_roll = is_roll
        self.is_delete = is_delete
        #: when it was enqueued; -1: it never was in a slot
        self.enqueued_ms = -1
        self.failures = 0
        #: when it may be put again (monotonic)
        self.retry_ms = 0
        #: topic and queue id of its destination, once a put has failed
        self.queue: tuple[str, int] | None = None


class LateTimers:
    """The late timers by offset, and the keys of late delete markers."""

    def __init__(self) -> None:
        self.by_offset: dict[int, LateTimer] = {}
        #: late delete markers whose records were not read yet
        self.markers: list[LateTimer] = []
        #: (slot in ms, key) of late delete markers
        self.deleted: set[tuple[int, bytes]] = set()
        self._is_sorted = True

    def __len__(self) -> int:
        return len(self.by_offset)

    def __iter__(self) -> Iterator[LateTimer]:
        """Return the timers in the order of their offsets. Do not add any meanwhile."""
        if not self._is_sorted:
            self.by_offset = dict(sorted(self.by_offset.items()))
            self._is_sorted = True
        return iter(self.by_offset.values())

    def add(self, timer: LateTimer) -> None:
        if timer.is_delete and not timer.is_roll:
            self.markers.append(timer)
            return
        self._is_sorted = self._is_sorted and (not self.by_offset or next(reversed(self.by_offset)) < timer.offset)
        self.by_offset.setdefault(timer.offset, timer)

    def remove(self, offset: int) -> None:
        self.by_offset.pop(offset, None)
        if not self.by_offset:
            self.deleted.clear()

    def clear(self) -> None:
        self.by_offset.clear()
        self.markers.clear()
        self.deleted.clear()
        self._is_sorted = True

    def offsets(self) -> tuple[int, ...]:
        return tuple(timer.offset for timer in self)
