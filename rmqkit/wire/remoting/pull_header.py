"""Fast decoder for the binary header of a pull, the most frequent request of Apache's consumers.

A Java consumer writes the fields of PULL_MESSAGE in one order. Between two pulls of a queue only
the queue offset and the commit offset differ. So the bytes around these two are looked up as a
whole in a bounded table, as `send_header.py` does. For any deviation `read_pull` returns None, and
the header is decoded by the general path, which also produces the error messages.

Measured on the development machine: 2 µs per header instead of 11 µs.

Source: `remoting/.../header/PullMessageRequestHeader.java` (`encode`), `RocketMQSerializable.java`.
"""

from struct import Struct

import msgspec

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.remoting.send_header import PARTS_SIZE_MAX, whole_fields
from rmqkit.wire.schema import from_ext
from rmqkit.wire.schemas.pull import PullMessageRequest

#: entries (consumer group, topic, queue, and the other fixed fields); a full table is emptied
SEEN_MAX = 16_384

_HEAD = Struct(">hbhiiii")
_FIRST = _HEAD.size
#: the field name, then the value's size without its last byte
_OFFSET = b"\x00\x0bqueueOffset\x00\x00\x00"
_COMMIT = b"\x00\x0ccommitOffset\x00\x00\x00"
_OFFSET_SIZE = len(_OFFSET)
_COMMIT_SIZE = len(_COMMIT)
#: every number of at most this many digits fits into 64 bits
_DIGITS_MAX = 18
_BEFORE = ["consumerGroup", "topic", "queueId"]
_BETWEEN = ["maxMsgNums", "sysFlag"]

#: key: the bytes before, between and after the two offsets. A pull is a copy of the value with the
#: two offsets replaced
_patterns: dict[tuple[bytes, bytes, bytes], PullMessageRequest] = {}


class PullHead(msgspec.Struct, gc=False):
    """The decoded header of a pull, with the fields of `headers.TypedHead`."""

    code: int
    ext: PullMessageRequest
    flag: int
    opaque: int
    version: int
    language: int


def read_pull(header: bytes) -> PullHead | None:
    """Return the decoded header of a binary PULL_MESSAGE.

    Returns None if the header has another layout.
    """
    size = len(header)
    at = header.find(_OFFSET, _FIRST)
    start = at + _OFFSET_SIZE + 1
    if at < 0 or start >= size:
        return None
    end = start + header[start - 1]
    commit_at = header.find(_COMMIT, end)
    commit_start = commit_at + _COMMIT_SIZE + 1
    if commit_at < 0 or commit_start >= size:
        return None
    commit_end = commit_start + header[commit_start - 1]
    offset, commit = header[start:end], header[commit_start:commit_end]
    code, language, version, opaque, flag, remark_size, ext_size = _HEAD.unpack_from(header)
    if remark_size or ext_size != size - _FIRST or commit_end > size or not (offset.isdigit() and commit.isdigit()):
        return None
    if len(offset) > _DIGITS_MAX or len(commit) > _DIGITS_MAX:
        return None
    around = header[_FIRST:at], header[end:commit_at], header[commit_end:]
    pattern = _patterns.get(around)
    if pattern is None:
        pattern = _read_pattern(*around)
        if pattern is None:
            return None
        if sum(map(len, around)) <= PARTS_SIZE_MAX:
            if len(_patterns) >= SEEN_MAX:
                _patterns.clear()
            _patterns[around] = pattern
    ext: PullMessageRequest = pattern.__copy__()  # type: ignore[attr-defined]  # msgspec.Struct has it, its stub not
    ext.queue_offset = int(offset)
    ext.commit_offset = int(commit)
    return PullHead(code, ext, flag, opaque, version, language)


def _read_pattern(before: bytes, between: bytes, after: bytes) -> PullMessageRequest | None:
    """Decode the fields around the two offsets.

    Returns None unless the three parts consist of whole fields in the expected order.
    """
    first, second, last = whole_fields(before), whole_fields(between), whole_fields(after)
    if first is None or second is None or last is None or list(first) != _BEFORE or list(second) != _BETWEEN:
        return None
    if "queueOffset" in last or "commitOffset" in last or not last.keys().isdisjoint((*_BEFORE, *_BETWEEN)):
        return None
    try:
        return from_ext(PullMessageRequest, {**first, **second, **last, "queueOffset": "0", "commitOffset": "0"})
    except RemoteProtocolError:
        return None
