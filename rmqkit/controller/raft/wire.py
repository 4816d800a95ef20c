"""Messages of a group as bytes: a private format, with a version.

Big-endian. `group` is a checksum over the ids of all members: two members that were configured with
different groups refuse each other's messages, because their majorities may not overlap.

    0 u16 0x5246   2 u8 version   3 u8 kind   4 u8 flags (1: rejected)   5 u8 0   6 u32 group
    10 u64 x 7: term, position (term, index), hint (term, index), commit, round
    66 u32 number of entries   70 u32 bytes of `data`
    then per entry: u64 term, u64 index, u32 size, bytes
    then `data`
    then u32 crc32 of all before

Sender and receiver are not in the message: the connection knows them.
"""

from collections.abc import Sequence
from struct import Struct
from zlib import crc32

from rmqkit.controller.contract import ENTRY_SIZE_MAX, MESSAGE_SIZE_MAX
from rmqkit.controller.raft.messages import LogEntry, MessageKind, Position, RaftMessage
from rmqkit.errors import RemoteProtocolError

MAGIC = 0x5246
VERSION = 1
KINDS = tuple(MessageKind)
#: the highest term, index and round of a message; one that says more is forged, and a member that
#: took it over could count no further
NUMBER_MAX = 2**62
#: byte of a message that holds the number of its kind in KINDS
KIND_AT = 3
_HEAD = Struct(">HBBBBI7QII")
_ENTRY = Struct(">QQI")
_CRC = Struct(">I")
#: the largest snapshot that fits into a message
SNAPSHOT_SIZE_MAX = MESSAGE_SIZE_MAX - _HEAD.size - _CRC.size


def group_number(members: Sequence[str]) -> int:
    """Return the checksum of a group's ids, in any order."""
    return crc32(";".join(sorted(members)).encode())


def encode_message(message: RaftMessage, group: int) -> bytes:
    """Return the bytes of a message."""
    parts = [
        _HEAD.pack(
            MAGIC,
            VERSION,
            KINDS.index(message.kind),
            int(message.rejected),
            0,
            group,
            message.term,
            *message.position,
            *message.hint,
            message.commit,
            message.round,
            len(message.entries),
            len(message.data),
        )
    ]
    parts += encode_entries(message.entries)
    parts.append(message.data)
    content = b"".join(parts)
    return content + _CRC.pack(crc32(content))


def decode_message(content: bytes, group: int, *, sender: str, to: str) -> RaftMessage:
    """Return the message. Raises RemoteProtocolError if it is damaged, foreign or contradictory."""
    if len(content) < _HEAD.size + _CRC.size:
        raise RemoteProtocolError(f"a raft message of {len(content)} bytes is too short")
    head = _HEAD.unpack_from(content)
    magic, version, kind, flags, zero, their_group, term, *numbers, entries_count, data_size = head
    if magic != MAGIC or version != VERSION:
        raise RemoteProtocolError(f"raft message of version {version}, not {VERSION}: run one release on all controllers")
    end = len(content) - _CRC.size
    if _CRC.unpack_from(content, end)[0] != crc32(content[:end]):
        raise RemoteProtocolError("the checksum of a raft message is wrong")
    if their_group != group:
        raise RemoteProtocolError(f"{sender} has another list of controllers: set the same one on all of them")
    if kind >= len(KINDS) or flags > 1 or zero:
        raise RemoteProtocolError(f"raft message of unknown kind {kind}, flags {flags}")
    if max(term, *numbers) > NUMBER_MAX:
        raise RemoteProtocolError(f"raft message with a number above {NUMBER_MAX}")
    position, hint = Position(*numbers[0:2]), Position(*numbers[2:4])
    entries, at = decode_entries(content, _HEAD.size, end, entries_count, position)
    if end - at != data_size:
        raise RemoteProtocolError(f"raft message with {end - at} bytes of data, its head says {data_size}")
    if entries and entries[-1].term > term:
        raise RemoteProtocolError(f"raft message of term {term} with an entry of term {entries[-1].term}")
    message = RaftMessage(
        KINDS[kind], sender, to, term, position, hint, numbers[4], numbers[5], bool(flags), entries, content[at:end]
    )
    _check(message)
    return message


def _check(message: RaftMessage) -> None:
    """Raise RemoteProtocolError if a kind has what it cannot have."""
    kind = message.kind
    if message.entries and kind is not MessageKind.APPEND:
        raise RemoteProtocolError(f"a raft message of kind {kind} has entries")
    if any(len(entry.data) > ENTRY_SIZE_MAX for entry in message.entries):
        raise RemoteProtocolError(f"a raft message with an entry of more than {ENTRY_SIZE_MAX} bytes")
    if message.data and kind is not MessageKind.SNAPSHOT:
        raise RemoteProtocolError(f"a raft message of kind {kind} has {len(message.data)} bytes of snapshot")
    if kind is MessageKind.SNAPSHOT and not message.position.index:
        raise RemoteProtocolError("a snapshot without an entry")
    if kind is MessageKind.SNAPSHOT and message.position.term > message.term:
        raise RemoteProtocolError(f"raft message of term {message.term} with a snapshot of term {message.position.term}")


def encode_entries(entries: Sequence[LogEntry]) -> Sequence[bytes]:
    """Return the buffers of entries, two for each."""
    return [part for term, index, data in entries for part in (_ENTRY.pack(term, index, len(data)), data)]


def decode_entries(content: bytes, at: int, end: int, count: int, before: Position) -> tuple[list[LogEntry], int]:
    """Return `count` entries that follow `before`, and where they end.

    Raises RemoteProtocolError if they exceed `end`, leave out an index, or if a term goes back.
    """
    entries: list[LogEntry] = []
    for _ in range(count):
        if end - at < _ENTRY.size:
            raise RemoteProtocolError(f"entry {len(entries)} of {count} is cut off")
        term, index, size = _ENTRY.unpack_from(content, at)
        at += _ENTRY.size
        if end - at < size:
            raise RemoteProtocolError(f"entry {index} is cut off: {end - at} of {size} bytes")
        if index != before.index + 1 or term < before.term:
            raise RemoteProtocolError(f"entry {Position(term, index)} follows {before}")
        entries.append(LogEntry(term, index, content[at : at + size]))
        before = Position(term, index)
        at += size
    return entries, at
