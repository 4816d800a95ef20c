"""Requests to a controller: 1001-1005, 1011-1013."""

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
    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


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
