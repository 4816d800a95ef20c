"""Batches of any properties, sizes and header fields: both paths store and answer the same.

`test_uniform_batches.py` starts from the batches of real producers. Here the properties have any
names in any order, one message may differ from the others by one byte, and so may the encoded
batch. The broker and its clients have IPv4 or IPv6 addresses, and some batches go to a topic whose
records are counted in queues of batches.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.wire.batch import BatchMessage, encode_batch
from rmqkit.wire.codes import MessageSysFlag, RequestCode
from tests.broker.handlers.test_uniform_batches import Op, Side, compare
from tests.broker.requests import pull_fields, send_fields, with_topic
from tests.helpers.script import write_command

V6 = "2001:db8::7"


class Column(NamedTuple):
    """One property in all messages of a batch."""

    name: str
    #: how its value depends on the number of the message
    kind: str

    def text(self, number: int) -> str:
        value = {
            "same": "true" if self.name == "WAIT" else "TagB",
            "number": f"{(0xFFF0 + number) & 0xFFFF:04X}",
            "grows": "x" * number,
            "empty": "",
            "words": f"a b{number:03d} c",
            "utf8": "ä€",
            "mark": "a\x01b",
            "false": "false",
        }[self.kind]
        return f"{self.name}\x01{value}\x02"


class Change(NamedTuple):
    """One byte of a text is replaced, removed or doubled, at a position modulo its size."""

    position: int
    byte: bytes
    kind: str = "replaced"

    def of(self, text: bytes) -> bytes:
        if not text:
            return self.byte
        at = self.position % len(text)
        return {
            "replaced": text[:at] + self.byte + text[at + 1 :],
            "removed": text[:at] + text[at + 1 :],
            "doubled": text[:at] + text[at : at + 1] + text[at:],
            "cut": text[:at],
        }[self.kind]


class Batch(NamedTuple):
    """A batch in a send request."""

    columns: tuple[Column, ...]
    number: int = 8
    size: int = 20
    grows: int = 0
    #: number of the changed message, what changes in its properties, and whether all change
    odd_at: int = -1
    change: Change = Change(0, b"")
    of_all: bool = False
    #: a change of the encoded batch
    damage: Change | None = None
    topic: str = "T"
    fields: tuple[tuple[str, str], ...] = ()
    codec: int = 1
    kind: str = "batch"

    def body(self) -> bytes:
        messages = []
        for number in range(self.number):
            text = "".join(column.text(number) for column in self.columns).encode()
            if number == self.odd_at or self.of_all:
                text = self.change.of(text)
            messages.append(BatchMessage(0, b"b" * (self.size + number * self.grows), text))
        encoded = encode_batch(messages)
        return encoded if self.damage is None else self.damage.of(encoded)


class RawSide(Side):
    """A side that gets raw batches, and has a topic of type BatchCQ too."""

    peer = "10.0.0.9:40000"

    def __init__(self, *overrides: str) -> None:
        super().__init__(*overrides)
        with_topic(self.script, "B", attributes="+queue.type=BatchCQ")
        with_topic(self.script, "M", topicFilterType="MULTI_TAG")
        self.client.conn.peer = type(self.client.conn.peer).parse(self.peer)
        self.script.node._hosts.forget(self.client.conn)

    def frame(self, op: Batch | Op) -> bytes:
        if isinstance(op, Op):
            return super().frame(op)
        opaque = next(self._numbers)
        fields = send_fields(op.topic, **{"m": "true", **dict(op.fields)})
        return write_command(RequestCode.SEND_BATCH_MESSAGE, fields, op.body(), opaque=opaque, codec=op.codec)


class V6Side(RawSide):
    peer = f"[{V6}]:40000"


PLAIN_NAMES = ("UNIQ_KEY", "UNIQ_KEY", "UNIQ_KEY", "KEYS", "TAGS", "WAIT", "n", "DEDUP_KEY", "BUYER_ID")
ODD_NAMES = (
    "xUNIQ_KEY", "UNIQ_KEYx", "TAGSx", "xTAGS", "DELAY", "POP_CK", "INNER_NUM", "INNER_BASE", "CLUSTER", "TRAN_MSG",
    "TIMER_DELAY_SEC", "__CRC32#", "MSG_REGION", "INNER_MULTI_DISPATCH", "", "ä",
)  # fmt: skip
KINDS = ("same", "same", "number", "number", "grows", "empty", "words", "utf8", "mark", "false")
COLUMNS = st.builds(Column, st.sampled_from([*PLAIN_NAMES * 4, *ODD_NAMES]), st.sampled_from(KINDS))
CHANGES = st.builds(
    Change,
    st.integers(0, 400),
    st.sampled_from([b"\x01", b"\x02", b"\x00", b"a", b"\xc3", b"T"]),
    st.sampled_from(["replaced", "replaced", "removed", "doubled", "cut"]),
)
BITS = (0, 0, 0, 1, 2, 0x10, 0x20, 0x30, 0x301, 0x40, 0x80, 0xC0, 4, 8, 0xC, 0x40000000)
FIELDS = st.lists(
    st.one_of(
        st.tuples(st.just("f"), st.sampled_from(BITS).map(str)),
        st.tuples(st.just("j"), st.sampled_from(["0", "3", "-1"])),
        st.tuples(st.just("h"), st.sampled_from(["0", "7", "-7"])),
        st.tuples(st.just("e"), st.sampled_from(["0", "3", "-1", "4"])),
        st.tuples(st.just("g"), st.sampled_from(["0", "-1", "9223372036854775807"])),
        st.tuples(st.just("i"), st.sampled_from(["", "WAIT\x01false\x02", "UNIQ_KEY\x01A\x02INNER_NUM\x013\x02"])),
    ),
    max_size=2,
).map(tuple)
BATCHES = st.builds(
    Batch,
    columns=st.lists(COLUMNS, max_size=5).map(tuple),
    number=st.one_of(st.integers(6, 20), st.integers(1, 60)),
    size=st.sampled_from([0, 1, 20, 100]),
    grows=st.sampled_from([0, 0, 0, 1, 7]),
    odd_at=st.sampled_from([-1, -1, -1, 0, 1, 3, 5]),
    change=CHANGES,
    of_all=st.sampled_from([False, False, False, True]),
    damage=st.one_of(*[st.none()] * 5, CHANGES),
    topic=st.sampled_from(["T", "T", "T", "B", "M", "%RETRY%g", "none", "SCHEDULE_TOPIC_XXXX"]),
    fields=FIELDS,
    codec=st.integers(0, 1),
)
OPS = st.one_of(BATCHES, BATCHES, BATCHES, st.builds(Op, st.sampled_from(["send", "fail", "delete"])))
LIVES = (
    st.lists(st.lists(OPS, max_size=4), min_size=1, max_size=5),
    st.sampled_from([(), (), ("enableConsumeQueueExt=true",), ("enabledAppendPropCRC=true",), (f"brokerIP1={V6}",)]),
    st.sampled_from([RawSide, V6Side]),
    st.sampled_from([(), (("*", 0, "TAG"),), (("TagB", 0, "TAG"), ("TagX", 2, "TAG"))]),
)


@settings(max_examples=max(15, settings().max_examples // 4))
@given(*LIVES)
def test_both_paths_write_the_same(turns, overrides, make, waits):
    compare(turns, *overrides, make=make, waits=waits)


@pytest.mark.long
@settings(max_examples=max(500, settings().max_examples))
@given(*LIVES)
def test_both_paths_write_the_same_in_many_lives(turns, overrides, make, waits):
    compare(turns, *overrides, make=make, waits=waits)


ID = Column("UNIQ_KEY", "number")
WAIT = Column("WAIT", "same")


@pytest.mark.parametrize(
    ("batch", "is_uniform"),
    [
        (Batch((WAIT, ID)), False),
        (Batch((ID, WAIT)), True),
        (Batch((ID, Column("TAGS", "same"), WAIT)), True),
        (Batch((Column("TAGS", "same"), ID, WAIT)), True),
        (Batch((ID, Column("WAIT", "false"))), False),
        (Batch((Column("KEYS", "words"), ID, WAIT)), True),
        (Batch((Column("KEYS", "grows"), ID, WAIT)), False),
        (Batch((ID, WAIT), size=0), True),
        (Batch((ID, WAIT), grows=7), True),
        (Batch((ID, WAIT), fields=(("f", "769"),)), True),
        (Batch((ID, WAIT), fields=(("j", "3"), ("h", "7"))), True),
        (Batch((ID, WAIT), topic="M"), True),
        (Batch((ID, WAIT), topic="B", fields=(("i", ""),)), True),
        (Batch((ID, WAIT), topic="B"), False),
        (Batch((ID, Column("DELAY", "number"))), False),
        (Batch((ID, WAIT), odd_at=3, change=Change(0, b"", "cut")), False),
    ],
)
@pytest.mark.parametrize("make", [RawSide, V6Side])
@pytest.mark.parametrize("overrides", [(), (f"brokerIP1={V6}",)])
def test_which_batches_are_uniform(batch, is_uniform, make, overrides):
    assert compare([[batch], [batch]], *overrides, make=make) == 2 * is_uniform


def test_a_batch_at_the_limit_of_a_message():
    """`maxMessageSize` bounds the encoded batch; a log file must hold all of its records."""
    most, more = (Batch((ID, WAIT), number=40, size=154 + each) for each in (0, 1))
    assert (len(most.body()), len(more.body())) == (8000, 8040)
    assert compare([[most], [more], [most]], "mappedFileSizeCommitLog=65536", make=RawSide) == 2
    assert compare([[most], [most]], make=RawSide) == 2, "none of them fits into a log file"


def test_waiting_pulls_of_both_kinds_of_topics_get_their_batches():
    fields = pull_fields("B", sysFlag="6", suspendTimeoutMillis="30000")

    class Waiting(RawSide):
        def __init__(self, *overrides: str) -> None:
            super().__init__(*overrides)
            self.waiting.tell(RequestCode.PULL_MESSAGE, fields)

    turns = [[Batch((ID, WAIT))], [Batch((ID, WAIT), topic="B", fields=(("i", ""),))]]
    assert compare(turns, waits=(("*", 0, "TAG"),), make=Waiting) == 2


def test_the_bits_that_no_batch_has():
    for bits in (MessageSysFlag.TRANSACTION_PREPARED, MessageSysFlag.TRANSACTION_COMMIT, MessageSysFlag.INNER_BATCH):
        compare([[Batch((ID, WAIT), fields=(("f", str(int(bits))),))]], make=RawSide)
