"""Offset stores: how far a group has consumed each queue. Remote with the broker (clustering), or in a local file
(broadcasting, where every member has its own).

`update` is memory only; `persist` brings what has changed to its place. A read answers from the place, never from memory:
it is asked for when a queue is taken over.

With the brokers the place is the master or, while it is gone, a slave. Whoever has not been told an offset is told it,
changed or not: the slave may have taken over without it, and the master come back without what the slave was told.

The local file is upstream's: `<folder>/<client id>/<group>/offsets.json`, a map keyed by queue objects, kept with its
predecessor as `.bak`. It goes through the disk port.

Source: `client/.../consumer/store/{RemoteBrokerOffsetStore,LocalFileOffsetStore}.java`.
"""

import posixpath
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from msgspec import field

from rmqkit.client.client import Client, fields
from rmqkit.client.flow import Deferred
from rmqkit.errors import ClientError, PeerUnreachable
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.calls import Reply
from rmqkit.runtime.connection import Address
from rmqkit.runtime.ports import Disk
from rmqkit.wire.bodies import Body
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.schema import Int64
from rmqkit.wire.schemas.offsets import (
    QueryConsumerOffsetRequest,
    QueryConsumerOffsetResponse,
    UpdateConsumerOffsetRequest,
)

PERSIST_TIMEOUT_MS = 5000

#: a queue, what is stored where once the answer is there
_Commit = tuple[MessageQueue, tuple[Address, int], Deferred[Reply]]


class OffsetStore(ABC):
    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        if not increase_only or offset > self._offsets.get(queue, -1):
            self._offsets[queue] = offset

    def get(self, queue: MessageQueue) -> int | None:
        """What `update` said last."""
        return self._offsets.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        """Forget what `update` said; a file keeps its offset, as the queue may come back."""
        self._offsets.pop(queue, None)

    @abstractmethod
    async def read(self, queue: MessageQueue) -> int | None:
        """The stored offset, None when this group never consumed the queue. Raises ClientError when nobody can tell."""

    @abstractmethod
    async def persist(self, queues: Iterable[MessageQueue]) -> list[ClientError]:
        """Store what has changed; what could not be stored is tried again next time."""


class RemoteOffsets(OffsetStore):
    """With the brokers: codes 14 and 15."""

    def __init__(self, client: Client, group: str) -> None:
        super().__init__()
        self._client = client
        self._group = group
        #: with the broker that has it
        self._stored: dict[MessageQueue, tuple[Address, int]] = {}
        #: topics and brokers that have an offset of this group
        self._begun: set[tuple[str, Address]] = set()

    async def read(self, queue: MessageQueue) -> int | None:
        reader = self._client.routes.reader(queue.broker_name)
        if reader is None:
            raise _no_broker(queue)
        request = QueryConsumerOffsetRequest(consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id)
        accept = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})
        reply = await self._client.ask(reader.address, RequestCode.QUERY_CONSUMER_OFFSET, request, accept=accept)
        return fields(reply, QueryConsumerOffsetResponse).offset if reply.is_ok else None

    async def persist(self, queues: Iterable[MessageQueue]) -> list[ClientError]:
        errors: list[ClientError] = []
        calls: list[_Commit] = []
        for queue in queues:
            offset = self._offsets.get(queue)
            if offset is None:
                continue
            reader = self._client.routes.reader(queue.broker_name)
            if reader is None:
                if queue not in self._stored or self._stored[queue][1] != offset:
                    errors.append(_no_broker(queue))
                continue
            address = reader.address
            if self._stored.get(queue) == (address, offset):
                continue
            request = UpdateConsumerOffsetRequest(
                consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
            )
            code = RequestCode.UPDATE_CONSUMER_OFFSET
            call = self._client.ask(address, code, request, timeout_ms=PERSIST_TIMEOUT_MS)
            if (queue.topic, address) in self._begun:
                calls.append((queue, (address, offset), call))
                continue
            # The first goes alone: of several first commits of a group and topic that come at once, Apache's broker
            # keeps one and loses the others (`ConsumerOffsetManager.commitOffset` makes their table without a lock).
            await self._settle([(queue, (address, offset), call)], errors)
            if self._stored.get(queue) == (address, offset):
                self._begun.add((queue.topic, address))
        await self._settle(calls, errors)
        return errors

    async def _settle(self, calls: Iterable[_Commit], errors: list[ClientError]) -> None:
        for queue, stored, call in calls:
            try:
                await call
                self._stored[queue] = stored
            except ClientError as error:
                errors.append(error)
                if isinstance(error, PeerUnreachable):
                    self._client.routes.refresh_soon(queue.topic)

    def forget(self, queue: MessageQueue) -> None:
        super().forget(queue)
        self._stored.pop(queue, None)


class LocalOffsetTable(Body, kw_only=True):
    """The local file (`OffsetSerializeWrapper`)."""

    HAS_QUEUES: ClassVar[bool] = True

    offset_table: dict[MessageQueue, Int64] = field(default_factory=dict)


class LocalOffsets(OffsetStore):
    """In a file of this member. Raises AtomicFileDamaged when the file and its predecessor are both beyond reading."""

    def __init__(self, disk: Disk, folder: str, client_id: str, group: str) -> None:
        super().__init__()
        self._file = AtomicFile(disk, posixpath.join(folder, client_id, group, "offsets.json"))
        self._stored = self._file.load(LocalOffsetTable.decode) or LocalOffsetTable()

    async def read(self, queue: MessageQueue) -> int | None:
        return self._stored.offset_table.get(queue)

    async def persist(self, queues: Iterable[MessageQueue]) -> list[ClientError]:
        table = self._stored.offset_table
        changed = [queue for queue in queues if self._offsets.get(queue, table.get(queue)) != table.get(queue)]
        if not changed and self._file.error is None:
            return []
        table.update((queue, self._offsets[queue]) for queue in changed)
        written: Deferred[None] = Deferred()
        self._file.save(lambda: self._stored.pretty().encode(), lambda: written.resolve(None))
        await written
        if self._file.error is not None:
            return [ClientError(f"offsets cannot be written to {self._file.path}: {self._file.error}")]
        return []


def _no_broker(queue: MessageQueue) -> PeerUnreachable:
    text = f"no broker of {queue.broker_name} is known, so offsets of {queue.topic} can be neither read nor stored"
    return PeerUnreachable(text, kind="connect", address="")
