"""Receipts: returns the handles of popped messages to their brokers, as acks or as changes.

    ack        the message is consumed; acks of one turn go to a broker in one request (200151)
    change     the message becomes visible after another time; its old handle is invalid then

A request without an answer is repeated every second while a handle in it is valid: a lost ack means
one more delivery. After that the broker would ignore it. If a broker refuses a request for good, it
is logged, and the message comes again after its invisible time.

An ack is sent once even if the handle has expired. The broker may not have noticed yet, and then
the message is not delivered a second time.

Deviation: Java's clients send each ack in a request of its own, and never repeat one.

Source: `client/.../impl/consumer/DefaultMQPushConsumerImpl.java` (`ackAsync`,
`changePopInvisibleTimeAsync`), `client/.../impl/MQClientAPIImpl.java` (`batchAckMessageAsync`).
"""

from base64 import b64encode
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rmqkit.client.consumers.pop.messages import PoppedMessage, PopStep
from rmqkit.client.flow import Deferred, gather, start
from rmqkit.errors import BrokerError, ClientError, PeerUnreachable
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies.pop import BatchAck, BatchAckRequest
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schemas.pop import AckMessageRequest, ChangeInvisibleTimeRequest
from rmqkit.wire.topic_names import RETRY_PREFIX

if TYPE_CHECKING:
    from rmqkit.client.client import Client

Ask: TypeAlias = Callable[[Sequence[PoppedMessage]], Coroutine[Any, Any, None]]

REPEAT_MS = 1000
#: Acks in one request.
BATCH_ACKS_MAX = 1024
#: Largest distance of an offset from the start of its pop in a batch ack. It is the size of a bit
#: set, and after a filter the offsets may be far apart. An ack beyond it goes alone.
BATCH_SPAN_MAX = 4096


class PopReceipts:
    """The receipts of one consumer that are under way."""

    def __init__(self, client: "Client", group: str) -> None:
        self._client = client
        self._group = group
        self._duty = f"pop-acks-{group}"
        #: Acks of this turn, by broker name.
        self._acks: dict[str, list[PoppedMessage]] = {}
        #: Brokers that know no batch ack.
        self._without_batch: dict[str, None] = {}
        #: Messages whose request has not ended.
        self._open: dict[PoppedMessage, None] = {}
        self._all_ended: Deferred[None] | None = None
        self._closed = False
        client.duties.add(self._duty, self._flush, None)

    def ack(self, popped: PoppedMessage) -> None:
        """Ack a message that is consumed."""
        popped.go(PopStep.ACKING)
        self._open[popped] = None
        self._acks.setdefault(popped.handle.broker_name, []).append(popped)
        if self._closed:
            self._flush(self._client.clock.mono_ms)  # a listener that `close` did not wait for
        else:
            self._client.duties.wake(self._duty, self._client.clock.mono_ms)

    def delay(self, popped: PoppedMessage, delay_ms: int) -> None:
        """Make a failed message visible after `delay_ms`."""
        popped.go(PopStep.DELAYING)
        self._change(popped, delay_ms, suspend=False)

    def release(self, popped: PoppedMessage, delay_ms: int) -> None:
        """Make a message visible after `delay_ms` that no listener had.

        Brokers before 5.5 count it as failed all the same.
        """
        popped.go(PopStep.RELEASING)
        self._change(popped, delay_ms, suspend=True)

    async def close(self, wait_ms: int) -> None:
        """Wait until all requests have ended, up to `wait_ms`. Then repeat none."""
        self._flush(self._client.clock.mono_ms)
        if self._open:
            ended = self._all_ended = Deferred()
            timer = self._client.timers.after(wait_ms, self._give_up)
            await ended
            timer.cancel()
        self._closed = True
        self._client.duties.remove(self._duty)

    def _give_up(self) -> None:
        if self._all_ended is not None:
            self._client.log.warning("receipts-lost", group=self._group, count=len(self._open), error="closing")
            ended, self._all_ended = self._all_ended, None
            ended.resolve(None)

    # --- acks

    def _flush(self, now_ms: int) -> None:
        waiting, self._acks = self._acks, {}
        for acks in waiting.values():
            together = [each for each in acks if self._may_share(each)]
            for begin in range(0, len(together), BATCH_ACKS_MAX):
                self._send(self._ask_acks, together[begin : begin + BATCH_ACKS_MAX])
            for each in acks:
                if not self._may_share(each):
                    self._send(self._ask_acks, [each])

    def _may_share(self, popped: PoppedMessage) -> bool:
        """Return whether an ack can be part of a batch.

        A batch names a topic and a flag. For the retry topic of pulls they would mean another one.
        """
        is_of_pulls = popped.work.queue.topic == RETRY_PREFIX + self._group
        return not is_of_pulls and 0 <= _span(popped) <= BATCH_SPAN_MAX

    async def _ask_acks(self, acks: Sequence[PoppedMessage]) -> None:
        """Ack messages of one broker, in one request if it knows batch acks."""
        name = acks[0].handle.broker_name
        if len(acks) > 1 and name not in self._without_batch:
            body = batch_ack(self._group, acks).encode()
            try:
                await self._client.ask(self._address(name), RequestCode.BATCH_ACK_MESSAGE, body=body)
                return
            except BrokerError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                self._without_batch[name] = None
        await gather([start(self._ask_ack(each)) for each in acks])

    async def _ask_ack(self, popped: PoppedMessage) -> None:
        request = AckMessageRequest(
            consumer_group=self._group,
            topic=popped.message.queue.topic,
            queue_id=popped.handle.queue_id,
            extra_info=popped.receipt,
            offset=popped.handle.offset,
        )
        await self._client.ask(self._address(popped.handle.broker_name), RequestCode.ACK_MESSAGE, request)

    def _address(self, broker_name: str) -> Address:
        return self._client.routes.address_to_read(broker_name)

    # --- changes

    def _change(self, popped: PoppedMessage, delay_ms: int, *, suspend: bool) -> None:
        async def ask(items: Sequence[PoppedMessage]) -> None:
            request = ChangeInvisibleTimeRequest(
                consumer_group=self._group,
                topic=popped.message.queue.topic,
                queue_id=popped.handle.queue_id,
                extra_info=popped.receipt,
                offset=popped.handle.offset,
                invisible_time=delay_ms,
                suspend=suspend,
            )
            address = self._address(popped.handle.broker_name)
            await self._client.ask(address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, request)

        self._open[popped] = None
        self._send(ask, [popped])

    # --- requests

    def _send(self, ask: Ask, items: Sequence[PoppedMessage]) -> None:
        start(self._repeat(ask, list(items)))

    async def _repeat(self, ask: Ask, items: list[PoppedMessage]) -> None:
        """Ask until there is an answer, or until no handle is valid any more."""
        while True:
            try:
                await ask(items)
            except ClientError as error:
                may_repeat = self._may_repeat(error, items[0])
                until_ms = self._client.clock.mono_ms + REPEAT_MS
                lost = [each for each in items if not may_repeat or until_ms >= each.deadline_ms]
                if lost:
                    first = lost[0].message.msg_id
                    self._client.log.warning(
                        "receipts-lost", group=self._group, count=len(lost), first=first, error=str(error)
                    )
                    self._end(lost)
                items = [each for each in items if each.step is not PopStep.ENDED]
            else:
                self._end(items)
                return
            if not items:
                return
            await self._client.timers.sleep(REPEAT_MS)

    def _may_repeat(self, error: ClientError, popped: PoppedMessage) -> bool:
        if isinstance(error, PeerUnreachable):
            self._client.routes.refresh_soon(popped.work.queue.topic)
            return not self._closed
        is_passing = isinstance(error, BrokerError) and (error.retriable or error.code == ResponseCode.FLOW_CONTROL)
        return is_passing and not self._closed

    def _end(self, items: Sequence[PoppedMessage]) -> None:
        for each in items:
            del self._open[each]
            each.go(PopStep.ENDED)
        if not self._open and self._all_ended is not None:
            ended, self._all_ended = self._all_ended, None
            ended.resolve(None)


def _span(popped: PoppedMessage) -> int:
    return popped.handle.offset - popped.handle.start_offset


def batch_ack(group: str, acks: Sequence[PoppedMessage]) -> BatchAckRequest:
    """Return the body of 200151 for acks of one broker: one entry for each pop of a queue."""
    rows: dict[tuple[str, int, str, int, int], BatchAck] = {}
    bits: dict[tuple[str, int, str, int, int], int] = {}
    for popped in acks:
        handle, topic = popped.handle, popped.work.queue.topic
        key = topic, handle.queue_id, handle.flag, handle.start_offset, handle.pop_ms
        bits[key] = bits.get(key, 0) | 1 << _span(popped)
        if key not in rows:
            rows[key] = BatchAck(
                group=group,
                invisible_ms=handle.invisible_ms,
                pop_ms=handle.pop_ms,
                queue_id=handle.queue_id,
                flag=handle.flag,
                revive_queue_id=handle.revive_queue_id,
                start=handle.start_offset,
                topic=topic,
            )
    for key, row in rows.items():
        row.bits = b64encode(bits[key].to_bytes((bits[key].bit_length() + 7) // 8, "little")).decode()
    return BatchAckRequest(acks=list(rows.values()), broker_name=acks[0].handle.broker_name)
