"""Reads the properties of a record in the log without decoding the rest."""

from rmqkit.runtime.connection import Buffer
from rmqkit.wire import properties as props
from rmqkit.wire.record import MAGIC_V1

#: position of the body's size, by (sysFlag >> 4) & 3: bit 0 is set for an IPv6 born host, bit 1 for
#: an IPv6 store host
_BODY_SIZE_AT = (84, 96, 96, 108)
_MAGIC_V1_END = MAGIC_V1 & 0xFF


def properties_of(record: Buffer) -> dict[str, str]:
    """Return the properties. `record` begins with its size field and holds all its properties."""
    at = _BODY_SIZE_AT[record[39] >> 4 & 3]
    at += 4 + int.from_bytes(record[at : at + 4], "big")
    at += 1 + record[at] if record[7] == _MAGIC_V1_END else 2 + int.from_bytes(record[at : at + 2], "big")
    size = int.from_bytes(record[at : at + 2], "big")
    return props.decode(bytes(record[at + 2 : at + 2 + size]))
