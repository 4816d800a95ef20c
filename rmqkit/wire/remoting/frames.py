"""Frames: split a TCP byte stream into remoting commands, and build them.

A frame on the wire (all numbers big-endian):

    int32   length of everything after itself = 4 + header size + body size
    int32   high byte: header format (0 JSON, 1 ROCKETMQ), low 24 bits: header size
    bytes   header
    bytes   body, may be empty

`FrameBuffer.feed` takes bytes in chunks of any size and returns every frame that is complete. If
the bytes can never become a frame, `feed` still returns the frames before them and sets `error`;
the owner then closes the connection. While a frame is incomplete the buffer holds at most
`size_max` bytes + one read, whatever length the peer claims.

Source: `remoting/.../netty/NettyDecoder.java`, `remoting/.../protocol/RemotingCommand.java`.
"""

from struct import Struct

import msgspec

from rmqkit.errors import RemoteProtocolError

FRAME_SIZE_MAX = 16 * 1024 * 1024
#: bytes; the largest number in the 24 bits of the size field
HEADER_SIZE_MAX = 0xFFFFFF
CODEC_JSON = 0
CODEC_ROCKETMQ = 1

_HEAD = Struct(">iI")
_LENGTH = Struct(">i")


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One remoting command; header and body are not decoded yet."""

    codec: int
    header: bytes
    body: bytes


class FrameBuffer:
    """The receive side of one connection.

    `pending` is the number of bytes of a frame that is not complete yet.
    """

    __slots__ = ("_buffer", "_size_need", "error", "size_max")

    def __init__(self, size_max: int = FRAME_SIZE_MAX) -> None:
        self.size_max = size_max
        self.error: RemoteProtocolError | None = None
        self._buffer = bytearray()
        self._size_need = 8

    @property
    def pending(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes, in order; nothing once `error` is set."""
        if self.error is not None:
            return []
        held = self._buffer
        if held:
            held += data
            # A large frame arrives in many chunks: parse again only once it can be complete.
            if len(held) < self._size_need:
                return []
            data = bytes(held)
            held.clear()
        frames: list[Frame] = []
        position, end = 0, len(data)
        while end - position >= 8:
            length, mark = _HEAD.unpack_from(data, position)
            header_size = mark & 0xFFFFFF
            if length < 4 + header_size or length > self.size_max:
                self.error = RemoteProtocolError(_wrong(length, header_size, self.size_max))
                return frames
            frame_end = position + 4 + length
            if frame_end > end:
                self._size_need = 4 + length
                break
            body_start = position + 8 + header_size
            frames.append(Frame(mark >> 24, data[position + 8 : body_start], data[body_start:frame_end]))
            position = frame_end
        else:
            self._size_need = 8
            if end - position >= 4:
                (length,) = _LENGTH.unpack_from(data, position)
                if length < 4 or length > self.size_max:
                    self.error = RemoteProtocolError(_wrong(length, 0, self.size_max))
                    return frames
        if position < end:
            held += data[position:] if position else data
        return frames


def _wrong(length: int, header_size: int, size_max: int) -> str:
    if length > size_max:
        return f"frame of {length} bytes, more than the limit of {size_max}"
    return f"frame length {length} cannot hold a header of {header_size} bytes"


def frame(header: bytes, body: bytes = b"", codec: int = CODEC_JSON) -> bytes:
    """Return one whole frame."""
    size = len(header)
    return _HEAD.pack(4 + size + len(body), codec << 24 | size) + header + body


def frame_head(header: bytes, body_size: int, codec: int = CODEC_JSON) -> bytes:
    """Return a frame up to its body.

    For a body that is sent as separate buffers (slices of a log file).
    """
    size = len(header)
    return _HEAD.pack(4 + size + body_size, codec << 24 | size) + header
