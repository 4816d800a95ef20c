"""Plain sends are stored, indexed and answered byte for byte as on the general path.

Two brokers get the same requests, and one of them takes every request on the general path.
Afterwards their answers, their counts and all their files are the same.
"""

from __future__ import annotations

import errno
from itertools import count
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.broker.handlers.messages.plain_sends import PlainSends
from rmqkit.wire.codes import RequestCode
from tests.broker.conftest import broker_of
from tests.broker.handlers.test_uniform_batches import SMALL, Tap
from tests.broker.requests import pull_fields, send_fields, with_topic
from tests.helpers.script import Script, write_command

SLOT_MS = 1_795_273_000_000
#: properties behind or around the unique id; `%s` is the id
PROPERTIES = {
    "java": "UNIQ_KEY\x01%s\x02WAIT\x01true\x02",
    "tags": "UNIQ_KEY\x01%s\x02WAIT\x01true\x02TAGS\x01TagA\x02",
    "ours": "UNIQ_KEY\x01%s\x02",
    "keys-first": "KEYS\x01a b\x02UNIQ_KEY\x01%s\x02WAIT\x01true\x02",
    "no-id": "TAGS\x01TagA\x02",
    "empty-id": "UNIQ_KEY\x01\x02WAIT\x01true\x02",
    "none": "",
    "no-wait": "UNIQ_KEY\x01%s\x02WAIT\x01false\x02",
    "cut": "UNIQ_KEY\x01%s\x02WAIT\x01true",
    "text": "UNIQ_KEY\x01%s\x02note\x01\u00e4\u20ac\x02",
    "text-id": "UNIQ_KEY\x01%s\u00e4\x02",
    "keys": "UNIQ_KEY\x01%s\x02WAIT\x01true\x02KEYS\x01%n\x02",
    "short-id": "UNIQ_KEY\x01ab\x02WAIT\x01true\x02" + "note\x01" + "x" * 25 + "\x02",
    "odd-id": "UNIQ_KEY\x01-%s\x02",
    "long": "UNIQ_KEY\x01%s\x02note\x01" + "x" * 200 + "\x02",
    "too-long": "UNIQ_KEY\x01%s\x02note\x01" + "x" * 33_000 + "\x02",
    "own": "UNIQ_KEY\x01%s\x02CLUSTER\x01other\x02",
    "delay": "UNIQ_KEY\x01%s\x02DELAY\x013\x02",
    "half": "TRAN_MSG\x01true\x02UNIQ_KEY\x01%s\x02WAIT\x01true\x02PGROUP\x01PG\x02",
    "timer": f"TIMER_DELIVER_MS\x01{SLOT_MS}\x02UNIQ_KEY\x01%s\x02WAIT\x01true\x02",
    "inner": "UNIQ_KEY\x01%s\x02INNER_NUM\x013\x02",
}
#: changes of the fixed fields
FIELDS: dict[str, dict[str, str]] = {
    "": {},
    "queue": {"e": "1"},
    "any-queue": {"e": "-1"},
    "no-queue": {"e": "99"},
    "flag": {"f": "0", "h": "7"},
    "bits": {"f": "1"},
    "v6-bits": {"f": "48"},
    "half-bits": {"f": "4"},
    "inner-bits": {"f": "128"},
    "unknown": {"b": "other", "c": "none"},
    "retry": {"b": "%RETRY%CG"},
    "system": {"b": "SCHEDULE_TOPIC_XXXX"},
    "created": {"b": "made"},
    "reconsumed": {"j": "2"},
    "early": {"g": "5"},
    "batch": {"m": "true"},
}


class Sent(NamedTuple):
    """One request of a turn."""

    properties: str = "java"
    fields: str = ""
    size: int = 20
    codec: int = 1
    flag: int = 0
    kind: str = "send"
    damage: int = 0


class Side:
    """One of the two brokers, with a client that sends and one that waits for messages."""

    def __init__(self, *overrides: str, is_general: bool) -> None:
        self.script = Script(broker_of(*SMALL, *overrides))
        self.script.turn()
        if is_general:
            self.script.node.remoting.express = None
        self.client = with_topic(self.script)
        self.waiting = self.script.connect()
        for each in (self.client, self.waiting):
            each._frames = Tap(each._frames)
        self.waiting.tell(RequestCode.PULL_MESSAGE, pull_fields(sysFlag="6", suspendTimeoutMillis="30000"))
        self._numbers = count(1)

    def turn(self, requests: list[Sent]) -> None:
        data = b"".join([self.frame(each) for each in requests])
        if any(each.kind == "fail" for each in requests):
            self.script.disk.write_error = OSError(errno.ENOSPC, "full")
        self.script.turn(lambda: self.script.node.received(self.client.conn, data))
        self.script.disk.write_error = None
        self.script.finish_disk()

    def frame(self, sent: Sent) -> bytes:
        opaque = next(self._numbers)
        write = {"opaque": opaque, "flag": sent.flag}
        if sent.kind == "delete":
            return write_command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, **write)
        if sent.kind == "closed":
            return write_command(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(perm="4"), **write)
        if sent.kind == "many-tags":
            return write_command(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topicFilterType="MULTI_TAG"), **write)
        if sent.kind == "pull":
            return write_command(RequestCode.PULL_MESSAGE, pull_fields(), codec=sent.codec, **write)
        text = PROPERTIES[sent.properties].replace("%s", f"7F0000010001{opaque:020X}").replace("%n", f"{opaque:06d}")
        code = RequestCode.SEND_BATCH_MESSAGE if sent.fields == "batch" else RequestCode.SEND_MESSAGE_V2
        fields = send_fields(**{"i": text, **FIELDS[sent.fields]})
        frame = write_command(code, fields, b"b" * sent.size, codec=sent.codec, **write)
        if sent.damage:
            # No valid UTF-8: of a text, or of a length, which ends the connection.
            at = frame.find(b"UNIQ_KEY") + sent.damage
            frame = frame[:at] + b"\xff" + frame[at + 1 :]
        return frame

    def end(self) -> tuple[Any, ...]:
        node = self.script.node
        node.store.write_queues()
        while node.store.index._has_work:
            node.store.index._step()
        self.script.finish_disk()
        files = {path: bytes(data) for path, data in self.script.disk.files.items() if not path.endswith(("abort", "lock"))}
        puts = {topic: (each.messages, each.size, each.times) for topic, each in node.statistics.puts.table.items()}
        counts = {code: each for code, each in node.remoting.counts.items() if each}
        return self.client._frames.raw, self.waiting._frames.raw, puts, node.puts.failed_count, counts, files


def topic_fields(**changes: str) -> dict[str, str]:
    fields = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    return {**fields, "topicFilterType": "SINGLE_TAG", "order": "false", **changes}


def compare(turns: list[list[Sent]], *overrides: str) -> int:
    """Send the same to both brokers, compare them, and return how many sends were plain."""
    sides = [Side(*overrides, is_general=is_general) for is_general in (True, False)]
    express = sides[1].script.node.remoting.express
    assert isinstance(express, PlainSends)
    plain = [0]
    note = express._count

    def noted(number: int) -> None:
        plain[0] += number
        note(number)

    express._count = noted
    ends = []
    for side in sides:
        for requests in turns:
            side.turn(requests)
        ends.append(side.end())
    general, fast = ends
    assert fast[:-1] == general[:-1]
    assert fast[-1].keys() == general[-1].keys()
    for path, content in general[-1].items():
        assert fast[-1][path] == content, path
    return plain[0]


REQUESTS = st.one_of(
    st.sampled_from([*["java", "tags", "ours"] * 4, *PROPERTIES]).map(Sent),
    st.builds(
        Sent,
        st.sampled_from(list(PROPERTIES)),
        st.sampled_from(list(FIELDS)),
        st.sampled_from([20, 20, 1, 0, 7_000, 9_000]),
        st.sampled_from([1, 1, 0]),
        st.sampled_from([0, 0, 2, 1]),
        st.sampled_from([*["send"] * 8, "pull", "closed", "many-tags", "delete", "fail"]),
        st.sampled_from([*[0] * 12, 12, -2]),
    ),
)
LIVES = (
    st.lists(st.lists(REQUESTS, min_size=1, max_size=6), min_size=1, max_size=5),
    st.sampled_from(
        [(), (), ("enabledAppendPropCRC=true",), ("flushDiskType=SYNC_FLUSH",), ("brokerPermission=4",), ("brokerIP1=::1",)]
    ),
)


@settings(max_examples=max(25, settings().max_examples // 4))
@given(*LIVES)
def test_both_paths_do_the_same(turns, overrides):
    compare(turns, *overrides)


@pytest.mark.long
@settings(max_examples=max(300, settings().max_examples))
@given(*LIVES)
def test_both_paths_do_the_same_in_many_lives(turns, overrides):
    compare(turns, *overrides)


PLAIN_PROPERTIES = {"java", "tags", "ours", "keys", "short-id"}
PLAIN_FIELDS = {"", "queue", "bits", "v6-bits", "reconsumed"}


@pytest.mark.parametrize("properties", PROPERTIES)
def test_which_properties_are_plain(properties):
    sent = Sent(properties)
    assert compare([[sent, Sent(), sent], [sent]]) == (4 if properties in PLAIN_PROPERTIES else 1)


@pytest.mark.parametrize("fields", FIELDS)
def test_which_fields_are_plain(fields):
    sent = Sent(fields=fields)
    expected = 4 if fields in PLAIN_FIELDS else 2 if fields == "created" else 1
    assert compare([[sent, Sent(), sent], [sent]]) == expected


def test_forms_are_made_of_headers_that_repeat():
    """Properties that differ in each send leave no form. Texts of equal size do no harm."""
    side = Side(is_general=False)
    express = side.script.node.remoting.express
    side.turn([Sent("keys")] * 5)
    assert not express._forms
    side.turn([Sent()] * 2)
    assert len(express._forms) == 1
    side.turn([Sent(fields="queue")] * 2)
    assert len(express._forms) == 2
    side.turn([Sent(), Sent(fields="queue"), Sent("keys")] * 3)
    assert len(express._forms) == 2
    side.end()


def test_properties_that_are_no_text_close_the_connection():
    assert compare([[Sent(), Sent(damage=12), Sent()]]) == 1


@pytest.mark.parametrize("sent", [Sent(codec=0), Sent(flag=1), Sent(size=0), Sent(size=9_000), Sent(kind="pull")])
def test_other_sends_that_are_not_plain(sent):
    assert compare([[sent, Sent(), sent, Sent()]]) == 2


@pytest.mark.parametrize("kind", ["delete", "closed", "many-tags"])
def test_a_changed_topic_is_checked_again(kind):
    before, after = [Sent(), Sent(), Sent(kind=kind)], [Sent(), Sent()]
    assert compare([before, after, [*before, *after]]) == {"delete": 4, "closed": 8, "many-tags": 8}[kind]


def test_a_write_that_fails_refuses_plain_sends_as_well():
    assert compare([[Sent(), Sent(), Sent(kind="fail")], [Sent()]]) == 4
    assert compare([[Sent(), Sent(kind="fail", properties="no-id")], [Sent()]], "flushDiskType=SYNC_FLUSH") == 2


def test_a_one_way_send_gets_no_answer():
    assert compare([[Sent(flag=2), Sent()]]) == 2


def test_sends_are_not_plain_while_they_are_refused():
    assert compare([[Sent()]], "brokerPermission=4") == 0
