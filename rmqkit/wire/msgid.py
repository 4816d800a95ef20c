"""Message ids. A message has two:

- The offset id, assigned by the broker: upper-case hex of the store host (packed as in a record)
  and the physical offset; 32 characters, 56 with IPv6. Admin tools connect to the address inside
  it.
- The unique id (property UNIQ_KEY), assigned by the client: IP (4 or 16 bytes), pid (int16), a salt
  (int32; Java uses its class loader's hash), milliseconds since the start of the month (int32), a
  counter (int16); 32 or 56 characters.

Both have the same form. Only the context tells which of the two an id is.

A timer message has a recall handle besides. The broker returns it in the answer to the send, and
takes the message back for it. It is five words, separated by spaces, as URL-safe base64 with
padding: "v1", topic, broker name, time in ms, unique id.

Source: `common/.../message/MessageDecoder.java` (`createMessageId`),
`common/.../message/MessageClientIDSetter.java`, `common/.../producer/RecallMessageHandle.java`.
"""

import base64
import binascii
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.hosts import pack_host, unpack_host

_OFFSET = Struct(">q")
_HANDLE_VERSION = "v1"
_HANDLE_INVALID = "recall handle is invalid"


class OffsetId(NamedTuple):
    host: str
    port: int
    phy_offset: int


def offset_id(store_host: bytes, phy_offset: int) -> str:
    """Return the offset id of the record at `phy_offset`.

    `store_host` is packed (`hosts.pack_host`).
    """
    return (store_host + _OFFSET.pack(phy_offset)).hex().upper()


def decode_offset_id(text: str) -> OffsetId:
    """Return the parts of an offset id.

    Raises RemoteProtocolError if the text is not a message id.
    """
    data = _bytes(text)
    host, port = unpack_host(data[:-8])
    return OffsetId(host, port, _OFFSET.unpack_from(data, len(data) - 8)[0])


def unique_id_prefix(ip: bytes, pid: int, salt: int) -> str:
    """Return the part of a unique id that stays the same for a client.

    `ip` is 4 or 16 raw bytes (`ip_bytes`); `pid` is truncated to 16 bits and `salt` to 32.
    """
    return f"{ip.hex().upper()}{pid & 0xFFFF:04X}{salt & 0xFFFFFFFF:08X}"


def unique_id_tail(since_month_ms: int, counter: int) -> str:
    """Return the part of a unique id that differs per message."""
    return f"{since_month_ms & 0xFFFFFFFF:08X}{counter & 0xFFFF:04X}"


def ip_bytes(ip: str) -> bytes:
    """Return the 4 or 16 raw bytes of an address. Raises ValueError if `ip` is a name."""
    return pack_host(ip, 0)[:-4]


def _bytes(text: str) -> bytes:
    if len(text) in (32, 56) and text.isascii() and text.isalnum():
        try:
            return bytes.fromhex(text)
        except ValueError:
            pass
    raise RemoteProtocolError(f"{text[:64]!r} is not a message id: 32 or 56 hex characters")


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def _encoded(words: bytes) -> bytes:
    return binascii.b2a_base64(words, newline=False).translate(_URL_SAFE)


def encode_handle(topic: str, broker_name: str, time_ms: int, unique_key: bytes) -> bytes:
    """Return a recall handle, at a fifth of the cost of `RecallHandle.encode`."""
    return binascii.b2a_base64(_handle_start(topic, broker_name, time_ms) + unique_key, newline=False).translate(_URL_SAFE)


@lru_cache(maxsize=4096)
def _handle_start(topic: str, broker_name: str, time_ms: int) -> bytes:
    """Return the words before the unique id. Cached: timers of one topic share their slots."""
    return f"{_HANDLE_VERSION} {topic} {broker_name} {time_ms} ".encode()


class RecallHandle(NamedTuple):
    """A decoded handle. `time` is text, because Java accepts any and judges it later."""

    topic: str
    broker_name: str
    time: str
    unique_key: str

    def encode(self) -> str:
        return _encoded(" ".join((_HANDLE_VERSION, *self)).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> "RecallHandle":
        """Return the handle of its text. Raises ValueError with Java's words."""
        try:
            padded = text + "=" * (-len(text) % 4)
            words = base64.b64decode(padded.encode("ascii"), b"-_", validate=True).decode("utf-8", "replace").split(" ")
        except (binascii.Error, UnicodeEncodeError):
            raise ValueError(_HANDLE_INVALID) from None
        # Java's split drops empty words at the end.
        if words[0] != _HANDLE_VERSION or not any(words[4:]):
            raise ValueError(_HANDLE_INVALID)
        return cls(*words[1:5])
