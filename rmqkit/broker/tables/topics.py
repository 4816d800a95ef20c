"""Topics of this broker: their configuration by name, their creation, and topics.json.

Every change raises the DataVersion, is written to `config/topics.json` (with the former content as
`.bak`), and is announced by `on_change(names)`, after which registration informs the name servers.

A topic that is not in the file yet is `unsaved`. Nothing that needs the topic is acknowledged
before it is saved (`when_saved`): otherwise a kill would leave messages that nobody can read.

A topic is created by an administrator, by a send that names a default topic with the inherit bit
(TBW102 with `autoCreateTopicEnable`), or by the broker itself.

A slave's table is a copy of its master's (`follow`). The slave changes nothing by itself, and its
version is the master's. Before the first copy, its version is the oldest possible one.

Source: `broker/.../topic/TopicConfigManager.java`.
"""

from collections.abc import Callable, Iterable, Mapping

from rmqkit.broker.tables.attributes import BATCH_QUEUE, QUEUE_TYPE
from rmqkit.config import BrokerRole, NodeConfig
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.ports import Clock, Disk
from rmqkit.wire import topic_names
from rmqkit.wire.bodies import DataVersion, TopicConfig, TopicConfigTable
from rmqkit.wire.bodies.pop import revive_topic
from rmqkit.wire.codes import PermName

READ_WRITE = PermName.PERM_READ | PermName.PERM_WRITE
QUEUE_COUNT_MAX = 65_536
TOPICS_MAX = 100_000
SCHEDULE_QUEUE_COUNT = 18
#: flags of a topic (`TopicSysFlag`): of a producer in unit mode, and the retry topic of a consumer
#: in unit mode
UNIT, UNIT_SUB = 1, 2
BENCHMARK_QUEUE_COUNT = 1024


class TopicTable:
    """The topics of this broker by name."""

    def __init__(self, disk: Disk, clock: Clock, config: NodeConfig, folder: str) -> None:
        self.by_name: dict[str, TopicConfig] = {}
        self.is_copy = config.identity.broker_role is BrokerRole.SLAVE
        self.version = DataVersion(timestamp=0 if self.is_copy else clock.wall_ms)
        self.get = self.by_name.get
        self.on_change: Callable[[list[str]], None] = lambda names: None
        #: the master's epoch in controller mode, else 0: the state version of each change
        self._epoch = 0
        self._clock = clock
        self._config = config
        self.file = AtomicFile(disk, f"{folder}/topics.json")
        #: topics that the broker creates itself; an administrator cannot delete them
        self.system: dict[str, None] = {}
        #: topics that are not in the file yet
        self.unsaved: dict[str, None] = {}
        #: topics that a send must check: those that take no messages, and the unsaved ones
        self.guarded: dict[str, None] = dict.fromkeys(sorted(topic_names.SEND_FORBIDDEN))
        self._waiting: list[Callable[[], None]] = []

    def load(self) -> None:
        """Load the file and add missing system topics. Raises AtomicFileDamaged."""
        loaded = self.file.load(TopicConfigTable.decode)
        if loaded is not None:
            self.by_name.update(loaded.topic_config_table)
            self.version = loaded.data_version
        before = dict(self.by_name)
        self._make_system_topics()
        if self.by_name != before:
            self._touch()
            self.save(self._saved)

    def take_role(self, *, is_copy: bool, epoch: int) -> None:
        """Become a copy, or a master's table, whose version then begins with its epoch."""
        self.is_copy, self._epoch = is_copy, epoch
        if not is_copy:
            self.version = self.version.next_version(self._clock.wall_ms, epoch)
            self.save(self._saved)

    def has_batch_queues(self, name: str) -> bool | None:
        """Return whether a topic's queues are of type BatchCQ; None if the topic is unknown.

        Source: `common/.../utils/QueueTypeUtils.java`.
        """
        config = self.by_name.get(name)
        return None if config is None else config.attributes.get(QUEUE_TYPE) == BATCH_QUEUE

    def save(self, then: Callable[[], None] | None = None) -> None:
        self.file.save(lambda: self.snapshot().pretty().encode(), then)

    @property
    def save_error(self) -> OSError | None:
        """The error of the last save; None if it succeeded."""
        return self.file.error

    def when_saved(self, then: Callable[[], None]) -> None:
        """Call `then` once all changes so far are saved, or the save failed (`save_error`)."""
        if not self.unsaved and not self.file.busy:
            then()
            return
        self._waiting.append(then)
        if not self.file.busy:
            self.save(self._saved)

    def _saved(self) -> None:
        if self.file.error is None:
            # The newest content is durable now, so all earlier changes are saved.
            for name in self.unsaved:
                if name not in topic_names.SEND_FORBIDDEN:
                    self.guarded.pop(name, None)
            self.unsaved.clear()
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def snapshot(self, only: Iterable[str] | None = None) -> TopicConfigTable:
        """Return the whole table, or the topics in `only`, with the current version."""
        table = self.by_name if only is None else {name: self.by_name[name] for name in only if name in self.by_name}
        return TopicConfigTable(data_version=self.version, topic_config_table=dict(table))

    def put(self, config: TopicConfig) -> None:
        """Create or replace a topic."""
        self.by_name[config.topic_name] = config
        self._changed([config.topic_name])

    def put_all(self, configs: list[TopicConfig]) -> None:
        """Create or replace topics as one change."""
        for config in configs:
            self.by_name[config.topic_name] = config
        self._changed([config.topic_name for config in configs])

    def follow(self, told: TopicConfigTable) -> list[str]:
        """Replace this table with the master's, keeping system topics. Return the removed names."""
        before, after = self.by_name, told.topic_config_table
        gone = [name for name in before if name not in after and name not in self.system]
        changed = [name for name, config in after.items() if before.get(name) != config]
        for name in gone:
            del before[name]
        before.update(after)
        self.version = told.data_version
        self.save(self._saved)
        if changed:
            self.on_change(changed)
        return gone

    def configure(self, config: NodeConfig) -> None:
        """Take changed live settings."""
        self._config = config

    def adopt(self, queues: Mapping[str, int]) -> list[str]:
        """Create the topics that are missing; `queues` has the number of queues by name.

        A slave that was elected may have messages of a topic that its master had just created.
        Returns the created names.
        """
        missing = [
            TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count, perm=READ_WRITE)
            for name, count in queues.items()
            if name not in self.by_name
        ]
        if missing:
            self.put_all(missing)
        return [each.topic_name for each in missing]

    def delete(self, name: str) -> bool:
        """Delete a topic. Return whether it existed."""
        if self.by_name.pop(name, None) is None:
            return False
        self._touch()
        self.save(self._saved)
        return True

    def create_by_send(
        self, name: str, default_topic: str, queue_count: int, *, unit_mode: bool = False
    ) -> TopicConfig | None:
        """Create a topic for a send, with the settings of the default topic.

        None if the default topic is missing or lacks the inherit bit, if automatic creation is off,
        or if the table is full; a retry topic is created all the same. Always None on a slave.

        Source: `TopicConfigManager.createTopicInSendMessageMethod`.
        """
        default = self.by_name.get(default_topic)
        if self.is_copy:
            return None
        is_retry = name.startswith(topic_names.RETRY_PREFIX)
        sys_flag = (UNIT_SUB if is_retry else UNIT) if unit_mode else 0
        if default is None or not default.perm & PermName.PERM_INHERIT or len(self.by_name) >= TOPICS_MAX:
            return self.create_system(name, 1, sys_flag=sys_flag) if is_retry else None
        if default_topic == topic_names.AUTO_CREATE_TOPIC and not self._config.topics.auto_create_topic_enable:
            return self.create_system(name, 1, sys_flag=sys_flag) if is_retry else None
        queues = max(0, min(queue_count, default.write_queue_nums)) or 1
        config = TopicConfig(
            topic_name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=default.perm & ~PermName.PERM_INHERIT,
            topic_filter_type=default.topic_filter_type,
            topic_sys_flag=sys_flag,
        )
        self.put(config)
        return config

    def create_system(self, name: str, queue_count: int, perm: int = READ_WRITE, *, sys_flag: int = 0) -> TopicConfig:
        """Return a topic that the broker needs itself (retry, dead letters); create it if missing.

        A slave returns a missing topic without adding it to its table.
        """
        config = self.by_name.get(name)
        if config is None:
            config = TopicConfig(
                topic_name=name,
                read_queue_nums=queue_count,
                write_queue_nums=queue_count,
                perm=perm,
                topic_sys_flag=sys_flag,
            )
            if not self.is_copy:
                self.put(config)
        return config

    def _changed(self, changed: list[str]) -> None:
        self._touch()
        for name in changed:
            self.unsaved[name] = self.guarded[name] = None
        self.save(self._saved)
        self.on_change(changed)

    def _touch(self) -> None:
        if not self.is_copy:
            self.version = self.version.next_version(self._clock.wall_ms, self._epoch)

    def _make_system_topics(self) -> None:
        identity, topics = self._config.identity, self._config.topics
        name, cluster = identity.broker_name, identity.broker_cluster_name
        inherit = PermName.PERM_INHERIT | READ_WRITE
        wanted = [
            (topic_names.SELF_TEST_TOPIC, 1, READ_WRITE),
            (topic_names.BENCHMARK_TOPIC, BENCHMARK_QUEUE_COUNT, READ_WRITE),
            (cluster, 16, PermName.PERM_INHERIT | (READ_WRITE if topics.cluster_topic_enable else 0)),
            (name, 1, PermName.PERM_INHERIT | (READ_WRITE if topics.broker_topic_enable else 0)),
            (topic_names.OFFSET_MOVED_EVENT, 1, READ_WRITE),
            (topic_names.SCHEDULE_TOPIC, SCHEDULE_QUEUE_COUNT, READ_WRITE),
            (f"{cluster}_REPLY_TOPIC", 1, READ_WRITE),
            (revive_topic(cluster), self._config.pop.revive_queue_num, READ_WRITE),
            (f"rmq_sys_SYNC_BROKER_MEMBER_{name}", 1, PermName.PERM_INHERIT),
            (topic_names.HALF_TOPIC, 1, READ_WRITE),
            (topic_names.OP_TOPIC, 1, READ_WRITE),
            (topic_names.TIMER_TOPIC, 1, READ_WRITE),
        ]
        if topics.auto_create_topic_enable:
            wanted.insert(1, (topic_names.AUTO_CREATE_TOPIC, topics.default_topic_queue_nums, inherit))
        if topics.trace_topic_enable:
            wanted.append((topics.msg_trace_topic_name, 1, READ_WRITE))
        for topic, queues, perm in wanted:
            self.system[topic] = None
            self.by_name.setdefault(
                topic,
                TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm),
            )
