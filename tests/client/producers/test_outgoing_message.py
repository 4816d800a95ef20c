"""From a Message to the parts of a request: checks, unique ids, compression, batch bodies."""

import zlib
from datetime import UTC, datetime
from struct import Struct

import pytest

from rmqkit.client.message import Message, MessageExt
from rmqkit.client.producers.compression import compression
from rmqkit.client.producers.outgoing_message import Prepare, check_group, check_topic
from rmqkit.errors import ClientError, InvalidMessage
from rmqkit.wire.record import decode_record, encode_record
from rmqkit.wire.topic_names import SEND_FORBIDDEN
from rmqkit.wire.uniqueids import UniqueIds

# 2026-07-18 12:34:56.789 UTC
WALL_MS = 1_784_378_096_789
MONTH_START_MS = 1_782_864_000_000


@pytest.fixture
def prepare():
    return Prepare(UniqueIds(bytes((10, 0, 0, 9)), 7, 0x1234ABCD))


def test_keys_tags_and_properties_are_one_text(prepare):
    message = Message("T", "hello", keys=["k1", "k2"], tags="A", properties={"x": "1"}, flag=5)
    outgoing = prepare.message(message, WALL_MS)
    assert outgoing.properties == f"x\x011\x02KEYS\x01k1 k2\x02TAGS\x01A\x02UNIQ_KEY\x01{outgoing.msg_id}\x02"
    assert (outgoing.topic, outgoing.body, outgoing.flag, outgoing.sys_flag) == ("T", b"hello", 5, 0)


def test_a_message_can_be_sent_twice_and_is_two_messages(prepare):
    message = Message("T", b"x")
    first, second = prepare.message(message, WALL_MS), prepare.message(message, WALL_MS)
    assert first.msg_id != second.msg_id
    assert "UNIQ_KEY" not in message.properties


def test_unique_ids_have_the_parts_of_MessageClientIDSetter_createUniqID(prepare):
    msg_id = prepare.message(Message("T", b"x"), WALL_MS).msg_id
    since = WALL_MS - MONTH_START_MS
    assert msg_id == f"0A00000900071234ABCD{since:08X}{1:04X}"


def test_unique_ids_count_from_the_month_of_their_time_zone():
    ids = UniqueIds(bytes((10, 0, 0, 9)), 7, 1, lambda wall_ms: (WALL_MS - 256, WALL_MS + 1))
    assert ids.next(WALL_MS)[-12:-4] == "00000100"


@pytest.mark.parametrize(("size", "compressed"), [(4095, False), (4096, True), (100_000, True)])
def test_bodies_from_4096_bytes_on_are_deflated_as_tryToCompressMessage(prepare, size, compressed):
    body = b"a" * size
    outgoing = prepare.message(Message("T", body), WALL_MS)
    assert outgoing.sys_flag == (0x301 if compressed else 0)
    assert (zlib.decompress(outgoing.body) if compressed else outgoing.body) == body
    if compressed:
        # Level 5: the second byte of a zlib stream encodes the class of levels.
        assert outgoing.body[:2] == b"\x78\x5e"


@pytest.mark.parametrize(("name", "module", "sys_flag"), [("lz4", "lz4.frame", 0x101), ("zstd", "zstandard", 0x201)])
def test_other_compressions_come_with_the_extra(name, module, sys_flag):
    pytest.importorskip(module)
    prepare = Prepare(UniqueIds(bytes(4), 1, 1), compression=compression(name))
    body = b"abc" * 5000
    outgoing = prepare.message(Message("T", body), WALL_MS)
    assert outgoing.sys_flag == sys_flag
    assert len(outgoing.body) < 1000
    assert received(outgoing.body, sys_flag=sys_flag).body == body


def test_a_compression_that_is_not_there_is_said():
    with pytest.raises(ClientError, match="choose one of zlib, lz4, zstd"):
        compression("snappy")


def test_a_batch_body_is_that_of_MessageDecoder_encodeMessages(prepare):
    outgoing = prepare.batch([Message("T", b"one", tags="A"), Message("T", b"three", flag=9)], WALL_MS)
    head = Struct(">iiiii")
    size, magic, crc, flag, body_size = head.unpack_from(outgoing.body)
    assert (magic, crc, flag, body_size) == (0, 0, 0, 3)
    assert outgoing.body[20:23] == b"one"
    second = head.unpack_from(outgoing.body, size)
    assert second[3:] == (9, 5)
    assert size + second[0] == len(outgoing.body)
    assert outgoing.is_batch
    ids = outgoing.msg_id.split(",")
    assert [f"UNIQ_KEY\x01{each}\x02".encode() in outgoing.body for each in ids] == [True, True]


def test_a_batch_is_never_compressed(prepare):
    assert prepare.batch([Message("T", b"a" * 9000)], WALL_MS).sys_flag == 0


def test_a_delay_level_is_a_property_as_setDelayTimeLevel(prepare):
    outgoing = prepare.message(Message("T", b"x", tags="t", delay_level=3), WALL_MS)
    assert "DELAY\x013\x02" in outgoing.properties
    assert "DELAY" not in prepare.message(Message("T", b"x"), WALL_MS).properties


def test_a_due_time_is_a_property_as_setDeliverTimeMs_and_setDelayTimeMs(prepare):
    at = datetime(2026, 12, 1, 9, tzinfo=UTC)
    assert "TIMER_DELIVER_MS\x011796115600000\x02" in prepare.message(Message("T", b"x", deliver_at=at), WALL_MS).properties
    assert "TIMER_DELIVER_MS\x0177\x02" in prepare.message(Message("T", b"x", deliver_at=77), WALL_MS).properties
    assert "TIMER_DELAY_MS\x0190000\x02" in prepare.message(Message("T", b"x", delay_ms=90_000), WALL_MS).properties
    assert "TIMER" not in prepare.message(Message("T", b"x"), WALL_MS).properties


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "at least one"),
        ("ab", "sends a Message, not str"),
        ([Message("T", b"1"), Message("U", b"2")], "one topic"),
        ([Message("%RETRY%g", b"1")], "retry topic"),
        ([Message("T", b"1", delay_level=3)], "delay level"),
        ([Message("T", b"1", delay_ms=3)], "due time"),
        ([Message("T", b"1", deliver_at=3)], "due time"),
        ([Message("T", b"a" * 3_000_000), Message("T", b"b" * 3_000_000)], "send fewer"),
    ],
)
def test_messages_that_cannot_form_a_batch(prepare, messages, why):
    with pytest.raises(InvalidMessage, match=why):
        prepare.batch(messages, WALL_MS)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("T", "sends a Message, not str"),
        (Message("T", b""), "empty body"),
        (Message("T", b"a" * (4 * 1024 * 1024 + 1)), "max_message_size"),
        (Message("", b"x"), "not a name"),
        (Message("a b", b"x"), "not a name"),
        (Message("../etc", b"x"), "not a name"),
        (Message("t" * 128, b"x"), "more than 127"),
        (Message("T", b"x", properties={"UNIQ_KEY": "mine"}), "RocketMQ's own"),
        (Message("T", b"x", properties={"DELAY": "3"}), "RocketMQ's own"),
        (Message("T", b"x", properties={"a": "\x02"}), "must not hold"),
        (Message("T", b"x", properties={"a\x01": "1"}), "must not hold"),
        (Message("T", b"x", properties={"a": "v" * 32767}), "properties of"),
        (Message("T", b"x", flag=-1), "flag"),
        (Message("T", b"x", delay_level=-1), "delay_level -1"),
        (Message("T", b"x", delay_level=1001), "delay_level 1001"),
        (Message("T", b"x", delay_ms=-1), "delay_ms -1"),
        (Message("T", b"x", delay_ms=1.5), "delay_ms 1.5"),
        (Message("T", b"x", deliver_at=0), "deliver_at 0"),
        (Message("T", b"x", deliver_at="soon"), "deliver_at soon"),
        (Message("T", b"x", deliver_at=2**62), "deliver_at"),
        (Message("T", b"x", delay_level=1, delay_ms=1), "one of"),
        (Message("T", b"x", delay_ms=1, deliver_at=1), "one of"),
    ],
)
def test_what_no_broker_takes_is_refused_before_it_is_sent(prepare, message, why):
    with pytest.raises(InvalidMessage, match=why) as caught:
        prepare.message(message, WALL_MS)
    assert "\n" not in str(caught.value)
    assert not caught.value.maybe_stored


@pytest.mark.parametrize("topic", sorted(SEND_FORBIDDEN))
def test_topics_of_the_broker_s_own_take_no_sends_as_TopicValidator(topic):
    with pytest.raises(InvalidMessage):
        check_topic(topic)
    check_topic(topic, to_send=False)


@pytest.mark.parametrize("group", ["", "a b", "g" * 121, "g/../h"])
def test_groups_that_are_no_names(group):
    with pytest.raises(InvalidMessage):
        check_group(group)


def received(body, *, sys_flag=0, properties=b"", topic="T", reconsume_times=0):
    data = encode_record(
        topic=topic,
        queue_id=2,
        flag=7,
        queue_offset=40,
        phy_offset=4096,
        sys_flag=sys_flag,
        born_ms=WALL_MS,
        born_host=bytes((10, 0, 0, 9, 0, 0, 0, 80)),
        store_ms=WALL_MS + 3,
        store_host=bytes((10, 0, 2, 1)) + (10911).to_bytes(4, "big"),
        reconsume_times=reconsume_times,
        prepared_offset=0,
        body=body,
        properties=properties,
    )
    return MessageExt(decode_record(data, check_crc=True), "broker-a")


def test_a_received_message_shows_its_parts():
    message = received(
        b"hi", properties=b"KEYS\x01k1 k2\x02TAGS\x01A\x02UNIQ_KEY\x01CAFE\x02own\x01x\x02", reconsume_times=2
    )
    assert (message.body, message.keys, message.tags, message.msg_id) == (b"hi", "k1 k2", "A", "CAFE")
    assert message.offset_msg_id == "0A00020100002A9F0000000000001000"
    assert (message.topic, message.queue_id, message.queue_offset, message.broker_name) == ("T", 2, 40, "broker-a")
    assert (message.born_host, message.store_host) == ("10.0.0.9:80", "10.0.2.1:10911")
    assert message.properties["own"] == "x"
    assert (message.reconsume_times, message.flag, message.commit_log_offset) == (2, 7, 4096)


def test_without_a_unique_id_the_offset_id_is_the_id():
    message = received(b"hi")
    assert message.msg_id == message.offset_msg_id


def test_a_compressed_body_is_inflated_when_it_is_read():
    for sys_flag in (0x1, 0x301):
        assert received(zlib.compress(b"hello"), sys_flag=sys_flag).body == b"hello"


def test_several_tags_are_refused():
    with pytest.raises(InvalidMessage, match=r"tags \['a', 'b'\] of a message to T are no text: a message has one tag"):
        Message("T", b"x", tags=["a", "b"])
