"""Compression of message bodies: zlib always, LZ4 and ZSTD with the extra `compression`.

A compressed message has bit 0 of its sysFlag set, and the algorithm in bits 8-10. Brokers store the
bytes unchanged, so every reader must know the algorithm: the clients of Go and ali-ons only know
zlib. `wire.inflate` decompresses.

Source: `common/.../compression/{CompressionType,ZlibCompressor,Lz4Compressor,ZstdCompressor}.java`.
"""

import zlib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from rmqkit.errors import ClientError
from rmqkit.wire.codes import MessageSysFlag


class Compression(NamedTuple):
    """One algorithm: the sysFlag bits of its messages, and its function of body and level."""

    name: str
    sys_flag: int
    compress: Callable[[bytes, int], bytes]


def compression(name: str) -> Compression:
    """Return the algorithm with this name: zlib, lz4 or zstd.

    Raises ClientError if the name is unknown or a package is missing.
    """
    found = COMPRESSIONS.get(name.lower())
    if found is None:
        raise ClientError(f"compression {name!r} is not known; choose one of {', '.join(COMPRESSIONS)}")
    found.compress(b"", 5)
    return found


def _lz4_compress(body: bytes, level: int) -> bytes:
    """Compress with LZ4. Like Java's, it ignores the level, which is only for zlib and ZSTD."""
    # Java only reads frames of independent blocks (`LZ4FrameInputStream`: "BLOCK_INDEPENDENCE must
    # be set").
    compressed: bytes = _package("lz4.frame").compress(body, block_linked=False)
    return compressed


def _zstd_compress(body: bytes, level: int) -> bytes:
    compressed: bytes = _package("zstandard").ZstdCompressor(level=level).compress(body)
    return compressed


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ClientError(
            f"{name.partition('.')[0]} compression needs a package that is not installed: pip install 'rmqkit[compression]'"
        ) from None


COMPRESSIONS: Mapping[str, Compression] = {
    "zlib": Compression("zlib", MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB, zlib.compress),
    "lz4": Compression("lz4", MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_LZ4, _lz4_compress),
    "zstd": Compression("zstd", MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZSTD, _zstd_compress),
}
