"""Plain sends: the commonest request of a broker, handled with as little work as possible.

A plain send is a SEND_MESSAGE_V2 with a binary header as a Java producer writes it, of a single
message. Its properties are ASCII and begin with the unique id, and none of the others is special.
It goes to a queue of a topic that takes messages. `send.py` would store it in the same way:
`tests/broker/handlers/test_plain_sends.py` compares the two.

`PlainSends.take` gets the frames of one read and handles the plain sends up to the first other
request. This costs two thirds of `send` for each of them:

- What depends only on the fixed fields of a header is checked once (`_target`). It is checked again
  if the topic has changed.
- What holds for a whole read is read once: the broker's state and settings, and the peer's address.
- No header is built, and the handler is not called.

What is refused is not plain: `send.py` refuses it. A send that is not plain is handled from its
split header, so it is not read twice.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rmqkit.broker.handlers.messages.sent_properties import BEHIND_SIZE_MAX, UNIQ_PAIR, UNIQ_SIZE, behind_unique
from rmqkit.runtime.connection import Connection
from rmqkit.runtime.remoting import Peer, Remoting
from rmqkit.store.contract import Put, PutStatus
from rmqkit.wire.bodies import TopicConfig
from rmqkit.wire.codes import MessageSysFlag, PermName, RequestCode
from rmqkit.wire.remoting.frames import CODEC_ROCKETMQ, Frame
from rmqkit.wire.remoting.headers import FLAG_RESPONSE
from rmqkit.wire.remoting.send_header import SendPattern, split_send, whole_send
from rmqkit.wire.topic_names import RETRY_PREFIX

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

#: patterns whose targets are remembered; a full table is emptied
TARGETS_MAX = 16_384
_CODE = int(RequestCode.SEND_MESSAGE_V2)
_HOSTS_V6 = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6
#: bits of sysFlag that no plain send has
_SPECIAL_BITS = MessageSysFlag.TRANSACTION_MASK | MessageSysFlag.INNER_BATCH
_PUT_OK = PutStatus.PUT_OK
_new = tuple.__new__


class SendTarget(NamedTuple):
    """Where the sends of one pattern go, and what their records share."""

    #: the topic's configuration when the target was checked
    config: TopicConfig
    topic: str
    queue_id: int
    flag: int
    #: without the bits of the hosts
    sys_flag: int
    reconsume_times: int


class PlainSends:
    """Takes the plain sends of one broker (`remoting.Express`)."""

    start = _CODE.to_bytes(2, "big")

    def __init__(self, broker: "BrokerView", remoting: Remoting) -> None:
        self._broker = broker
        self._remoting = remoting
        self._targets: dict[SendPattern, SendTarget] = {}

    def take(self, conn: Connection, peer: Peer, frames: Sequence[Frame], at: int) -> int:
        """Append the plain sends from position `at` on; return the position of the next frame.

        A send that is not plain is handled as well, as the last one.
        """
        broker, remoting = self._broker, self._remoting
        puts, targets, topic_of = broker.puts, self._targets, broker.topics.get
        can_take = not broker.send_blocked and not puts.is_full
        born_host, v6 = broker.hosts.of(conn)
        store_host, own, size_max = broker.hosts.store_host, broker.own_properties, broker.config.send.max_message_size
        append, park, make_call, guarded = broker.store.append, puts.park, remoting.make_call, broker.guarded_topics
        first, start = at, self.start
        for at in range(first, len(frames)):
            frame = frames[at]
            codec, header, body = frame.codec, frame.header, frame.body
            if codec != CODEC_ROCKETMQ or not header.startswith(start) or (parts := split_send(header)) is None:
                break
            _, pattern, born_ms, sent, opaque, flag, version, language = parts
            target = targets.get(pattern)
            if target is None or topic_of(target[1]) is not target[0]:
                target = self._target(pattern)
            head, _, behind = sent.partition(b"\x02")
            if (
                target is not None
                and can_take
                and target[1] not in guarded
                and head[:UNIQ_SIZE] == UNIQ_PAIR
                and len(head) > UNIQ_SIZE
                and len(behind) <= BEHIND_SIZE_MAX
                and (known := behind_unique(behind)) is not None
                and sent.isascii()
                and 0 < len(body) <= size_max
                and not flag & FLAG_RESPONSE
            ):
                _, topic, queue_id, user_flag, sys_flag, reconsume_times = target
                put = topic, queue_id, user_flag, sys_flag | v6, born_ms, born_host, store_host, reconsume_times, 0
                result = append(_new(Put, (*put, body, head + known[0] + own, known[1])))
                if result[0] is _PUT_OK:
                    call = make_call(remoting, conn, _CODE, pattern.ext, b"", opaque, flag, version, language, codec)
                    call.changed = True
                    park(call, queue_id, head[UNIQ_SIZE:], result, True)
                    continue
            whole, row = whole_send(parts), peer.rows.get(_CODE)
            if whole is None or row is None:
                break
            self._count(at - first)
            remoting.run(conn, row, whole, frame)  # type: ignore[arg-type]  # SendHead has the fields of TypedHead
            return at + 1
        else:
            at = len(frames)
        self._count(at - first)
        return at

    def _count(self, count: int) -> None:
        if count:
            counts = self._remoting.counts
            counts[_CODE] = counts.get(_CODE, 0) + count

    def _target(self, pattern: SendPattern) -> SendTarget | None:
        """Return where the sends of a pattern go; None if they are not plain."""
        ext, topics = pattern.ext, self._broker.topics
        config = topics.get(ext.topic)
        if config is None or ext.batch or ext.topic.startswith(RETRY_PREFIX) or not config.perm & PermName.PERM_WRITE:
            return None
        sys_flag = ext.sys_flag & ~_HOSTS_V6
        if config.topic_filter_type == "MULTI_TAG":
            sys_flag |= MessageSysFlag.MULTI_TAGS
        if sys_flag & _SPECIAL_BITS or not 0 <= ext.queue_id < max(config.write_queue_nums, config.read_queue_nums):
            return None
        if len(self._targets) >= TARGETS_MAX:
            self._targets.clear()
        target = SendTarget(config, ext.topic, ext.queue_id, ext.flag, sys_flag, ext.reconsume_times or 0)
        self._targets[pattern] = target
        return target
