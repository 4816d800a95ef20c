"""Subscription groups: the configuration of consumer groups, and subscriptionGroup.json.

A group is created by an administrator or, with `autoCreateSubscriptionGroup`, by its first
heartbeat or pull.

A slave's table is a copy of its master's (`follow`). With `autoCreateSubscriptionGroup`, a group
that only the slave has heard of may consume there with the default configuration. It enters no
table until the master has it.

Source: `broker/.../subscription/SubscriptionGroupManager.java`.
"""

from collections.abc import Callable

from rmqkit.broker import names
from rmqkit.config import BrokerRole, NodeConfig
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.ports import Clock, Disk
from rmqkit.wire.bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable

GROUPS_MAX = 100_000
#: limit of (group, topic) pairs with a read ban
FORBIDDEN_MAX = 100_000
#: `PermName.INDEX_PERM_READ`
_READ = 1 << 2


class GroupTable:
    """The subscription groups, and which topics a group may not read."""

    def __init__(self, disk: Disk, clock: Clock, config: NodeConfig, folder: str) -> None:
        self.by_name: dict[str, SubscriptionGroupConfig] = {}
        #: group → topic → permission bits that the group lacks there (`_READ`)
        self.forbidden: dict[str, dict[str, int]] = {}
        self.is_copy = config.identity.broker_role is BrokerRole.SLAVE
        self.version = DataVersion(timestamp=0 if self.is_copy else clock.wall_ms)
        #: the master's epoch in controller mode, else 0: the state version of each change
        self._epoch = 0
        self._clock = clock
        self._config = config
        self.file = AtomicFile(disk, f"{folder}/subscriptionGroup.json")

    def load(self) -> None:
        """Load the file and add missing system groups. Raises AtomicFileDamaged."""
        loaded = self.file.load(SubscriptionGroupTable.decode)
        if loaded is not None:
            self.by_name.update(loaded.subscription_group_table)
            self.forbidden.update(loaded.forbidden_table)
            self.version = loaded.data_version
        before = len(self.by_name)
        for name in names.SYSTEM_GROUPS:
            broadcast = name != "FILTERSRV_CONSUMER"
            self.by_name.setdefault(name, SubscriptionGroupConfig(group_name=name, consume_broadcast_enable=broadcast))
        if len(self.by_name) != before:
            self._changed()

    def take_role(self, *, is_copy: bool, epoch: int) -> None:
        """Become a copy, or a master's table, whose version then begins with its epoch."""
        self.is_copy, self._epoch = is_copy, epoch
        if not is_copy:
            self.version = self.version.next_version(self._clock.wall_ms, epoch)
            self.save()

    @property
    def save_error(self) -> OSError | None:
        """The error of the last save; None if it succeeded."""
        return self.file.error

    def save(self, then: Callable[[], None] | None = None) -> None:
        self.file.save(lambda: self.snapshot().pretty().encode(), then)

    def snapshot(self) -> SubscriptionGroupTable:
        return SubscriptionGroupTable(
            data_version=self.version,
            forbidden_table={group: dict(topics) for group, topics in self.forbidden.items()},
            subscription_group_table=dict(self.by_name),
        )

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group's configuration, and create the group if the broker may.

        None if the group is unknown and cannot be created, for example because its name is invalid.
        """
        config = self.by_name.get(group)
        if config is None and self._may_create(group):
            config = SubscriptionGroupConfig(group_name=group)
            if not self.is_copy:
                self.put(config)
        return config

    def knows(self, group: str) -> bool:
        """Whether the group exists; unlike `get`, this creates none.

        A slave's table lacks groups that its master has not heard of. Where groups are created by
        their members, such a group may consume at the slave, so the slave knows it.
        """
        return group in self.by_name or (self.is_copy and self._may_create(group))

    def put(self, config: SubscriptionGroupConfig) -> None:
        self.put_all([config])

    def put_all(self, configs: list[SubscriptionGroupConfig]) -> None:
        """Create or replace groups as one change."""
        for config in configs:
            self.by_name[config.group_name] = config
        self._changed()

    def follow(self, told: SubscriptionGroupTable) -> list[str]:
        """Replace this table with the master's, keeping system groups. Return the removed names."""
        after = told.subscription_group_table
        gone = [name for name in self.by_name if name not in after and name not in names.SYSTEM_GROUPS]
        for name in gone:
            del self.by_name[name]
        self.by_name.update(after)
        self.forbidden = {group: dict(topics) for group, topics in told.forbidden_table.items()}
        self.version = told.data_version
        self.save()
        return gone

    def configure(self, config: NodeConfig) -> None:
        """Take changed live settings."""
        self._config = config

    def delete(self, group: str) -> bool:
        """Delete a group and its bans. Return whether there were any."""
        config, bans = self.by_name.pop(group, None), self.forbidden.pop(group, None)
        if config is None and bans is None:
            return False
        self._changed()
        return True

    def may_read(self, group: str, topic: str) -> bool:
        return not self.forbidden.get(group, {}).get(topic, 0) & _READ

    def allow_read(self, group: str, topic: str, allowed: bool) -> bool:
        """Allow or forbid a group to read a topic. Return False if `FORBIDDEN_MAX` is reached.

        Deviation: upstream, allowing one topic lifts the bans of all topics of the group.
        """
        topics = self.forbidden.get(group, {})
        bits = topics.get(topic, 0)
        changed = bits & ~_READ if allowed else bits | _READ
        if changed == bits:
            return True
        if topic not in topics and sum(map(len, self.forbidden.values())) >= FORBIDDEN_MAX:
            return False
        if changed:
            self.forbidden.setdefault(group, {})[topic] = changed
        else:
            del topics[topic]
            if not topics:
                del self.forbidden[group]
        self._changed()
        return True

    def _may_create(self, group: str) -> bool:
        return (
            self._config.topics.auto_create_subscription_group
            and len(self.by_name) < GROUPS_MAX
            and names.group_fault(group) is None
        )

    def _changed(self) -> None:
        if not self.is_copy:
            self.version = self.version.next_version(self._clock.wall_ms, self._epoch)
        self.save()
