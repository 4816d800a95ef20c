"""Remote: sends an escaping message to a live master of another group (SEND_MESSAGE_V2).

Order. `masters.py` finds the masters. The queues of a topic are spread over them. All messages of
one queue go to one master while it accepts them, so they stay in order.

Failures. If a master certainly did not store the message (unreachable, or it refused), it is not
used for a while, and the next master is tried at once. If the result is unknown (no answer, or
stored but perhaps not durable), the attempt ends as unknown. The caller puts the message again, so
it may be stored twice.

Durability. The send waits for disk and replicas like a producer's send. Apache sends with
WAIT=false: the progress of the delay level then passes a message that is only in one page cache,
and a power loss of that machine loses it. SLAVE_NOT_AVAILABLE counts as put, as it does for a
producer: that master has stored the message, and a retry would only store it again.

Redelivered pops. If no other group has the retry topic of a group and topic, the message goes to a
master that has the topic itself, since the group's members pop there. The send creates the retry
topic, with one queue.

Dead letters. A message for a dead-letter topic is sent to the group's retry topic with no
redelivery left. The other broker then creates the dead-letter topic and stores the message there,
as for its own messages.

Source: `broker/.../failover/EscapeBridge.java` (`putMessageToRemoteBroker`),
`broker/.../out/BrokerOuterAPI.java` (`sendMessageToSpecificBroker`).
"""

from collections.abc import Sequence
from functools import partial

from rmqkit.broker.escape.contract import Escaping, Then, facts_of
from rmqkit.broker.escape.host import EscapeHost
from rmqkit.broker.escape.masters import Master, Masters
from rmqkit.broker.names import retry_topic
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.store.contract import Put, PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.javahash import java_hash
from rmqkit.wire.schemas.send import SendMessageRequestV2
from rmqkit.wire.topic_names import AUTO_CREATE_TOPIC, DLQ_PREFIX, RETRY_PREFIX

SEND_TIMEOUT_MS = 3_000
DEFAULT_QUEUES = 8
_ORIGIN_GROUP = b"ORIGIN_GROUP"

_PUT = frozenset((ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE))
_STORED: dict[int, PutStatus] = {
    ResponseCode.FLUSH_DISK_TIMEOUT: PutStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: PutStatus.FLUSH_SLAVE_TIMEOUT,
}
#: refusals that concern only the topic: the master may still take messages of other topics
_OF_TOPIC = frozenset(
    (
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
    )
)


class Remote:
    """The strategy `remote`: sends messages to live masters of other groups."""

    def __init__(self, broker: EscapeHost, *, own_group: bool = False) -> None:
        """With `own_group` the master of this broker's own group counts too, once it is back."""
        self._broker = broker
        self._masters = Masters(broker, own_group=own_group)
        identity = broker.config.identity
        self._group = f"InnerProducerGroup_{identity.broker_name}_{identity.broker_id}"
        #: messages put, by broker name
        self.put_counts: dict[str, int] = {}
        self.why = ""

    def put(self, message: Escaping, then: Then) -> None:
        topic = message.put.topic
        if topic.startswith(DLQ_PREFIX):
            topic = retry_topic(topic[len(DLQ_PREFIX) :])

        def found(masters: Sequence[Master], why: str) -> None:
            base = _popped_topic(message.put)
            if not masters and base:
                self._masters.find(base, chosen)
            else:
                chosen(masters, why)

        def chosen(masters: Sequence[Master], why: str) -> None:
            first = (java_hash(topic) + message.put.queue_id) % len(masters) if masters else 0
            self._try(message, topic, [*masters[first:], *masters[:first]], why, then)

        self._masters.find(topic, found)

    def waiting(self) -> int:
        return 0

    def facts(self) -> dict[str, str]:
        return facts_of(self.why, self.put_counts)

    def stop(self) -> None:
        pass

    def _try(self, message: Escaping, topic: str, masters: list[Master], why: str, then: Then) -> None:
        if not masters:
            self.why = why
            then(PutStatus.SERVICE_NOT_AVAILABLE)
            return
        master, *others = masters
        self._broker.remoting.call(
            master.address,
            RequestCode.SEND_MESSAGE_V2,
            self._request(message, topic, master),
            bytes(message.put.body),
            timeout_ms=SEND_TIMEOUT_MS,
            then=partial(self._answered, message, topic, master, others, then),
        )

    def _request(self, message: Escaping, topic: str, master: Master) -> SendMessageRequestV2:
        put = message.put
        properties = put.properties
        if message.level:
            properties = props.put(properties, props.PROPERTY_DELAY_TIME_LEVEL.encode(), b"%d" % message.level)
        group = props.find(properties, props.PROPERTY_PRODUCER_GROUP.encode())
        # The broker that received the send-back decided whether this is a dead letter. The group's
        # settings on the other broker may differ, so these limits make it decide the same.
        times_max = None
        if topic.startswith(RETRY_PREFIX):
            times_max = put.reconsume_times if topic == put.topic else 0
        return SendMessageRequestV2(
            producer_group=self._group if group is None else group.decode("utf-8", "replace"),
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=1 if _popped_topic(put) else DEFAULT_QUEUES,
            queue_id=put.queue_id % master.queues,
            sys_flag=put.sys_flag,
            born_timestamp=put.born_ms,
            flag=put.flag,
            properties=properties.decode("utf-8", "replace"),
            reconsume_times=put.reconsume_times,
            unit_mode=False,
            max_reconsume_times=times_max,
            batch=False,
            broker_name=master.broker_name,
        )

    def _answered(
        self, message: Escaping, topic: str, master: Master, others: list[Master], then: Then, outcome: Outcome
    ) -> None:
        if isinstance(outcome, CallFailed):
            why, status = outcome.text, PutStatus.UNKNOWN_ERROR if outcome.maybe_done else None
        elif outcome.code in _PUT:
            self.why = ""
            self._masters.succeeded(master, topic)
            self.put_counts[master.broker_name] = self.put_counts.get(master.broker_name, 0) + 1
            then(PutStatus.PUT_OK)
            return
        else:
            why, status = f"code {outcome.code}: {outcome.remark}", _STORED.get(outcome.code)
        of_topic = not isinstance(outcome, CallFailed) and outcome.code in _OF_TOPIC
        self._masters.failed(master, why, topic=topic if of_topic else "")
        self.why = f"{master.broker_name} ({master.address}): {why}"
        if status is not None:
            then(status)
        else:
            self._try(message, topic, others, self.why, then)


def _popped_topic(put: Put) -> str:
    """Return the topic of a message in a pop retry topic; "" for any other message."""
    group = props.find(put.properties, _ORIGIN_GROUP)
    if group is None:
        return ""
    start = RETRY_PREFIX + group.decode("utf-8", "replace")
    return put.topic[len(start) + 1 :] if put.topic.startswith((f"{start}_", f"{start}+")) else ""
