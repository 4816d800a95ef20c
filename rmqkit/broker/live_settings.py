"""Settings changed while the broker ran, which outlive it: `config/changedSettings.json`.

A change (UPDATE_BROKER_CONFIG) is kept in the store, not written into the configuration file: that one may be shared by
several nodes, belong to an administrator, or be made anew at each start. Each kept key has the value it was given and the
one the configuration had (`was`). At a start it goes by what was kept as long as the configuration still says `was`; when
somebody has changed the configuration since (file or command line), that is newer and the kept value is dropped. A value
that is what the configuration says is not kept.

Only keys that may be changed live are taken from the file, so it cannot bring in a path or a command.

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
    """`was` is empty for a key that had no value."""

    value: str
    was: str = ""


class ChangedSettings(Body, kw_only=True):
    changed: dict[str, SettingChange] = field(default_factory=dict)
    data_version: DataVersion = DataVersion()


class LiveSettings:
    def __init__(self, disk: Disk, clock: Clock, folder: str) -> None:
        self.changed: dict[str, SettingChange] = {}
        self.version = DataVersion(timestamp=clock.wall_ms)
        self.path = f"{folder}/changedSettings.json"
        self._clock = clock
        self._file = AtomicFile(disk, self.path)

    @property
    def save_error(self) -> OSError | None:
        """Why the last save failed."""
        return self._file.error

    def save(self, then: Callable[[], None] | None = None) -> None:
        self._file.save(lambda: self.snapshot().pretty().encode(), then)

    def snapshot(self) -> ChangedSettings:
        return ChangedSettings(changed=dict(self.changed), data_version=self.version)

    def load(self, config: NodeConfig, log: Log) -> NodeConfig:
        """The configuration with the kept changes laid over it. Raises AtomicFileDamaged."""
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
        """These keys were changed; to be followed by `save`."""
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
