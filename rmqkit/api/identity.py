"""Determines the identity of a client: name server addresses, own IP address, instance name."""

import os
import socket
import time
from collections.abc import Sequence

from rmqkit.errors import ClientError
from rmqkit.runtime.connection import Address

NAMESRV_ADDR = "NAMESRV_ADDR"
DEFAULT_NAMESRV = "127.0.0.1:9876"


def name_servers(namesrv: str | Sequence[str] | None) -> tuple[Address, ...]:
    """Parse the name server addresses from `host:port;host:port` or a list.

    Without `namesrv`, use the environment variable NAMESRV_ADDR, or else 127.0.0.1:9876. Raises
    ClientError if an address is invalid or none is given.
    """
    if namesrv is None:
        namesrv = os.environ.get(NAMESRV_ADDR) or DEFAULT_NAMESRV
    texts = namesrv.replace(",", ";").split(";") if isinstance(namesrv, str) else list(namesrv)
    try:
        found = tuple(Address.parse(text) for text in texts if text.strip())
    except ValueError as error:
        raise ClientError(f"namesrv: {error}") from None
    if not found:
        raise ClientError(f"no name server is configured; pass namesrv='host:port' or set {NAMESRV_ADDR}")
    return found


def own_ip(towards: Address) -> str:
    """Return the IP address that this machine would use to reach `towards`.

    This only reads the routing table and sends nothing. Falls back to 127.0.0.1.
    """
    for family, fallback in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        for host in (towards.host, fallback):
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                try:
                    # AI_NUMERICHOST: do not resolve host names, which may take seconds.
                    socket.getaddrinfo(host, 9, family, socket.SOCK_DGRAM, 0, socket.AI_NUMERICHOST)
                    probe.connect((host, 9))
                    return str(probe.getsockname()[0])
                except OSError:
                    continue
    return "127.0.0.1"


def new_instance_name() -> str:
    """Return a unique instance name in Apache's form: process id and nanoseconds."""
    return f"{os.getpid()}#{time.time_ns()}"


def local_month_bounds(wall_ms: int) -> tuple[int, int]:
    """Return the start of this month and of the next one in local time, as Unix ms.

    Unique message ids count from the start of the month, as Java's do.
    """
    now = time.localtime(wall_ms / 1000)
    start = time.mktime((now.tm_year, now.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    end = time.mktime((now.tm_year, now.tm_mon + 1, 1, 0, 0, 0, 0, 0, -1))
    return int(start) * 1000, int(end) * 1000
