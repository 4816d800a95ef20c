"""Access rules of requests that name their resources in the body, or in a way of their own.

Retry topics: a group reads its own only. `%RETRY%g` and pop's `%RETRY%g+t` belong to group g. The
name of pop's version 1, `%RETRY%g_t`, may also be that of group `g_t`. So an ack with such a topic
demands Sub on g and on t, and a pull of it is refused unless `g_t` is the group that pulls.
"""

from collections.abc import Iterable
from typing import Any

from rmqkit.access.caller import Principal, is_internal
from rmqkit.access.model import Action
from rmqkit.access.rules import (
    CREATE,
    GET,
    PUB,
    SUB,
    UPDATE,
    Rule,
    after_read,
    every,
    first_refusal,
    in_body,
    on_group,
    on_topic,
)
from rmqkit.errors import CorruptRecord
from rmqkit.runtime.calls import Call, Refused
from rmqkit.runtime.connection import Buffer
from rmqkit.wire import properties as props
from rmqkit.wire.bodies import (
    CheckClientBody,
    LockBatchBody,
    MessageRequestMode,
    QueryAssignmentRequest,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfigList,
    decode_batch_ack,
    decode_heartbeat,
)
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.record import Record, decode_record
from rmqkit.wire.topic_names import HALF_TOPIC, RETRY_PREFIX

_SUB = frozenset((SUB,))
_CREATE = frozenset((CREATE,))
_UPDATE = frozenset((UPDATE,))
_GET = frozenset((GET,))

_PUB = frozenset((PUB,))
#: the rule of a row whose handler calls `stored_topic`
STORED_SUB = after_read("T:S of the stored message")
_REAL_TOPIC = props.PROPERTY_REAL_TOPIC.encode()


def stored_topic(record: Record, *actions: Action) -> Rule:
    """Demand one of the actions on the topic that a stored message was sent to.

    A message in an internal topic (delayed, half) names that topic in a property, which the broker
    has written. In any other topic the sender may have set the property, so it is ignored.
    """
    name = record.topic
    if is_internal(name):
        name = (props.find(record.properties, _REAL_TOPIC) or b"").decode("utf-8", "replace") or name
    wanted = frozenset(actions)
    return Rule("T of the stored message", lambda caller, call: caller.on_topic(name, wanted))


def stored_in(data: Buffer, *actions: Action) -> Rule:
    """Do the same for the bytes of a record. Raises Refused if they are damaged."""
    try:
        record = decode_record(data, check_crc=False)
    except CorruptRecord as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the message cannot be read: {error}") from None
    if not isinstance(record, Record):
        raise Refused(ResponseCode.SYSTEM_ERROR, "there is no message at this offset")
    return stored_topic(record, *actions)


def _own_retry(caller: Principal, name: str, group_name: str) -> str | None:
    """Return why a group may not pull a retry topic that is not its own."""
    if name.startswith(RETRY_PREFIX) and not caller.is_inner:
        rest = name[len(RETRY_PREFIX) :]
        if rest != group_name and not rest.startswith(f"{group_name}+"):
            why = f"group {group_name} reads its own retry topic only."
            return f"User:{caller.name} has no permission to access Topic:{name} from {caller.peer.host}, {why}"
    return None


def _reads(caller: Principal, topic_name: str, group_name: str) -> str | None:
    """Return why a group may not read a topic by pop, or ack what it has read."""
    first = f"{RETRY_PREFIX}{group_name}_"
    if topic_name.startswith(first):
        topic_name = topic_name[len(first) :]
    return (
        _own_retry(caller, topic_name, group_name) or caller.on_topic(topic_name, _SUB) or caller.on_group(group_name, _SUB)
    )


PULL = every(
    on_topic(SUB),
    on_group(SUB),
    Rule("%RETRY% only its own", lambda caller, call: _own_retry(caller, call.args.topic, call.args.consumer_group)),
)
POP = Rule("T:S + G:S", lambda caller, call: _reads(caller, call.args.topic, call.args.consumer_group))


def _batch_acks(caller: Principal, call: Call[Any]) -> str | None:
    acks = decode_batch_ack(call.body).acks if call.body else []
    return first_refusal(_reads(caller, each.topic, each.group) for each in acks)


def _heartbeat(caller: Principal, call: Call[Any]) -> str | None:
    consumers = decode_heartbeat(call.body).consumer_data_set
    found: Iterable[str | None] = (
        why
        for each in consumers
        for why in (
            caller.on_group(each.group_name, _SUB),
            *(caller.on_topic(subscription.topic, _SUB) for subscription in each.subscription_data_set),
        )
    )
    return first_refusal(found)


def _unregistered(caller: Principal, call: Call[Any]) -> str | None:
    name = call.args.consumer_group
    return caller.on_group(name, _SUB) if name else None


def _checked_client(caller: Principal, call: Call[Any]) -> str | None:
    body = CheckClientBody.decode(call.body)
    name = body.subscription_data.topic if body.subscription_data is not None else ""
    return caller.on_topic(name, _SUB) or caller.on_group(body.group, _SUB)


def _locked(caller: Principal, call: Call[Any]) -> str | None:
    body = LockBatchBody.decode(call.body)
    if body.only_this_broker:
        return caller.on_inner()
    topics = dict.fromkeys(queue.topic for queue in body.mq_set)
    return caller.on_group(body.consumer_group, _SUB) or first_refusal(caller.on_topic(each, _SUB) for each in topics)


def _topics_listed(caller: Principal, call: Call[Any]) -> str | None:
    topics = (call.args.topic_list or "").split(";")
    return first_refusal(caller.on_topic(each, _GET) for each in topics if each)


def _groups_filtered(caller: Principal, call: Call[Any]) -> str | None:
    groups = (call.args.filter_groups or "").split(",")
    return first_refusal(caller.on_group(each, _UPDATE) for each in groups if each)


def _groups_created(caller: Principal, call: Call[Any]) -> str | None:
    configs = SubscriptionGroupList.decode(call.body).group_config_list
    return first_refusal(caller.on_group(each.group_name, _CREATE) for each in configs)


def _topics_created(caller: Principal, call: Call[Any]) -> str | None:
    configs = TopicConfigList.decode(call.body).topic_config_list
    return first_refusal(caller.on_topic(each.topic_name, _CREATE) for each in configs)


def _mode_set(caller: Principal, call: Call[Any]) -> str | None:
    body = MessageRequestMode.decode(call.body)
    return caller.on_topic(body.topic, _SUB) or caller.on_group(body.consumer_group, _UPDATE)


def _assigned(caller: Principal, call: Call[Any]) -> str | None:
    body = QueryAssignmentRequest.decode(call.body)
    return caller.on_topic(body.topic, _SUB) or caller.on_group(body.consumer_group, _SUB)


def _transaction(caller: Principal, call: Call[Any]) -> str | None:
    """Demand Pub on the topic, which older clients do not name.

    The handler demands it of the stored message anyway. Java's answer to a check repeats the topic
    of the question, which is that of half messages.
    """
    topic = call.args.topic
    return caller.on_topic(topic, _PUB) if topic and topic != HALF_TOPIC else None


BATCH_ACKS = in_body("T:S + G:S of each", _batch_acks)
HEARTBEAT = in_body("G:S + T:S of each consumer; a producer any user", _heartbeat)
UNREGISTERED = in_body("G:S of a consumer; a producer any user", _unregistered)
CHECKED_CLIENT = in_body("T:S + G:S", _checked_client)
LOCKED = in_body("G:S + T:S; onlyThisBroker int", _locked)
TOPICS_LISTED = in_body("T:g of each", _topics_listed)
GROUPS_FILTERED = in_body("filterGroups G:u", _groups_filtered)
GROUP_CREATED = in_body(
    "G:c",
    lambda caller, call: caller.on_group(SubscriptionGroupConfig.decode(call.body).group_name, _CREATE),
    is_change=True,
)
GROUPS_CREATED = in_body("G:c each", _groups_created, is_change=True)
TOPICS_CREATED = in_body("T:c each", _topics_created, is_change=True)
MODE_SET = in_body("T:S + G:u", _mode_set, is_change=True)
ASSIGNED = in_body("T:S + G:S", _assigned)
TRANSACTION = in_body("T:P, also of the stored message", _transaction)
