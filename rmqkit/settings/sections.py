"""The sections of a node's configuration: what the code of a node reads.

Users write RocketMQ's property names; the code reads fields such as
`config.flush.flush_interval_commit_log_ms`: the property's name in snake_case with the unit last, or
a shorter one. Each section is frozen: a change at run time (UPDATE_BROKER_CONFIG,
`NodeConfig.updated`) makes a new `NodeConfig`. So a module keeps the `NodeConfig`'s owner and reads
`node.config.section.field` when it needs the value, or receives the new section; it never copies a
live field at construction.

Each field declares its key (`declaration.py`), so `FlushSettings()` is a broker with Apache's
defaults. The fields of `paths` and two of `nameserver` depend on the user's home folder, which only
the loader knows: the caller must pass them.
"""

from dataclasses import dataclass

from rmqkit.settings.broker_sections import (
    BrokerIdentity,
    BrokerNetwork,
    Coordination,
    DelaySettings,
    FilterSettings,
    OffsetSettings,
    PullSettings,
    Registration,
    SendLimits,
    TopicDefaults,
)
from rmqkit.settings.declaration import section
from rmqkit.settings.node_sections import (
    LogSettings,
    MetricsSettings,
    NameserverSettings,
    NetworkLimits,
    PluginSettings,
)
from rmqkit.settings.replication_sections import ActingSettings, DrillSettings, HaSettings, ReplicationSettings
from rmqkit.settings.store_sections import (
    CommitLogSettings,
    ConsumeQueueSettings,
    FlushSettings,
    IndexSettings,
    RetentionSettings,
    StorePaths,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections:
    """A broker reads every section but `nameserver`; a name server reads `nameserver` and those of both kinds."""

    identity: BrokerIdentity = section(BrokerIdentity, "Identity and addresses", "broker")
    network: BrokerNetwork = section(BrokerNetwork, "Identity and addresses", "broker")
    topics: TopicDefaults = section(TopicDefaults, "Topics and groups", "broker")
    send: SendLimits = section(SendLimits, "Sending", "broker")
    pull: PullSettings = section(PullSettings, "Pulling", "broker")
    filters: FilterSettings = section(FilterSettings, "Pulling", "broker")
    registration: Registration = section(Registration, "Registration with name servers", "broker")
    offsets: OffsetSettings = section(OffsetSettings, "Clients and consumer offsets", "broker")
    delay: DelaySettings = section(DelaySettings, "Timer and delay", "broker")
    coordination: Coordination = section(Coordination, "Sending", "broker")
    paths: StorePaths = section(StorePaths, "Store: files", "broker")
    commit_log: CommitLogSettings = section(CommitLogSettings, "Store: files", "broker")
    flush: FlushSettings = section(FlushSettings, "Store: flushing", "broker")
    consume_queue: ConsumeQueueSettings = section(ConsumeQueueSettings, "Store: files", "broker")
    index: IndexSettings = section(IndexSettings, "Store: files", "broker")
    retention: RetentionSettings = section(RetentionSettings, "Store: retention", "broker")
    replication: ReplicationSettings = section(ReplicationSettings, "Replication and acting master", "broker")
    ha: HaSettings = section(HaSettings, "Replication and acting master", "broker")
    acting: ActingSettings = section(ActingSettings, "Replication and acting master", "broker")
    drills: DrillSettings = section(DrillSettings, "Drills", "broker")
    nameserver: NameserverSettings = section(NameserverSettings, "Name server", "nameserver")
    limits: NetworkLimits = section(NetworkLimits, "Network and limits", "broker", "nameserver")
    metrics: MetricsSettings = section(MetricsSettings, "Metrics", "broker", "nameserver")
    logs: LogSettings = section(LogSettings, "Logs", "broker", "nameserver")
    plugins: PluginSettings = section(PluginSettings, "Plug-ins", "broker", "nameserver")
