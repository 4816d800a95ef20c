"""Ranges of queues read from brokers that send every possible kind of response."""

import pickle
from dataclasses import replace
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.client.producers.compression import compression
from rmqkit.errors import BrokerError, NoRoute, PeerUnreachable
from rmqkit.spark.columns import COLUMNS, arrow_schema
from rmqkit.spark.options import parse
from rmqkit.spark.source import replicas, topic_reader
from rmqkit.spark.source.ranges import DataLoss, OffsetRange
from rmqkit.spark.source.topic_reader import RangeReader
from rmqkit.wire.batch import BatchMessage, encode_batch
from rmqkit.wire.codes import MessageSysFlag, ResponseCode
from rmqkit.wire.javahash import java_hash
from tests.spark.stand_in import BROKER, TOPIC, close_idle_links, group, record


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(topic_reader, "PAUSE_MS", 1)
    monkeypatch.setattr(topic_reader, "CUT_WAIT_MS", 20)
    monkeypatch.setattr(replicas, "PAUSE_FIRST_MS", 1)
    monkeypatch.setattr(replicas, "PAUSE_MAX_MS", 4)
    monkeypatch.setattr(replicas, "_silent_until_s", {})
    yield
    close_idle_links()


@pytest.fixture
def brokers():
    with group() as made:
        yield made


def queue_of(count: int, first: int = 0) -> dict[int, bytes]:
    return {offset: record(offset) for offset in range(first, first + count)}


def options_of(namesrv, **more):
    return replace(parse({"subscribe": TOPIC}, "batch"), namesrv=namesrv, **more)


OFFSET_ONLY = arrow_schema(["offset"])


def range_of(begin, end, options, schema=OFFSET_ONLY):
    return RangeReader(OffsetRange(TOPIC, BROKER, 0, begin, end), options, schema).batches()


def read(brokers, begin, end, **more):
    """Read a range; return the Arrow batches."""
    schema = more.pop("schema", arrow_schema(more.pop("columns", ("offset", "body", "read_from"))))
    rows = more.pop("batch_rows", topic_reader.BATCH_ROWS)
    made = options_of(more.pop("namesrv", brokers.namesrv), **{"max_wait_for_broker": 2000, "request_timeout": 2000} | more)
    with patch.object(topic_reader, "BATCH_ROWS", rows):
        return list(range_of(begin, end, pickle.loads(pickle.dumps(made)), schema))


def offsets(batches) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_range_is_read_once_and_in_order(brokers):
    brokers.broker(queue_of(1000))
    batches = read(brokers, 100, 900, batch_rows=128)
    assert offsets(batches) == list(range(100, 900))
    assert [body for batch in batches for body in batch.column("body").to_pylist()] == [b"%d" % n for n in range(100, 900)]
    assert {read_from for batch in batches for read_from in batch.column("read_from").to_pylist()} == {"master"}
    assert all(batch.num_rows < 128 + 200 for batch in batches)
    assert len(batches) > 1


def test_all_columns_have_the_schema_that_spark_was_told(brokers):
    brokers.broker({0: record(0, properties=b"TAGS\x01a\x02")})
    (batch,) = read(brokers, 0, 1, columns=tuple(COLUMNS))
    assert batch.schema == arrow_schema(COLUMNS)
    row = batch.to_pylist()[0]
    assert (row["topic"], row["broker"], row["queue"], row["tags"]) == (TOPIC, BROKER, 0, "a")


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 10, 300, 5000]), min_size=1, max_size=150),
    count_max=st.sampled_from([1, 7, 32, 2000]),
    bytes_max=st.sampled_from([1, 700, 6000, 262_144]),
    batch_rows=st.sampled_from([1, 10, 8192]),
    cut=st.tuples(st.integers(0, 20), st.integers(0, 20)),
)
def test_however_a_broker_cuts_its_answers(sizes, count_max, bytes_max, batch_rows, cut):
    with group() as brokers:
        made = {offset: record(offset, body=b"x" * size) for offset, size in enumerate(sizes)}
        broker = brokers.broker(made, count_max=count_max)
        broker.bytes_max = bytes_max
        begin, end = min(cut[0], len(sizes) - 1), max(len(sizes) - cut[1], 1)
        batches = read(brokers, begin, end, batch_rows=batch_rows)
        assert offsets(batches) == list(range(begin, end))
        assert [len(body) for batch in batches for body in batch.column("body").to_pylist()] == sizes[begin:end]
    close_idle_links()


def test_pulls_go_ahead_of_their_answers_and_ask_for_what_comes_at_once(brokers):
    broker = brokers.broker(queue_of(2000), count_max=50)
    read(brokers, 0, 2000)
    asked = [int(fields["maxMsgNums"]) for _, fields in broker.asked]
    assert asked[0] == topic_reader.Pulls(0, 5000).due()[0].count
    assert asked.count(50) > 30
    assert len(asked) < 50


def test_a_worker_keeps_one_connection_an_address(brokers):
    broker = brokers.broker(queue_of(100))
    for begin in (0, 30, 60):
        read(brokers, begin, begin + 30)
    assert (broker.connections, brokers.nameserver.connections) == (1, 1)


def test_two_ranges_at_once_have_connections_of_their_own(brokers, monkeypatch):
    broker = brokers.broker(queue_of(100))
    monkeypatch.setattr(topic_reader, "BATCH_ROWS", 1)
    made = options_of(brokers.namesrv)
    one, two = (range_of(0, 100, made) for _ in range(2))
    pairs = [(offsets([a]), offsets([b])) for a, b in zip(one, two, strict=True)]
    assert all(a == b for a, b in pairs)
    assert broker.connections == 2


def test_a_reader_that_stops_early_leaves_no_answers_for_the_next(brokers, monkeypatch):
    brokers.broker(queue_of(1000), count_max=5)
    monkeypatch.setattr(topic_reader, "BATCH_ROWS", 1)
    reader = range_of(0, 1000, options_of(brokers.namesrv))
    next(reader)
    reader.close()
    assert offsets(read(brokers, 500, 700)) == list(range(500, 700))


def test_a_master_that_dies_within_a_range(brokers):
    master = brokers.broker(queue_of(1000))
    brokers.broker(queue_of(1000), broker_id=1)
    master.instead = dict.fromkeys(range(480, 1000), "close")
    batches = read(brokers, 0, 1000, batch_rows=100)
    assert offsets(batches) == list(range(1000))
    assert [batch.column("read_from")[0].as_py() for batch in (batches[0], batches[-1])] == ["master", "slave"]


def test_a_master_that_is_silent_costs_one_timeout_a_worker(brokers):
    master = brokers.broker(queue_of(100))
    brokers.broker(queue_of(100), broker_id=1)
    master.instead = dict.fromkeys(range(1000))
    assert offsets(read(brokers, 0, 50, request_timeout=100)) == list(range(50))
    asked = len(master.asked)
    assert offsets(read(brokers, 50, 100, request_timeout=100)) == list(range(50, 100))
    assert len(master.asked) == asked


def test_a_slave_in_its_masters_place_is_a_slave(brokers):
    slave = brokers.broker(queue_of(10), broker_id=1)
    brokers.nameserver.members[0] = slave.address
    brokers.nameserver.is_writable = False
    (batch,) = read(brokers, 0, 10)
    assert set(batch.column("read_from").to_pylist()) == {"slave"}


def test_a_slave_that_is_behind_is_waited_for(brokers):
    slave = brokers.broker(queue_of(10), broker_id=1)

    def grow(offset):
        if offset == 10 and sum(int(fields["queueOffset"]) == 10 for _, fields in slave.asked) > 3:
            slave.records, slave.end = queue_of(20), 20

    slave.on_pull = grow
    assert offsets(read(brokers, 0, 20)) == list(range(20))


def test_a_slave_that_stays_behind_is_an_error_and_no_loss(brokers):
    brokers.broker(queue_of(10), broker_id=1)
    with pytest.raises(PeerUnreachable, match=r"has offsets 0 to 10 \(queue 0, next offset 10\)"):
        read(brokers, 0, 20, max_wait_for_broker=20)
    with pytest.raises(PeerUnreachable, match="without waiting"):
        read(brokers, 0, 20, when_down="fail", fail_on_data_loss=False)


def test_another_slave_has_what_one_lacks(brokers):
    brokers.broker(queue_of(10), broker_id=1)
    brokers.broker(queue_of(20), broker_id=2)
    assert offsets(read(brokers, 0, 20, when_down="fail")) == list(range(20))


def test_a_broker_that_is_down_is_an_error_after_the_wait(brokers):
    master = brokers.broker(queue_of(10))
    master.close()
    with pytest.raises(PeerUnreachable, match=f"no broker of group {BROKER} can be read for topic T, after"):
        read(brokers, 0, 10, max_wait_for_broker=30)
    with pytest.raises(PeerUnreachable, match="without waiting"):
        read(brokers, 0, 10, when_down="fail")


def test_a_topic_without_a_route_is_waited_for(brokers):
    with pytest.raises(NoRoute, match="deleted, or all its brokers are down"):
        read(brokers, 0, 10, max_wait_for_broker=30)


def test_a_group_that_comes_back_is_read_on(brokers):
    away = brokers.broker(queue_of(100))
    away.instead = dict.fromkeys(range(60, 100), "close")
    came = []

    def back(code, fields, answer=brokers.nameserver.answer):
        if len(brokers.nameserver.asked) == 4:
            came.append(brokers.broker(queue_of(100)))
        return answer(code, fields)

    brokers.nameserver.answer = back
    assert offsets(read(brokers, 0, 100)) == list(range(100))
    assert came


def test_a_name_server_that_is_down_is_passed_over(brokers):
    brokers.broker(queue_of(10))
    assert offsets(read(brokers, 0, 10, namesrv=("127.0.0.1:1", *brokers.namesrv))) == list(range(10))


def test_retention_that_overtook_the_query(brokers, caplog):
    brokers.broker(queue_of(50, first=50))
    with pytest.raises(DataLoss) as caught:
        read(brokers, 10, 100)
    lost = pickle.loads(pickle.dumps(caught.value))
    assert (lost.key, lost.wanted, lost.smallest) == ((TOPIC, BROKER, 0), 10, 50)
    assert "offset 10" in str(lost)
    assert "smallest offset is 50" in str(lost)
    assert "retention" in str(lost)
    assert offsets(read(brokers, 10, 100, fail_on_data_loss=False)) == list(range(50, 100))
    assert "offsets 10 to 49 are gone" in caplog.text
    assert read(brokers, 10, 30, fail_on_data_loss=False) == []


def test_retention_at_a_slave_waits_for_the_master(brokers):
    brokers.broker(queue_of(50, first=50), broker_id=1)
    with pytest.raises(PeerUnreachable, match="has offsets 50 to 100"):
        read(brokers, 10, 100, max_wait_for_broker=20, fail_on_data_loss=False)


@pytest.mark.parametrize("records", [queue_of(10), queue_of(10, first=15)])
@pytest.mark.parametrize("may_lose", [False, True])
def test_a_master_that_is_none_any_more_makes_nothing_a_loss(brokers, caplog, records, may_lose):
    """The connection to the former master stays open; its successor has the missing messages."""
    former = brokers.broker(records)

    def takeover(offset):
        if len(brokers.nameserver.members) == 1:
            brokers.broker(queue_of(25))
            brokers.nameserver.members[1] = former.address

    former.on_pull = takeover
    assert offsets(read(brokers, 5, 25, fail_on_data_loss=not may_lose)) == list(range(5, 25))
    assert not caplog.records


def test_no_loss_is_reported_while_the_master_is_unknown(brokers):
    master = brokers.broker(queue_of(10))
    master.on_pull = lambda offset: brokers.nameserver.members.clear()
    with pytest.raises(NoRoute):
        read(brokers, 5, 20, max_wait_for_broker=60)


@pytest.mark.parametrize(("begin", "words"), [(10, "now ends at 10: its end was lost"), (15, "deleted and recreated")])
def test_a_queue_that_ends_too_early(brokers, caplog, begin, words):
    brokers.broker(queue_of(10))
    with pytest.raises(DataLoss, match=words) as caught:
        read(brokers, begin, 20)
    assert caught.value.wanted == begin
    assert read(brokers, begin, 20, fail_on_data_loss=False) == []
    assert f"offsets {begin} to 19 are gone" in caplog.text


def test_a_master_that_shows_its_end_a_moment_later(brokers, monkeypatch):
    monkeypatch.setattr(topic_reader, "CUT_WAIT_MS", 2000)
    master = brokers.broker(queue_of(10))

    def grow(offset):
        if offset == 10 and sum(int(fields["queueOffset"]) == 10 for _, fields in master.asked) > 2:
            master.records, master.end = queue_of(20), 20

    master.on_pull = grow
    assert offsets(read(brokers, 0, 20)) == list(range(20))


def test_a_topic_that_was_deleted(brokers):
    brokers.broker({}).instead = {5: (int(ResponseCode.TOPIC_NOT_EXIST), {}, b"")}
    with pytest.raises(DataLoss, match="the topic was deleted"):
        read(brokers, 5, 6)
    assert read(brokers, 5, 6, fail_on_data_loss=False) == []


def test_an_answer_that_leaves_an_offset_out_is_asked_for_again(brokers):
    queue = queue_of(100)
    broker = brokers.broker({offset: made for offset, made in queue.items() if offset != 40})

    def mend(offset):
        if offset == 40 and sum(int(fields["queueOffset"]) == 40 for _, fields in broker.asked) > 1:
            broker.records = queue

    broker.on_pull = mend
    assert offsets(read(brokers, 0, 100)) == list(range(100))


def test_an_offset_that_stays_out_is_a_loss(brokers, caplog):
    brokers.broker({offset: made for offset, made in queue_of(100).items() if offset not in (0, 40, 41, 99)}).end = 100
    brokers.nodes[-1].first = 0
    with pytest.raises(DataLoss) as caught:
        read(brokers, 10, 100)
    assert (caught.value.wanted, caught.value.smallest) == (40, 42)
    assert "damaged" in str(caught.value)
    expected = [offset for offset in range(100) if offset not in (0, 40, 41, 99)]
    assert offsets(read(brokers, 0, 100, fail_on_data_loss=False)) == expected
    assert "offsets 40 to 41 are gone" in caplog.text


def test_offsets_that_a_slave_skips_are_read_from_its_master(brokers):
    brokers.broker({offset: made for offset, made in queue_of(50).items() if offset != 40}, broker_id=1)
    with pytest.raises(PeerUnreachable, match=r"skips offsets 40 to 40 \(queue 0"):
        read(brokers, 0, 50, max_wait_for_broker=30, fail_on_data_loss=False)
    brokers.broker(queue_of(50))
    assert offsets(read(brokers, 0, 50)) == list(range(50))


def test_a_record_whose_parts_do_not_add_up_is_a_loss(brokers, caplog):
    queue = queue_of(30)
    broken = bytearray(queue[7])
    broken[88 + len(b"7")] = 99  # the topic's length
    brokers.broker({**queue, 7: bytes(broken)})
    with pytest.raises(DataLoss) as caught:
        read(brokers, 0, 30)
    assert caught.value.wanted == 7
    assert offsets(read(brokers, 0, 30, fail_on_data_loss=False)) == [each for each in range(30) if each != 7]
    assert "offset 7 is skipped" in caplog.text


def test_a_record_that_is_damaged_at_a_slave_is_no_loss(brokers):
    """The slave's master may have the record undamaged."""
    records = queue_of(10)
    damaged = bytearray(records[5])
    damaged[84:88] = (10_000).to_bytes(4, "big")
    brokers.broker(records | {5: bytes(damaged)}, broker_id=1)
    for may_lose in (False, True):
        with pytest.raises(
            PeerUnreachable,
            match=r"has a damaged record at offset 5 of queue 0 of topic T on broker-a; .* master may",
        ):
            read(brokers, 0, 10, max_wait_for_broker=20, fail_on_data_loss=not may_lose)


def test_bytes_that_are_no_record_are_read_from_another_broker(brokers):
    master = brokers.broker(queue_of(10))
    master.instead = {0: (0, master.offsets(10), b"x" * 200)}
    brokers.broker(queue_of(10), broker_id=1)
    assert offsets(read(brokers, 0, 10)) == list(range(10))


def test_a_broker_that_refuses(brokers):
    master = brokers.broker(queue_of(10))
    master.instead = {0: (int(ResponseCode.NO_PERMISSION), {}, b"")}
    with pytest.raises(BrokerError, match="broker-a refuses to return messages of queue 0 of topic T") as caught:
        read(brokers, 0, 10)
    assert caught.value.code == ResponseCode.NO_PERMISSION


def test_a_broker_that_is_busy_is_asked_again(brokers):
    master = brokers.broker(queue_of(10))
    master.instead = {0: (int(ResponseCode.SYSTEM_BUSY), {}, b"")}

    def calm(offset):
        if len(master.asked) > 3:
            master.instead = {}

    master.on_pull = calm
    assert offsets(read(brokers, 0, 10)) == list(range(10))


def test_tags_are_compared_here_too(brokers):
    """A broker compares hash codes of tags, so the reader compares the tags again.

    The broker sends `BB` to a client that asks for `Aa`, and skips other messages.
    """
    assert java_hash("Aa") == java_hash("BB")
    tags = [b"Aa", b"BB", b"C", b""]
    queue = {
        offset: record(offset, properties=b"TAGS\x01%b\x02" % tags[offset % 4] if tags[offset % 4] else b"")
        for offset in range(200)
    }
    broker = brokers.broker(
        {offset: made for offset, made in queue.items() if offset % 4 < 2 or offset > 150}, count_max=20
    )
    broker.end = 200
    assert offsets(read(brokers, 2, 200, tags=("Aa", "C"))) == [
        offset for offset in range(2, 200) if offset % 4 == 0 or (offset % 4 == 2 and offset > 150)
    ]
    assert {fields["subscription"] for _, fields in broker.asked} == {"Aa || C"}
    assert len({int(fields["queueOffset"]) for _, fields in broker.asked}) == len(broker.asked)


def test_a_filter_that_nothing_passes(brokers):
    brokers.broker({}).end = 100
    assert read(brokers, 0, 100, tags=("A",)) == []


@pytest.mark.parametrize("name", ["zlib", "lz4", "zstd"])
def test_compressed_bodies(brokers, name):
    packing = compression(name)
    body = b"much of the same " * 50
    packed = record(1, body=packing.compress(body, 5), sys_flag=packing.sys_flag)
    brokers.broker({0: record(0), 1: packed, 2: record(2)})
    (batch,) = read(brokers, 0, 3)
    assert batch.column("body").to_pylist() == [b"0", body, b"2"]


def batch_of(first: int, count: int, compressed: bool = False) -> bytes:
    """Return an inner batch: one record that contains several messages."""
    body = encode_batch(
        BatchMessage(0, b"%d" % offset, b"KEYS\x01k%d\x02" % offset) for offset in range(first, first + count)
    )
    sys_flag = MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP
    if compressed:
        packing = compression("zlib")
        body, sys_flag = packing.compress(body, 5), sys_flag | packing.sys_flag
    return record(first, body=body, sys_flag=sys_flag)


def test_inner_batches_come_out_one_by_one(brokers):
    broker = brokers.broker({0: record(0), 1: batch_of(1, 4), 5: batch_of(5, 3, compressed=True), 8: record(8)})
    whole = broker.records

    def inside(offset):
        # A pull at an offset within a batch returns the whole batch.
        held = max(each for each in whole if each <= offset)
        broker.records = {offset if each == held else each: made for each, made in whole.items()}

    broker.on_pull = inside
    batches = read(brokers, 2, 9, columns=("offset", "body", "keys", "sys_flag"))
    assert offsets(batches) == list(range(2, 9))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["body"] for row in rows] == [b"%d" % offset for offset in range(2, 9)]
    assert [row["keys"] for row in rows] == [f"k{offset}" for offset in range(2, 8)] + [None]


def bodies(batches) -> list[tuple[int, bytes]]:
    return [(row["offset"], row["body"]) for batch in batches for row in batch.to_pylist()]


def test_an_answer_that_ends_with_an_inner_batch_is_no_row_of_plain_messages(brokers):
    """Offsets do not reveal it: the batch has the offset that a plain message would have."""
    broker = brokers.broker({0: record(0), 1: batch_of(1, 4)})
    broker.end = 5
    assert bodies(read(brokers, 0, 5)) == [(offset, b"%d" % offset) for offset in range(5)]


def test_inner_batches_of_one_message(brokers):
    brokers.broker({0: record(0), 1: batch_of(1, 1), 2: batch_of(2, 1, compressed=True), 3: record(3)})
    batches = read(brokers, 0, 4, columns=("offset", "body", "keys", "sys_flag"))
    assert bodies(batches) == [(offset, b"%d" % offset) for offset in range(4)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["keys"], row["sys_flag"]) for row in rows] == [(None, 0), ("k1", 0), ("k2", 0), (None, 0)]


def test_bodies_of_megabytes_make_small_batches(brokers, monkeypatch):
    monkeypatch.setattr(topic_reader, "BATCH_BYTES_MAX", 5_000_000)
    brokers.broker({offset: record(offset, body=bytes([offset]) * 2_000_000) for offset in range(8)})
    batches = read(brokers, 0, 8)
    assert offsets(batches) == list(range(8))
    assert max(batch.nbytes for batch in batches) < 5_000_000 + 4 * 2_000_000
    assert len(batches) > 1
    assert [body[0] for batch in batches for body in batch.column("body").to_pylist()] == list(range(8))


def test_json_bodies_as_columns(brokers):
    schema = pa.schema([("offset", pa.int64()), ("a", pa.int64()), ("_corrupt", pa.string())])
    brokers.broker({0: record(0, body=b'{"a": 1}'), 1: record(1, body=b"[]"), 2: record(2, body=b'{"b": 1}')})
    (batch,) = read(brokers, 0, 3, decode="json", schema=schema)
    assert batch.to_pylist() == [
        {"offset": 0, "a": 1, "_corrupt": None},
        {"offset": 1, "a": None, "_corrupt": "[]"},
        {"offset": 2, "a": None, "_corrupt": None},
    ]


def test_an_empty_range_asks_nobody():
    made = options_of(("127.0.0.1:1",))
    assert list(range_of(7, 7, made)) == []
