"""Ordered pop on disk: which messages of each queue are with a client, `consumerOrderInfo.json`.

Source: `broker/.../pop/orderly/QueueLevelConsumerManager.java`.
"""

from collections.abc import Sequence
from typing import Self

from msgspec import field

from rmqkit.wire.bodies.base import Body
from rmqkit.wire.schema import Int32, Int64


class OrderInfo(Body, kw_only=True):
    """The last batch of one queue and group (`OrderInfo`).

    `places` is the offset of the first message, then the distance of each further one from it. Bit
    i of `acked` is message i. The two maps are by offset; a message without an entry in `visible`
    is invisible until the end of the pop's invisible time, one without an entry in `counts` was not
    handed out before.
    """

    attempt_id: str | None = field(default=None, name="a")
    acked: Int64 = field(default=0, name="cm")
    invisible_ms: Int64 | None = field(default=None, name="i")
    last_ms: Int64 = field(default=0, name="l")
    places: list[Int64] = field(default_factory=list, name="o")
    counts: dict[Int64, Int32] | None = field(default=None, name="oc")
    visible: dict[Int64, Int64] | None = field(default=None, name="ot")
    pop_ms: Int64 = field(default=0, name="popTime")

    @classmethod
    def of(cls, offsets: Sequence[int], pop_ms: int, invisible_ms: int, attempt_id: str | None) -> Self:
        """Return the info of a batch that is handed out now."""
        first = offsets[0]
        places = [first, *(offset - first for offset in offsets[1:])]
        return cls(attempt_id=attempt_id, invisible_ms=invisible_ms, last_ms=pop_ms, places=places, pop_ms=pop_ms)

    @property
    def offsets(self) -> list[int]:
        """The queue offsets of the messages."""
        return [*self.places[:1], *(self.places[0] + distance for distance in self.places[1:])]

    @property
    def next_offset(self) -> int:
        """The first message without an ack; one past the last one if all are acked."""
        offsets = self.offsets
        return next((each for index, each in enumerate(offsets) if not self.acked >> index & 1), offsets[-1] + 1)

    def visible_ms(self, offset: int, default_ms: int) -> int:
        """Return the wall time until which a message is invisible.

        `default_ms` replaces an invisible time that is not known.
        """
        known = (self.visible or {}).get(offset)
        return self.pop_ms + (self.invisible_ms or default_ms) if known is None else known

    def invisible_until(self, default_ms: int = 0) -> int:
        """Return the wall time at which the queue is free; 0 if all messages are acked."""
        open_ones = (each for index, each in enumerate(self.offsets) if not self.acked >> index & 1)
        return max((self.visible_ms(each, default_ms) for each in open_ones), default=0)


class OrderInfoTable(Body, kw_only=True):
    """`consumerOrderInfo.json`: infos by `topic@group`, then by queue id."""

    table: dict[str, dict[Int32, OrderInfo]] = field(default_factory=dict)
