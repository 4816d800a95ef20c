"""Messages as bytes: each kind there and back, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.controller.contract import ENTRY_SIZE_MAX, MESSAGE_SIZE_MAX
from rmqkit.controller.raft.leader import APPEND_BYTES_MAX
from rmqkit.controller.raft.messages import LogEntry, MessageKind, Position, RaftMessage
from rmqkit.controller.raft.wire import (
    SNAPSHOT_SIZE_MAX,
    VERSION,
    decode_message,
    encode_message,
    group_number,
)
from rmqkit.errors import RemoteProtocolError

GROUP = group_number(["a", "b", "c"])


def there_and_back(message: RaftMessage) -> RaftMessage:
    return decode_message(encode_message(message, GROUP), GROUP, sender="a", to="b")


def example(kind: MessageKind) -> RaftMessage:
    entries = (LogEntry(2, 8, b"one"), LogEntry(3, 9, b"")) if kind is MessageKind.APPEND else ()
    data = b"table" if kind is MessageKind.SNAPSHOT else b""
    return RaftMessage(
        kind,
        "a",
        "b",
        3,
        Position(2, 7),
        Position(1, 5),
        commit=6,
        round=1 << 40,
        rejected=True,
        entries=entries,
        data=data,
    )


@pytest.mark.parametrize("kind", MessageKind)
def test_each_kind_there_and_back(kind):
    message = example(kind)
    back = there_and_back(message)
    assert (back, list(back.entries)) == (
        RaftMessage(**{**_fields(message), "entries": back.entries}),
        list(message.entries),
    )


def _fields(message: RaftMessage) -> dict[str, object]:
    return {name: getattr(message, name) for name in message.__slots__}


def test_a_group_is_its_ids_in_any_order():
    assert group_number(["c", "a", "b"]) == GROUP
    assert group_number(["a", "b"]) != GROUP


def test_a_controller_of_another_group_is_refused_by_name():
    content = encode_message(example(MessageKind.VOTE), group_number(["a", "b"]))
    with pytest.raises(RemoteProtocolError, match="n7 has another list of controllers: set the same one"):
        decode_message(content, GROUP, sender="n7", to="b")


def test_another_version_is_refused_with_what_to_do():
    content = bytearray(encode_message(example(MessageKind.VOTE), GROUP))
    content[2] = VERSION + 1
    with pytest.raises(RemoteProtocolError, match=f"version {VERSION + 1}, not {VERSION}: run one release"):
        decode_message(bytes(content), GROUP, sender="a", to="b")


@pytest.mark.parametrize("kind", MessageKind)
def test_every_flipped_byte_and_every_cut_is_refused(kind):
    content = encode_message(example(kind), GROUP)
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0x40
        with pytest.raises(RemoteProtocolError):
            decode_message(bytes(damaged), GROUP, sender="a", to="b")
        with pytest.raises(RemoteProtocolError):
            decode_message(content[:at], GROUP, sender="a", to="b")


@given(st.binary(max_size=200))
def test_garbage_is_refused(content):
    with pytest.raises(RemoteProtocolError):
        decode_message(content, GROUP, sender="a", to="b")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (RaftMessage(MessageKind.APPEND, "a", "b", 3, Position(1, 4), entries=(LogEntry(1, 6, b""),)), "follows"),
        (RaftMessage(MessageKind.APPEND, "a", "b", 3, Position(2, 4), entries=(LogEntry(1, 5, b""),)), "follows"),
        (RaftMessage(MessageKind.APPEND, "a", "b", 3, Position(2, 4), entries=(LogEntry(4, 5, b""),)), "of term 4"),
        (RaftMessage(MessageKind.VOTE, "a", "b", 3, Position(2, 4), entries=(LogEntry(3, 5, b""),)), "has entries"),
        (RaftMessage(MessageKind.VOTE, "a", "b", 3, data=b"x"), "1 bytes of snapshot"),
        (RaftMessage(MessageKind.SNAPSHOT, "a", "b", 3, data=b"x"), "without an entry"),
    ],
)
def test_a_message_that_contradicts_itself_is_refused(message, reason):
    with pytest.raises(RemoteProtocolError, match=reason):
        there_and_back(message)


def test_the_largest_messages_fit():
    largest = RaftMessage(MessageKind.SNAPSHOT, "a", "b", 1, Position(1, 1), data=bytes(SNAPSHOT_SIZE_MAX))
    assert len(encode_message(largest, GROUP)) == MESSAGE_SIZE_MAX
    assert APPEND_BYTES_MAX + ENTRY_SIZE_MAX < SNAPSHOT_SIZE_MAX
