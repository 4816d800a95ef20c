"""Allocators decide which queues of a topic a member of a consumer group consumes.

Every member computes its own share from the same two sorted lists: all queues and all client ids.
Members agree only if they use the same algorithm. The built-in allocators return exactly what
Apache's classes return, so groups with Java members balance. Queues sort by topic, broker name and
queue id; client ids sort as Java sorts strings (by UTF-16 units).

A member that is not in the list of ids gets nothing: its heartbeat has not arrived yet. `allocate`
raises ValueError if one of the lists is empty.

Source: `client/.../consumer/rebalance/AllocateMessageQueue*.java`,
`common/.../consistenthash/ConsistentHashRouter.java`.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import md5
from typing import Any, Protocol

from rmqkit.wire.fastjson import MessageQueue


class Allocator(Protocol):
    """The interface of an allocator. Plug-ins register one by name (`rmqkit_allocators`)."""

    #: Apache's name of the strategy; running infos show it.
    name: str

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of `client_id`. Both lists are sorted."""


def sorted_ids(client_ids: Collection[str]) -> list[str]:
    """Return the client ids in Java's string order, without duplicates."""
    return sorted(set(client_ids), key=lambda text: text.encode("utf-16-be", "surrogatepass"))


class Average:
    """Contiguous blocks. The first members get the remainder (`AllocateMessageQueueAveragely`)."""

    name = "AVG"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if not _takes_part(client_id, queues, client_ids):
            return []
        index = client_ids.index(client_id)
        share, rest = divmod(len(queues), len(client_ids))
        start = index * share + min(index, rest)
        return list(queues[start : start + share + (index < rest)])


class Circle:
    """Queues dealt out one by one (`AllocateMessageQueueAveragelyByCircle`)."""

    name = "AVG_BY_CIRCLE"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if not _takes_part(client_id, queues, client_ids):
            return []
        return list(queues[client_ids.index(client_id) :: len(client_ids)])


class ConsistentHash:
    """A hash ring with `virtual_nodes` points per member (10 by default).

    Corresponds to `AllocateMessageQueueConsistentHash`.
    """

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = 10) -> None:
        if virtual_nodes < 1:
            raise ValueError("virtual_nodes must be at least 1")
        self.virtual_nodes = virtual_nodes

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if not _takes_part(client_id, queues, client_ids):
            return []
        owners = {_ring_hash(f"{each}-{i}"): each for each in client_ids for i in range(self.virtual_nodes)}
        ring = sorted(owners)
        taken = []
        for queue in queues:
            text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
            place = bisect_left(ring, _ring_hash(text)) % len(ring)
            if owners[ring[place]] == client_id:
                taken.append(queue)
        return taken


class MachineRoom:
    """Only queues of brokers named `room@name`, for the given rooms.

    Corresponds to `AllocateMessageQueueByMachineRoom`.
    """

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str] = ()) -> None:
        self.rooms = frozenset(rooms)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if not _takes_part(client_id, queues, client_ids):
            return []
        here = [queue for queue in queues if self._is_here(queue.broker_name)]
        index = client_ids.index(client_id)
        share, rest = divmod(len(here), len(client_ids))
        taken = here[share * index : share * (index + 1)]
        if index < rest:
            taken.append(here[index + share * len(client_ids)])
        return taken

    def _is_here(self, broker_name: str) -> bool:
        room, at, name = broker_name.partition("@")
        return bool(at) and bool(name) and "@" not in name and room in self.rooms


class ByConfig:
    """The queues that are configured for this member, whatever other members exist.

    Corresponds to `AllocateMessageQueueByConfig`.
    """

    name = "CONFIG"

    def __init__(self, queues: Sequence[MessageQueue] = ()) -> None:
        self.queues = list(queues)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        # Apache returns its whole list for every topic of the group, and the caller drops queues
        # of other topics.
        existing = set(queues)
        return [queue for queue in self.queues if queue in existing]


#: Name to factory, in the form that plug-ins use.
ALLOCATORS: Mapping[str, Callable[..., Any]] = {
    "average": Average,
    "circle": Circle,
    "consistent-hash": ConsistentHash,
    "machine-room": MachineRoom,
    "config": ByConfig,
}


def _takes_part(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> bool:
    if not client_id or not queues or not client_ids:
        raise ValueError("an allocator needs a client id, queues and members")
    return client_id in client_ids


def _ring_hash(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4])
