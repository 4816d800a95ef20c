"""Inflate message bodies and registrations, up to a size limit.

zlib is in Python. LZ4 (frame format) and ZSTD need the packages of the extra `rmqkit[compression]`;
they are imported when the first such message arrives. The size is checked during inflation, so that
a small frame cannot exhaust the memory of the node.

Source: `common/.../compression/{Zlib,Lz4,Zstd}Compressor.java`.
"""

import zlib
from importlib import import_module
from typing import Any

from rmqkit.errors import RemoteProtocolError, RmqkitError
from rmqkit.wire.codes import MessageSysFlag

BODY_SIZE_MAX = 64 * 1024 * 1024

_ZSTD_PIECE_SIZE = 256
_ZSTD_WINDOW_MAX = 32 * 1024 * 1024


class CompressionMissing(RmqkitError):
    """The package that reads this compression is not installed."""


def inflate_zlib(data: bytes, size_max: int = BODY_SIZE_MAX) -> bytes:
    """Inflate one complete zlib stream.

    Raises RemoteProtocolError if it is damaged, incomplete or inflates to more than `size_max`
    bytes.
    """
    inflater = zlib.decompressobj()
    try:
        out = inflater.decompress(data, size_max + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"zlib: {error}") from None
    _check("zlib", out, size_max, inflater.eof)
    return out


def inflate_lz4(data: bytes, size_max: int = BODY_SIZE_MAX) -> bytes:
    """Inflate an LZ4 frame.

    Raises RemoteProtocolError, or CompressionMissing without the package lz4.
    """
    frame = _imported("lz4.frame", "lz4")
    inflater = frame.LZ4FrameDecompressor()
    try:
        out: bytes = inflater.decompress(data, max_length=size_max + 1)
    except (RuntimeError, EOFError, ValueError) as error:
        raise RemoteProtocolError(f"LZ4: {error}") from None
    _check("LZ4", out, size_max, inflater.eof)
    return out


def inflate_zstd(data: bytes, size_max: int = BODY_SIZE_MAX) -> bytes:
    """Inflate a ZSTD frame.

    Raises RemoteProtocolError, or CompressionMissing without the package zstandard.
    """
    zstandard = _imported("zstandard", "zstandard")
    inflater = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX).decompressobj()
    out = bytearray()
    try:
        # zstandard cannot limit the output, so the input is fed in pieces: 256 bytes inflate to at
        # most a few MiB.
        for start in range(0, len(data), _ZSTD_PIECE_SIZE):
            out += inflater.decompress(data[start : start + _ZSTD_PIECE_SIZE])
            if inflater.eof or len(out) > size_max:
                break
    except zstandard.ZstdError as error:
        raise RemoteProtocolError(f"ZSTD: {error}") from None
    _check("ZSTD", out, size_max, inflater.eof)
    return bytes(out)


_BY_TYPE = {
    0: inflate_zlib,
    MessageSysFlag.COMPRESSION_LZ4: inflate_lz4,
    MessageSysFlag.COMPRESSION_ZSTD: inflate_zstd,
    MessageSysFlag.COMPRESSION_ZLIB: inflate_zlib,
}


def inflate_body(body: bytes, sys_flag: int, size_max: int = BODY_SIZE_MAX) -> bytes:
    """Inflate the body of a message whose sysFlag has COMPRESSED set.

    The compression types are those of `CompressionType.findByValue`. Raises RemoteProtocolError for
    an unknown one.
    """
    inflate = _BY_TYPE.get(sys_flag & MessageSysFlag.COMPRESSION_MASK)
    if inflate is None:
        raise RemoteProtocolError(f"compression type {(sys_flag & MessageSysFlag.COMPRESSION_MASK) >> 8} is unknown")
    return inflate(body, size_max)


def _check(what: str, out: bytes | bytearray, size_max: int, is_whole: bool) -> None:
    if len(out) > size_max:
        raise RemoteProtocolError(f"inflates to more than {size_max} bytes")
    if not is_whole:
        raise RemoteProtocolError(f"{what}: data ends early")


def _imported(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise CompressionMissing(
            f"a message is compressed with {package}, which is not installed: pip install 'rmqkit[compression]'"
        ) from None
