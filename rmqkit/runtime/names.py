"""Validates names and addresses that come from the wire, and shows them safely.

Apache's servers accept any name. The limits here are far above the needs of a working cluster. They
keep garbage out of tables and log lines. A topic name may contain any character that its broker
allows, except control characters: the tables that use this build no path from a name.
"""

import re

from rmqkit.runtime.calls import Refused
from rmqkit.runtime.connection import Address
from rmqkit.wire.codes import ResponseCode

NAME_SIZE_MAX = 255
BROKER_ID_MAX = 2**63 - 1

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]").search
_NO_HOST = re.compile(r"[\s\x00-\x20\x7f-\x9f,;/\ud800-\udfff]").search


def name_fault(name: str) -> str | None:
    """Return what is wrong with a name, or None.

    It may be the name of a topic, broker, cluster, zone, namespace or key.
    """
    if not name or name.isspace():
        return "is empty"
    if len(name) > NAME_SIZE_MAX:
        return f"is longer than {NAME_SIZE_MAX} characters"
    if _CONTROL(name):
        return "has control characters"
    return None


def check_name(what: str, name: str) -> None:
    """Raises Refused if `name` is invalid, with a remark that says what is wrong."""
    fault = name_fault(name)
    if fault is not None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"{what} {shown(name)} {fault}")


def check_address(what: str, address: str) -> None:
    """Raises Refused unless `address` is `host:port` with a port above 0."""
    try:
        host, port = Address.parse(address)
    except ValueError:
        host, port = "", 0
    if not host or not port or len(host) > NAME_SIZE_MAX or _NO_HOST(address):
        raise Refused(ResponseCode.SYSTEM_ERROR, f"{what} {shown(address)} is not an address of the form host:port")


def shown(text: str) -> str:
    """Return a text from the wire in a form that is safe in a remark or a log line.

    It is quoted, in ASCII with escapes, and truncated if it is longer than 80 characters.
    """
    return ascii(text if len(text) <= 80 else f"{text[:77]}...")
