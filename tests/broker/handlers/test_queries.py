"""Queries for messages by key, unique key, tag and offset.

Source: `QueryMessageProcessor.{queryMessage,viewMessageById}`. The index types of 5.5 are K, U and
T (`MessageConst.INDEX_…`).
"""

import pytest

from rmqkit.broker.handlers.admin import broker
from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.requests import records, send, with_topic


def query(client, key, **changes):
    fields = {"topic": "T", "key": key, "maxNum": "10", "beginTimestamp": "0", "endTimestamp": str(2**62), **changes}
    return client.ask(RequestCode.QUERY_MESSAGE, fields)


@pytest.fixture
def client(broker):
    client = with_topic(broker)
    for number in range(3):
        send(client, body=b"%d" % number, i=f"UNIQ_KEY\x01U{number}\x02KEYS\x01k{number} common\x02TAGS\x01A\x02")
    return client


def bodies(answer):
    return [record.body for record in records(answer)]


@pytest.mark.parametrize(
    ("key", "changes", "found"),
    [
        ("k1", {}, [b"1"]),
        ("common", {}, [b"0", b"1", b"2"]),
        ("common", {"indexType": "K"}, [b"0", b"1", b"2"]),
        ("common", {"maxNum": "2"}, [b"1", b"2"]),
        ("U2", {"_UNIQUE_KEY_QUERY": "true"}, [b"2"]),
        ("U2", {"indexType": "U"}, [b"2"]),
        # For a unique key the broker ignores maxNum and uses its default.
        ("U2", {"_UNIQUE_KEY_QUERY": "true", "maxNum": "0"}, [b"2"]),
        ("A", {"indexType": "T"}, [b"0", b"1", b"2"]),
    ],
)
def test_queries_that_find_messages(client, key, changes, found):
    answer = query(client, key, **changes)
    assert answer.code == 0
    assert bodies(answer) == found
    assert int(answer.ext["indexLastUpdateTimestamp"]) > 0


@pytest.mark.parametrize(
    ("key", "changes"),
    [("none", {}), ("A", {}), ("k1", {"indexType": "T"}), ("k1", {"topic": "U"}), ("k1", {"endTimestamp": "1"})],
)
def test_queries_that_find_none(client, key, changes):
    answer = query(client, key, **changes)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert answer.remark == "can not find message, maybe time range not correct"


def test_a_message_by_its_offset(client):
    (first, *_) = records(query(client, "common"))
    answer = client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(first.phy_offset)})
    assert bodies(answer) == [b"0"]


@pytest.mark.parametrize("offset", [1, -1, 10**15])
def test_no_message_starts_there(client, offset):
    answer = client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")


def test_of_large_messages_the_newest_that_fit_into_an_answer(client, monkeypatch):
    monkeypatch.setattr(broker, "QUERY_SIZE_MAX", 250_000)
    for number in range(6):
        send(client, body=b"%d" % number + bytes(60_000), i="KEYS\x01large\x02")
    assert [body[:1] for body in bodies(query(client, "large"))] == [b"2", b"3", b"4", b"5"]
    monkeypatch.setattr(broker, "QUERY_SIZE_MAX", 1)
    assert [body[:1] for body in bodies(query(client, "large"))] == [b"5"], "one at least"
