"""The filter of one pull, in the form that the store uses: by queue entry, then by record.

A pull by tags needs only the queue entry (`by_tags`, cached). Any other expression comes with the
request (`PullSysFlag.SUBSCRIPTION`) or was registered by a heartbeat (`FilterTable`). Then the
store reads the records that the entry does not rule out, and their properties decide.

`ArrivedProperties` decides whether a record that has just arrived wakes a parked pull. It reads the
record once for all pulls parked on the queue, and not at all if none of them filters by properties.

Source: `broker/.../filter/{ExpressionMessageFilter,ExpressionForRetryMessageFilter}.java`,
`broker/.../longpolling/PullRequestHoldService.java` (`notifyMessageArriving`).
"""

from functools import lru_cache
from typing import NamedTuple

from rmqkit.broker.filters.contract import CompiledFilter, FilterError, MatchProperties, Properties
from rmqkit.broker.filters.records import properties_of
from rmqkit.broker.filters.table import FilterTable, GroupFilter
from rmqkit.runtime.connection import Buffer
from rmqkit.store.contract import RecordMatch, StorageEngine, TagMatch
from rmqkit.store.queues.extension import ADDRESS_MAX, ExtUnit
from rmqkit.wire.properties import PROPERTY_RETRY_TOPIC
from rmqkit.wire.topic_names import RETRY_PREFIX


class PullFilter(NamedTuple):
    """Tests of one pull: by tags code, by record, and by properties. None is always true."""

    tags: TagMatch | None = None
    record: RecordMatch | None = None
    #: the same test as `record`, for properties that are decoded already
    properties: MatchProperties | None = None


EVERYTHING = PullFilter()


@lru_cache(maxsize=4096)
def by_tags(codes: tuple[int, ...]) -> PullFilter:
    """Return the filter for any of these tag codes; without codes it matches everything."""
    return PullFilter(frozenset(codes).__contains__) if codes else EVERYTHING


def by_filter(compiled: CompiledFilter) -> PullFilter:
    return _wanted(compiled.match_tags, compiled.match_properties)


class ByBits:
    """Matches queue entries by their bit maps (`enableConsumeQueueExt`).

    The store calls it from `may_match` in `store.queues.extension`.
    """

    __slots__ = ("entry", "tags")

    def __init__(self, entry: GroupFilter, tags: TagMatch | None) -> None:
        self.entry = entry
        self.tags = tags

    def __call__(self, tags_code: int) -> bool:
        return tags_code > ADDRESS_MAX and (self.tags is None or self.tags(tags_code))

    def match_unit(self, unit: ExtUnit) -> bool:
        if self.tags is not None and not self.tags(unit.tags_code):
            return False
        return self.entry.match_bits(unit.store_ms, unit.bits)


def by_registered(entry: GroupFilter, *, has_bit_maps: bool) -> PullFilter:
    """Return the filter of a registered expression. Raises FilterError if it does not compile."""
    wanted = by_filter(entry.compiled)
    return wanted._replace(tags=ByBits(entry, wanted.tags)) if has_bit_maps else wanted


def by_retried_topic(table: FilterTable, retry_topic: str) -> PullFilter:
    """Return the filter for pulls from a retry topic.

    It matches a message by the group's filter of the message's original topic. Messages from topics
    that the group does not filter are wanted.
    """
    group = retry_topic[len(RETRY_PREFIX) :]

    def match(properties: Properties) -> bool:
        entry = table.get(properties.get(PROPERTY_RETRY_TOPIC, ""), group)
        if entry is None:
            return True
        try:
            found = entry.compiled.match_properties
        except FilterError:
            return True
        return found is None or found(properties)

    return _wanted(None, match)


def _wanted(tags: TagMatch | None, match: MatchProperties | None) -> PullFilter:
    if match is None:
        return PullFilter(tags)

    def record(data: Buffer) -> bool:
        return match(properties_of(data))

    return PullFilter(tags, record, match)


class ArrivedProperties:
    """The properties of the record that arrived last, read on demand and cached."""

    def __init__(self, store: StorageEngine) -> None:
        self._store = store
        self._at = ("", -1, -1, -1)
        self._properties: dict[str, str] | None = None

    def is_wanted(self, topic: str, queue_id: int, offset: int, match: MatchProperties) -> bool:
        """Return whether `match` accepts the record at a queue offset.

        A record that cannot be read counts as wanted: the pull that it wakes reads again.
        """
        # The end of the log distinguishes a recreated topic from a deleted one of the same name.
        at = topic, queue_id, offset, self._store.offset_max
        if at != self._at:
            buffers = self._store.read(topic, queue_id, offset, count_max=1, size_max=1).buffers
            self._properties = properties_of(buffers[0]) if buffers else None
            self._at = at
        return self._properties is None or match(self._properties)
