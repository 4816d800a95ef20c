"""Topic configuration: one topic, several, and the tables.

One topic is the body of 351 and an entry of the tables; 18 has several. Brokers send the tables
(21, 103) and store them (topics.json).
"""

from typing import Any

from msgspec import field

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire import fastjson
from rmqkit.wire.bodies.base import Body
from rmqkit.wire.bodies.versions import DataVersion
from rmqkit.wire.schema import Int32


class TopicConfig(Body, kw_only=True):
    """`common/.../TopicConfig.java`; the bits of `perm` are in `codes.PermName`."""

    attributes: dict[str, str] = field(default_factory=dict)
    order: bool = False
    perm: Int32 = 6
    read_queue_nums: Int32 = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str = ""
    topic_sys_flag: Int32 = 0
    write_queue_nums: Int32 = 16

    @classmethod
    def from_text(cls, text: str) -> "TopicConfig":
        """Read the form inside a compressed registration (`TopicConfig.encode`).

        It lacks `order` and `topic_sys_flag`. Attributes that cannot be read are ignored
        (`TopicConfig.decode`). Raises RemoteProtocolError.
        """
        parts = text.split(" ", 5)
        try:
            config = cls(
                topic_name=parts[0],
                read_queue_nums=int(parts[1]),
                write_queue_nums=int(parts[2]),
                perm=int(parts[3]),
                topic_filter_type=parts[4],
            )
        except (IndexError, ValueError):
            raise RemoteProtocolError(f"{text[:100]!r} is not a topic configuration") from None
        if len(parts) == 6 and parts[5]:
            try:
                config.attributes = fastjson.load_as(dict[str, str], parts[5])
            except RemoteProtocolError:
                pass
        return config


class TopicConfigList(Body, kw_only=True):
    """The request of 18 (`CreateTopicListRequestBody`).

    Attributes are changes: their names start with + or -.
    """

    topic_config_list: list[TopicConfig] = field(default_factory=list)


class TopicConfigTable(Body, kw_only=True):
    """`TopicConfigSerializeWrapper`; also the file topics.json."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)


class TopicConfigAndMappingTable(Body, kw_only=True):
    """`TopicConfigAndMappingSerializeWrapper`.

    The mappings of static topics are passed on as received.
    """

    data_version: DataVersion = DataVersion()
    mapping_data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[str, Any] = field(default_factory=dict)
    topic_queue_mapping_info_map: dict[str, Any] = field(default_factory=dict)
