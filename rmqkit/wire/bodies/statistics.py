"""Counters of a broker (315) and the lag of its consumer groups (317).

Source: `remoting/.../protocol/body/{BrokerStatsData,BrokerStatsItem,ConsumeStatsList}.java`.
"""

from typing import ClassVar

from msgspec import field

from rmqkit.wire.bodies.base import Body
from rmqkit.wire.bodies.offsets import ConsumeStats
from rmqkit.wire.schema import Int64


class BrokerStatsItem(Body, kw_only=True):
    """A counter over one time span.

    `sum` is its growth, `tps` the growth per second, and `avgpt` the growth per increment.
    """

    avgpt: float = 0.0
    sum: Int64 = 0
    tps: float = 0.0


class BrokerStatsData(Body, kw_only=True):
    """The response to 315."""

    stats_day: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_minute: BrokerStatsItem = field(default_factory=BrokerStatsItem)


class ConsumeStatsList(Body, kw_only=True):
    """The response to 317: one mapping per group, with one row per topic of the group.

    The totals are sums over all groups.
    """

    HAS_QUEUES: ClassVar[bool] = True

    broker_addr: str | None = None
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    total_diff: Int64 = 0
    total_inflight_diff: Int64 = 0
