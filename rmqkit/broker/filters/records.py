"""The properties of a record as the log has it, without reading the rest."""

from rmqkit.runtime.connection import Buffer
from rmqkit.wire import properties as props
from rmqkit.wire.record import MAGIC_V1

#: where the body's size stands, by (sysFlag >> 4) & 3: bit 0 the born host, bit 1 the store host is IPv6
_BODY_SIZE_AT = (84, 96, 96, 108)
_MAGIC_V1_END = MAGIC_V1 & 0xFF


def properties_of(record: Buffer) -> dict[str, str]:
    """`record` is whole, from its size to the end of its properties."""
    at = _BODY_SIZE_AT[record[39] >> 4 & 3]
    at += 4 + int.from_bytes(record[at : at + 4], "big")
    at += 1 + record[at] if record[7] == _MAGIC_V1_END else 2 + int.from_bytes(record[at : at + 2], "big")
    size = int.from_bytes(record[at : at + 2], "big")
    return props.decode(bytes(record[at + 2 : at + 2 + size]))
