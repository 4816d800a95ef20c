"""Offset stores: how far a group has consumed each queue.

In clustering the brokers store the offsets. In broadcasting each member stores its own in a local
file.

`update` changes only memory. `persist` stores what has changed. `read` returns the stored offset,
never the one in memory, because it is called when a queue is taken over.

Remote offsets are stored at the master or, while the master is down, at a slave. A broker that has
not yet received an offset gets it even if the offset has not changed: a slave may have taken over
without it, and a master may return without the offsets that the slave received.

The local file is Apache's: `<folder>/<client id>/<group>/offsets.json`, a map keyed by queue
objects. Its previous version is kept as `.bak`. It goes through the disk port.

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

#: A queue, the broker and offset that are stored once the call succeeds, and the call.
_Commit = tuple[MessageQueue, tuple[Address, int], Deferred[Reply]]


class OffsetStore(ABC):
    """The offsets of one consumer."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        """Set the offset in memory. With `increase_only`, ignore a smaller one."""
        if not increase_only or offset > self._offsets.get(queue, -1):
            self._offsets[queue] = offset

    def get(self, queue: MessageQueue) -> int | None:
        """Return the offset of the last `update`, or None."""
        return self._offsets.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        """Remove the offset from memory. A local file keeps it, because the queue may return."""
        self._offsets.pop(queue, None)

    @abstractmethod
    async def read(self, queue: MessageQueue) -> int | None:
        """Return the stored offset, or None if the group never consumed the queue.

        Raises ClientError if no broker can tell.
        """

    @abstractmethod
    async def persist(self, queues: Iterable[MessageQueue]) -> list[ClientError]:
        """Store the offsets that have changed. Returns the errors; the next call retries those."""


class RemoteOffsets(OffsetStore):
    """Offsets at the brokers: codes 14 and 15."""

    def __init__(self, client: Client, group: str) -> None:
        super().__init__()
        self._client = client
        self._group = group
        #: The broker that has the offset, and the offset.
        self._stored: dict[MessageQueue, tuple[Address, int]] = {}
        #: Pairs of topic and broker at which this group has an offset.
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
            # Send the first commit of a group and topic alone: if several arrive at once,
            # Apache's broker keeps only one, because `ConsumerOffsetManager.commitOffset`
            # creates their table without a lock.
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
    """The content of the local file (`OffsetSerializeWrapper`)."""

    HAS_QUEUES: ClassVar[bool] = True

    offset_table: dict[MessageQueue, Int64] = field(default_factory=dict)


class LocalOffsets(OffsetStore):
    """Offsets in a file of this member.

    Raises AtomicFileDamaged if neither the file nor its previous version can be read.
    """

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
