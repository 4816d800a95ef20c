"""Admin: the dead letters of consumer groups.

A message that a group failed to consume too often is in the topic `%DLQ%<group>`. No consumer
reads it there. `requeue` sends a copy to the retry topic of the group, which only this group
consumes, as the first delivery of its original topic.

How far the dead letters were requeued is an offset of the group `TOOLS_CONSUMER`, which every
broker has. It is committed after the copies are stored, so an interrupted run may repeat up to
`BATCH` messages.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rmqkit.client.admin.groups import TOOLS_GROUP, AdminCore
from rmqkit.client.consumers.pull import PullStatus, pull
from rmqkit.client.consumers.redelivery import copy_for_retry
from rmqkit.client.flow import Deferred
from rmqkit.client.message import MessageExt, SendResult
from rmqkit.client.producers.outgoing_message import OutgoingMessage
from rmqkit.client.producers.producer import ProducerCore, ProducerSettings, SendOutcome
from rmqkit.errors import ClientError, NoRoute
from rmqkit.wire import bodies
from rmqkit.wire import properties as props
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.topic_names import DLQ_PREFIX

#: Messages between two commits.
BATCH = 32
SEND_TIMEOUT_MS = 3000
PRODUCER_GROUP = "rmqkit-dlq"


class DeadLetterQueue(NamedTuple):
    """A queue with dead letters of a group. `offset_requeued`: the first that was not requeued."""

    group: str
    queue: MessageQueue
    offset_min: int
    offset_requeued: int
    offset_max: int

    @property
    def total(self) -> int:
        """Number of dead letters in the queue."""
        return self.offset_max - self.offset_min

    @property
    def fresh(self) -> int:
        """Number of dead letters that were never requeued."""
        return self.offset_max - self.offset_requeued


class RequeueStep(NamedTuple):
    """The queue after one step, the messages copied in it, and the error that ended it."""

    state: DeadLetterQueue
    requeued: int
    error: ClientError | None


async def dead_letters(admin: AdminCore, group: str | None = None) -> list[DeadLetterQueue]:
    """Return the queues with dead letters, sorted by group.

    Args:
        group: Only this group. None: all groups.
    """
    topics = [DLQ_PREFIX + group] if group is not None else sorted(await admin.topics())
    found = []
    for topic in topics:
        if topic.startswith(DLQ_PREFIX):
            try:
                queues = sorted(await admin.queues(topic))
            except NoRoute:
                continue  # the group has no dead letters, or its topic was deleted meanwhile
            found += [await _state(admin, topic.removeprefix(DLQ_PREFIX), queue) for queue in queues]
    return found


async def _state(admin: AdminCore, group: str, queue: MessageQueue) -> DeadLetterQueue:
    """Return the current state of a queue with dead letters."""
    first, end = max(0, await admin.offset_min(queue)), await admin.offset_max(queue)
    mark = await admin.group_offset(TOOLS_GROUP, queue)
    return DeadLetterQueue(group, queue, first, min(max(first, mark or 0), end), end)


async def requeue(admin: AdminCore, message: MessageExt, group: str, topic: str | None = None) -> SendResult:
    """Send a copy of a dead letter to the group's retry topic, or to `topic`.

    The copy keeps body, keys, tag and properties. In the retry topic it starts with no failed
    delivery and is shown under its original topic.

    Args:
        message: The dead letter.
        group: The group that failed to consume it.
        topic: Send the copy to this topic instead.

    Returns:
        The result of the send.

    Raises:
        ClientError: If the original topic is unknown, or the send fails. After a timeout the copy
            may still be stored.
    """
    producer = ProducerCore(admin.client, ProducerSettings(group=PRODUCER_GROUP))
    try:
        return await _send(producer, copy_of(message, group, topic))
    finally:
        await producer.close()


def copy_of(message: MessageExt, group: str, topic: str | None) -> OutgoingMessage:
    """Return what `requeue` sends. Raises ClientError if the original topic is unknown."""
    properties = dict(message.properties)
    original = properties.pop(props.PROPERTY_RETRY_TOPIC, None)
    for name in (props.PROPERTY_DELAY_TIME_LEVEL, props.PROPERTY_TRANSACTION_PREPARED):
        properties.pop(name, None)
    if topic is None:
        if original is None:
            raise ClientError(f"message {message.msg_id} does not name its original topic; choose a topic to send it to")
        properties[props.PROPERTY_RETRY_TOPIC] = original
    encoded = props.encode(properties).decode()
    copy = copy_for_retry(message, group, times_max=0)
    return copy._replace(topic=topic or copy.topic, properties=encoded, reconsume_times=0, max_reconsume_times=None)


async def requeue_step(
    admin: AdminCore, state: DeadLetterQueue, *, topic: str | None = None, count_max: int = BATCH
) -> RequeueStep:
    """Requeue the next dead letters of a queue, then commit how far it got.

    Args:
        state: The queue, from `dead_letters` or the previous step.
        topic: Send the copies to this topic instead of the group's retry topic.
        count_max: Number of dead letters to requeue, at most 32.

    Returns:
        The new state, the number of copies, and the error that ended the step or None.

    Example:
        Requeue all dead letters of a group:

            for state in admin.dead_letters("billing"):
                while state.fresh:
                    step = admin.requeue_step(state)
                    state = step.state
                    if step.error is not None:
                        raise step.error
    """
    messages, offset = await _next(admin, state, min(count_max, BATCH))
    producer = ProducerCore(admin.client, ProducerSettings(group=PRODUCER_GROUP))
    count, error = 0, None
    try:
        for message in messages:
            await _send(producer, copy_of(message, state.group, topic))
            count += 1
    except ClientError as failed:
        offset, error = messages[count].queue_offset, failed
    finally:
        await producer.close()
    if offset > state.offset_requeued:
        await admin.set_group_offset(TOOLS_GROUP, state.queue, offset)
    return RequeueStep(state._replace(offset_requeued=offset), count, error)


async def _next(admin: AdminCore, state: DeadLetterQueue, count_max: int) -> tuple[Sequence[MessageExt], int]:
    """Return the next messages before `state.offset_max`, and the offset after them."""
    await admin.client.routes.find(state.queue.topic)
    offset = state.offset_requeued
    everything = bodies.parse_subscription(state.queue.topic, "*")
    while offset < state.offset_max:
        pulled = await pull(
            admin.client, TOOLS_GROUP, state.queue, offset, everything,
            batch_size=count_max, suspend_ms=0, send_subscription=True,
        )  # fmt: skip
        messages = [each for each in pulled.messages if each.queue_offset < state.offset_max]
        if pulled.status is PullStatus.FOUND and messages:
            return messages, messages[-1].queue_offset + 1
        if pulled.next_offset <= offset:
            raise ClientError(f"{state.queue} has no message at offset {offset}: {pulled.status.name}")
        offset = min(pulled.next_offset, state.offset_max)  # deleted with its file
    return (), offset


async def _send(producer: ProducerCore, copy: OutgoingMessage) -> SendResult:
    """Send a copy and return the result. Raises the error of the send."""
    promise: Deferred[SendOutcome | None] = Deferred()
    producer.send(copy, promise.resolve, timeout_ms=SEND_TIMEOUT_MS)
    outcome = await promise
    if isinstance(outcome, SendResult):
        return outcome
    raise outcome or ClientError(f"a copy for {copy.topic} was not answered")
