"""What the name server takes for a name or an address, and the bounds of its tables.

Upstream's name server takes anything. The bounds here are far beyond what a working cluster has; they keep garbage and
runaway clients from growing the tables without end, and every bound has an answer (see `registration.py`, `kv.py`).
Topics keep whatever alphabet their broker allows: the name server makes no path of a name.
"""

import re
from typing import NamedTuple

from rmqkit.runtime.calls import Refused
from rmqkit.runtime.connection import Address
from rmqkit.wire.codes import ResponseCode

NAME_SIZE_MAX = 255
BROKER_ID_MAX = 2**63 - 1

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]").search
_NO_HOST = re.compile(r"[\s\x00-\x20\x7f-\x9f,;/\ud800-\udfff]").search


class TableLimits(NamedTuple):
    """Bounds of the tables. Beyond `topics_max` new topics are left out, beyond the others a request is refused."""

    topics_max: int = 100_000
    #: queue entries, one for each topic and broker name, of all topics together
    topic_queues_max: int = 1_000_000
    #: addresses of all groups together
    brokers_max: int = 10_000
    group_members_max: int = 100
    filter_servers_max: int = 100
    #: KV entries of all namespaces together, namespaces, and the characters of all names and values together
    kv_entries_max: int = 100_000
    kv_namespaces_max: int = 1000
    kv_size_max: int = 8 * 1024 * 1024


def name_fault(name: str) -> str | None:
    """What is wrong with the name of a topic, broker, cluster, zone, namespace or key, or None."""
    if not name or name.isspace():
        return "is empty"
    if len(name) > NAME_SIZE_MAX:
        return f"is longer than {NAME_SIZE_MAX} characters"
    if _CONTROL(name):
        return "has control characters"
    return None


def check_name(what: str, name: str) -> None:
    """Raises Refused with a remark that says what is wrong."""
    fault = name_fault(name)
    if fault is not None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"{what} {shown(name)} {fault}")


def check_address(what: str, address: str) -> None:
    """Raises Refused unless it is `host:port` with a port that can be dialled."""
    try:
        host, port = Address.parse(address)
    except ValueError:
        host, port = "", 0
    if not host or not port or len(host) > NAME_SIZE_MAX or _NO_HOST(address):
        raise Refused(ResponseCode.SYSTEM_ERROR, f"{what} {shown(address)} is not an address of the form host:port")


def shown(text: str) -> str:
    """A text from the wire as it may stand in a remark or a log line: quoted, bounded, no control characters."""
    return ascii(text if len(text) <= 80 else f"{text[:77]}...")
