"""The sections of a node's configuration: what the code of a node reads.

Users write RocketMQ's property names. The code reads fields such as
`config.flush.flush_interval_commit_log_ms`: the property's name in snake_case with the unit last,
or a shorter name.

Each section is frozen. A change at run time (UPDATE_BROKER_CONFIG, `NodeConfig.updated`) creates a
new `NodeConfig`. So a module keeps the `NodeConfig`'s owner and reads `node.config.section.field`
when it needs the value, or receives the new section. It never copies a live field at construction.

Each field declares its key (`declaration.py`), so `FlushSettings()` has Apache's defaults. The
fields of `paths` and two of `nameserver` depend on the user's home folder, which only the loader
knows: the caller must pass them.
"""

from dataclasses import dataclass

from rmqkit.settings import broker_sections as broker
from rmqkit.settings import node_sections as node
from rmqkit.settings import store_sections as store
from rmqkit.settings.access_sections import AccessSettings
from rmqkit.settings.declaration import section
from rmqkit.settings.pop_sections import AssignmentSettings, PopNoticeSettings, PopSettings
from rmqkit.settings.replication_sections import (
    ActingSettings,
    DrillSettings,
    ElectionSettings,
    HaSettings,
    ReplicationSettings,
)
from rmqkit.settings.tls_sections import TlsClientSettings, TlsServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections:
    """All sections.

    A broker reads each except `nameserver` and `controller`. A name server and a controller read
    their own section, and those of all kinds; a name server with a controller in its process reads
    both.
    """

    identity: broker.BrokerIdentity = section(broker.BrokerIdentity, "Identity and addresses", "broker")
    network: broker.BrokerNetwork = section(broker.BrokerNetwork, "Identity and addresses", "broker")
    topics: broker.TopicDefaults = section(broker.TopicDefaults, "Topics and groups", "broker")
    send: broker.SendLimits = section(broker.SendLimits, "Sending", "broker")
    pull: broker.PullSettings = section(broker.PullSettings, "Pulling", "broker")
    filters: broker.FilterSettings = section(broker.FilterSettings, "Pulling", "broker")
    registration: broker.RegistrationSettings = section(
        broker.RegistrationSettings, "Registration with name servers", "broker"
    )
    offsets: broker.OffsetSettings = section(broker.OffsetSettings, "Clients and consumer offsets", "broker")
    delay: broker.DelaySettings = section(broker.DelaySettings, "Timer and delay", "broker")
    timers: broker.TimerSettings = section(broker.TimerSettings, "Timer and delay", "broker")
    transactions: broker.TransactionSettings = section(broker.TransactionSettings, "Transactions", "broker")
    pop: PopSettings = section(PopSettings, "Pop", "broker")
    pop_notices: PopNoticeSettings = section(PopNoticeSettings, "Pop", "broker")
    assignment: AssignmentSettings = section(AssignmentSettings, "Pop", "broker")
    coordination: broker.Coordination = section(broker.Coordination, "Sending", "broker")
    paths: store.StorePaths = section(store.StorePaths, "Store: files", "broker")
    commit_log: store.CommitLogSettings = section(store.CommitLogSettings, "Store: files", "broker")
    flush: store.FlushSettings = section(store.FlushSettings, "Store: flushing", "broker")
    consume_queue: store.ConsumeQueueSettings = section(store.ConsumeQueueSettings, "Store: files", "broker")
    index: store.IndexSettings = section(store.IndexSettings, "Store: files", "broker")
    retention: store.RetentionSettings = section(store.RetentionSettings, "Store: retention", "broker")
    replication: ReplicationSettings = section(ReplicationSettings, "Replication and acting master", "broker")
    ha: HaSettings = section(HaSettings, "Replication and acting master", "broker")
    acting: ActingSettings = section(ActingSettings, "Replication and acting master", "broker")
    election: ElectionSettings = section(ElectionSettings, "Replication and acting master", "broker")
    drills: DrillSettings = section(DrillSettings, "Drills", "broker")
    nameserver: node.NameserverSettings = section(node.NameserverSettings, "Name server", "nameserver")
    controller: node.ControllerSettings = section(
        node.ControllerSettings, "Controller and DLedger", "nameserver", "controller"
    )
    limits: node.NetworkLimits = section(node.NetworkLimits, "Network and limits", "broker", "nameserver", "controller")
    tls: TlsServerSettings = section(TlsServerSettings, "TLS", "broker", "nameserver", "controller")
    tls_client: TlsClientSettings = section(TlsClientSettings, "TLS", "broker", "nameserver", "controller")
    access: AccessSettings = section(AccessSettings, "Access control", "broker", "nameserver", "controller")
    metrics: node.MetricsSettings = section(node.MetricsSettings, "Metrics", "broker", "nameserver", "controller")
    logs: node.LogSettings = section(node.LogSettings, "Logs", "broker", "nameserver", "controller")
    plugins: node.PluginSettings = section(node.PluginSettings, "Plug-ins", "broker", "nameserver", "controller")
