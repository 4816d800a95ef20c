"""Malformed input: that connection gets an error or is closed.

The node keeps running, and other clients are not affected.
"""

import random

import pytest

from rmqkit.broker.node import HANDLERS
from rmqkit.runtime.calls import code_name
from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.requests import send, with_topic
from tests.helpers.script import raw_frame, write_command

#: levels of JSON that no Python version decodes
DEEP = 100_000


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        (17 * 1024 * 1024).to_bytes(4, "big") + b"\x00\x00\x00\x10",
        (20).to_bytes(4, "big") + (4000).to_bytes(4, "big") + bytes(16),
        raw_frame(b"not json"),
        raw_frame(b"[1,2,3]"),
        raw_frame(b'"text"'),
        raw_frame(b'{"code":"ten"}'),
        raw_frame(b'{"code":10,"opaque":99999999999999}'),
        raw_frame(b"[" * 5000),
        raw_frame(b'{"code":34,"extFields":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}"),
    ],
)
def test_bytes_that_are_no_frames_close_that_connection_only(broker, data):
    client = with_topic(broker)
    bad = broker.connect()
    bad.send(data)
    assert bad.closed
    assert send(client).code == 0


@pytest.mark.parametrize("code", sorted(HANDLERS.rows), ids=code_name)
def test_every_code_answers_malformed_fields_and_bodies(broker, code):
    client = with_topic(broker)
    end = broker.node.store.offset_max
    odd_fields = [
        {},
        {"topic": ""},
        {"topic": "../x", "queueId": "-5", "consumerGroup": "", "b": "\x00"},
        {"queueId": "zz"},
    ]
    odd_bodies = [b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"clientID":5}', b'{"consumerDataSet":[null]}', b"7" * 100]
    for fields in odd_fields:
        for body in odd_bodies:
            answer = client.ask(code, fields, body)
            assert answer.code in set(ResponseCode)
    assert broker.node.store.offset_max == end
    assert send(client).code == 0


def test_a_code_that_nobody_handles(broker):
    answer = broker.connect().ask(9999)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == " request type 9999 not supported"


def test_a_frame_that_never_ends_is_given_up(broker):
    slow = broker.connect()
    slow.send((1000).to_bytes(4, "big") + (100).to_bytes(4, "big") + b"{")
    broker.advance(59_000)
    assert not slow.closed
    broker.advance(1_500)
    assert "not complete" in slow.closed


def test_incomplete_frames_hold_bounded_memory(make):
    broker = make("partialBytesMax=200000")
    good = with_topic(broker)
    greedy = [broker.connect() for _ in range(4)]
    for client in greedy:
        client.send((10_000_000).to_bytes(4, "big") + (100).to_bytes(4, "big") + bytes(59_000))
    assert sum(bool(client.closed) for client in greedy) == 1
    assert broker.node.remoting.partial_bytes <= 200_000
    assert send(good).code == 0


def test_random_bytes_never_break_the_node(broker):
    client = with_topic(broker)
    rng = random.Random(7)
    frame = write_command(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    for _ in range(300):
        bad = broker.connect()
        data = bytearray(frame)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        bad.send(bytes(data))
    assert send(client).code == 0
