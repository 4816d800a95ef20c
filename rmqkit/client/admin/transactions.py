"""Admin: transactions without an outcome.

A half message is prepared if it lies at or behind the offset of CID_RMQ_SYS_TRANS in the half topic
and no op names it. Both topics are read like any other, so this works with Apache's brokers too. An
outcome shows only when its op is written (`transactionOpBatchInterval`, 3 s).

A half that was checked too often is in TRANS_CHECK_MAX_TIME_TOPIC. `resume_transaction` puts it
into the half topic again. Nothing records that, so it stays listed as given up.
"""

from collections.abc import AsyncIterator
from typing import NamedTuple

from rmqkit.client.admin.groups import TOOLS_GROUP, AdminCore
from rmqkit.client.consumers.pull import PullStatus, pull
from rmqkit.client.message import MessageExt
from rmqkit.errors import NoRoute
from rmqkit.wire import bodies
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag, RequestCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.schemas.messages import ResumeCheckHalfMessageRequest
from rmqkit.wire.schemas.send import EndTransactionRequest
from rmqkit.wire.topic_names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_TOPIC

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
#: halves that a list reads per broker
HALVES_MAX = 100_000
PULL_COUNT = 32


class PreparedTransaction(NamedTuple):
    """A half message without an outcome.

    Attributes:
        message: The half message, in its internal topic.
        topic: The topic of the message.
        group: The producer group.
        checks: How often producers were asked.
        producers: Producers of the group that are online.
        is_given_up: Whether the broker asks no more.
        why: Why there is no outcome.
    """

    message: MessageExt
    topic: str
    group: str
    checks: int
    producers: int
    is_given_up: bool
    why: str


async def prepared_transactions(
    admin: AdminCore, *, given_up: bool = False, count_max: int = 1000
) -> list[PreparedTransaction]:
    """Return the half messages without an outcome, the oldest first.

    Args:
        given_up: Return those instead that were checked too often.
        count_max: The largest number to return.

    Example:
        Print what waits for a decision, and why:

            for each in admin.prepared_transactions():
                print(each.message.msg_id, each.group, each.checks, each.why)
    """
    found: list[PreparedTransaction] = []
    producers: dict[str, int] = {}
    for name in sorted(await admin.masters()):
        config = await admin.broker_config(name)
        limits = int(config.get("transactionTimeOut", 6000)), int(config.get("transactionCheckMax", 15))
        halves = _given_up(admin, name) if given_up else _prepared(admin, name)
        async for message in halves:
            found.append(await _described(admin, message, limits, producers, given_up))
            if len(found) >= count_max:
                return found
    return sorted(found, key=lambda each: each.message.born_timestamp_ms)


async def end_transaction(admin: AdminCore, prepared: PreparedTransaction, *, commit: bool) -> None:
    """Commit a prepared transaction, or roll it back, in place of its producer.

    Args:
        prepared: The transaction, from `prepared_transactions`.
        commit: Whether the message is delivered; otherwise it is dropped.

    Raises:
        BrokerError: If the broker has the outcome already.
    """
    message = prepared.message
    outcome = MessageSysFlag.TRANSACTION_COMMIT if commit else MessageSysFlag.TRANSACTION_ROLLBACK
    request = EndTransactionRequest(
        topic=prepared.topic,
        producer_group=prepared.group,
        tran_state_table_offset=message.queue_offset,
        commit_log_offset=message.commit_log_offset,
        commit_or_rollback=int(outcome),
        from_transaction_check=True,
        msg_id=message.msg_id,
        transaction_id=message.msg_id,
    )
    await admin.ask_broker(message.broker_name, RequestCode.END_TRANSACTION, request)


async def resume_transaction(admin: AdminCore, prepared: PreparedTransaction) -> None:
    """Let the broker ask again about a transaction that it gave up.

    Args:
        prepared: The transaction, from `prepared_transactions(given_up=True)`.
    """
    message = prepared.message
    request = ResumeCheckHalfMessageRequest(topic=message.topic, msg_id=message.offset_msg_id)
    await admin.ask_broker(message.broker_name, RequestCode.RESUME_CHECK_HALF_MESSAGE, request)


async def _prepared(admin: AdminCore, broker_name: str) -> AsyncIterator[MessageExt]:
    halves, ops = MessageQueue(HALF_TOPIC, broker_name, 0), MessageQueue(OP_TOPIC, broker_name, 0)
    decided: set[int] = set()
    async for op in _messages(admin, ops, await admin.group_offset(TRANSACTION_GROUP, ops) or 0):
        decided.update(int(word) for word in op.body.split(b",") if word.isdigit())
    async for half in _messages(admin, halves, await admin.group_offset(TRANSACTION_GROUP, halves) or 0):
        if half.queue_offset not in decided:
            yield half


async def _given_up(admin: AdminCore, broker_name: str) -> AsyncIterator[MessageExt]:
    try:
        async for half in _messages(admin, MessageQueue(CHECK_MAX_TIME_TOPIC, broker_name, 0), 0):
            yield half
    except NoRoute:
        return  # no broker has given up a half


async def _messages(admin: AdminCore, queue: MessageQueue, offset: int) -> AsyncIterator[MessageExt]:
    """Return the messages of a queue from an offset on, up to its end now."""
    subscription = bodies.parse_subscription(queue.topic, "*")
    offset = max(offset, await admin.offset_min(queue))
    end = min(await admin.offset_max(queue), offset + HALVES_MAX)
    while offset < end:
        pulled = await pull(
            admin.client, TOOLS_GROUP, queue, offset, subscription, batch_size=PULL_COUNT, suspend_ms=0,
            send_subscription=True,
        )  # fmt: skip
        if pulled.status is PullStatus.FOUND:
            for message in pulled.messages:
                yield message
        if pulled.next_offset <= offset:
            return
        offset = pulled.next_offset


async def _described(
    admin: AdminCore, message: MessageExt, limits: tuple[int, int], producers: dict[str, int], is_given_up: bool
) -> PreparedTransaction:
    properties = message.properties
    group = properties.get(props.PROPERTY_PRODUCER_GROUP, "")
    if group not in producers:
        connections = await admin.producer_connections(group) if group else None
        producers[group] = 0 if connections is None else len(connections.connection_set)
    text = properties.get(props.PROPERTY_TRANSACTION_CHECK_TIMES, "")
    checks = int(text) if text.isdecimal() else 0
    timeout_ms, checks_max = limits
    age_ms = admin.client.clock.wall_ms - message.born_timestamp_ms
    if is_given_up:
        why = f"given up after {checks} checks"
    elif not producers[group]:
        why = f"no producer of group {group} is online to be asked"
    elif checks:
        why = f"asked {checks} of {checks_max} times: the producer does not know the outcome, or does not answer"
    elif age_ms <= timeout_ms:
        why = f"its producer has not decided; it is asked after {timeout_ms} ms"
    else:
        why = "its producer has not decided; the next round of checks asks it"
    topic = properties.get(props.PROPERTY_REAL_TOPIC, message.topic)
    return PreparedTransaction(message, topic, group, checks, producers[group], is_given_up, why)
