"""A node's configuration: the public face of `rmqkit.settings`.

`NodeConfig` is what a node is given. Its sections (`rmqkit.settings.sections`) are frozen; a module reads
`config.section.field` at the moment of use through the node that owns the config, so that a change at run time
reaches it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rmqkit.settings.sections import (
    BrokerIdentity,
    BrokerNetwork,
    BrokerRole,
    CommitLogSettings,
    ConsumeQueueSettings,
    FlushDiskType,
    FlushSettings,
    IndexSettings,
    NameserverSettings,
    NetworkLimits,
    OffsetSettings,
    PluginSettings,
    PullSettings,
    Registration,
    RetentionSettings,
    SendLimits,
    StorePaths,
    TopicDefaults,
)

Value = bool | int | float | str
Kind = Literal["broker", "nameserver"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """All that was configured for one node.

    A broker reads every section but `nameserver`; a name server reads `nameserver`, `limits` and `plugins` (its
    other sections hold defaults).

    `values` has every key of the node's kind by Apache's name, typed (for GET_BROKER_CONFIG and the name server's
    twin); `notes` are lines to log once at the start: keys that were set and have no effect here.
    """

    kind: Kind
    paths: StorePaths
    nameserver: NameserverSettings
    identity: BrokerIdentity = field(default_factory=BrokerIdentity)
    network: BrokerNetwork = field(default_factory=BrokerNetwork)
    topics: TopicDefaults = field(default_factory=TopicDefaults)
    send: SendLimits = field(default_factory=SendLimits)
    pull: PullSettings = field(default_factory=PullSettings)
    registration: Registration = field(default_factory=Registration)
    commit_log: CommitLogSettings = field(default_factory=CommitLogSettings)
    flush: FlushSettings = field(default_factory=FlushSettings)
    consume_queue: ConsumeQueueSettings = field(default_factory=ConsumeQueueSettings)
    index: IndexSettings = field(default_factory=IndexSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    offsets: OffsetSettings = field(default_factory=OffsetSettings)
    limits: NetworkLimits = field(default_factory=NetworkLimits)
    plugins: PluginSettings = field(default_factory=PluginSettings)
    values: Mapping[str, Value] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


__all__ = [
    "BrokerIdentity",
    "BrokerNetwork",
    "BrokerRole",
    "CommitLogSettings",
    "ConsumeQueueSettings",
    "FlushDiskType",
    "FlushSettings",
    "IndexSettings",
    "Kind",
    "NameserverSettings",
    "NetworkLimits",
    "NodeConfig",
    "OffsetSettings",
    "PluginSettings",
    "PullSettings",
    "Registration",
    "RetentionSettings",
    "SendLimits",
    "StorePaths",
    "TopicDefaults",
    "Value",
]
