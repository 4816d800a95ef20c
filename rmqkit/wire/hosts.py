"""Hosts inside records and message ids: the raw IP address (4 or 16 bytes), then the port as int32.

The store passes packed hosts along unchanged. They become text only for display and for message
ids.
"""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct

from rmqkit.errors import RemoteProtocolError

HOST_V4_SIZE = 8
HOST_V6_SIZE = 20

_PORT = Struct(">i")


@lru_cache(maxsize=4096)
def pack_host(host: str, port: int) -> bytes:
    """Return 8 bytes for an IPv4 address, 20 for IPv6.

    An IPv4 address mapped into IPv6 counts as IPv4. Raises ValueError if `host` is a name.
    """
    address: IPv4Address | IPv6Address = ip_address(host.strip("[]").partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed + _PORT.pack(port)


@lru_cache(maxsize=4096)
def unpack_host(packed: bytes) -> tuple[str, int]:
    """Return the address text and port of a packed host.

    Raises RemoteProtocolError for any size but 8 or 20 bytes.
    """
    if len(packed) not in (HOST_V4_SIZE, HOST_V6_SIZE):
        raise RemoteProtocolError(f"a host is 8 or 20 bytes, not {len(packed)}")
    return str(ip_address(packed[:-4])), _PORT.unpack_from(packed, len(packed) - 4)[0]


def host_text(packed: bytes) -> str:
    """Return `ADDRESS:PORT` of a packed host, an IPv6 address in brackets.

    Raises RemoteProtocolError.
    """
    host, port = unpack_host(packed)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
