"""Builds the answers to sends as whole frames by hand, as no other answer is sent as often.

The parts that all answers share are built once, as templates with places for the rest:

- JSON headers need one template per status (batches are put together without one).
- Binary headers have the size of each text in front of it. So their templates are cached by status,
  queue id, number of messages, and the sizes of the queue offset and of the unique key.

Measured gain: an answer takes 0.9 µs (JSON) or 0.8 µs (binary); the general encoders take 2.2 and
3.2 µs.

Source: `broker/.../SendMessageProcessor.handlePutMessageResult`.
"""

from array import array
from binascii import hexlify
from collections.abc import Sequence
from struct import Struct
from sys import byteorder

import msgspec

from rmqkit.broker.puts.send_runs import SendRun
from rmqkit.store.contract import PutResult, PutStatus
from rmqkit.wire.codes import VERSION, ResponseCode
from rmqkit.wire.remoting.frames import CODEC_ROCKETMQ, frame
from rmqkit.wire.remoting.headers import FLAG_ONEWAY
from rmqkit.wire.remoting.templates import Field, binary_header, fixed, plain

_pack_start = Struct(">iI").pack
_pack_opaque = Struct(">i").pack

#: limit of cached binary templates; a full cache is cleared
TEMPLATES_MAX = 1024
#: templates have a place for each id of up to this many messages; more ids are put together apart
IDS_MAX = 64

#: statuses of stored messages, perhaps stored less safely than required, with the answer's code.
#: These answers give the message's position
STORED = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}


class PutAnswers:
    """Encodes the answers to stored puts of one broker.

    `store_host` is the address in each message id (4 or 16 bytes of IP, then the port). Clients use
    `region_id` and `trace_on` for tracing.
    """

    def __init__(self, store_host: bytes, region_id: str, trace_on: bool) -> None:
        self._ids = store_host.hex().upper().encode()
        trace = "true" if trace_on else "false"
        self._common = fixed("MSG_REGION", region_id), fixed("TRACE_ON", trace)
        region = msgspec.json.encode(region_id)
        self._fields = b'"MSG_REGION":%b,"TRACE_ON":"%b","msgId":"' % (region, trace.encode())
        self._tail = b'},"flag":1,"language":"PYTHON","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":' + (
            b"%d}" % VERSION
        )
        self._heads = {status: b'{"code":%d,"extFields":{' % code for status, code in STORED.items()}
        same = plain(self._fields + self._ids)
        places = b'%016X","queueId":"%d","queueOffset":"%d","transactionId":"%b"'
        #: places for log offset, queue id, queue offset, unique key and opaque
        self._single = {status: head + same + places + self._tail for status, head in self._heads.items()}
        #: the same with a place for a recall handle behind the unique key
        handle = places + b',"recallHandle":"%b"'
        self._timer = {status: head + same + handle + self._tail for status, head in self._heads.items()}
        #: by status, queue id, number of messages, sizes of queue offset, unique key and recall
        #: handle; places for opaque, each message's log offset, queue offset, unique key and handle
        self._binary: dict[tuple[PutStatus, int, int, int, int, int], bytes] = {}

    def json(
        self, status: PutStatus, opaque: int, queue_id: int, unique: bytes, result: PutResult, handle: bytes = b""
    ) -> bytes:
        """Return the frame with a JSON header.

        The unique key is returned as the transaction id, as upstream does. It is left out if it is
        not alphanumeric, since JSON might have to escape it. `handle` is the recall handle of a
        timer message.
        """
        offsets = result.phy_offsets
        if not offsets and unique.isalnum():
            if handle:
                header = self._timer[status] % (result.phy_offset, queue_id, result.queue_offset, unique, handle, opaque)
            else:
                header = self._single[status] % (result.phy_offset, queue_id, result.queue_offset, unique, opaque)
            size = len(header)
            return _pack_start(4 + size, size) + header
        header = b'%b%b%b","queueId":"%d","queueOffset":"%d%b%b"%b' % (
            self._heads[status],
            self._fields,
            _ids(self._ids, offsets) if offsets else self._ids + b"%016X" % result.phy_offset,
            queue_id,
            result.queue_offset,
            b'","transactionId":"' + unique if unique.isalnum() else b"",
            b'","recallHandle":"' + handle if handle else b"",
            self._tail % opaque,
        )
        return frame(header)

    def binary(
        self, status: PutStatus, opaque: int, queue_id: int, unique: bytes, result: PutResult, handle: bytes = b""
    ) -> bytes:
        """Return the frame with a ROCKETMQ (binary) header. `handle` as in `json`."""
        if not unique.isalnum():
            unique = b""
        _, phy_offset, offset, _, offsets, _ = result
        queue_offset = b"%d" % offset
        count = len(offsets) or 1
        key = status, queue_id, count, len(queue_offset), len(unique), len(handle) if handle else 0
        template = self._binary.get(key) or self._make(*key)
        if count > IDS_MAX:
            return template % (_pack_opaque(opaque), _ids(self._ids, offsets), queue_offset, unique, handle)
        if offsets:
            return template % (_pack_opaque(opaque), *offsets, queue_offset, unique, handle)
        return template % (_pack_opaque(opaque), phy_offset, queue_offset, unique, handle)

    def run(self, status: PutStatus, run: SendRun) -> bytes:
        """Return the frames of the answers to appended sends. One-way sends get none."""
        known = self._binary
        frames: list[bytes] = []
        for (form, opaque, unique), (_, phy_offset, offset, _, _, _) in zip(run.sends, run.results, strict=True):
            if not form[9] & FLAG_ONEWAY:
                queue_offset = b"%d" % offset
                key = status, form[2], 1, len(queue_offset), len(unique), 0
                template = known.get(key) or self._make(*key)
                frames.append(template % (opaque, phy_offset, queue_offset, unique, b""))
        return b"".join(frames)

    def _make(
        self, status: PutStatus, queue_id: int, count: int, offset_size: int, unique_size: int, handle_size: int
    ) -> bytes:
        ids = b"%b" if count > IDS_MAX else b",".join([self._ids + b"%016X"] * count)
        fields = (
            *self._common,
            fixed("queueId", str(queue_id)),
            Field("msgId", ids, count * (len(self._ids) + 17) - 1),
            Field("queueOffset", b"%b", offset_size),
            Field("transactionId", b"%b", unique_size),
            Field("recallHandle", b"%b", handle_size),
        )
        header, size = binary_header(STORED[status], "", fields)
        template = plain(_pack_start(4 + size, CODEC_ROCKETMQ << 24 | size)) + header
        if len(self._binary) >= TEMPLATES_MAX:
            self._binary.clear()
        self._binary[status, queue_id, count, offset_size, unique_size, handle_size] = template
        return template


def _ids(host: bytes, offsets: Sequence[int]) -> bytes:
    """Return the ids of the messages at these offsets; `host` is the store host in hex."""
    packed = array("q", offsets)
    if byteorder == "little":
        packed.byteswap()
    return host + hexlify(packed, ",", 8).upper().replace(b",", b"," + host)
