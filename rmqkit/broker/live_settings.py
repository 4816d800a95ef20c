"""Settings that were changed at run time and survive a restart: `config/changedSettings.json`.

A change (UPDATE_BROKER_CONFIG) is saved in the store, not in the configuration file. That file may
be shared by several nodes, belong to an administrator, or be regenerated at each start.

Each saved key has its new value and the value that the configuration had (`was`). At a start:

- While the configuration still says `was`, the saved value applies.
- If the configuration (file or command line) has changed since, it is newer, and the saved value is
  dropped.

A value equal to the configured one is not saved. Only keys that may be changed live are read from
the file, so it cannot introduce a path or a command.

Apache writes its configuration file instead (`remoting/.../Configuration.persist`).
"""

from collections.abc import Callable, Iterable

from msgspec import field

from rmqkit.config import NodeConfig
from rmqkit.errors import ConfigError
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.ports import Clock, Disk, Log
from rmqkit.settings.keys import find
from rmqkit.settings.table import show
from rmqkit.wire.bodies import DataVersion
from rmqkit.wire.bodies.base import Body


class SettingChange(Body, kw_only=True):
    """A key's new value and its configured one; `was` is empty if the key had no value."""

    value: str
    was: str = ""


class ChangedSettings(Body, kw_only=True):
    """Content of `changedSettings.json`: changes by key, and the version of the settings."""

    changed: dict[str, SettingChange] = field(default_factory=dict)
    data_version: DataVersion = DataVersion()


class LiveSettings:
    """The saved changes of one broker, by key."""

    def __init__(self, disk: Disk, clock: Clock, folder: str) -> None:
        self.changed: dict[str, SettingChange] = {}
        self.version = DataVersion(timestamp=clock.wall_ms)
        self.path = f"{folder}/changedSettings.json"
        self._clock = clock
        self._file = AtomicFile(disk, self.path)

    @property
    def save_error(self) -> OSError | None:
        """The error of the last save; None if it succeeded."""
        return self._file.error

    def save(self, then: Callable[[], None] | None = None) -> None:
        self._file.save(lambda: self.snapshot().pretty().encode(), then)

    def snapshot(self) -> ChangedSettings:
        return ChangedSettings(changed=dict(self.changed), data_version=self.version)

    def load(self, config: NodeConfig, log: Log) -> NodeConfig:
        """Return the configuration with the saved changes applied. Raises AtomicFileDamaged."""
        loaded = self._file.load(ChangedSettings.decode)
        if loaded is None:
            return config
        self.version = loaded.data_version
        for key, kept in loaded.changed.items():
            says = _text(config, key)
            if says != kept.was:
                log.info("kept-setting-dropped", key=key, kept=kept.value, configured=says)
                continue
            try:
                config = config.updated({key: kept.value})
            except ConfigError as error:
                log.warning("kept-setting-dropped", key=key, reason=str(error))
                continue
            self.changed[key] = kept
            log.info("kept-setting", key=key, value=kept.value, configured=says)
        return config

    def note(self, before: NodeConfig, after: NodeConfig, keys: Iterable[str]) -> None:
        """Record that these keys were changed. The caller calls `save` afterwards."""
        for written in keys:
            row = find(before.kind, written)
            key = written if row is None else row.key
            kept = self.changed.pop(key, None)
            was = _text(before, key) if kept is None else kept.was
            value = _text(after, key)
            if value != was:
                self.changed[key] = SettingChange(value=value, was=was)
        self.version = self.version.next_version(self._clock.wall_ms)


def _text(config: NodeConfig, key: str) -> str:
    value = config.values.get(key)
    return "" if value is None else show(value)
