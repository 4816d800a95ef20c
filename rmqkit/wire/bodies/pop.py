"""Pop consumption on the wire: receipt handles, retry topics, checkpoint and ack records.

A receipt handle names one delivery of one message. It is eight words separated by spaces:

    start offset · pop time · invisible time · revive queue · flag · broker name · queue id · offset

The start offset is where the pop began to read the queue. The flag tells the topic of the queue: 0
the topic itself, 1 and 2 its retry topic in the first and the second form of name. Handles that a
broker gives for a changed invisible time have no offset: clients add it.

Checkpoints and acks are JSON with short names. Readers accept the long names too, which Java's
classes list as alternatives.

Source: `remoting/.../protocol/header/ExtraInfoUtil.java`, `common/.../KeyBuilder.java`,
`store/.../pop/{PopCheckPoint,AckMsg,BatchAckMsg}.java`, `remoting/.../protocol/body/BatchAck.java`.
"""

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import field

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire import fastjson
from rmqkit.wire.bodies.base import Body
from rmqkit.wire.schema import Int32, Int64
from rmqkit.wire.topic_names import RETRY_PREFIX

#: the group whose consumer offsets in the revive topic are the progress of the revive
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
#: the revive queue in handles of ordered pops, which write no checkpoint
ORDER_QUEUE = 999
TAG_CHECKPOINT, TAG_ACK, TAG_BATCH_ACK = b"ck", b"ack", b"bAck"
#: words of a handle without and with the message's offset
WORDS_MIN, WORDS_MAX = 7, 8
#: digits of a number in a handle; one fewer than int64 can have
DIGITS_MAX = 18
_NUMBER = f"([0-9]{{1,{DIGITS_MAX}}})"
_match_handle = re.compile(f"{_NUMBER} {_NUMBER} {_NUMBER} {_NUMBER} ([^ ]*) ([^ ]*) {_NUMBER}(?: {_NUMBER})?").fullmatch

_Names = Mapping[str, str]


def revive_topic(cluster: str) -> str:
    return f"rmq_sys_REVIVE_LOG_{cluster}"


def retry_topic(topic: str, group: str, *, is_v2: bool) -> str:
    """Return the retry topic of a topic and group, in the first or second form of name."""
    return f"{RETRY_PREFIX}{group}{'+' if is_v2 else '_'}{topic}"


def retry_topics(topic: str, group: str) -> tuple[str, str]:
    """Return both forms of name of a retry topic."""
    return retry_topic(topic, group, is_v2=False), retry_topic(topic, group, is_v2=True)


def flag_of(topic: str) -> str:
    """Return the flag in handles for a queue of this topic."""
    if not topic.startswith(RETRY_PREFIX):
        return "0"
    return "2" if "+" in topic else "1"


def real_topic(topic: str, group: str, flag: str) -> str:
    """Return the topic that a flag stands for. Raises RemoteProtocolError."""
    if flag == "0":
        return topic
    if flag not in ("1", "2"):
        raise RemoteProtocolError(f"{flag!r} is no flag of a receipt handle")
    return retry_topic(topic, group, is_v2=flag == "2")


class ReceiptHandle(NamedTuple):
    """One delivery of one message. `offset` is -1 if the handle has none."""

    start_offset: int
    pop_ms: int
    invisible_ms: int
    revive_queue_id: int
    flag: str
    broker_name: str
    queue_id: int
    offset: int

    def encode(self) -> str:
        words = self if self.offset >= 0 else self[:-1]
        return " ".join(map(str, words))


def decode_handle(text: str) -> ReceiptHandle:
    """Return the handle. Raises RemoteProtocolError if it is truncated or malformed."""
    found = _match_handle(text)
    if found is None:
        words = text.count(" ") + 1
        if WORDS_MIN <= words <= WORDS_MAX:
            raise RemoteProtocolError("a word of the receipt handle is not a number")
        raise RemoteProtocolError(f"a receipt handle has 7 or 8 words, not {words}")
    start, pop_ms, invisible_ms, revive, flag, name, queue_id, offset = found.groups("-1")
    return ReceiptHandle(int(start), int(pop_ms), int(invisible_ms), int(revive), flag, name, int(queue_id), int(offset))


class OffsetTexts:
    """The texts of an answer to a pop that tell clients the offsets of what they got."""

    def __init__(self) -> None:
        self._starts: list[str] = []
        self._messages: list[str] = []
        self._counts: list[str] = []

    def add(self, topic: str, queue_id: int, start: int, offsets: Sequence[int]) -> None:
        flag = flag_of(topic)
        self._starts.append(f"{flag} {queue_id} {start}")
        self._messages.append(f"{flag} {queue_id} {','.join(map(str, offsets))}")

    def add_counts(self, topic: str, queue_id: int, offsets: Sequence[int], counts: Mapping[int, int]) -> None:
        """Add how often the messages of an ordered batch were handed out before.

        Old clients read the least count of the queue, others the count of each message.
        """
        flag = flag_of(topic)
        self._counts += [f"{flag} qo{queue_id}%{offset} {counts[offset]}" for offset in offsets if counts.get(offset)]
        self._counts.append(f"{flag} {queue_id} {min(counts.get(offset, 0) for offset in offsets)}")

    @property
    def counts(self) -> str:
        return ";".join(self._counts)

    @property
    def starts(self) -> str:
        return ";".join(self._starts)

    @property
    def messages(self) -> str:
        return ";".join(self._messages)


class PopCheckpoint(Body, kw_only=True):
    """What one pop took from one queue (`PopCheckPoint`).

    `bits` marks the acked messages: bit i is the message at `start` plus item i of `differences`.
    """

    bits: Int32 = field(default=0, name="bm")
    broker_name: str = field(default="", name="bn")
    group: str = field(default="", name="c")
    differences: list[Int32] = field(default_factory=list, name="d")
    invisible_ms: Int64 = field(default=0, name="it")
    count: Int32 = field(default=0, name="n")
    pop_ms: Int64 = field(default=0, name="pt")
    queue_id: Int32 = field(default=0, name="q")
    revive_ms: Int64 = field(default=0, name="reviveTime")
    revive_offset: Int64 = field(default=0, name="ro")
    reput_times: str | None = field(default=None, name="rp")
    start: Int64 = field(default=0, name="so")
    #: the next delivery does not count as a failed one
    is_suspended: bool = field(default=False, name="sp")
    topic: str = field(default="", name="t")

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offsets of the messages. Old checkpoints have a count without differences."""
        differences: Sequence[int] = self.differences or range(min(max(0, self.count), MESSAGES_MAX))
        return tuple(self.start + difference for difference in differences[:MESSAGES_MAX])


#: messages of one checkpoint: `bm` has a bit for each
MESSAGES_MAX = 32


class PopAck(Body, kw_only=True):
    """An ack of one message (`AckMsg`), or of several ones of one checkpoint (`BatchAckMsg`)."""

    offset: Int64 = field(default=-1, name="ao")
    offsets: list[Int64] | None = field(default=None, name="aol")
    broker_name: str = field(default="", name="bn")
    group: str = field(default="", name="c")
    pop_ms: Int64 = field(default=0, name="pt")
    queue_id: Int32 = field(default=0, name="q")
    start: Int64 = field(default=0, name="so")
    topic: str = field(default="", name="t")


class BatchAck(Body, kw_only=True):
    """Acks of one checkpoint in a request 200151; bit i of `bits` is the offset `start` + i."""

    bits: str | list[Int32] = field(default="", name="b")
    group: str = field(default="", name="c")
    invisible_ms: Int64 = field(default=0, name="it")
    pop_ms: Int64 = field(default=0, name="pt")
    queue_id: Int32 = field(default=0, name="q")
    flag: str = field(default="0", name="r")
    revive_queue_id: Int32 = field(default=0, name="rq")
    start: Int64 = field(default=0, name="so")
    topic: str = field(default="", name="t")

    def bit_set(self) -> bytes:
        """Return the bits as Java's `BitSet.toByteArray`. Raises RemoteProtocolError."""
        if not isinstance(self.bits, str):
            return bytes(each & 0xFF for each in self.bits)
        try:
            return b64decode(self.bits, validate=True)
        except (Base64Error, ValueError):
            raise RemoteProtocolError("the bits of a batch ack are not base64") from None


class PopInFlightMessage(Body, kw_only=True):
    """One message that was popped and not acked, in the answer to 60001 (GET_POP_IN_FLIGHT).

    `topic` is the topic of its queue: a retry topic if the message was redelivered. `count` is the
    number of its deliveries so far. `client_id` is the id or address of who popped it, "" if the
    pop was served by another member, or before this broker was started.
    """

    client_id: str = ""
    count: Int32 = 1
    #: wall time in ms at which it is handed out again
    invisible_until: Int64 = 0
    offset: Int64 = 0
    #: wall time in ms
    pop_time: Int64 = 0
    queue_id: Int32 = 0
    topic: str = ""


class PopInFlight(Body, kw_only=True):
    """The answer to 60001 (GET_POP_IN_FLIGHT): the oldest messages, and how many there are."""

    messages: list[PopInFlightMessage] = field(default_factory=list)
    total: Int64 = 0


class BatchAckRequest(Body, kw_only=True):
    """200151: `BatchAckMessageRequestBody`."""

    acks: list[BatchAck] = field(default_factory=list)
    broker_name: str = ""


_LONG_ACK: _Names = {
    "ackOffset": "ao",
    "ackOffsetList": "aol",
    "brokerName": "bn",
    "consumerGroup": "c",
    "popTime": "pt",
    "queueId": "q",
    "startOffset": "so",
    "topic": "t",
}
_LONG_BATCH: _Names = {
    "bitSet": "b",
    "consumerGroup": "c",
    "invisibleTime": "it",
    "popTime": "pt",
    "queueId": "q",
    "retry": "r",
    "reviveQueueId": "rq",
    "startOffset": "so",
    "topic": "t",
}

B = TypeVar("B", bound=Body)


def decode_ack(data: bytes) -> PopAck:
    """Return the content of an ack record. Raises RemoteProtocolError."""
    return _convert(PopAck, _shortened(fastjson.load_as(dict[str, Any], data), _LONG_ACK))


def decode_batch_ack(data: bytes) -> BatchAckRequest:
    """Return the body of a request 200151. Raises RemoteProtocolError."""
    sent = fastjson.load_as(dict[str, Any], data)
    acks = sent.get("acks") or []
    if not isinstance(acks, list) or not all(isinstance(each, dict) for each in acks):
        raise RemoteProtocolError("BatchAckRequest: acks is not a list of objects")
    rows = [_convert(BatchAck, _shortened(each, _LONG_BATCH)) for each in acks]
    return BatchAckRequest(acks=rows, broker_name=str(sent.get("brokerName") or ""))


def _shortened(sent: Mapping[str, Any], names: _Names) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in sent.items() if value is not None}


def _convert(schema: type[B], sent: Mapping[str, Any]) -> B:
    try:
        return msgspec.convert(sent, schema, strict=False)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"{schema.__name__}: {error}") from None
