"""Compressed bodies: the client reads Apache's bytes, and writes bytes that Apache reads.

The bytes were written by `common/.../compression/{Lz4,Zstd,Zlib}Compressor.compress(body, 5)` of
5.5.0. The other direction was run against the same classes; these tests check what they require of
a frame.
"""

import base64
import os

import pytest

from rmqkit.client.message import Message
from rmqkit.client.producers import compression as module
from rmqkit.client.producers.compression import COMPRESSIONS, compression
from rmqkit.client.producers.outgoing_message import Prepare
from rmqkit.errors import ClientError
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.inflate import inflate_body
from rmqkit.wire.uniqueids import UniqueIds

BODY = "RocketMQ body 0123456789 é\n".encode() * 400
APACHE = {
    "lz4": (
        "BCJNGGBwc1IAAAD/DVJvY2tldE1RIGJvZHkgMDEyMzQ1Njc4OSDDqQocAP////////////////////////////////////////////////////////"
        "+3UDkgw6kKAAAAAA==",
        "BCJNGGBwcwEAAIB4AAAAAA==",
        0x101,
    ),
    "zstd": ("KLUv/QBYJAEA4FJvY2tldE1RIGJvZHkgMDEyMzQ1Njc4OSDDqQoBAISu56cTAQAA", "KLUv/QBYCAAAeAEAAA==", 0x201),
    "zlib": (
        "eF7tySkBgEAQAEBPio3A/4RAcBF4FOIMhkjkoBglkDN2Ut7O45qXWPN+R1nVTdv1wzjF+xTJOeecc84555xzzjnnnHPOOeecc84555xzzjn3633BxWy0",
        "eF6rAAAAeQB5",
        0x301,
    ),
}


PACKAGES = {"lz4": "lz4.frame", "zstd": "zstandard"}


@pytest.fixture(params=APACHE)
def name(request):
    """An algorithm whose package is installed."""
    if request.param in PACKAGES:
        pytest.importorskip(PACKAGES[request.param])
    return request.param


def test_bodies_that_apache_compressed_are_read(name):
    whole, one, sys_flag = APACHE[name]
    assert inflate_body(base64.b64decode(whole), sys_flag) == BODY
    assert inflate_body(base64.b64decode(one), sys_flag) == b"x"


@pytest.mark.parametrize("body", [b"x", BODY, os.urandom(200_000) + b"a" * 1_000_000], ids=["small", "text", "large"])
def test_bodies_go_there_and_back_under_apache_s_flags(name, body):
    made = compression(name)
    assert made.sys_flag == APACHE[name][2]
    assert inflate_body(made.compress(body, 5), made.sys_flag) == body


def test_lz4_frames_have_independent_blocks_as_LZ4FrameInputStream_wants():
    """Otherwise: "Dependent block stream is unsupported (BLOCK_INDEPENDENCE must be set)"."""
    pytest.importorskip("lz4.frame")
    for body in (b"x", BODY, b"a" * 1_000_000):
        frame = COMPRESSIONS["lz4"].compress(body, 5)
        assert frame[:4] == bytes.fromhex("04224d18")
        assert frame[4] >> 6 == 1
        assert frame[4] & 0x20


def test_a_producer_compresses_above_its_limit(name):
    ids = UniqueIds(b"\x7f\x00\x00\x01", 1, 2, month_bounds=lambda wall_ms: (0, 2**62))
    prepare = Prepare(ids, compress_over=100, compression=compression(name), compress_level=5)
    small, large = prepare.message(Message("T", b"a" * 99), 5), prepare.message(Message("T", b"a" * 100), 5)
    assert (small.sys_flag, small.body) == (0, b"a" * 99)
    assert large.sys_flag & MessageSysFlag.COMPRESSED
    assert inflate_body(large.body, large.sys_flag) == b"a" * 100


def test_an_algorithm_that_is_not_there_is_named(monkeypatch):
    with pytest.raises(ClientError, match="choose one of zlib, lz4, zstd"):
        compression("snappy")

    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", absent)
    assert compression("ZLIB").name == "zlib"
    for name in ("lz4", "zstd"):
        with pytest.raises(ClientError, match=r"pip install 'rmqkit\[compression\]'"):
            compression(name)
