"""Plain sends: the most frequent request of a broker, handled with as little work as possible.

A plain send is a SEND_MESSAGE_V2 with a binary header as a Java producer writes it, of a single
message. Its properties are ASCII and begin with the unique id, and no other property is special
(`sent_properties.py`). It goes to a queue of a topic that takes messages. `send.py` would store it
in the same way: `tests/broker/handlers/test_plain_sends.py` compares the two.

`PlainSends.take` gets the frames of one read and handles the plain sends up to the first other
request. This costs half of `send` for each of them:

- The headers of one producer to one queue differ in three texts only: opaque, born time and unique
  id. The rest of a header is a *form*, which is looked up as a whole in a table. A form is made
  from a header that was decoded and checked, so a header of a known form needs no check but that of
  the three texts. The form's topic is looked up again, as it may have changed.
- What holds for a whole read is read once: the broker's state and settings, and the peer's address.
- The records are appended with one call of the store, and parked as one `SendRun`. No call is
  created and no handler entered.

If the properties behind the unique id differ from one send to the next (KEYS), a form would not be
found again. Such a header is split and checked, and none is made.

This module refuses no send. A send that has to be refused is not plain, so `send.py` handles it. A
send that is not plain is handled from its split header, so its header is not read twice.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rmqkit.broker.handlers.messages.sent_properties import BEHIND_SIZE_MAX, UNIQ_PAIR, UNIQ_SIZE, behind_unique
from rmqkit.broker.puts.send_runs import SendRun, Sent, SentForm
from rmqkit.runtime.connection import Connection
from rmqkit.runtime.remoting import Peer, Remoting
from rmqkit.store.contract import Put, PutStatus
from rmqkit.wire.bodies import TopicConfig
from rmqkit.wire.codes import MessageSysFlag, RequestCode
from rmqkit.wire.remoting.frames import CODEC_ROCKETMQ, Frame
from rmqkit.wire.remoting.headers import FLAG_RESPONSE
from rmqkit.wire.remoting.send_header import SendParts, SendPattern, send_layout, split_send, whole_send
from rmqkit.wire.topic_names import RETRY_PREFIX

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

#: forms that are remembered; a full table is emptied
FORMS_MAX = 16_384
#: bytes; headers that are larger have no form
HEADER_SIZE_MAX = 1024
_CODE = int(RequestCode.SEND_MESSAGE_V2)
_HOSTS_V6 = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6
#: bits of sysFlag that no plain send has
_SPECIAL_BITS = MessageSysFlag.TRANSACTION_MASK | MessageSysFlag.INNER_BATCH
_PUT_OK = PutStatus.PUT_OK
_new = tuple.__new__

#: the texts of a header around opaque, born time and unique id
FormKey = tuple[bytes, bytes, bytes, bytes]


class PlainSends:
    """Takes the plain sends of one broker (`remoting.Express`)."""

    start = _CODE.to_bytes(2, "big")

    def __init__(self, broker: "BrokerView", remoting: Remoting) -> None:
        self._broker = broker
        self._remoting = remoting
        self._forms: dict[FormKey, SentForm] = {}
        #: by size of a header: splits it into the texts of a `FormKey` and the three between them
        self._layouts: dict[int, Callable[[bytes], tuple[bytes, ...]]] = {}
        #: by pattern: the properties behind the unique id in its last send that had no form
        self._behind: dict[SendPattern, bytes] = {}
        #: the broker's own properties, which each form contains
        self._own = b""

    def take(self, conn: Connection, peer: Peer, frames: Sequence[Frame], at: int) -> int:
        """Append the plain sends from position `at` on; return the position of the next frame.

        A send that is not plain is handled as well, as the last one.
        """
        broker, layouts, forms = self._broker, self._layouts, self._forms
        if broker.send_blocked or broker.puts.is_full:
            return at
        if broker.own_properties is not self._own:
            self._forget()
            self._own = broker.own_properties
        born_host, v6 = broker.hosts.of(conn)
        store_host, size_max, topic_of = broker.hosts.store_host, broker.config.send.max_message_size, broker.topics.get
        puts: list[Put] = []
        sends: list[Sent] = []
        parts: SendParts | None = None
        config: TopicConfig | None = None
        for frame in frames[at:] if at else frames:
            header, body = frame.header, frame.body
            form, split = None, layouts.get(len(header))
            if split is not None:
                start, opaque, before, born, between, unique, behind = split(header)
                form = forms.get((start, before, between, behind))
            if form is None or form.config is not config:
                if form is None or topic_of(form.topic) is not form.config:
                    if frame.codec == CODEC_ROCKETMQ and header.startswith(self.start):
                        parts = split_send(header)
                    if parts is None:
                        break
                    found = self._read(header, parts)
                    if found is None:
                        break
                    form, opaque, born, unique = found
                    parts = None
                if form.topic in broker.guarded_topics:
                    break
                config = form.config
            if not 0 < len(body) <= size_max or frame.codec != CODEC_ROCKETMQ or not unique.isalnum() or not born.isdigit():
                break
            _, topic, queue_id, flag, sys_flag, reconsume_times, properties, tags_code, *_ = form
            fixed = flag, sys_flag | v6, int(born), born_host, store_host, reconsume_times, 0, body
            puts.append(_new(Put, (topic, queue_id, *fixed, UNIQ_PAIR + unique + properties, tags_code)))
            sends.append((form, opaque, unique))
        count = self._append(conn, puts, sends) if puts else 0
        at += count
        if parts is None or count < len(puts):
            return at
        whole, row = whole_send(parts), peer.rows.get(_CODE)
        if whole is None or row is None:
            return at
        self._remoting.run(conn, row, whole, frames[at])  # type: ignore[arg-type]  # SendHead has the fields of TypedHead
        return at + 1

    def _append(self, conn: Connection, puts: Sequence[Put], sends: list[Sent]) -> int:
        """Append and park plain sends. Return how many, which is less if the store refuses one."""
        results = self._broker.store.append_some(puts)
        if results[-1].status is not _PUT_OK:
            results.pop()
            del sends[len(results) :]
        if sends:
            self._count(len(sends))
            self._broker.puts.park_run(SendRun(self._remoting, conn, _CODE, sends, results))
        return len(sends)

    def _count(self, count: int) -> None:
        counts = self._remoting.counts
        counts[_CODE] = counts.get(_CODE, 0) + count

    def _read(self, header: bytes, parts: SendParts) -> tuple[SentForm, bytes, bytes, bytes] | None:
        """Return form, opaque, born time and unique id of a split header; None if it is not plain.

        The form is remembered if the properties behind the unique id are those of the send before.
        """
        _, pattern, _, sent, _, flag, version, language = parts
        head, _, behind = sent.partition(b"\x02")
        if head[:UNIQ_SIZE] != UNIQ_PAIR or len(behind) > BEHIND_SIZE_MAX or not sent.isascii():
            return None
        known = behind_unique(behind)
        target = self._target(pattern)
        if known is None or target is None or flag & FLAG_RESPONSE:
            return None
        form = SentForm(*target, known[0] + self._own, known[1], pattern.ext, flag, version, language)
        unique = head[UNIQ_SIZE:]
        split = send_layout(header, UNIQ_SIZE, len(unique))
        start, opaque_text, before, born, between, _, after = split(header)
        if self._behind.get(pattern) == behind and len(header) <= HEADER_SIZE_MAX:
            self._layouts[len(header)] = split
            self._forms[start, before, between, after] = form
        if len(self._forms) >= FORMS_MAX or len(self._behind) >= FORMS_MAX:
            self._forget()
        self._behind[pattern] = behind
        return form, opaque_text, born, unique

    def _forget(self) -> None:
        self._forms.clear()
        self._layouts.clear()
        self._behind.clear()

    def _target(self, pattern: SendPattern) -> tuple[TopicConfig, str, int, int, int, int] | None:
        """Return the first fields of the form of a pattern's sends; None if they are not plain."""
        ext, topics = pattern.ext, self._broker.topics
        config = topics.get(ext.topic)
        if config is None or ext.batch or ext.topic.startswith(RETRY_PREFIX):
            return None
        sys_flag = ext.sys_flag & ~_HOSTS_V6
        if config.topic_filter_type == "MULTI_TAG":
            sys_flag |= MessageSysFlag.MULTI_TAGS
        if sys_flag & _SPECIAL_BITS or not 0 <= ext.queue_id < max(config.write_queue_nums, config.read_queue_nums):
            return None
        return config, ext.topic, ext.queue_id, ext.flag, sys_flag, ext.reconsume_times or 0
