"""Has failed messages redelivered later.

1. The consumer asks the message's broker to send it back (36).
2. If that fails for any reason, the consumer sends a copy to the retry topic of its group with a
   normal send, to any broker. So a message is retried even if its broker is down.
3. If that fails too, the caller keeps the message.

In the first two cases the broker's delay levels apply, and in the end the message goes to the dead
letters.

The copy is byte for byte the received message. Its properties say where it came from, and the
request says how often it has failed.

Source: `client/.../impl/consumer/DefaultMQPushConsumerImpl.java` (`sendMessageBack`,
`sendMessageBackAsNormalMessage`), `client/.../impl/producer/DefaultMQProducerImpl.java`
(`sendKernelImpl`: what becomes header fields).
"""

from typing import TYPE_CHECKING

from rmqkit.client.flow import Deferred
from rmqkit.client.message import MessageExt
from rmqkit.client.producers.outgoing_message import OutgoingMessage
from rmqkit.client.producers.producer import ProducerCore, ProducerSettings, SendOutcome
from rmqkit.errors import ClientError
from rmqkit.runtime.connection import Address
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag, RequestCode, ResponseCode
from rmqkit.wire.schemas.send import ConsumerSendMsgBackRequest
from rmqkit.wire.topic_names import RETRY_PREFIX

if TYPE_CHECKING:
    from rmqkit.client.client import Client

SEND_BACK_TIMEOUT_MS = 5000
COPY_TIMEOUT_MS = 3000
#: The producer group under which Java's clients send such copies.
INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
#: Delay level after the first failure. Each further failure adds one.
FIRST_LEVEL = 3

_BODY_FLAGS = MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK


class Redelivery:
    """Sends back the failed messages of one consumer."""

    def __init__(self, client: "Client", group: str) -> None:
        self._client = client
        self._group = group
        self._without_send_back: dict[Address, None] = {}
        self._producer: ProducerCore | None = None

    async def send_back(self, message: MessageExt, *, delay_level: int, times_max: int) -> bool:
        """Send a message back. Returns whether a broker has taken it.

        `delay_level`: 0 lets the broker choose, below 0 means the dead letters. `times_max`:
        redeliveries before the dead letters.
        """
        error = await self._ask_broker(message, delay_level, times_max)
        if not error:
            return True
        outcome = await self._send_copy(message, times_max)
        if outcome is None:
            return True
        self._client.log.warning("send-back-failed", message=message.msg_id, error=error, copy=str(outcome))
        return False

    async def send_to_dead_letters(self, message: MessageExt) -> bool:
        """Send a copy to the dead letters. Returns whether a broker has taken it.

        Popped messages go this way: a redelivered one is stored in the retry topic of its pops, and
        a broker that is asked to send it back (36) would name that topic as its origin.
        """
        # The copy counts one more failure than the message, so at least 1.
        outcome = await self._send_copy(message, times_max=0)
        if outcome is not None:
            self._client.log.warning("dead-letter-not-sent", message=message.msg_id, error=str(outcome))
        return outcome is None

    async def close(self) -> None:
        """Close the producer of the copies."""
        if self._producer is not None:
            await self._producer.close()

    async def _ask_broker(self, message: MessageExt, delay_level: int, times_max: int) -> str:
        """Ask the broker to take the message back. Returns "", or why it did not."""
        client = self._client
        master = client.routes.master(message.broker_name)
        if master is None:
            return f"{message.broker_name} has no master"
        if master in self._without_send_back:
            return f"{master} knows no send-back"
        request = ConsumerSendMsgBackRequest(
            offset=message.commit_log_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=times_max,
            broker_name=message.broker_name,
        )
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        try:
            await client.ask(master, code, request, timeout_ms=SEND_BACK_TIMEOUT_MS)
        except ClientError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and master not in self._without_send_back:
                self._without_send_back[master] = None
                note = "failed messages go to the retry topic by a send"
                client.log.warning("no-send-back", broker=str(master), note=note)
            return str(error)
        return ""

    async def _send_copy(self, message: MessageExt, times_max: int) -> ClientError | None:
        if self._producer is None:
            self._producer = ProducerCore(self._client, ProducerSettings(group=INNER_PRODUCER))
        promise: Deferred[SendOutcome | None] = Deferred()
        self._producer.send(copy_for_retry(message, self._group, times_max), promise.resolve, timeout_ms=COPY_TIMEOUT_MS)
        outcome = await promise
        return outcome if isinstance(outcome, ClientError) else None


def copy_for_retry(message: MessageExt, group: str, times_max: int) -> OutgoingMessage:
    """Return the copy of a message for the retry topic of its group."""
    record = message.record
    properties = dict(message.properties)
    # Clients before 4.6.1 left this property in the copy, so the broker took it for a half message
    # of a transaction.
    properties.pop(props.PROPERTY_TRANSACTION_PREPARED, None)
    # The handle of a popped message is worthless for the copy.
    properties.pop(props.PROPERTY_POP_CK, None)
    properties.setdefault(props.PROPERTY_ORIGIN_MESSAGE_ID, message.msg_id)
    properties[props.PROPERTY_RETRY_TOPIC] = message.topic
    properties[props.PROPERTY_DELAY_TIME_LEVEL] = str(FIRST_LEVEL + message.reconsume_times)
    return OutgoingMessage(
        topic=RETRY_PREFIX + group,
        body=record.body,
        flag=record.flag,
        sys_flag=record.sys_flag & _BODY_FLAGS,
        properties=props.encode(properties).decode(),
        msg_id=message.msg_id,
        is_batch=False,
        code=RequestCode.SEND_MESSAGE_V2,
        reconsume_times=message.reconsume_times + 1,
        max_reconsume_times=times_max,
    )
