"""Requests to a controller: 1001-1005, 1011-1013 and 60010; its push (1008); its answer to 904."""

from rmqkit.wire.schema import Ext, Int32, Int64


class AlterSyncStateSetRequest(Ext, kw_only=True):
    """1001: the body is the new SyncStateSet."""

    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_epoch: Int32 | None = None
    invoke_time: Int64 | None = None


class AlterSyncStateSetResponse(Ext, kw_only=True):
    new_sync_state_set_epoch: Int32 = 0


class ElectMasterRequest(Ext, kw_only=True):
    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Int64 = -1
    designate_elect: bool = False
    invoke_time: Int64 | None = None


class ElectMasterResponse(Ext, kw_only=True):
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class RegisterBrokerToControllerRequest(Ext, kw_only=True):
    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Int64 | None = None
    broker_address: str | None = None
    invoke_time: Int64 | None = None


class RegisterBrokerToControllerResponse(Ext, kw_only=True):
    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class GetReplicaInfoRequest(Ext, kw_only=True):
    broker_name: str | None = None


class GetReplicaInfoResponse(Ext, kw_only=True):
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None


class GetMetaDataResponse(Ext, kw_only=True):
    """1005. `term` is sent by rmqkit's controllers only."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None
    term: int | None = None


class CleanControllerBrokerDataRequest(Ext, kw_only=True):
    """1011: `broker_controller_ids_to_clean` is a list of ids separated by `;`."""

    cluster_name: str | None = None
    broker_name: str
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: Int64 | None = None


class GetNextBrokerIdRequest(Ext, kw_only=True):
    cluster_name: str | None = None
    broker_name: str | None = None


class GetNextBrokerIdResponse(Ext, kw_only=True):
    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Int64 | None = None


class ApplyBrokerIdRequest(Ext, kw_only=True):
    cluster_name: str | None = None
    broker_name: str | None = None
    applied_broker_id: Int64 | None = None
    register_check_code: str | None = None


class ApplyBrokerIdResponse(Ext, kw_only=True):
    cluster_name: str | None = None
    broker_name: str | None = None


class NotifyBrokerRoleChangedRequest(Ext, kw_only=True):
    """1008, one way: who is master. The body is the SyncStateSet."""

    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None
    master_broker_id: Int64 | None = None


class BrokerHeartbeatResponse(Ext, kw_only=True):
    """904: what an rmqkit controller answers. Apache's answers without fields.

    `is_leader` is true if this controller leads and a majority answered it within its election
    timeout. Only such an answer renews the lease of a master, from the time when its heartbeat was
    sent. The lease ends with the connection: the controller takes a master whose connection closed
    for dead, at once. The other fields are what the controller knows of the broker set; those of
    the master are missing if it has none.
    """

    is_leader: bool | None = None
    master_broker_id: Int64 | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class ControllerPeerRequest(Ext, kw_only=True):
    """60010, between the controllers of a group: the body is a message of their log."""

    group: str
    sender: str
    receiver: str
