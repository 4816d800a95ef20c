"""A node's configuration: the public face of `rmqkit.settings`.

`load` reads files and `key=value` overrides and returns a `NodeConfig`. `from_values` creates one
from typed values, without reading anything from the machine (for tests and simulation).

The sections of a `NodeConfig` (`rmqkit.settings.sections`) are frozen. A module reads
`config.section.field` when it needs the value, through the node that owns the config; only then
does a change at run time (`NodeConfig.updated`) reach it.

The keys are RocketMQ's. `docs/settings.md` lists all of them, and what rmqkit does with each.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rmqkit.errors import ConfigError
from rmqkit.settings import build, properties
from rmqkit.settings.access_sections import AccessSettings, check_access
from rmqkit.settings.broker_sections import BrokerRole, FilterSettings, PullSettings
from rmqkit.settings.host import Host, here
from rmqkit.settings.keys import find, rows
from rmqkit.settings.node_sections import (
    ControllerSettings,
    LogSettings,
    MetricsSettings,
    NameserverSettings,
    NetworkLimits,
)
from rmqkit.settings.replication_sections import ActingSettings
from rmqkit.settings.sections import Sections
from rmqkit.settings.sources import PLUGIN, Setting, from_file, from_overrides
from rmqkit.settings.store_sections import (
    ConsumeQueueSettings,
    FlushDiskType,
    FlushSettings,
    IndexSettings,
    RetentionSettings,
    StorePaths,
)
from rmqkit.settings.table import Kind, Value, show
from rmqkit.settings.tls_sections import TlsClientSettings, TlsMode, TlsServerSettings, check_tls

#: the key of a file whose TLS keys win over all other sources, as in Apache's TlsHelper
TLS_FILE = "tls.config.file"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig(Sections):
    """The complete configuration of one node.

    - `values`: the typed value of every key of the node's kind, by Apache's name (for
      GET_BROKER_CONFIG and its counterpart of the name server). Keys without a value are left out.
    - `notes`: lines to log once at the start, about keys that were set but have no effect here.
    - `host`: the machine that defaults were taken from.
    """

    kind: Kind
    values: Mapping[str, Value] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    host: Host = field(default_factory=Host)

    def updated(self, changes: Mapping[str, str]) -> "NodeConfig":
        """Return this config with some live keys changed (UPDATE_BROKER_CONFIG).

        Applies all of `changes` or none. Raises ConfigError for an unknown key, a key that is not
        live, or an invalid value.
        """
        settings = [Setting(key, value, "") for key, value in changes.items()]
        for setting in settings:
            row = find(self.kind, setting.key)
            if row is None:
                raise build.unknown(self.kind, setting)
            if not row.live:
                raise ConfigError(f"config: {row.key} cannot be changed while the node runs")
        written = build.read_source(settings, self.kind, self.host)
        return assembled(
            self.kind, {**self.values, **{key: value for key, (value, _) in written.items()}}, self.host, self.notes
        )

    def in_role(self, role: BrokerRole, broker_id: int) -> "NodeConfig":
        """Return this config with another role and id: a controller has elected a master."""
        return assembled(self.kind, {**self.values, "brokerRole": str(role), "brokerId": broker_id}, self.host, self.notes)

    def properties_text(self) -> str:
        """Return the configuration as Java prints it: sorted `key=value` lines, without secrets."""
        known = rows(self.kind)
        shown = ((key, value) for key, value in sorted(self.values.items()) if key not in known or not known[key].secret)
        return "".join(
            f"{key}={properties.escape(show(value))}\n" for key, value in shown if not key.startswith(PLUGIN + ".")
        )


def load(
    paths: Iterable[str | Path],
    overrides: Iterable[str] = (),
    kind: Kind = "broker",
    *,
    host: Host | None = None,
) -> NodeConfig:
    """Return the config of a node from its files and `key=value` overrides; later ones win.

    A file is TOML, or an unmodified Apache `.conf`. Raises ConfigError: one line with the key, the
    value and where it was set.
    """
    host = host or here()
    sources = [build.read_source(from_file(path, kind), kind, host) for path in paths]
    sources.append(build.read_source(from_overrides(overrides), kind, host))
    if tls_file := build.merge(sources).get(TLS_FILE, ("", ""))[0]:
        tls = [setting for setting in from_file(str(tls_file), kind) if setting.key.startswith("tls.")]
        sources.append(build.read_source(tls, kind, host))
    return from_written(kind, build.merge(sources), host)


def from_values(kind: Kind, values: Mapping[str, Value] | None = None, *, host: Host | None = None) -> NodeConfig:
    """Return the config of a node from typed values by Apache's key.

    Defaults that depend on the machine are taken from `host`; without it nothing is read from the
    machine.
    """
    host = host or Host()
    written = build.read_source((Setting(key, value, "") for key, value in (values or {}).items()), kind, host)
    return from_written(kind, written, host)


def from_written(kind: Kind, written: Mapping[str, tuple[Value, str]], host: Host) -> NodeConfig:
    """Return the config for explicitly set values, each with the place where it was set."""
    build.check_pairs(written)
    check_tls(written)
    check_access(written)
    values = build.complete(kind, {key: value for key, (value, _) in written.items()}, host)
    return assembled(kind, values, host, build.notes_of(kind, written))


def assembled(kind: Kind, values: Mapping[str, Value], host: Host, notes: tuple[str, ...]) -> NodeConfig:
    """Return the config for a complete set of values.

    Raises ConfigError if the values contradict each other.
    """
    build.check_together(kind, values)
    return NodeConfig(kind=kind, values=values, notes=notes, host=host, **build.build_sections(kind, values, host))


def parse_properties(text: str) -> dict[str, str]:
    """Return the pairs of a Java properties text, such as the body of UPDATE_BROKER_CONFIG.

    Raises ConfigError if it is malformed.
    """
    try:
        return {item.key: item.value for item in properties.read(text)}
    except ValueError as error:
        raise ConfigError(f"config: not a properties text: {error}") from None


__all__ = [
    "AccessSettings",
    "ActingSettings",
    "BrokerRole",
    "ConsumeQueueSettings",
    "ControllerSettings",
    "FilterSettings",
    "FlushDiskType",
    "FlushSettings",
    "Host",
    "IndexSettings",
    "Kind",
    "LogSettings",
    "MetricsSettings",
    "NameserverSettings",
    "NetworkLimits",
    "NodeConfig",
    "PullSettings",
    "RetentionSettings",
    "StorePaths",
    "TlsClientSettings",
    "TlsMode",
    "TlsServerSettings",
    "Value",
    "from_values",
    "load",
    "parse_properties",
]
