"""consumerFilter.json: the filter expressions of groups per topic, as the broker stores them.

Source: `broker/.../filter/{ConsumerFilterManager,ConsumerFilterData}.java`,
`filter/.../util/BloomFilterData.java`.
"""

from msgspec import field

from rmqkit.wire.bodies.base import Body
from rmqkit.wire.schema import Int32, Int64


class BloomData(Body, kw_only=True):
    """The bits of a group in the bit maps of a topic; `bit_num` is the length of these bit maps."""

    bit_num: Int32 = 0
    bit_pos: list[Int32] | None = None


class ConsumerFilterData(Body, kw_only=True):
    """The filter of one group for one topic.

    `client_version` is the version of the subscription. The entry is alive if `dead_time` is 0 or
    before `born_time` (both wall ms). `dead` repeats that for readers of the file.
    """

    bloom_filter_data: BloomData | None = None
    born_time: Int64 = 0
    client_version: Int64 = 0
    consumer_group: str = ""
    dead: bool = False
    dead_time: Int64 = 0
    expression: str | None = None
    expression_type: str | None = None
    topic: str = ""


class FilterDataByTopic(Body, kw_only=True):
    group_filter_data: dict[str, ConsumerFilterData] = field(default_factory=dict)
    topic: str = ""


class ConsumerFilterTable(Body, kw_only=True):
    filter_data_by_topic: dict[str, FilterDataByTopic] = field(default_factory=dict)
