"""The sections of a node's configuration: what the code of a node reads.

Users write RocketMQ's property names; the code reads the fields below. A field is the property's name in snake_case
with the unit last (`flushIntervalCommitLog` is `flush_interval_commit_log_ms`). Each section is frozen: a change at
run time (UPDATE_BROKER_CONFIG, `rmqkit.config.NodeConfig.updated`) makes a new `NodeConfig`. So a module keeps the
`NodeConfig`'s owner and reads `node.config.section.field` when it needs the value, or is handed the new section; it
never copies a live field at construction.

The defaults are Apache's (`BrokerConfig`, `MessageStoreConfig`, `NamesrvConfig`, `NettyServerConfig`), so
`FlushSettings()` is a broker that nobody configured. The same defaults stand in the table of keys
(`rmqkit.settings`), and a test holds the two together. Paths have no default here: they depend on the user's home
folder, which only the loader knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class BrokerRole(StrEnum):
    """How a broker takes part in replication; the values are Apache's enum names (`BrokerRole`)."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class FlushDiskType(StrEnum):
    """When a put is answered: after the disk has it, or after the page cache has it (`FlushDiskType`)."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """Who this broker is.

    `broker_id` is 0 for a master whatever was configured, above 0 for a slave. `region_id` and `trace_on` are what
    the broker writes into the properties MSG_REGION and TRACE_ON of each message.
    """

    broker_name: str = "DEFAULT_BROKER"
    broker_cluster_name: str = "DefaultCluster"
    broker_id: int = 0
    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    region_id: str = "DefaultRegion"
    trace_on: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNetwork:
    """Where a broker listens and what it tells others.

    `broker_ip1` is advertised to clients, `broker_ip2` to slaves. `vip_listen_port` is `listen_port` - 2 (no pull,
    no pop there), 0 when `listen_port` is 0 or too small for it; `ha_listen_port` is `listen_port` + 1 unless set.
    A port of 0 lets the system choose. `namesrv_addrs` are `host:port` strings in the order they were written;
    empty means that no name server is told.
    """

    bind_address: str = "0.0.0.0"
    listen_port: int = 10911
    vip_listen_port: int = 10909
    ha_listen_port: int = 10912
    broker_ip1: str = "127.0.0.1"
    broker_ip2: str = "127.0.0.1"
    namesrv_addrs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """How topics and groups come into being, and what they may do.

    `broker_permission` is the broker-wide mask: 4 read, 2 write. `default_topic_queue_nums` bounds the queues of a
    topic that is created by a send.
    """

    broker_permission: int = 6
    default_topic_queue_nums: int = 8
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    validate_system_topic_when_update_topic: bool = True
    enable_mixed_message_type: bool = False
    clear_retry_topic_when_delete_topic: bool = True
    enable_split_metadata: bool = True
    split_metadata_size: int = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLimits:
    """What the broker takes. `max_message_size` bounds a body, in bytes."""

    max_message_size: int = 4_194_304
    auto_message_version_on_topic_len: bool = True
    reject_transaction_message: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSettings:
    """What one pull may carry and how a pull that finds nothing waits.

    The `max_transfer_*` pairs bound one answer, in bytes and in messages: `in_disk` when the record is further
    behind the end of the log than `access_message_in_memory_max_ratio` percent of the machine's memory.
    `max_filter_message_size` is divided by 20 to bound how many queue entries a filtering pull may look at.
    `short_polling_time_ms` is how long a pull waits when long polling is off.
    """

    long_polling_enable: bool = True
    short_polling_time_ms: int = 1000
    max_transfer_bytes_on_message_in_memory: int = 262_144
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 65_536
    max_transfer_count_on_message_in_disk: int = 8
    access_message_in_memory_max_ratio: int = 40
    max_filter_message_size: int = 16_000
    default_query_max_num: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSettings:
    """Filters by the properties of messages.

    With `enable_calc_filter_bit_map` it is worked out when a message comes which groups want it, and kept in the
    extension of its consume queue; such a bit map has room for `expect_consumer_num_use_filter` groups at an error rate of
    `max_error_rate_of_bloom_filter` percent. `filter_data_clean_time_span_ms` is how long a group's filter outlives it.
    """

    enable_property_filter: bool = False
    enable_calc_filter_bit_map: bool = False
    filter_support_retry: bool = False
    expect_consumer_num_use_filter: int = 32
    max_error_rate_of_bloom_filter: int = 20
    filter_data_clean_time_span_ms: int = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """How a broker registers with its name servers and how long it believes in its own clients.

    `register_name_server_period_ms` is held within 10,000 and 60,000 as Apache does. With `force_register` off a
    broker first asks whether the name server has the newest data.
    """

    register_broker_timeout_ms: int = 24_000
    register_name_server_period_ms: int = 30_000
    force_register: bool = True
    channel_expired_timeout_ms: int = 120_000
    notify_consumer_ids_changed_enable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePaths:
    """Where the store lives: absolute paths. `store_path_commit_log` is `<root>/commitlog` unless set."""

    store_path_root_dir: str
    store_path_commit_log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLogSettings:
    """The commit log. `mapped_file_size_commit_log` is the size of one file, in bytes.

    With `enabled_append_prop_crc` the properties of each record end with a checksum over the whole of it.
    `memory_engine_size_max` bounds what the engine `memory` keeps, in bytes.
    """

    storage_engine: str = "mapped"
    mapped_file_size_commit_log: int = 1_073_741_824
    check_crc_on_recover: bool = True
    enabled_append_prop_crc: bool = False
    memory_engine_size_max: int = 268_435_456


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushSettings:
    """When bytes go to the disk. A page is 4096 bytes.

    The group `commit_*` counts only when `transient_store_pool_enable` is on: new records then wait in memory and
    are written to the file at `commit_interval_commit_log_ms`, before they are flushed.
    """

    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    flush_interval_commit_log_ms: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval_ms: int = 10_000
    transient_store_pool_enable: bool = False
    commit_interval_commit_log_ms: int = 200
    commit_commit_log_least_pages: int = 4
    commit_commit_log_thorough_interval_ms: int = 200
    sync_flush_timeout_ms: int = 5000
    flush_interval_consume_queue_ms: int = 1000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeQueueSettings:
    """The consume queues.

    `mapped_file_size_consume_queue` is in bytes, a multiple of the 20 bytes of an entry (rounded up when it is not).
    `put_msg_index_hight_water` is how many records may wait for dispatch before puts are held back. With
    `enable_consume_queue_ext` each entry has a unit in the extension files.
    """

    mapped_file_size_consume_queue: int = 6_000_000
    enable_consume_queue_ext: bool = False
    mapped_file_size_consume_queue_ext: int = 50_331_648
    put_msg_index_hight_water: int = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """The index files, for queries by key.

    Sizes are counts of slots and entries in one file; `max_msgs_num_batch` bounds an answer.
    """

    message_index_enable: bool = True
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    max_msgs_num_batch: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """When old files go. Ratios are percent of the disk.

    `delete_when` lists hours of the day ("04", "04;16"). `disk_max_used_space_ratio` is held within 10 and 95.
    Above `disk_space_clean_forcibly_ratio` files go before their time (when `clean_file_forcibly_enable`), above
    `disk_space_warning_level_ratio` puts are refused as well.
    """

    file_reserved_time_hours: int = 72
    delete_when: str = "04"
    disk_max_used_space_ratio: int = 75
    disk_space_warning_level_ratio: int = 90
    disk_space_clean_forcibly_ratio: int = 85
    clean_file_forcibly_enable: bool = True
    clean_resource_interval_ms: int = 10_000
    delete_commit_log_files_interval_ms: int = 100
    delete_file_batch_max: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSettings:
    """Consumer offsets.

    `consumer_offset_update_version_step` is how many commits pass between two steps of the data version.
    """

    flush_consumer_offset_interval_ms: int = 5000
    use_server_side_reset_offset: bool = True
    consumer_offset_update_version_step: int = 500


_SECOND, _MINUTE, _HOUR = 1000, 60_000, 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DelaySettings:
    """Delay levels.

    `levels_ms` has the delay of each level, the first being level 1. `pending_max` is how many deliveries of one level may
    wait for their disk at a time.
    """

    levels_ms: tuple[int, ...] = (
        *(each * _SECOND for each in (1, 5, 10, 30)),
        *(each * _MINUTE for each in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
        *(each * _HOUR for each in (1, 2)),
    )
    flush_delay_offset_interval_ms: int = 10_000
    pending_max: int = 2000
    delay_offset_update_version_step: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordination:
    """What the broker arranges between clients.

    `lock_mode` names who grants the locks of ordered consumption.
    """

    lock_mode: str = "loose"
    store_reply_message_enable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    """How a group keeps copies.

    `total_replicas` above 1 makes a SYNC_MASTER count who is in sync before it takes a put; otherwise it waits for
    `in_sync_replicas` copies, its own included. A slave is in sync while it lacks fewer than `ha_max_gap` bytes.
    `accept_anonymous` lets slaves count that did not say who they are (Apache's).
    """

    total_replicas: int = 1
    in_sync_replicas: int = 1
    min_in_sync_replicas: int = 1
    auto_in_sync: bool = False
    slave_timeout_ms: int = 3000
    slave_read_enable: bool = False
    ha_max_gap: int = 268_435_456
    offset_check_in_slave: bool = False
    sync_from_last_file: bool = False
    accept_anonymous: bool = True
    truncate_ahead: bool = False
    drill_faults: bool = False
    drill_defects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HaSettings:
    """The connections between a master and its slaves. `master_address`: where a slave dials, empty when it learns it."""

    master_address: str = ""
    heartbeat_ms: int = 5000
    housekeeping_ms: int = 20_000
    batch_size: int = 32_768
    flow_control: bool = False
    bytes_per_second_max: int = 104_857_600


@dataclass(frozen=True, slots=True, kw_only=True)
class ActingSettings:
    """A slave that acts for its master, and how the members of a group know of each other.

    `not_active_ms` is told to name servers at registration; `escape_strategy` "" is what `remote_escape` says (True:
    `auto`, False: `local`).
    """

    enable: bool = False
    remote_escape: bool = False
    escape_strategy: str = ""
    skip_pre_online: bool = False
    old_nameservers: bool = True
    heartbeat_ms: int = 1000
    heartbeat_timeout_ms: int = 1000
    not_active_ms: int = 10_000
    member_sync_ms: int = 1000
    lock_in_strict_mode: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NameserverSettings:
    """A name server. `kv_config_path` and `config_store_path` are files; `listen_port` 0 lets the system choose."""

    kv_config_path: str
    config_store_path: str
    bind_address: str = "0.0.0.0"
    listen_port: int = 9876
    scan_not_active_broker_interval_ms: int = 5000
    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True
    support_acting_master: bool = False
    notify_min_broker_id_changed: bool = False
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    need_wait_for_service: bool = False
    wait_for_service_ms: int = 45_000
    delete_topic_with_broker_registration: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLimits:
    """What a node grants its peers; our own keys. Sizes are bytes, `*_max` is the largest value still allowed.

    A frame that claims more than `frame_size_max`, or is not complete `frame_complete_ms` after its first byte,
    closes its connection, as does silence for `idle_close_ms`. `partial_bytes_max` bounds the half-received frames
    of all connections together. A connection whose unsent bytes pass `outbox_high_water` is not read until they
    fall under `outbox_low_water`, and is closed at `outbox_max`; `unsent_bytes_max` bounds those of all together.
    `remote_config_update` lets other machines change settings of a node that runs. `spin_polls` is how often a node
    looks for more to do before it sleeps.
    """

    frame_size_max: int = 16_777_216
    frame_complete_ms: int = 60_000
    connections_max: int = 10_000
    connections_per_ip_max: int = 5000
    partial_bytes_max: int = 268_435_456
    remote_config_update: bool = False
    outbox_high_water: int = 4_194_304
    outbox_low_water: int = 1_048_576
    outbox_max: int = 67_108_864
    unsent_bytes_max: int = 536_870_912
    waiters_max: int = 100_000
    idle_close_ms: int = 120_000
    connect_timeout_ms: int = 3000
    socket_backlog: int = 1024
    spin_polls: int = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """What is told of a node at its Prometheus endpoint.

    There is one when `exporter_type` is PROM. `labels` come with every metric. The switches choose groups of metrics;
    `series_max` bounds the series of one metric. The `http_*` limits are those of the endpoint's connections.
    """

    exporter_type: str = "DISABLE"
    prom_exporter_port: int = 5557
    prom_exporter_host: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    series_max: int = 50_000
    remoting: bool = True
    rpc_latency: bool = False
    message_store: bool = True
    connection: bool = True
    stats: bool = True
    request: bool = True
    lag_and_dlq: bool = True
    http_connections_max: int = 64
    http_header_size_max: int = 16_384
    http_request_ms: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The log file of a node: rotated at `file_size_max` bytes, with `files_max` older ones kept."""

    file_size_max: int = 67_108_864
    files_max: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """Which plug-ins a node uses.

    `plugins` are the names of plug-ins to switch on, in order. `values` are the plug-ins' own settings:
    `plugin.NAME.KEY` in a file is `values["NAME"]["KEY"]`, text as it was written.
    """

    plugins: tuple[str, ...] = ()
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
