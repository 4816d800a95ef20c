"""TurnAcks: stores the acks of one turn, one record for each checkpoint.

A client acks each message in a request of its own, and sends the acks of a pop together. So most
acks of a turn are for few checkpoints, and storing a record costs more than handling a request.
Therefore acks wait for the end of the turn's reads: a duty that is due at once runs after them and
before the write of the turn. It appends one record for each checkpoint, and the acks are answered
when that record is as durable as a send.

If the special duty of pop has stopped in this turn, or this broker acts now and may not append, the
acks are refused.

An ack of one message is Apache's `AckMsg`, one of several its `BatchAckMsg`. So an Apache slave
that acts for this broker reads both.
"""

from functools import partial
from typing import Any, NamedTuple

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.hosts import Hosts
from rmqkit.broker.puts.answers import STORED
from rmqkit.broker.puts.puts import Puts
from rmqkit.broker.special.pop.counts import ACK
from rmqkit.broker.special.pop.pending import Key, Pending
from rmqkit.broker.special.pop.records import ack_put
from rmqkit.broker.special.pop.revive import PopRevive
from rmqkit.runtime.calls import Call, Response
from rmqkit.store.contract import PutResult, PutStatus, StorageEngine
from rmqkit.wire.bodies.pop import PopAck
from rmqkit.wire.codes import ResponseCode

APPEND = "pop-acks"


class _Batch(NamedTuple):
    """The acks of one checkpoint in this turn."""

    pending: Pending
    #: message offsets, as an ordered set; at most as many as the checkpoint has
    offsets: dict[int, None]
    calls: list[Call[Any]]


class TurnAcks:
    """The acks of the current turn that are not appended yet."""

    def __init__(self, context: BrokerContext, store: StorageEngine, puts: Puts, hosts: Hosts, revive: PopRevive) -> None:
        self._context, self._store, self._puts, self._hosts, self._revive = context, store, puts, hosts, revive
        self._turn: dict[Key, _Batch] = {}
        context.duties.add(APPEND, self._append, None)

    def add(self, pending: Pending, offset: int, call: Call[Any]) -> None:
        """Ack a message of a checkpoint. The call is answered when the ack is stored, or fails."""
        batch = self._turn.get(pending.key)
        if batch is None:
            batch = self._turn[pending.key] = _Batch(pending, {}, [])
            self._context.duties.wake(APPEND, self._context.clock.mono_ms)
        batch.offsets[offset] = None
        batch.calls.append(call)

    def _append(self, now_ms: int) -> None:
        turn, self._turn = self._turn, {}
        revive, wall_ms, host = self._revive, self._context.clock.wall_ms, self._hosts.store_host
        for batch in turn.values():
            if not (revive.is_on and revive.is_logging):
                status = PutStatus.SERVICE_NOT_AVAILABLE
                self._ended(batch, PutResult(status), status)
                continue
            pending = batch.pending
            ack = ack_of(pending.key, list(batch.offsets))
            put = ack_put(ack, pending.due_ms, revive.topic, pending.revive_queue, wall_ms, host)
            result = self._store.append(put)
            self._puts.await_own(put.topic, result, partial(self._ended, batch, result), copies=True)

    def _ended(self, batch: _Batch, result: PutResult, status: PutStatus) -> None:
        pending = batch.pending
        topic, group, *_ = pending.key
        self._revive.counts.note_put(group, topic, ACK, status)
        response = Response(ResponseCode.SUCCESS)
        if status in STORED:
            self._revive.acked(pending, result.queue_offset, batch.offsets)
        else:
            response = Response(ResponseCode.SYSTEM_ERROR, remark=f"not stored: {status.name}")
        for call in batch.calls:
            call.finish(response)


def ack_of(key: Key, offsets: list[int]) -> PopAck:
    """Return the ack of messages of one checkpoint."""
    topic, group, queue_id, start, pop_ms, name = key
    ack = PopAck(broker_name=name, group=group, pop_ms=pop_ms, queue_id=queue_id, start=start, topic=topic)
    if len(offsets) == 1:
        ack.offset = offsets[0]
    else:
        ack.offsets = offsets
    return ack
