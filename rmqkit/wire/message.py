"""MessageExt: a record as a consumer sees it, with properties decoded and the body inflated.

Source: `common/.../message/MessageDecoder.java` (`clientDecode`, `decodeMessage` for inner batches).
"""

from functools import cached_property

from rmqkit.errors import CorruptRecord, RemoteProtocolError
from rmqkit.wire import properties as props
from rmqkit.wire.batch import decode_batch
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.hosts import unpack_host
from rmqkit.wire.inflate import BODY_SIZE_MAX, inflate_body
from rmqkit.wire.msgid import offset_id
from rmqkit.wire.record import Record, iter_records

_INNER_BATCH = MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP


class MessageExt:
    """A stored message. `record` is what came, but for `body` (inflated), `properties` (a dict) and `queue_offset`."""

    def __init__(self, record: Record, body: bytes, properties: dict[str, str], queue_offset: int, flag: int) -> None:
        self.record = record
        self.topic = record.topic
        self.queue_id = record.queue_id
        self.queue_offset = queue_offset
        self.body = body
        self.properties = properties
        self.flag = flag
        self.reconsume_times = record.reconsume_times
        self.born_ms = record.born_ms
        self.store_ms = record.store_ms

    @cached_property
    def offset_msg_id(self) -> str:
        """The id the broker gave it: where it is stored."""
        return offset_id(self.record.store_host, self.record.phy_offset)

    @property
    def msg_id(self) -> str:
        """The id its producer gave it, else the offset id (`MessageClientExt.getMsgId`)."""
        return self.properties.get(props.PROPERTY_UNIQ_KEY) or self.offset_msg_id

    @property
    def tags(self) -> str | None:
        return self.properties.get(props.PROPERTY_TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(props.PROPERTY_KEYS, "").split()

    @property
    def born_host(self) -> tuple[str, int]:
        return unpack_host(self.record.born_host)

    @property
    def store_host(self) -> tuple[str, int]:
        return unpack_host(self.record.store_host)

    def __repr__(self) -> str:
        place = f"{self.topic}/{self.queue_id}@{self.queue_offset}"
        return f"<MessageExt {place} {self.msg_id} {len(self.body)} bytes {self.properties}>"


def decode_messages(data: bytes, *, check_crc: bool = True, body_size_max: int = BODY_SIZE_MAX) -> list[MessageExt]:
    """The messages of a pull or query answer; an inner batch becomes its messages.

    Raises RemoteProtocolError, and `inflate.CompressionMissing` when a body needs a package that is not there.
    """
    messages: list[MessageExt] = []
    try:
        for record in iter_records(data, check_crc=check_crc):
            messages += _opened(record, body_size_max)
    except CorruptRecord as error:
        raise RemoteProtocolError(f"messages of an answer: {error}") from None
    return messages


def _opened(record: Record, body_size_max: int) -> list[MessageExt]:
    body = record.body
    if body and record.sys_flag & MessageSysFlag.COMPRESSED:
        body = inflate_body(body, record.sys_flag, body_size_max)
    if record.sys_flag & _INNER_BATCH == _INNER_BATCH:
        return [
            MessageExt(record, inner.body, props.decode(inner.properties), record.queue_offset + index, inner.flag)
            for index, inner in enumerate(decode_batch(body))
        ]
    return [MessageExt(record, body, props.decode(record.properties), record.queue_offset, record.flag)]
