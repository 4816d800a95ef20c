"""Traces: producers and consumers record the fate of their messages in the trace topic.

    a send was acknowledged   → one Pub for each message
    a transaction ends        → EndTransaction, before its outcome is sent to the broker
    a listener begins / ends  → SubBefore, SubAfter (one request id)

`TraceDispatch` collects records. It sends up to 20 of them in one message, as soon as there are 20,
and every 5 s. It never delays the traced messages. At most `RECORDS_MAX` records wait, and at most
`SENDS_MAX` trace messages are in flight. Records above these limits, and records that cannot be
sent, are dropped, counted, and logged at most once per 5 s. Any thread may call `append`.

A message is not traced if its broker does not want that: TRACE_ON is false in the response or in
the message's properties. The trace messages have a producer of their own, which is not traced.

Source: `client/.../trace/AsyncTraceDispatcher.java`, `trace/hook/SendMessageTraceHookImpl.java`,
`trace/hook/EndTransactionTraceHookImpl.java`, `trace/hook/ConsumeMessageTraceHookImpl.java`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rmqkit.client.client import Client
from rmqkit.client.consumers.push_queue import ListenerBatch
from rmqkit.client.flow import Deferred
from rmqkit.client.message import Message, SendResult, SendStatus
from rmqkit.client.producers.outgoing_message import OutgoingMessage, Prepare
from rmqkit.client.producers.producer import ProducerCore, ProducerSettings, SendOutcome
from rmqkit.client.producers.transactions import TransactionState
from rmqkit.errors import InvalidMessage, RmqkitError
from rmqkit.wire import properties as props
from rmqkit.wire.msgid import RecallHandle
from rmqkit.wire.schemas.send import EndTransactionRequest
from rmqkit.wire.trace import ConsumeCode, TraceMessageType, TraceRecord, TraceType, encode
from rmqkit.wire.uniqueids import UniqueIds

BATCH_COUNT = 20
FLUSH_MS = 5_000
RECORDS_MAX = 2_048
SENDS_MAX = 32
SEND_TIMEOUT_MS = 5_000
BODY_SIZE_MAX = 128_000
KEYS_SIZE_MAX = 16_000
CLOSE_WAIT_MS = 2_000
DEFAULT_REGION = "DefaultRegion"
#: properties of a message that is held back
_DELAYS = (b"DELAY", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS")
#: Java's names of the outcomes
_STATES = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}
GROUP_PREFIX = "_INNER_TRACE_PRODUCER"


class TraceDispatch:
    """Collects trace records and sends them in batches."""

    def __init__(
        self, client: Client, ids: UniqueIds, *, topic: str, group: str, ask_flush: Callable[[], None] | None = None
    ) -> None:
        """`ask_flush` makes the client's own thread call `flush`. Default: the node's duty does."""
        number = client.next_number()
        self.topic = topic
        #: Number of records that were lost.
        self.dropped = 0
        self._client = client
        self._ids = ids
        self._duty = f"trace-{number}"
        self._ask_flush = ask_flush or (lambda: client.duties.wake(self._duty, client.clock.mono_ms))
        self._flush_requested = False
        self._records: deque[TraceRecord] = deque()
        self._prepare = Prepare(ids, message_size_max=2 * BODY_SIZE_MAX)
        self._producer = ProducerCore(client, ProducerSettings(group=f"{GROUP_PREFIX}-{group}"[:100] + f"-{number}"))
        self._in_flight = 0
        self._dropped_logged = 0
        self._drained: Deferred[None] | None = None
        client.duties.add(self._duty, self._run, client.clock.mono_ms + FLUSH_MS)

    def append(self, record: TraceRecord) -> None:
        """Queue a record, or drop and count it if too many wait. Any thread may call this."""
        records = self._records
        if len(records) >= RECORDS_MAX:
            self.dropped += 1
            return
        records.append(record)
        if len(records) >= BATCH_COUNT and not self._flush_requested:
            self._flush_requested = True
            self._ask_flush()

    @property
    def wall_ms(self) -> int:
        """The wall time of the client, in ms."""
        return self._client.clock.wall_ms

    def request_id(self, wall_ms: int) -> str:
        """Return a new id that links the SubBefore and SubAfter of one listener call."""
        return self._ids.next(wall_ms)

    def flush(self, *, all_of_them: bool = False) -> None:
        """Send full batches; with `all_of_them` also the rest."""
        self._flush_requested = False
        records = self._records
        while self._in_flight < SENDS_MAX and (len(records) >= BATCH_COUNT or (all_of_them and records)):
            self._send(self._take())

    async def close(self) -> None:
        """Send all records, and wait up to `CLOSE_WAIT_MS` for the responses."""
        client = self._client
        client.duties.remove(self._duty)
        self.flush(all_of_them=True)
        if self._in_flight:
            self._drained = Deferred()
            timer = client.timers.after(CLOSE_WAIT_MS, self._end_drain)
            await self._drained
            timer.cancel()
        self.dropped += len(self._records)
        self._records.clear()
        self._log_dropped()
        await self._producer.close()

    def _run(self, now_ms: int) -> int:
        self.flush(all_of_them=True)
        self._log_dropped()
        return now_ms + FLUSH_MS

    def _log_dropped(self) -> None:
        if self.dropped != self._dropped_logged:
            count, self._dropped_logged = self.dropped - self._dropped_logged, self.dropped
            self._client.log.warning("traces-dropped", topic=self.topic, count=count)

    def _take(self) -> list[tuple[TraceRecord, str]]:
        """Remove and return the records of the next message, with their text, within its size
        limits.
        """
        taken: list[tuple[TraceRecord, str]] = []
        size = keys_size = 0
        records = self._records
        while records and len(taken) < BATCH_COUNT:
            text = encode(records[0])
            size += len(text.encode())
            keys_size += len(records[0].msg_id) + len(records[0].keys.encode()) + 2
            if taken and (size > BODY_SIZE_MAX or keys_size > KEYS_SIZE_MAX):
                break
            taken.append((records.popleft(), text))
        return taken

    def _send(self, taken: Sequence[tuple[TraceRecord, str]]) -> None:
        keys: dict[str, None] = {}
        for record, _ in taken:
            keys[record.msg_id] = None
            keys |= dict.fromkeys(record.keys.split())
        wall_ms = self._client.clock.wall_ms
        try:
            message = Message(self.topic, "".join(text for _, text in taken), keys=list(keys))
            outgoing = self._prepare.message(message, wall_ms)
        except (InvalidMessage, UnicodeEncodeError):
            self.dropped += len(taken)
            return
        self._in_flight += 1

        def ended(outcome: SendOutcome | None) -> None:
            self._in_flight -= 1
            if isinstance(outcome, RmqkitError):
                self.dropped += len(taken)
            if self._drained is not None:
                self.flush(all_of_them=True)
                if not self._in_flight:
                    self._end_drain()
            elif len(self._records) >= BATCH_COUNT:
                self.flush()

        self._producer.send(outgoing, ended, timeout_ms=SEND_TIMEOUT_MS)

    def _end_drain(self) -> None:
        if self._drained is not None and not self._drained.done:
            self._drained.resolve(None)


class ProducerTrace(NamedTuple):
    """Records the sends of a producer (`ProducerCore.trace`)."""

    dispatch: TraceDispatch
    group: str

    def stored(
        self, outgoing: OutgoingMessage, result: SendResult, broker: str, began_ms: int, cost_ms: int, ordered: bool
    ) -> None:
        """Record an acknowledged send whose broker wants traces.

        A batch has one record per message, without tags and keys.
        """
        if outgoing.topic.startswith(self.dispatch.topic):
            return
        text = outgoing.properties.encode()
        kind = TraceMessageType.ORDER if ordered else TraceMessageType.NORMAL
        if any(props.find(text, name) for name in _DELAYS):
            kind = TraceMessageType.DELAY
        elif props.find(text, props.PROPERTY_TRANSACTION_PREPARED.encode()) == b"true":
            kind = TraceMessageType.TRANSACTION_HALF
        ids = outgoing.msg_id.split(",")
        offset_ids = result.offset_msg_id.split(",")
        if len(offset_ids) != len(ids):
            offset_ids = [result.offset_msg_id] * len(ids)
        for msg_id, offset_msg_id in zip(ids, offset_ids, strict=True):
            self.dispatch.append(
                TraceRecord(
                    TraceType.PUB,
                    msg_id,
                    time_ms=began_ms,
                    region_id=result.region_id or DEFAULT_REGION,
                    group=self.group,
                    topic=outgoing.topic,
                    tags=(props.find(text, b"TAGS") or b"").decode(),
                    keys=(props.find(text, b"KEYS") or b"").decode(),
                    store_host=broker,
                    body_length=len(outgoing.body) // len(ids),
                    cost_ms=cost_ms,
                    message_type=kind,
                    offset_msg_id=offset_msg_id,
                    success=result.status is SendStatus.SEND_OK,
                )
            )

    def ended(
        self, end: EndTransactionRequest, state: TransactionState, broker: str, *, region_id: str, tags: str, keys: str
    ) -> None:
        """Record the outcome of a transaction, also an unknown one, that goes to this broker."""
        self.dispatch.append(
            TraceRecord(
                TraceType.END_TRANSACTION,
                end.msg_id or "",
                time_ms=self.dispatch.wall_ms,
                region_id=region_id or DEFAULT_REGION,
                group=self.group,
                topic=end.topic or "",
                tags=tags,
                keys=keys,
                store_host=broker,
                message_type=TraceMessageType.TRANSACTION_COMMIT,
                transaction_id=end.transaction_id or "",
                transaction_state=_STATES[state],
                from_check=bool(end.from_transaction_check),
            )
        )

    def recalled(self, handle: RecallHandle, began_ms: int, *, success: bool) -> None:
        """A recall that was answered, or failed."""
        self.dispatch.append(
            TraceRecord(
                TraceType.RECALL,
                handle.unique_key,
                time_ms=began_ms,
                region_id=DEFAULT_REGION,
                group=self.group,
                topic=handle.topic,
                success=success,
            )
        )


class ConsumerTrace:
    """Records the listener calls of a consumer. Called in the listeners' threads."""

    def __init__(self, dispatch: TraceDispatch, group: str) -> None:
        self.dispatch = dispatch
        self._group = group
        self._begun: dict[ListenerBatch, list[TraceRecord]] = {}

    def began(self, batch: ListenerBatch, wall_ms: int) -> None:
        """Record that a listener begins with a batch.

        A message that an administrator sent directly to the listener is not traced.
        """
        if batch.answer is not None:
            return
        request_id = self.dispatch.request_id(wall_ms)
        begun = self._begun[batch] = []
        for message in batch.messages:
            region = message.properties.get(props.PROPERTY_MSG_REGION)
            if message.properties.get(props.PROPERTY_TRACE_SWITCH) == "false":
                continue
            record = TraceRecord(
                TraceType.SUB_BEFORE,
                message.msg_id,
                time_ms=wall_ms,
                region_id=region or DEFAULT_REGION,
                group=self._group,
                topic=message.topic,
                request_id=request_id,
                keys=message.keys or "",
                retry_times=message.reconsume_times,
            )
            begun.append(record)
            self.dispatch.append(record)

    def ended(self, batch: ListenerBatch, wall_ms: int, ok: bool, error: str) -> None:
        """Record the outcome. The duration is divided evenly among the messages, as in Java."""
        code = ConsumeCode.SUCCESS if ok else ConsumeCode.EXCEPTION if error else ConsumeCode.FAILED
        for record in self._begun.pop(batch, ()):
            cost_ms = max(0, wall_ms - record.time_ms) // len(batch.messages)
            self.dispatch.append(
                record._replace(type=TraceType.SUB_AFTER, time_ms=wall_ms, cost_ms=cost_ms, success=ok, code=code)
            )
