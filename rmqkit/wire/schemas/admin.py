"""Administration of a broker process: 26, 315, 317, 902, 903, 906, 908, 1008."""

from rmqkit.wire.schema import Ext, Int32, Int64


class GetBrokerConfigResponse(Ext, kw_only=True):
    """26: `version` is a DataVersion as JSON text; the body is properties text."""

    version: str


class ViewBrokerStatsDataRequest(Ext, kw_only=True):
    """315: a counter by name (`TOPIC_PUT_NUMS`) and key (a topic, `topic@group`)."""

    stats_name: str
    stats_key: str


class GetConsumeStatsInBrokerRequest(Ext, kw_only=True):
    """317: `is_order` asks for the topics that are consumed in order only."""

    is_order: bool = False


class AddBrokerRequest(Ext, kw_only=True):
    config_path: str | None = None


class RemoveBrokerRequest(Ext, kw_only=True):
    broker_name: str
    broker_cluster_name: str
    broker_id: Int64


class ExchangeHAInfoRequest(Ext, kw_only=True):
    """906. From `broker_name` on the fields are ours, which Apache's brokers pass over: a slave says who it is, from which
    address its HA connection comes, where its log ends, the CRC32 of bytes of it, and how large its files are.

    With `master_address` it is a master that comes back, whom the asked slave shall follow; one of ours adds its name, its
    start and the end of its log."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None
    broker_name: str | None = None
    broker_id: Int64 | None = None
    broker_address: str | None = None
    ha_local_address: str | None = None
    log_end: Int64 | None = None
    tail_offset: Int64 | None = None
    tail_size: Int64 | None = None
    tail_crc: Int64 | None = None
    from_start: bool | None = None
    file_size: Int64 | None = None
    master_start_id: str | None = None


class ExchangeHAInfoResponse(Ext, kw_only=True):
    """`master_flush_offset` is the end of the master's log when it started. From `master_log_begin` on the fields are ours;
    `tail_matches` is "true", "false", or absent where the master does not have those bytes.

    A slave of ours that a master comes back to tells the end of its log, and the CRC32 of the last bytes that both have."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None
    master_log_begin: Int64 | None = None
    master_log_end: Int64 | None = None
    master_start_id: str | None = None
    tail_matches: str | None = None
    log_end: Int64 | None = None
    tail_offset: Int64 | None = None
    tail_size: Int64 | None = None
    tail_crc: Int64 | None = None


class ResetMasterFlushOffsetRequest(Ext, kw_only=True):
    master_flush_offset: Int64


class NotifyBrokerRoleChangedRequest(Ext, kw_only=True):
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None
    master_broker_id: Int64 | None = None
