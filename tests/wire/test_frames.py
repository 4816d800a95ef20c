"""Frames: whole, byte by byte, cut anywhere.

Source: `NettyDecoder.java`, `RemotingCommand.markProtocolType`.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.wire.remoting.frames import CODEC_ROCKETMQ, FRAME_SIZE_MAX, Frame, FrameBuffer, frame, frame_head

GOLDEN = bytes.fromhex("0000000e 00000006") + b'{"a":1' + b"body"


def test_layout():
    assert frame(b'{"a":1', b"body") == GOLDEN
    assert frame_head(b'{"a":1', 4) + b"body" == GOLDEN
    assert frame(b"h", b"", CODEC_ROCKETMQ) == bytes.fromhex("00000005 01000001") + b"h"


def test_whole_and_byte_by_byte():
    expected = [Frame(0, b'{"a":1', b"body")]
    assert FrameBuffer().feed(GOLDEN) == expected
    buffer = FrameBuffer()
    for byte in GOLDEN[:-1]:
        assert buffer.feed(bytes([byte])) == []
    assert buffer.pending == len(GOLDEN) - 1
    assert buffer.feed(GOLDEN[-1:]) == expected
    assert buffer.pending == 0


FRAMES = st.lists(
    st.builds(Frame, st.sampled_from([0, 1]), st.binary(max_size=40), st.binary(max_size=200)), min_size=1, max_size=6
)


@given(FRAMES, st.data())
def test_any_cut_gives_the_same_frames(frames, data):
    stream = b"".join(frame(each.header, each.body, each.codec) for each in frames)
    buffer = FrameBuffer()
    found = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += buffer.feed(stream[:size])
        stream = stream[size:]
    assert found == frames
    assert buffer.error is None
    assert buffer.pending == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x03",
        b"\x00\x00\x00\x00\x00\x00\x00\x00",
        (FRAME_SIZE_MAX + 1).to_bytes(4, "big"),
        b"\x00\x00\x00\x08\x00\x00\x00\x05\x00",
        b"GET / HTTP/1.1\r\n",
    ],
)
def test_what_can_never_be_a_frame_ends_the_stream(data):
    good = frame(b"{}", b"x")
    buffer = FrameBuffer()
    assert buffer.feed(good + data) == [Frame(0, b"{}", b"x")], "frames before it count"
    assert buffer.error is not None
    assert buffer.feed(good) == []


def test_the_largest_frame_is_taken_and_one_more_byte_is_not():
    limit = 1000
    assert len(FrameBuffer(limit).feed(frame(b"h", bytes(limit - 5)))) == 1
    buffer = FrameBuffer(limit)
    assert buffer.feed(frame(b"h", bytes(limit - 4))) == []
    assert "limit of 1000" in str(buffer.error)


@given(st.binary(max_size=300))
def test_random_bytes_never_raise(data):
    buffer = FrameBuffer()
    buffer.feed(data)
    assert buffer.pending <= len(data)
