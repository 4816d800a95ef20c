"""The halves that were stored last: what is given out for them is what the log has."""

import errno

from rmqkit.broker.special.transactions import recent_halves
from rmqkit.broker.special.transactions.recent_halves import RecentHalves
from rmqkit.store.contract import Put, PutResult, PutStatus
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.record import decode_record
from rmqkit.wire.topic_names import HALF_TOPIC
from tests.broker.requests import send, with_topic
from tests.broker.special.test_transactions import COMMIT, bodies, end, half, unique

HOST = bytes(8)


def put_of(host=HOST, size=10):
    return Put(HALF_TOPIC, 0, 0, 0, 1, host, host, 0, 0, bytes(size), b"", 0)


def result_of(phy_offset, size=100):
    return PutResult(PutStatus.PUT_OK, phy_offset, 7, phy_offset + size)


def test_a_recent_half_is_the_record_of_the_log(broker):
    client = with_topic(broker)
    answer = half(broker, client, more="TAGS\x01A\x02", h="7", j="3")
    phy_offset = int(answer.ext["msgId"][-16:], 16)
    stored = decode_record(broker.node.store.record(phy_offset), check_crc=True)
    recent = broker.node.view.transactions.recent
    assert recent.take(phy_offset) == stored
    assert recent.take(phy_offset) is None, "each is given out once"
    assert end(client, answer, COMMIT).code == 0, "the log has it"
    assert bodies(client) == [b"half"]


def test_an_end_reads_no_log(broker, monkeypatch):
    client = with_topic(broker)
    answer = half(broker, client)
    monkeypatch.setattr(broker.node.store, "record", lambda phy_offset: None)
    assert end(client, answer, COMMIT).code == 0
    assert bodies(client) == [b"half"]


def test_the_oldest_are_dropped(monkeypatch):
    monkeypatch.setattr(recent_halves, "HALVES_MAX", 3)
    recent = RecentHalves()
    for number in range(5):
        recent.add(put_of(), result_of(number * 100), 1)
    assert [recent.take(number * 100) is None for number in range(5)] == [True, True, False, False, False]
    monkeypatch.setattr(recent_halves, "SIZE_MAX", 250)
    for number in range(5):
        recent.add(put_of(), result_of(number * 100), 1)
    assert [recent.take(number * 100) is None for number in range(5)] == [True, True, True, False, False]


def test_a_half_of_an_ipv6_host_is_left_to_the_log():
    recent = RecentHalves()
    recent.add(put_of(bytes(20)), result_of(0), 1)
    assert recent.take(0) is None


def test_a_half_that_was_not_written_is_not_kept(broker):
    """Another record gets its place in the log."""
    client = with_topic(broker)
    broker.disk.write_error = OSError(errno.ENOSPC, "No space left on device")
    phy_offset = broker.node.store.offset_max
    text = f"UNIQ_KEY\x01{unique(1)}\x02TRAN_MSG\x01true\x02PGROUP\x01PG\x02"
    assert send(client, "T", b"lost", i=text, f="4").code == ResponseCode.SERVICE_NOT_AVAILABLE
    broker.disk.write_error = None
    assert broker.node.store.offset_max == phy_offset
    assert broker.node.view.transactions.recent.take(phy_offset) is None
