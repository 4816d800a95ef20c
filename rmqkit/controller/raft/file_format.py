"""The two files of a member as bytes: `vote` and `log`. Private formats, with a version.

`vote`, replaced as a whole:

    0 u32 0x52465654 "RFVT"   4 u32 version   8 u32 group   12 u32 size of the rest before the crc
    then JSON: {"member", "term", "vote", "counted", "floor"}
    then u32 crc32 of all before

`log` is a sequence of frames. Frames follow one another, and each is one write and one sync:

    0 u32 0x52464C47 "RFLG"   4 u8 version   5 u8 type   6 u16 0   8 u32 group   12 u64 place
    20 u32 size   24 u32 number of entries, then `size` bytes, then u32 crc32 of all before

`place` is the frame's own position in the file, so an old frame at another place is not taken for
one. Types: 0 *entries*, of which the first replaces the log from its index on; 1 *start*, the first
frame of a file that was replaced as a whole: u64 term, u64 index, u32 size, snapshot, entries.

A power cut may leave any part of the last frame, because it alone was not synced. So:

- A bad frame with nothing good behind it is a torn tail. It is cut.
- A bad frame with a good one behind it was durable once. The file is damaged and is refused.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import msgspec

from rmqkit.controller.raft.core import VoteRecord
from rmqkit.controller.raft.messages import ORIGIN, LogEntry, Position
from rmqkit.controller.raft.wire import decode_entries, encode_entries
from rmqkit.errors import RemoteProtocolError

VERSION = 1
VOTE_MAGIC, LOG_MAGIC = 0x52465654, 0x52464C47
ENTRIES, START = 0, 1
_VOTE_HEAD = Struct(">IIII")
_FRAME_HEAD = Struct(">IBBHIQII")
_START_HEAD = Struct(">QQI")
_CRC = Struct(">I")
_MAGIC_BYTES = _CRC.pack(LOG_MAGIC)


class BadFile(ValueError):
    """A file's content cannot be used; the text says why."""


class _VoteFields(msgspec.Struct):
    member: str
    term: int
    vote: str
    counted: bool
    floor: tuple[int, int]


class LogContent(NamedTuple):
    """What a log file says. `end` is where the next frame goes; the rest of the file is torn."""

    start: Position
    snapshot: bytes
    entries: list[LogEntry]
    end: int


def encode_vote(ballot: VoteRecord, self_id: str, group: int) -> bytes:
    """Return the content of the vote file."""
    fields = _VoteFields(self_id, ballot.term, ballot.vote, ballot.is_counted, ballot.floor)
    body = msgspec.json.encode(fields)
    content = _VOTE_HEAD.pack(VOTE_MAGIC, VERSION, group, len(body)) + body
    return content + _CRC.pack(crc32(content))


def decode_vote(content: bytes, self_id: str, group: int) -> VoteRecord:
    """Return the ballot of a vote file. Raises BadFile."""
    if len(content) < _VOTE_HEAD.size + _CRC.size or _CRC.unpack(content[-4:])[0] != crc32(content[:-4]):
        raise BadFile("its checksum is wrong")
    magic, version, their_group, size = _VOTE_HEAD.unpack_from(content)
    if magic != VOTE_MAGIC or version != VERSION:
        raise BadFile(f"its format is version {version}, this release reads {VERSION}")
    try:
        fields = msgspec.json.decode(content[_VOTE_HEAD.size : _VOTE_HEAD.size + size], type=_VoteFields)
    except msgspec.MsgspecError as error:
        raise BadFile(str(error)) from error
    if fields.member != self_id:
        raise BadFile(f"it belongs to controller {fields.member}, and this one is {self_id}")
    if their_group != group:
        raise BadFile("the list of controllers was another one when it was written, and a group never changes")
    return VoteRecord(fields.term, fields.vote, fields.counted, Position(*fields.floor))


def encode_entries_frame(entries: Sequence[LogEntry], group: int, place: int) -> bytes:
    """Return a frame of type *entries*."""
    return _frame(ENTRIES, b"".join(encode_entries(entries)), len(entries), group, place)


def encode_start_frame(start: Position, snapshot: bytes, entries: Sequence[LogEntry], group: int) -> bytes:
    """Return a frame of type *start*: the content of a whole file."""
    body = b"".join((_START_HEAD.pack(*start, len(snapshot)), snapshot, *encode_entries(entries)))
    return _frame(START, body, len(entries), group, 0)


def _frame(kind: int, body: bytes, entries_count: int, group: int, place: int) -> bytes:
    content = _FRAME_HEAD.pack(LOG_MAGIC, VERSION, kind, 0, group, place, len(body), entries_count) + body
    return content + _CRC.pack(crc32(content))


def decode_log(content: bytes, group: int) -> LogContent:
    """Return what the frames of a file say. Raises BadFile if a frame in the middle is bad."""
    log = LogContent(ORIGIN, b"", [], 0)
    while log.end < len(content):
        end = _frame_end(content, log.end, group)
        if end is None:
            _check_tail(content, log.end, group)
            break
        log = _take_frame(content, log, end)
    return log


def _frame_end(content: bytes, place: int, group: int) -> int | None:
    """Return where the frame at `place` ends, None if there is no whole one. Raises BadFile."""
    if len(content) - place < _FRAME_HEAD.size + _CRC.size:
        return None
    magic, version, _, _, their_group, own_place, size, _ = _FRAME_HEAD.unpack_from(content, place)
    end: int = place + _FRAME_HEAD.size + size + _CRC.size
    if magic != LOG_MAGIC or own_place != place or end > len(content):
        return None
    if _CRC.unpack_from(content, end - _CRC.size)[0] != crc32(content[place : end - _CRC.size]):
        return None
    if version != VERSION:
        raise BadFile(f"its format is version {version}, this release reads {VERSION}")
    if their_group != group:
        raise BadFile("the list of controllers was another one when it was written, and a group never changes")
    return end


def _check_tail(content: bytes, place: int, group: int) -> None:
    """Raise BadFile if a whole frame follows the bad one at `place`."""
    at = place
    while (at := content.find(_MAGIC_BYTES, at + 1)) >= 0:
        if _frame_end(content, at, group) is not None:
            raise BadFile(f"byte {place} and the following are damaged, and whole entries follow at byte {at}")


def _take_frame(content: bytes, log: LogContent, end: int) -> LogContent:
    place, start, snapshot, entries = log.end, log.start, log.snapshot, log.entries
    _, _, kind, _, _, _, _, count = _FRAME_HEAD.unpack_from(content, place)
    at, body_end = place + _FRAME_HEAD.size, end - _CRC.size
    try:
        if kind == START and place == 0:
            term, index, size = _START_HEAD.unpack_from(content, at)
            at += _START_HEAD.size
            start, snapshot = Position(term, index), content[at : at + size]
            new, _ = decode_entries(content, at + size, body_end, count, start)
            return LogContent(start, snapshot, new, end)
        if kind != ENTRIES or count == 0:
            raise BadFile(f"the frame at byte {place} has the unknown type {kind}")
        first = int.from_bytes(content[at + 8 : at + 16], "big")
        if not start.index < first <= start.index + len(entries) + 1:
            raise BadFile(f"the frame at byte {place} begins with entry {first}, which does not follow")
        del entries[first - start.index - 1 :]
        before = entries[-1].position if entries else start
        new, _ = decode_entries(content, at, body_end, count, before)
    except RemoteProtocolError as error:
        raise BadFile(f"the frame at byte {place}: {error}") from error
    entries += new
    return LogContent(start, snapshot, entries, end)
