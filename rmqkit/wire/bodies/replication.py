"""Replication: connections of slaves, sets of in-sync replicas, members of broker sets, epochs.

907: HARuntimeInfo, the state of replication as a master or a slave sees it. In controller mode:
1001, 1003, 1004, 1008: SyncStateSet. 1002: ElectMasterBody. 1006: BrokerReplicasInfo, for a list of
broker names (`encode_names`). 1007: EpochEntryCache.

Java keeps the ids of a set in a HashSet, which writes small numbers in ascending order. Here they
are sorted lists.

Source: `remoting/.../protocol/body/{SyncStateSet,ElectMasterResponseBody,BrokerReplicasInfo}.java`,
`remoting/.../protocol/body/EpochEntryCache.java`, `remoting/.../protocol/EpochEntry.java`.
"""

from collections.abc import Iterable

from msgspec import field

from rmqkit.wire import fastjson
from rmqkit.wire.bodies.base import Body
from rmqkit.wire.bodies.route import MemberGroup
from rmqkit.wire.schema import Int32, Int64

#: the end of the newest epoch, which has no successor (Java's Long.MAX_VALUE)
EPOCH_END_OPEN = 2**63 - 1


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


class SyncStateSet(Body, kw_only=True):
    """The ids of the members that have every acknowledged message, and the version of this set."""

    sync_state_set: list[Int64] = field(default_factory=list)
    sync_state_set_epoch: Int32 = 0


class ElectMasterBody(Body, kw_only=True):
    """The members of a broker set by id, and the new SyncStateSet."""

    broker_member_group: MemberGroup | None = None
    sync_state_set: list[Int64] | None = None


class ReplicaIdentity(Body, kw_only=True):
    """One member of a broker set as a controller sees it."""

    alive: bool | None = None
    broker_address: str | None = None
    broker_id: Int64 | None = None
    broker_name: str | None = None


class ReplicasInfo(Body, kw_only=True):
    """One broker set. Id and address of the master are missing if it has none."""

    in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)
    master_address: str | None = None
    master_broker_id: Int64 | None = None
    master_epoch: Int32 = 0
    not_in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)
    sync_state_set_epoch: Int32 = 0


class BrokerReplicasInfo(Body, kw_only=True):
    """Broker sets by broker name. Unknown names are left out."""

    replicas_info_table: dict[str, ReplicasInfo] = field(default_factory=dict)


class EpochEntry(Body, kw_only=True):
    """A master's epoch: the offsets [start, end) of the log that it wrote."""

    end_offset: Int64 = EPOCH_END_OPEN
    epoch: Int32 = 0
    start_offset: Int64 = 0


class EpochEntryCache(Body, kw_only=True):
    """The epochs of a broker's log; `max_offset` is the end of the log."""

    broker_id: Int64 = 0
    broker_name: str | None = None
    cluster_name: str | None = None
    epoch_list: list[EpochEntry] = field(default_factory=list)
    max_offset: Int64 = 0


def encode_names(names: Iterable[str]) -> bytes:
    """Return the body of a request for broker sets (1006)."""
    return fastjson.dumps(list(names))


def decode_names(body: bytes) -> list[str]:
    """Return the broker names in the body of 1006. Raises RemoteProtocolError."""
    return fastjson.load_as(list[str], body or b"[]")
