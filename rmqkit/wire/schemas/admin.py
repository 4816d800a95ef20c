"""Administration of a broker process: 26, 315, 317, 902, 903, 906, 908."""

from rmqkit.wire.schema import Ext, Int64


class GetBrokerConfigResponse(Ext, kw_only=True):
    """26: `version` is a DataVersion as JSON; the body is properties text."""

    version: str


class ViewBrokerStatsDataRequest(Ext, kw_only=True):
    """315: one counter, selected by name (`TOPIC_PUT_NUMS`) and key (a topic, or `topic@group`)."""

    stats_name: str
    stats_key: str


class GetConsumeStatsInBrokerRequest(Ext, kw_only=True):
    """317: with `is_order` true, only topics that are consumed in order."""

    is_order: bool = False


class CheckRocksdbCqWriteProgressRequest(Ext, kw_only=True):
    """354. Without a topic, all topics are checked."""

    topic: str | None = None
    check_store_time: Int64 | None = None


class AddBrokerRequest(Ext, kw_only=True):
    config_path: str | None = None


class RemoveBrokerRequest(Ext, kw_only=True):
    broker_name: str
    broker_cluster_name: str
    broker_id: Int64


class ExchangeHAInfoRequest(Ext, kw_only=True):
    """906. The fields from `broker_name` on are rmqkit's; Apache's brokers ignore them.

    With them a slave tells its master its name, id and address, the local address of its HA
    connection, the end of its log, the CRC32 of a range of that log, and the size of its log files
    in bytes. `from_start` asks for the log from its first byte on.

    With `master_address` the sender is a returning master, and the receiver should follow it. A
    returning master of rmqkit adds its broker name, its start id and the end of its log.
    """

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
    """906. The fields from `master_log_begin` on are rmqkit's.

    `master_flush_offset` is the end of the master's log at its start. `tail_matches` is "true" or
    "false", or absent if the master does not have the bytes in question.

    A slave that answers a returning master reports the end of its log, and the CRC32 of the last
    bytes that both logs have. `master_given_up` is set by a slave that acts for its master, or
    whose name servers no longer list it.
    """

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
    master_given_up: bool | None = None
