"""A node's configuration: the public face of `rmqkit.settings`.

`load` reads files and `key=value` overrides and gives a `NodeConfig`; `from_values` makes one from values at hand,
without looking at the machine (tests, simulation). Its sections (`rmqkit.settings.sections`) are frozen: a module
reads `config.section.field` at the moment of use through the node that owns the config, so that a change at run
time (`NodeConfig.updated`) reaches it.

The keys are RocketMQ's; `docs/settings.md` lists them all with what became of each.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rmqkit.errors import ConfigError
from rmqkit.settings import build, properties
from rmqkit.settings.broker_sections import BrokerRole, FilterSettings, PullSettings
from rmqkit.settings.host import Host, here
from rmqkit.settings.keys import find, rows
from rmqkit.settings.node_sections import LogSettings, MetricsSettings, NameserverSettings, NetworkLimits
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig(Sections):
    """All that was configured for one node.

    `values` has every key of the node's kind by Apache's name, typed (for GET_BROKER_CONFIG and the name server's
    twin), without those that have no value; `notes` are lines to log once at the start: keys that were set and do
    nothing here. `host` is the machine that defaults came from.
    """

    kind: Kind
    values: Mapping[str, Value] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    host: Host = field(default_factory=Host)

    def updated(self, changes: Mapping[str, str]) -> "NodeConfig":
        """This config with some live keys changed, as UPDATE_BROKER_CONFIG asks for it: all of `changes`, or none.

        Raises ConfigError for an unknown key, a key that is not live, or a value that its row does not take.
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

    def properties_text(self) -> str:
        """Every key and value as Java prints a configuration: sorted `key=value` lines. Secrets are left out."""
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
    """The config of a node from its files (TOML, or an Apache `.conf` as it is) and `key=value` overrides; later ones win.

    Raises ConfigError, one line that names key, value and place.
    """
    host = host or here()
    sources = [build.read_source(from_file(path, kind), kind, host) for path in paths]
    sources.append(build.read_source(from_overrides(overrides), kind, host))
    return from_written(kind, build.merge(sources), host)


def from_values(kind: Kind, values: Mapping[str, Value] | None = None, *, host: Host | None = None) -> NodeConfig:
    """The config of a node from typed values by Apache's key.

    Looks at no machine unless it is given one as `host`.
    """
    host = host or Host()
    written = build.read_source((Setting(key, value, "") for key, value in (values or {}).items()), kind, host)
    return from_written(kind, written, host)


def from_written(kind: Kind, written: Mapping[str, tuple[Value, str]], host: Host) -> NodeConfig:
    build.check_pairs(written)
    values = build.complete(kind, {key: value for key, (value, _) in written.items()}, host)
    return assembled(kind, values, host, build.notes_of(kind, written))


def assembled(kind: Kind, values: Mapping[str, Value], host: Host, notes: tuple[str, ...]) -> NodeConfig:
    build.check_together(kind, values)
    return NodeConfig(kind=kind, values=values, notes=notes, host=host, **build.build_sections(kind, values, host))


def parse_properties(text: str) -> dict[str, str]:
    """Key -> value of a Java property text, such as the body of UPDATE_BROKER_CONFIG.

    Raises ConfigError when it is none.
    """
    try:
        return {item.key: item.value for item in properties.read(text)}
    except ValueError as error:
        raise ConfigError(f"config: not a property text: {error}") from None


__all__ = [
    "ActingSettings",
    "BrokerRole",
    "ConsumeQueueSettings",
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
    "Value",
    "from_values",
    "load",
    "parse_properties",
]
