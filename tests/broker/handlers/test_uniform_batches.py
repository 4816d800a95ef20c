"""Uniform batches are stored, indexed and answered byte for byte as on the general path.

Two brokers get the same requests. One takes every batch on the general path. Afterwards their
answers and all their files are the same.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.broker.handlers.messages import batch_shape
from rmqkit.store.log.uniform_batch import UniformBatch
from rmqkit.wire import properties as props
from rmqkit.wire.batch import BatchMessage, decode_batch, encode_batch
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.uniqueids import UniqueIds
from tests.broker.conftest import broker_of
from tests.broker.requests import pull_fields, records, send_fields, with_topic
from tests.helpers.script import Script, write_command

GOLDEN = Path(__file__).parents[2] / "wire" / "golden"
#: small files: batches meet the end of log files, and fill index files
SMALL = ("mappedFileSizeCommitLog=8192", "maxMessageSize=8000", "maxIndexNum=100", "maxHashSlotNum=20")
NOW_MS = 1_795_272_833_042


class Spec(NamedTuple):
    """A batch: how its messages look, and what is odd in one of them."""

    style: str = "java"
    number: int = 8
    size: int = 20
    #: how much longer the body of each message is than the previous one
    grows: int = 0
    #: ms between two messages
    step_ms: int = 0
    odd: str = ""
    odd_at: int = 3
    codec: int = 1
    queue_id: int = 0
    shared: str = "UNIQ_KEY\x017F00000102E74E0E2F2A6A31900502FF\x02WAIT\x01true\x02"


IDS = {"java": "7F00000102E74E0E2F2A", "v6": "24014900C19F100000000000000000010B0A2F2A1234"}


def properties_of(style: str, unique: str, n: int) -> str:
    wait = "WAIT\x01true\x02"
    return {
        "java": f"UNIQ_KEY\x01{unique}\x02{wait}",
        "v6": f"UNIQ_KEY\x01{unique}\x02{wait}",
        "java-tags": f"UNIQ_KEY\x01{unique}\x02{wait}TAGS\x01TagB\x02",
        "java-long": f"UNIQ_KEY\x01{unique}\x02{wait}TAGS\x01TagB\x02color\x01{'red' * 60}\x02",
        "java-keys": f"KEYS\x01key{n:04d}\x02UNIQ_KEY\x01{unique}\x02{wait}TAGS\x01TagB\x02",
        "java-same-keys": f"KEYS\x01a b\x02UNIQ_KEY\x01{unique}\x02{wait}TAGS\x01TagB\x02",
        "java-behind": f"UNIQ_KEY\x01{unique}\x02KEYS\x01a b\x02{wait}",
        "java-user": f"KEYS\x01key{n:04d}\x02UNIQ_KEY\x01{unique}\x02{wait}TAGS\x01TagB\x02n\x01{n:04d}\x02",
        "java-no-wait": f"UNIQ_KEY\x01{unique}\x02WAIT\x01false\x02",
        "ours": f"UNIQ_KEY\x01{unique}\x02",
        "ours-tags": f"KEYS\x01key{n:04d}\x02TAGS\x01TagB\x02UNIQ_KEY\x01{unique}\x02",
        "spark": f"DEDUP_KEY\x01run/0/1/{n + 92}\x02TAGS\x01TagB\x02UNIQ_KEY\x01{unique}\x02",
        "no-id": f"TAGS\x01TagB\x02n\x01{n:04d}\x02",
        "none": "",
    }[style]


#: changes of one message's properties
ODD = {
    "": lambda text: text,
    "tag": lambda text: text.replace("TagB", "TagC"),
    "name": lambda text: text.replace("KEYS\x01", "KEYZ\x01").replace("DEDUP", "XEDUP"),
    "tags-name": lambda text: text.replace("DEDUP_KEY\x01", "TAGS\x01abcd\x02"),
    "id-name": lambda text: text.replace("UNIQ_KEY", "UNIQ_KEX"),
    "id-empty": lambda text: text.replace("UNIQ_KEY\x01", "UNIQ_KEY\x01\x02x\x01"),
    "id-split": lambda text: text.replace("7F000001", "7F\x02aa\x0101"),
    "id-value": lambda text: text.replace("7F000001", "7F\x01aa\x0101"),
    "id-utf8": lambda text: text.replace("7F000001", "7Fä00\u20ac"),
    "key-split": lambda text: text.replace("key0", "k\x02a\x01").replace("run/", "r\x02a\x01"),
    "key-value": lambda text: text.replace("key0", "k\x01a0").replace("run/", "r\x01a/"),
    "wait": lambda text: text.replace("WAIT\x01true", "WAIT\x01fals"),
    "wait-false": lambda text: text + "WAIT\x01false\x02",
    "cut": lambda text: text[:-1],
    "longer": lambda text: text + "a\x01b\x02",
    "second-id": lambda text: text + "UNIQ_KEY\x01" + "0" * 32 + "\x02",
    "special": lambda text: text.replace("DEDUP_KEY", "POP_CK\x01ab").replace("KEYS\x01key", "POP_CK\x01"),
    "crc": lambda text: text + "__CRC32#\x011234567890\x02",
    "half": lambda text: text + "TRAN_MSG\x01true\x02",
    "delay": lambda text: text + "DELAY\x013\x02",
}
#: these apply to the message itself
ODD_MESSAGES = (
    "flag",
    "body",
    "empty",
    "all-cut",
    "all-second-id",
    "all-flag",
    "all-special",
    "all-id-utf8",
    "all-key-value",
    "all-tag",
)


def messages_of(spec: Spec, first: int) -> list[BatchMessage]:
    messages = []
    head = IDS.get(spec.style, IDS["java"])
    for n in range(first, first + spec.number):
        unique = f"{head}{0x6A319004 + (n - first) * spec.step_ms:08X}{(0xFFF0 + n) & 0xFFFF:04X}"
        text = properties_of(spec.style, unique, n)
        flag, body = 0, b"%d|" % (n % 10) + b"b" * (spec.size + (n - first) * spec.grows)
        is_odd = n - first == spec.odd_at
        if spec.odd.startswith("all-"):
            is_odd = True
        odd = spec.odd.removeprefix("all-")
        if is_odd and odd in ODD:
            text = ODD[odd](text)
        elif is_odd and odd == "flag":
            flag = 7
        elif is_odd:
            body = b"" if odd == "empty" else body + b"x"
        messages.append(BatchMessage(flag, body, text.encode()))
    return messages


class Op(NamedTuple):
    """One request, or `fail` for the turn."""

    kind: str
    spec: Spec = Spec()


class Tap:
    """Keeps the bytes of the answers on their way to a client's frame buffer."""

    def __init__(self, frames) -> None:
        self._frames = frames
        self.raw = b""

    def feed(self, data):
        self.raw += data
        return self._frames.feed(data)

    @property
    def error(self):
        return self._frames.error


@contextmanager
def general_path():
    """Take every batch on the general path."""
    with mock.patch.object(batch_shape, "COUNT_MIN", 1 << 30):
        yield


class Side:
    """One of the two brokers, with a client that sends and one that waits for messages."""

    def __init__(self, *overrides: str) -> None:
        self.script = Script(broker_of(*SMALL, *overrides))
        self.script.turn()
        self.client = with_topic(self.script)
        self.waiting = self.script.connect()
        for each in (self.client, self.waiting):
            each._frames = Tap(each._frames)
        self._numbers = count(1)
        self._first = 0

    def turn(self, ops: list[Op]) -> None:
        frames = []
        for op in ops:
            frames.append(self.frame(op))
        if Op("fail") in ops:
            self.script.disk.write_error = OSError(errno.ENOSPC, "full")
        self.script.turn(lambda: self.script.node.received(self.client.conn, b"".join(frames)))
        self.script.disk.write_error = None
        self.script.finish_disk()

    def frame(self, op: Op) -> bytes:
        opaque = next(self._numbers)
        if op.kind == "batch":
            fields = send_fields(m="true", e=str(op.spec.queue_id), i=op.spec.shared)
            body = encode_batch(messages_of(op.spec, self._first))
            self._first += op.spec.number
            return write_command(RequestCode.SEND_BATCH_MESSAGE, fields, body, opaque=opaque, codec=op.spec.codec)
        if op.kind == "send":
            return write_command(RequestCode.SEND_MESSAGE_V2, send_fields(e=str(op.spec.queue_id)), b"one", opaque=opaque)
        if op.kind == "delete":
            return write_command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, opaque=opaque)
        return b""

    def wait(self, subscription: str, offset: int, kind: str = "TAG") -> None:
        fields = pull_fields(
            offset=offset, sysFlag="6", suspendTimeoutMillis="30000", subscription=subscription, expressionType=kind
        )
        self.waiting.tell(RequestCode.PULL_MESSAGE, fields)

    def end(self) -> dict[str, bytes]:
        """Write everything, take the files from the broker, and return them.

        A broker has cycles: the files of hundreds of lives would stay in memory until a collection.
        """
        store = self.script.node.store
        store.write_queues()
        while store.index._has_work:
            store.index._step()
        self.script.finish_disk()
        files, self.script.disk.files = self.script.disk.files, {}
        return {path: bytes(data) for path, data in files.items() if not path.endswith(("abort", "lock"))}


def compare(
    turns: list[list[Any]], *overrides: str, waits: tuple[tuple[str, int, str], ...] = (), make: Callable[..., Any] = Side
) -> int:
    """Send the same to both brokers, compare them, and return how many batches were uniform.

    `make` returns one of the two sides.
    """
    taken = []
    found = batch_shape._uniform

    def noted(*arguments):
        batch = found(*arguments)
        taken.append(batch)
        return batch

    sides = []
    for is_general in (True, False):
        side = make(*overrides)
        with general_path() if is_general else mock.patch.object(batch_shape, "_uniform", noted):
            for wait in waits:
                side.wait(*wait)
            for ops in turns:
                side.turn(ops)
            sides.append((side.client._frames.raw, side.waiting._frames.raw, side.end()))
    general, uniform = sides
    assert uniform[:2] == general[:2]
    assert uniform[2].keys() == general[2].keys()
    for path, content in general[2].items():
        assert uniform[2][path] == content, path
    return len([each for each in taken if each is not None])


SPECS = st.builds(
    Spec,
    style=st.sampled_from([*("java", "java-tags", "java-keys", "ours", "spark") * 3,
                           "v6", "java-long", "java-same-keys", "java-behind", "java-user", "java-no-wait", "ours-tags",
                           "no-id", "none"]),
    number=st.integers(1, 24),
    size=st.sampled_from([0, 1, 20, 100]),
    grows=st.sampled_from([0, 0, 0, 1, 7]),
    step_ms=st.sampled_from([0, 0, 1, 0x10, 0x0FFF_FFFF]),
    odd=st.sampled_from([*[""] * 10, *ODD, *ODD_MESSAGES]),
    odd_at=st.integers(0, 5),
    codec=st.integers(0, 1),
    queue_id=st.integers(0, 1),
    shared=st.sampled_from([Spec().shared, Spec().shared, "", "UNIQ_KEY\x017F\x02WAIT\x01false\x02", "DELAY\x01x\x02"]),
)  # fmt: skip
OPS = st.one_of(
    st.builds(Op, st.just("batch"), SPECS),
    st.builds(Op, st.just("batch"), SPECS),
    st.builds(Op, st.just("batch"), SPECS),
    st.builds(Op, st.just("send"), SPECS),
    st.builds(Op, st.sampled_from(["fail", "delete"])),
)


LIVES = (
    st.lists(st.lists(OPS, min_size=1, max_size=5), min_size=1, max_size=6),
    st.sampled_from([(), (), ("enableConsumeQueueExt=true",), ("enabledAppendPropCRC=true",)]),
    st.sampled_from([(), (("*", 0, "TAG"),), (("TagB", 0, "TAG"),), (("TagX", 0, "TAG"), ("TagC", 2, "TAG"))]),
)


@settings(max_examples=max(12, settings().max_examples // 4))
@given(*LIVES)
def test_both_paths_write_the_same(turns, overrides, waits):
    compare(turns, *overrides, waits=waits)


@pytest.mark.long
@settings(max_examples=max(400, settings().max_examples))
@given(*LIVES)
def test_both_paths_write_the_same_in_many_lives(turns, overrides, waits):
    compare(turns, *overrides, waits=waits)


@pytest.mark.parametrize("style", ["java", "java-keys", "spark"])
def test_both_paths_write_the_same_if_one_message_is_odd(style):
    compare([[Op("batch", Spec(style, odd=odd))] for odd in (*ODD, *ODD_MESSAGES)])


@pytest.mark.parametrize("style", ["java-tags", "spark", "ours-tags"])
def test_the_index_has_the_tags_of_each_batch(style):
    """Batches that look alike, but have other tags, wait for the index together."""
    compare([[Op("batch", Spec(style)), Op("batch", Spec(style, odd="all-tag")), Op("batch", Spec(style))]])


@pytest.mark.parametrize(
    ("spec", "is_uniform"),
    [
        (Spec(), True),
        (Spec("v6"), True),
        (Spec("java-tags", 24), True),
        (Spec("java-long"), True),
        (Spec("java-keys"), True),
        (Spec("java-same-keys"), True),
        (Spec("java-behind"), True),
        (Spec("ours", grows=3), True),
        (Spec("ours-tags"), True),
        (Spec("spark"), True),
        (Spec(grows=3), True),
        (Spec(odd="body"), True),
        (Spec(odd="all-flag"), True),
        (Spec("java-user"), False),
        (Spec("no-id"), False),
        (Spec("none"), False),
        (Spec("java-no-wait"), False),
        (Spec("java-tags", odd="tag"), False),
        (Spec("spark", odd="tags-name"), False),
        (Spec("spark", odd="key-split"), False),
        (Spec(odd="flag"), False),
        (Spec(odd="wait"), False),
        (Spec(odd="all-second-id"), False),
        (Spec("spark", odd="all-special"), False),
        (Spec("java-keys", odd="all-special"), False),
        (Spec(odd="id-split"), False),
        (Spec(odd="id-value"), True),
        (Spec(odd="all-id-utf8"), True),
        (Spec(number=batch_shape.COUNT_MIN - 1), False),
    ],
)
def test_which_batches_are_uniform(spec, is_uniform):
    assert compare([[Op("batch", spec)], [Op("batch", spec._replace(codec=0))]]) == 2 * is_uniform


@pytest.mark.parametrize("step_ms", [1, 0x10, 0x1000, 0x0100_0000])
def test_a_batch_that_crosses_a_millisecond_is_indexed_by_all_its_ids(step_ms):
    """The ids differ in more than their last four characters, and are found nevertheless."""
    spec = Spec(number=20, step_ms=step_ms)
    assert compare([[Op("batch", spec)]]) == 1
    side = Side()
    side.turn([Op("batch", spec)])
    for message in messages_of(spec, 0):
        key = props.decode(message.properties)["UNIQ_KEY"]
        fields = {"topic": "T", "key": key, "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
        answer = side.client.ask(RequestCode.QUERY_MESSAGE, fields)
        assert [each.body for each in records(answer)] == [message.body]


def test_batches_that_meet_the_end_of_a_log_file_stay_in_one_file():
    turns = [[Op("batch", Spec(number=number, size=100)), Op("send")] for number in range(6, 26)]
    assert compare(turns) == 20
    side = Side()
    for ops in turns:
        side.turn(ops)
    assert len([path for path in side.script.disk.files if "/commitlog/" in path]) > 5


def test_a_failed_write_takes_uniform_batches_back():
    batch = Op("batch", Spec())
    assert compare([[batch], [Op("send"), batch, batch, Op("fail")], [batch]]) == 4


def test_a_topic_deleted_in_the_turn_of_its_batch_leaves_no_units():
    assert compare([[Op("batch"), Op("delete")], [Op("send")]]) == 1


def test_a_large_batch_is_indexed_in_steps_of_bounded_size():
    """Limits of the index count records: a batch of 2,000 waits as 2,000."""
    overrides = ("mappedFileSizeCommitLog=1048576", "maxMessageSize=1000000", "putMsgIndexHightWater=1500")
    assert compare([[Op("batch", Spec(number=2000))]], *overrides) == 1
    side = Side(*overrides)
    steps = []
    index = side.script.node.store.index
    step = index._step
    index._step = lambda: (step(), steps.append(index._waiting_count))
    side.turn([Op("batch", Spec(number=2000))])
    assert index._waiting_count <= 1500
    assert all(before - after <= 512 for before, after in zip([2000, *steps], steps, strict=False))


@pytest.mark.parametrize("name", ["send_batch.request", "binary_send_batch.request"])
def test_captured_java_batches(name):
    """Java's own frames, as captured, and with the user property that differs taken out."""
    raw = (GOLDEN / f"{name}.bin").read_bytes()
    body = raw[8 + (int.from_bytes(raw[4:8], "big") & 0xFFFFFF) :]
    messages = decode_batch(body)
    assert len(messages) == 5
    plain = [each._replace(properties=each.properties[: each.properties.index(b"n\x01")]) for each in messages]
    for batch, is_uniform in ((messages * 2, False), (plain * 2, True)):
        with mock.patch(f"{__name__}.messages_of", return_value=batch):
            assert compare([[Op("batch"), Op("batch")]]) == 2 * is_uniform


def test_batches_of_our_client_are_uniform():
    ids = UniqueIds(bytes([127, 0, 0, 1]), 77, 5)
    texts = [props.encode({"UNIQ_KEY": ids.next(NOW_MS + n // 4)}) for n in range(9)]
    batch = [BatchMessage(0, b"b" * 10, text) for text in texts]
    with mock.patch(f"{__name__}.messages_of", return_value=batch):
        assert compare([[Op("batch")]]) == 1


def test_a_uniform_batch_is_a_sequence_of_its_messages():
    entries = messages_of(Spec("java-tags", 6), 0)
    batch = batch_shape.of_messages(entries)
    assert isinstance(batch, UniformBatch)
    stored = [(flag, body, text.replace(b"WAIT\x01true\x02", b""), batch.tags_code) for flag, body, text in entries]
    assert list(batch) == stored
    assert [batch[n] for n in range(-6, 6)] == stored + stored
    assert batch[1:3] == stored[1:3]
    with pytest.raises(IndexError):
        batch[6]
