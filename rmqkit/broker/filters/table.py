"""The filters that groups registered by heartbeat, by topic and group, and consumerFilter.json.

A subscription of a type other than TAG becomes an entry with:

- its expression,
- the version that the client gave it: a newer version replaces the entry, and one that does not
  compile removes it,
- the group's bits in the bit maps of the topic.

An entry outlives its group by `filterDataCleanTimeSpan` (24 h), so that consumers that restart find
bit maps with their bits. Entries that a starting broker loads count as dead until the group's next
heartbeat. If they belong to bit maps of other sizes (another `maxErrorRateOfBloomFilter` or
`expectConsumerNumUseFilter`), all of them are dropped.

An expression is compiled when it is registered or first used, never at a start.

Source: `broker/.../filter/{ConsumerFilterManager,ConsumerFilterData}.java`,
`broker/.../filter/CommitLogDispatcherCalcBitMap.java`.
"""

from collections.abc import Callable, Collection, Iterable

from rmqkit.broker.filters.bloom import Bloom, mask_of
from rmqkit.broker.filters.contract import CompiledFilter, FilterError
from rmqkit.broker.filters.filter_cache import Filters
from rmqkit.config import FilterSettings
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.ports import Clock, Disk
from rmqkit.wire import properties as props
from rmqkit.wire.bodies import SubscriptionData
from rmqkit.wire.bodies.filters import ConsumerFilterData, ConsumerFilterTable, FilterDataByTopic

#: limit of (topic, group) pairs; a further one is not registered, and its pulls get the reason
FILTERS_MAX = 10_000
#: interval of sweeps and saves
SAVE_MS = 10_000
#: entries loaded at a start count as dead since this long before the start
_DEAD_BEFORE_START_MS = 30_000


class GroupFilter:
    """One group's filter of one topic."""

    __slots__ = ("_compiled", "_filters", "data", "mask")

    def __init__(self, data: ConsumerFilterData, filters: Filters) -> None:
        self.data = data
        self.mask = mask_of(data.bloom_filter_data) if data.bloom_filter_data is not None else 0
        self._filters = filters
        self._compiled: CompiledFilter | None = None

    @property
    def compiled(self) -> CompiledFilter:
        """The compiled expression. Raises FilterError if it does not compile."""
        if self._compiled is None:
            self._compiled = self._filters.compile(self.data.expression_type or "", self.data.expression or "")
        return self._compiled

    @property
    def is_dead(self) -> bool:
        """Whether the group went offline or dropped the topic, and has not subscribed again."""
        return self.data.dead_time >= self.data.born_time

    def match_bits(self, store_ms: int, bits: bytes) -> bool:
        """Return whether the group may want a message, by the bit map made when it was stored.

        Bit maps from before this entry, or of another size, say nothing: the message may be wanted.
        """
        data = self.data
        if store_ms <= data.born_time or not self.mask or data.bloom_filter_data is None:
            return True
        if len(bits) * 8 != data.bloom_filter_data.bit_num:
            return True
        return int.from_bytes(bits, "little") & self.mask == self.mask


class FilterTable:
    """The entries of all groups, by topic and group; at most `FILTERS_MAX`."""

    def __init__(self, disk: Disk, clock: Clock, folder: str, filters: Filters, settings: FilterSettings) -> None:
        self.filters = filters
        self.by_topic: dict[str, dict[str, GroupFilter]] = {}
        self.count = 0
        self.bloom = Bloom(
            error_percent=settings.max_error_rate_of_bloom_filter, groups=settings.expect_consumer_num_use_filter
        )
        self._clock = clock
        self._file = AtomicFile(disk, f"{folder}/consumerFilter.json")
        self._topics_of: dict[str, dict[str, None]] = {}
        self._dirty = False

    # --- the file

    def load(self) -> None:
        """Load the saved entries. Raises AtomicFileDamaged."""
        loaded = self._file.load(ConsumerFilterTable.decode)
        if loaded is None:
            return
        found = [
            (topic, group, data)
            for topic, of_topic in loaded.filter_data_by_topic.items()
            for group, data in of_topic.group_filter_data.items()
        ]
        if not all(self.bloom.is_valid(data.bloom_filter_data) for _, _, data in found):
            return
        dead_ms = self._clock.wall_ms - _DEAD_BEFORE_START_MS
        for topic, group, data in found[:FILTERS_MAX]:
            if data.dead_time == 0:
                data.dead_time = max(dead_ms, data.born_time)
            self._put(topic, group, GroupFilter(data, self.filters))
        self._dirty = False

    def save(self, then: Callable[[], None] | None = None) -> None:
        """Save if anything changed or the last save failed. `then` is called in either case."""
        is_changed, self._dirty = self._dirty, False
        self._file.save_if(is_changed, lambda: self.snapshot().pretty().encode(), then)

    def snapshot(self) -> ConsumerFilterTable:
        for groups in self.by_topic.values():
            for entry in groups.values():
                entry.data.dead = entry.is_dead
        return ConsumerFilterTable(
            filter_data_by_topic={
                topic: FilterDataByTopic(
                    topic=topic, group_filter_data={group: entry.data for group, entry in groups.items()}
                )
                for topic, groups in self.by_topic.items()
            }
        )

    # --- entries

    def get(self, topic: str, group: str) -> GroupFilter | None:
        groups = self.by_topic.get(topic)
        return None if groups is None else groups.get(group)

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Apply the subscriptions in a group's heartbeat."""
        topics: dict[str, None] = {}
        for each in subscriptions:
            topics[each.topic] = None
            if not each.is_tag_type and each.sub_string:
                self._register(group, each)
        for topic in self._topics_of.get(group, ()):
            if topic not in topics:
                self._mark_dead(self.by_topic[topic][group])

    def _register(self, group: str, subscription: SubscriptionData) -> None:
        topic, version = subscription.topic, subscription.sub_version
        known = self.get(topic, group)
        if known is not None:
            data = known.data
            if version < data.client_version:
                return
            is_same = (data.expression, data.expression_type) == (subscription.sub_string, subscription.expression_type)
            if is_same or version == data.client_version:
                if version > data.client_version or known.is_dead:
                    data.client_version = version
                    data.dead_time = 0
                    self._dirty = True
                return
        elif self.count >= FILTERS_MAX:
            return
        entry = GroupFilter(
            ConsumerFilterData(
                bloom_filter_data=self.bloom.data(group, topic),
                born_time=self._clock.wall_ms,
                client_version=version,
                consumer_group=group,
                expression=subscription.sub_string,
                expression_type=subscription.expression_type,
                topic=topic,
            ),
            self.filters,
        )
        try:
            entry.compiled  # noqa: B018
        except FilterError:
            # The group's pulls are refused, with the reason (`why_not`).
            if known is not None:
                self._remove(topic, group)
            return
        self._put(topic, group, entry)

    def sweep(self, online: Collection[str], span_ms: int) -> None:
        """Mark entries of offline groups dead, and remove entries that were dead for `span_ms`."""
        now_ms = self._clock.wall_ms
        for group in list(self._topics_of):
            for topic in list(self._topics_of[group]):
                entry = self.by_topic[topic][group]
                if entry.is_dead:
                    if now_ms - entry.data.dead_time >= span_ms:
                        self._remove(topic, group)
                elif group not in online:
                    self._mark_dead(entry)

    def _put(self, topic: str, group: str, entry: GroupFilter) -> None:
        groups = self.by_topic.setdefault(topic, {})
        self.count += group not in groups
        groups[group] = entry
        self._topics_of.setdefault(group, {})[topic] = None
        self._dirty = True

    def _remove(self, topic: str, group: str) -> None:
        del self.by_topic[topic][group]
        if not self.by_topic[topic]:
            del self.by_topic[topic]
        del self._topics_of[group][topic]
        if not self._topics_of[group]:
            del self._topics_of[group]
        self.count -= 1
        self._dirty = True

    def _mark_dead(self, entry: GroupFilter) -> None:
        if not entry.is_dead:
            entry.data.dead_time = self._clock.wall_ms
            self._dirty = True

    def why_not(self, subscription: SubscriptionData) -> str:
        """Return why a subscription has no entry."""
        try:
            self.filters.compile(subscription.expression_type or "", subscription.sub_string)
        except FilterError as error:
            return str(error)
        if self.count >= FILTERS_MAX:
            return f"the broker has {FILTERS_MAX} filters, its limit, and takes no more"
        return "the broker has not received the group's heartbeat yet"

    # --- bit maps

    def bit_map(self, topic: str, properties: bytes) -> bytes:
        """Return the bits of all groups that want a message; empty if none filters the topic."""
        groups = self.by_topic.get(topic)
        if not groups:
            return b""
        decoded = props.decode(properties)
        bits = 0
        for entry in groups.values():
            try:
                match = entry.compiled.match_properties
            except FilterError:
                continue
            if match is None or match(decoded):
                bits |= entry.mask
        return bits.to_bytes(self.bloom.bits // 8, "little")
