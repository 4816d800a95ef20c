"""RegisterBrokerBody (103): plain JSON, or a deflated binary form.

The deflated form, big-endian before deflation:

    i32 size + DataVersion as JSON
    i32 count, then per topic i32 size + its text (`TopicConfig.from_text`)
    i32 size + JSON list of filter servers
    from V5_0_0 on: i32 count, then per mapping i32 size + JSON

A 5.x broker with `compressedRegister` sends the deflated form with `compressed` false in the
header. So the first byte decides as well: JSON starts with `{`, zlib with 0x78.

Source: `remoting/.../protocol/body/RegisterBrokerBody.java`,
`remoting/.../protocol/DataVersion.java`.
"""

from struct import Struct
from typing import Any

from msgspec import field

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire import fastjson
from rmqkit.wire.bodies.base import Body
from rmqkit.wire.bodies.topics import TopicConfig, TopicConfigAndMappingTable
from rmqkit.wire.bodies.versions import DataVersion
from rmqkit.wire.codes import VERSION, Version
from rmqkit.wire.inflate import inflate_zlib

REGISTER_SIZE_MAX = 64 * 1024 * 1024

_I32 = Struct(">i")


class RegisterBrokerBody(Body, kw_only=True):
    filter_server_list: list[str] = field(default_factory=list)
    topic_config_serialize_wrapper: TopicConfigAndMappingTable = field(default_factory=TopicConfigAndMappingTable)

    @classmethod
    def decode_either(
        cls, data: bytes, *, compressed: bool, broker_version: int = VERSION, size_max: int = REGISTER_SIZE_MAX
    ) -> "RegisterBrokerBody":
        """Decode the body of a registration in either form; an empty one is a body without topics.

        `size_max` limits the inflated size in bytes. Raises RemoteProtocolError.
        """
        if not data:
            return cls()
        if compressed or data[:1] == b"\x78":
            return _inflated(data, broker_version, size_max)
        return cls.decode(data)


class _Reader:
    """Reads a sequence of numbers and of parts that are preceded by their size."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def number(self) -> int:
        if len(self.data) - self.position < 4:
            raise RemoteProtocolError("registration ends early")
        (number,) = _I32.unpack_from(self.data, self.position)
        self.position += 4
        if number < 0:
            raise RemoteProtocolError(f"registration with a count or size of {number}")
        return int(number)

    def part(self) -> bytes:
        size = self.number()
        start, self.position = self.position, self.position + size
        if self.position > len(self.data):
            raise RemoteProtocolError("registration ends early")
        return self.data[start : self.position]

    def text(self) -> str:
        return self.part().decode("utf-8", "replace")


def _inflated(data: bytes, broker_version: int, size_max: int) -> RegisterBrokerBody:
    reader = _Reader(inflate_zlib(data, size_max))
    version = DataVersion.decode(reader.part())
    topics: dict[str, TopicConfig] = {}
    for _ in range(reader.number()):
        config = TopicConfig.from_text(reader.text())
        topics[config.topic_name] = config
    try:
        filter_servers = fastjson.load_as(list[str], reader.part())
    except RemoteProtocolError:
        filter_servers = []  # Java only logs this error, too
    mappings: dict[str, Any] = {}
    if broker_version >= Version.V5_0_0:
        for _ in range(reader.number()):
            mapping = fastjson.load_as(dict[str, Any], reader.part())
            mappings[str(mapping.get("topic"))] = mapping
    table = TopicConfigAndMappingTable(
        data_version=version, topic_config_table=topics, topic_queue_mapping_info_map=mappings
    )
    return RegisterBrokerBody(filter_server_list=filter_servers, topic_config_serialize_wrapper=table)
