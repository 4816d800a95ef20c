"""Requests to a name server, and its notification to brokers (905).

The requests are 100-106, 205, 206, 216-219, 224, 322, 327, 901 and 904.
"""

import msgspec

from rmqkit.wire.schema import Ext, Int32, Int64


class PutKVConfigRequest(Ext, kw_only=True):
    namespace: str
    key: str
    value: str


class GetKVConfigRequest(Ext, kw_only=True):
    namespace: str
    key: str


class GetKVConfigResponse(Ext, kw_only=True):
    value: str | None = None


class DeleteKVConfigRequest(Ext, kw_only=True):
    namespace: str
    key: str


class GetKVListByNamespaceRequest(Ext, kw_only=True):
    namespace: str


class RegisterBrokerRequest(Ext, kw_only=True):
    """103: `body_crc32` is masked to 31 bits; 0 means that it is not checked.

    Old brokers do not send `enable_acting_master`.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = 0
    zone_name: str | None = msgspec.field(default=None, name="__ZONE_NAME")


class RegisterBrokerResponse(Ext, kw_only=True):
    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBrokerRequest(Ext, kw_only=True):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class GetRouteInfoRequest(Ext, kw_only=True):
    """105: with `zone_mode` true the response has only the brokers of `zone_name`."""

    topic: str
    accept_standard_json_only: bool | None = None
    zone_mode: bool | None = msgspec.field(default=None, name="__ZONE_MODE")
    zone_name: str | None = msgspec.field(default=None, name="__ZONE_NAME")


class WipeWritePermOfBrokerRequest(Ext, kw_only=True):
    broker_name: str


class WipeWritePermOfBrokerResponse(Ext, kw_only=True):
    wipe_topic_count: Int32


class AddWritePermOfBrokerRequest(Ext, kw_only=True):
    broker_name: str


class AddWritePermOfBrokerResponse(Ext, kw_only=True):
    add_topic_count: Int32


class DeleteTopicFromNamesrvRequest(Ext, kw_only=True):
    topic: str
    cluster_name: str | None = None


class RegisterTopicRequest(Ext, kw_only=True):
    topic: str


class GetTopicsByClusterRequest(Ext, kw_only=True):
    cluster: str


class QueryDataVersionRequest(Ext, kw_only=True):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponse(Ext, kw_only=True):
    changed: bool


class GetBrokerMemberGroupRequest(Ext, kw_only=True):
    cluster_name: str
    broker_name: str


class BrokerHeartbeatRequest(Ext, kw_only=True):
    """904: the fields after the first three belong to controller mode or are optional."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None  # upstream's spelling, on the wire too
    election_priority: Int32 | None = None
    #: rmqkit's: how long this master takes messages after the last heartbeat that was answered
    lease_mills: Int64 | None = None


class NotifyMinBrokerIdChangeRequest(Ext, kw_only=True):
    """905, one way, from the name server to a broker."""

    min_broker_id: Int64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None
