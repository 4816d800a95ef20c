"""HARuntimeInfo (907): the state of replication, from the view of a master or of a slave."""

from msgspec import field

from rmqkit.wire.bodies.base import Body
from rmqkit.wire.schema import Int32, Int64


class HAClientRuntimeInfo(Body, kw_only=True):
    """The HA client of a slave."""

    last_read_timestamp: Int64 = 0
    last_write_timestamp: Int64 = 0
    master_addr: str | None = None
    master_flush_offset: Int64 = 0
    max_offset: Int64 = 0
    transferred_byte_in_second: Int64 = 0


class HAConnectionRuntimeInfo(Body, kw_only=True):
    """The connection of one slave as its master sees it; `diff` is in bytes."""

    addr: str = ""
    diff: Int64 = 0
    in_sync: bool = False
    slave_ack_offset: Int64 = 0
    transfer_from_where: Int64 = 0
    transferred_byte_in_second: Int64 = 0


class HARuntimeInfo(Body, kw_only=True):
    ha_client_runtime_info: HAClientRuntimeInfo = field(default_factory=HAClientRuntimeInfo)
    ha_connection_info: list[HAConnectionRuntimeInfo] = field(default_factory=list)
    in_sync_slave_nums: Int32 = 0
    master: bool = False
    master_commit_log_max_offset: Int64 = 0
