"""PopCounts: counters of revive records and redelivered messages, for metrics.

Limit: `KEYS_MAX` keys for each counter; further keys are not counted.
"""

from collections.abc import Hashable
from typing import TypeVar

from rmqkit.store.contract import PutStatus

#: what a record of the revive topic is (`PopReviveMessageType`)
CHECKPOINT, ACK = "CK", "ACK"
#: limit of the keys of each counter
KEYS_MAX = 50_000

K = TypeVar("K", bound=Hashable)


class PopCounts:
    """Totals since this broker was started."""

    def __init__(self) -> None:
        #: records put: by group, topic, kind and put status
        self.put: dict[tuple[str, str, str, PutStatus], int] = {}
        #: records read: by group, topic, queue id and kind
        self.read: dict[tuple[str, str, int, str], int] = {}
        #: messages put into retry topics: by group, topic and put status
        self.retried: dict[tuple[str, str, PutStatus], int] = {}

    def note_put(self, group: str, topic: str, kind: str, status: PutStatus) -> None:
        _add(self.put, (group, topic, kind, status))

    def note_read(self, group: str, topic: str, queue_id: int, kind: str) -> None:
        _add(self.read, (group, topic, queue_id, kind))

    def note_retried(self, group: str, topic: str, status: PutStatus) -> None:
        _add(self.retried, (group, topic, status))


def _add(counts: dict[K, int], key: K) -> None:
    count = counts.get(key)
    if count is not None:
        counts[key] = count + 1
    elif len(counts) < KEYS_MAX:
        counts[key] = 1
