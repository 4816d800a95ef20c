"""Encode and decode headers in the JSON and ROCKETMQ (binary) formats.

Decoding a request is the hot path of a broker, so it takes one pass. `peek_code` reads the request
code from the first bytes (`{"code":310,`, the order in which every known client writes). A msgspec
decoder built for that code's schema then decodes head and extFields together and converts the
strings of extFields to the schema's ints and bools.

If that decoder fails (another key order, numbers where strings are expected, a missing field), the
header takes the slow path through a plain mapping. It ends with a value or with an error that names
the field.

Two errors have different consequences:

- `RemoteProtocolError`: the bytes are no header. The connection is closed.
- `BadHeader`: the header does not fit its schema. The peer gets an error response, since its opaque
  is known.

Source: `remoting/.../protocol/RemotingCommand.java`,
`remoting/.../protocol/RocketMQSerializable.java`.
"""

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from struct import Struct as Packer
from struct import error as PackError
from typing import Any, Generic, TypeVar

import msgspec

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.codes import VERSION, Language, ResponseCode
from rmqkit.wire.remoting.frames import CODEC_JSON, CODEC_ROCKETMQ, HEADER_SIZE_MAX, Frame, frame, frame_head
from rmqkit.wire.remoting.pull_header import read_pull
from rmqkit.wire.remoting.send_header import read_send
from rmqkit.wire.schema import Ext, from_ext
from rmqkit.wire.schemas.pull import PullMessageRequest
from rmqkit.wire.schemas.send import SendMessageRequestV2

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
_INT32_MAX = 2**31 - 1
#: bytes of a field name: Java reads its size as a signed 16-bit number
_NAME_SIZE_MAX = 2**15 - 1
#: characters; no field name of ours is longer, and longer names are not cached
_KNOWN_NAME_MAX = 64
_PLAIN_HEAD = Packer(">hbhii")
_I32 = Packer(">i")

E = TypeVar("E", bound=Ext)


class Head(msgspec.Struct, rename={"ext_fields": "extFields"}):
    """Any header, request or response, with its extFields as received."""

    code: int
    flag: int = 0
    opaque: int = 0
    version: int = 0
    language: str | int | None = "JAVA"
    remark: str | None = None
    ext_fields: dict[str, Any] | None = None


class TypedHead(msgspec.Struct, Generic[E]):
    """A request header decoded by its schema; `ext` is the schema's value.

    Only `RequestDecoder` creates it.
    """

    code: int
    ext: E
    flag: int = 0
    opaque: int = 0
    version: int = 0
    language: str | int | None = "JAVA"


class _WrittenHead(msgspec.Struct):
    # Java writes keys in sorted order, hence this field order. UNSET fields are left out.
    code: int
    extFields: Mapping[str, str] | msgspec.UnsetType
    flag: int
    language: str
    opaque: int
    remark: str | msgspec.UnsetType
    serializeTypeCurrentRPC: str
    version: int


class BadHeader(Exception):
    """A header that does not fit its schema.

    `head` has the opaque for the error response.
    """

    def __init__(self, head: Head, text: str) -> None:
        super().__init__(text)
        self.head = head


#: the JSON header of an answer without fields; the place is for its opaque
_PLAIN_SUCCESS = b'{"code":0,"flag":1,"language":"PYTHON","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":' + (
    b"%d}" % VERSION
)
#: the first 12 bytes of a JSON header, as known clients write it, by code
_CODES_OF_3_DIGITS = {b'{"code":%d,' % code: code for code in range(100, 1000)}
_decode_head = msgspec.json.Decoder(Head, strict=False).decode
_encode_head = msgspec.json.Encoder().encode


def peek_code(frame: Frame) -> int:
    """Return the request code without decoding the header.

    Returns -1 if the header does not start the way clients write it.
    """
    header = frame.header
    if frame.codec == CODEC_ROCKETMQ:
        return header[0] << 8 | header[1] if len(header) > 1 else -1
    code = _CODES_OF_3_DIGITS.get(header[:12])
    if code is not None:
        return code
    if header[:8] == b'{"code":':
        comma = header.find(b",", 8, 20)
        if comma > 0:
            try:
                return int(header[8:comma])
            except ValueError:
                return -1
    return -1


def decode_head(frame: Frame) -> Head:
    """Decode a header without a schema. Raises RemoteProtocolError."""
    try:
        head = _decode_head(frame.header) if frame.codec == CODEC_JSON else _decode_rocketmq(frame)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"header is not a remoting header: {error}") from None
    except (RecursionError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"header cannot be read: {type(error).__name__}") from None
    if not -_INT32_MAX <= head.opaque <= _INT32_MAX or not -_INT32_MAX <= head.code <= _INT32_MAX:
        raise RemoteProtocolError("code and opaque of a header are 32-bit numbers")
    return head


#: fast decoders for the most frequent binary headers
_BINARY_READERS: dict[type[Ext], Callable[[bytes], Any]] = {
    SendMessageRequestV2: read_send,
    PullMessageRequest: read_pull,
}


class RequestDecoder(Generic[E]):
    """Decodes the headers of one request code."""

    __slots__ = ("_fast", "_read_binary", "schema")

    def __init__(self, schema: type[E]) -> None:
        self.schema = schema
        self._read_binary: Callable[[bytes], TypedHead[E] | None] | None = _BINARY_READERS.get(schema)
        fields: list[Any] = [("code", int)]
        required = any(f.required for f in msgspec.structs.fields(schema))
        if required:
            fields.append(("ext", schema))
        else:
            fields.append(("ext", schema, msgspec.field(default_factory=schema)))
        fields += [("flag", int, 0), ("opaque", int, 0), ("version", int, 0), ("language", str | int | None, "JAVA")]
        typed = msgspec.defstruct(f"{schema.__name__}Head", fields, rename={"ext": "extFields"})
        self._fast: Callable[[bytes], TypedHead[E]] = msgspec.json.Decoder(typed, strict=False).decode  # type: ignore[assignment]  # a class made here

    def decode(self, frame: Frame) -> TypedHead[E]:
        """Return the typed header.

        Raises BadHeader (send an error response) or RemoteProtocolError (close the connection).
        """
        if frame.codec == CODEC_ROCKETMQ:
            if self._read_binary is not None:
                read = self._read_binary(frame.header)
                if read is not None:
                    return read
        elif frame.codec == CODEC_JSON:
            try:
                head = self._fast(frame.header)
                if -_INT32_MAX <= head.opaque <= _INT32_MAX:
                    return head
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
                pass
        return self.read(decode_head(frame))

    def read(self, head: Head) -> TypedHead[E]:
        """Return the typed header of one that is decoded without its schema. Raises BadHeader."""
        try:
            ext = from_ext(self.schema, head.ext_fields or {})
        except RemoteProtocolError as error:
            raise BadHeader(head, str(error)) from None
        return TypedHead(head.code, ext, head.flag, head.opaque, head.version, head.language)


@cache
def decoder_of(schema: type[E]) -> RequestDecoder[E]:
    """Return the decoder of a schema. Request codes without fields share one."""
    return RequestDecoder(schema)


def _decode_rocketmq(frame: Frame) -> Head:
    if frame.codec != CODEC_ROCKETMQ:
        raise RemoteProtocolError(f"unknown header form {frame.codec}, expected 0 (JSON) or 1 (ROCKETMQ)")
    data = frame.header
    try:
        code, language, version, opaque, flag = _PLAIN_HEAD.unpack_from(data)
        (remark_size,) = _I32.unpack_from(data, 13)
        start = 17 + remark_size
        (ext_size,) = _I32.unpack_from(data, start)
    except PackError:
        raise RemoteProtocolError("binary header is cut short") from None
    position = start + 4
    end = position + ext_size
    if remark_size < 0 or ext_size < 0 or end > len(data):
        raise RemoteProtocolError("extFields reach past the end of their header")
    return Head(code, flag, opaque, version, language, data[17:start].decode() or None, _pairs(data, position, end))


def _pairs(data: bytes, position: int, end: int) -> dict[str, Any]:
    """Return the pairs between `position` and `end`.

    Each name is preceded by its size in 2 bytes, each value by its size in 4 bytes.
    """
    pairs: dict[str, Any] = {}
    size = int.from_bytes
    while position < end:
        # A truncated size is read from fewer bytes; the position then lies beyond `end`.
        name_start = position + 2
        name_end = name_start + size(data[position:name_start], "big")
        start = name_end + 4
        position = start + size(data[name_end:start], "big")
        if position > end:
            raise RemoteProtocolError("a text in a binary header reaches past its end")
        if name_end > name_start:
            pairs[data[name_start:name_end].decode()] = data[start:position].decode()
    return pairs


def encode_request(
    code: int,
    opaque: int,
    ext: Mapping[str, str] | None = None,
    *,
    oneway: bool = False,
    codec: int = CODEC_JSON,
) -> bytes:
    """Return the header of a request that this node sends."""
    flag = FLAG_ONEWAY if oneway else 0
    if codec == CODEC_ROCKETMQ:
        return _encode_rocketmq(code, opaque, flag, None, ext)
    return _encode(code, opaque, flag, None, ext)


def encode_response(
    code: int,
    opaque: int,
    ext: Mapping[str, str] | None = None,
    remark: str | None = None,
    codec: int = CODEC_JSON,
) -> bytes:
    """Return the header of a response in the format of its request.

    ali-ons and the C++ client write JSON and read nothing else. Raises ValueError if the binary
    format cannot hold the header: a code of more than 16 bits, or a name of more than 32767 bytes.
    """
    if codec == CODEC_ROCKETMQ:
        return _encode_rocketmq(code, opaque, FLAG_RESPONSE, remark, ext)
    return _encode(code, opaque, FLAG_RESPONSE, remark, ext)


def encode_answer(
    code: int, opaque: int, ext: Mapping[str, str] | None, remark: str | None, body_size: int, codec: int
) -> bytes:
    """Return the frame of a response up to its body.

    If the binary format cannot hold the header, a binary request gets a JSON response: clients that
    write the binary format read both. Codes and texts may come from a client that answered a
    forwarded request, so they can be anything. A header of more than `HEADER_SIZE_MAX` bytes is
    replaced by a SYSTEM_ERROR.
    """
    if not (code or ext or remark or body_size or codec):
        return frame(_PLAIN_SUCCESS % opaque)
    try:
        if codec == CODEC_ROCKETMQ and ext and "" in ext.values():
            raise ValueError("Java reads an empty text in a binary header as absent")
        header = encode_response(code, opaque, ext, remark, codec)
    except ValueError:
        codec = CODEC_JSON
        header = encode_response(code, opaque, ext, remark)
    if len(header) > HEADER_SIZE_MAX:
        text = f"the header of the response has {len(header)} bytes, more than {HEADER_SIZE_MAX}"
        header = encode_response(ResponseCode.SYSTEM_ERROR, opaque, None, text, codec)
    return frame_head(header, body_size, codec)


def _encode(code: int, opaque: int, flag: int, remark: str | None, ext: Mapping[str, str] | None) -> bytes:
    written = _WrittenHead(code, ext or msgspec.UNSET, flag, "PYTHON", opaque, remark or msgspec.UNSET, "JSON", VERSION)
    return _encode_head(written)


def _encode_rocketmq(code: int, opaque: int, flag: int, remark: str | None, ext: Mapping[str, str] | None) -> bytes:
    fields = binary_fields(ext) if ext else b""
    text = remark.encode() if remark else b""
    try:
        plain = _PLAIN_HEAD.pack(code, Language.PYTHON, VERSION, opaque, flag)
    except PackError:
        raise ValueError(f"code {code} and opaque {opaque} do not fit a binary header") from None
    return b"%b%b%b%b%b" % (plain, len(text).to_bytes(4, "big"), text, len(fields).to_bytes(4, "big"), fields)


def binary_fields(ext: Mapping[str, str]) -> bytes:
    """Return the extFields in binary form.

    Each name is preceded by its size in 2 bytes, each value by its size in 4 bytes. Raises
    ValueError if a name is longer than 32767 bytes.
    """
    parts: list[bytes] = []
    for name, value in ext.items():
        text = value.encode()
        name_sized = _sized_name(name) if len(name) <= _KNOWN_NAME_MAX else _sized_name.__wrapped__(name)
        parts += name_sized, len(text).to_bytes(4, "big"), text
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _sized_name(name: str) -> bytes:
    text = name.encode()
    if len(text) > _NAME_SIZE_MAX:
        raise ValueError(f"the name of a field has {len(text)} bytes, more than {_NAME_SIZE_MAX}")
    return len(text).to_bytes(2, "big") + text
