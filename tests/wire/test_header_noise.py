"""Noise in headers: for any bytes, decoding returns a value, `BadHeader`, or the remote error."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.remoting.frames import CODEC_JSON, CODEC_ROCKETMQ, Frame, FrameBuffer
from rmqkit.wire.remoting.headers import BadHeader, RequestDecoder, decode_head
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.pull import PullMessageRequest
from rmqkit.wire.schemas.send import SendMessageRequestV2

GOLDEN = Path(__file__).parent / "golden"
DECODERS = [RequestDecoder(schema) for schema in (NoFields, PullMessageRequest, SendMessageRequestV2)]


def header(name: str) -> Frame:
    (frame,) = FrameBuffer().feed((GOLDEN / f"{name}.bin").read_bytes())
    return frame


FRAMES = [header(name) for name in ("send_v2_properties.request", "pull_found_one.request", "binary_pull_found.request")]


def survives(frame: Frame) -> None:
    try:
        decode_head(frame)
    except RemoteProtocolError:
        pass
    for decoder in DECODERS:
        try:
            decoder.decode(frame)
        except (RemoteProtocolError, BadHeader):
            pass


@pytest.mark.parametrize(
    "data",
    [
        b'{"code":11,"extFields":{"topic":"\xff"}}',
        b'{"code":11,"extFields":{"topic":"\\ud800"}}',
        b'{"code":11,"extFields":{"topic":' + b"[" * 100_000,
        b'{"code":11,"extFields":[]}',
        b'{"code":"11","extFields":null,"opaque":99999999999999999999}',
        b'{"code":11,"opaque":-5,"language":{}}',
        b"[]",
        b"",
    ],
)
def test_headers_of_another_shape(data: bytes) -> None:
    for codec in (CODEC_JSON, CODEC_ROCKETMQ, 7):
        survives(Frame(codec, data, b""))


@given(st.sampled_from(FRAMES), st.data())
def test_a_damaged_header_of_real_traffic(frame: Frame, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(frame.header)))
    noise = data.draw(st.binary(max_size=6))
    survives(replace(frame, header=frame.header[:start] + noise + frame.header[start + len(noise) :]))
    survives(replace(frame, header=frame.header[:start]))


@given(st.binary(max_size=80), st.integers(0, 2))
def test_random_bytes(data: bytes, codec: int) -> None:
    survives(Frame(codec, data, b""))
