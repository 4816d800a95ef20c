"""Where a query begins and ends: the options `startingOffsets`, `startingTimestamp`, `endingOffsets`, `endingTimestamp` and
`group`, worked out against what a cluster has.

A queue that JSON offsets do not name begins at its earliest and ends at its latest message, so nothing is passed over that
nobody spoke of. Times are RocketMQ's search by store time (29), which takes times to grow within a queue.
"""

from collections.abc import Mapping

from rmqkit.errors import ConfigError, NoRoute
from rmqkit.spark.option_kinds import EARLIEST, LATEST
from rmqkit.spark.options import SourceOptions
from rmqkit.spark.source.loss import DataLoss, queue_name
from rmqkit.spark.source.ranges import Ends, QueueKey
from rmqkit.spark.source.topics import ClusterView, TopicSnapshot
from rmqkit.suggestions import suggest

GONE = "deleted by the broker's retention (fileReservedTime), or the topic was deleted and made anew"


class OffsetBeyond(DataLoss):
    """A queue ends before the offset that a query stands at; `smallest` is where it ends."""

    def __str__(self) -> str:
        return (
            f"{queue_name(self.topic, self.broker, self.queue)} ends at offset {self.smallest}, and the query stands at "
            f"{self.wanted}; likely cause: {self.cause}. To go on with what is there, set failOnDataLoss=false"
        )


class QueueClosed(DataLoss):
    """A queue has messages that nobody may read any more; `smallest` is where it ends."""

    def __str__(self) -> str:
        return (
            f"{queue_name(self.topic, self.broker, self.queue)} has messages from offset {self.wanted} to {self.smallest} "
            f"that cannot be read any more: {self.cause}. To go on without them, set failOnDataLoss=false"
        )


FEWER = "the topic has fewer read queues than it had (raise readQueueNums until they are read)"
SHORTER = "the topic was deleted and made anew, the broker lost the end of its log, or the offsets are of another cluster"


def check_topics(options: SourceOptions, seen: TopicSnapshot, view: ClusterView) -> None:
    """Raises NoRoute for a topic that is not there, with the nearest name, and for an assigned queue that is not there."""
    for topic in seen.missing:
        hint = suggest(topic, view.all_topics(), "create it first")
        raise NoRoute(f"there is no topic {topic} (name servers {';'.join(options.namesrv)}){hint}")
    if options.subscribe_pattern and options.where == "batch" and not seen.ends and not seen.silent:
        raise NoRoute(f"no topic matches subscribePattern {options.subscribe_pattern!r}")
    for topic, brokers in options.assign.items():
        for broker, queues in brokers.items():
            for queue in queues:
                key = QueueKey(topic, broker, queue)
                if key not in seen.ends and (topic, broker) not in seen.silent:
                    there = ", ".join(f"{each.broker}:{each.queue}" for each in seen.ends if each.topic == topic) or "none"
                    raise NoRoute(f"option assign: {queue_name(*key)} is not there, or cannot be read; of those: {there}")


def begins_of(options: SourceOptions, view: ClusterView, seen: TopicSnapshot) -> Ends:
    """Where each queue begins. Raises ConfigError, DataLoss."""
    if options.starting_timestamp is not None:
        return _by_time(options, view, seen)
    where = options.starting_offsets
    if where == "earliest":
        return dict(seen.begins)
    if where == "latest":
        return dict(seen.ends)
    begins = dict(seen.begins)
    if where == "group":
        group = options.group or options.commit_group
        begins |= view.of_group(group, seen.ends)
        return {key: _kept(options, seen, key, offset) for key, offset in begins.items()}
    assert not isinstance(where, str)
    _check_known("startingOffsets", where, seen)
    for key, offset in where.items():
        if key in seen.ends:
            if offset > seen.ends[key] and (key.topic, key.broker) in seen.by_master:
                raise ConfigError(
                    f"option startingOffsets: {queue_name(*key)} ends at offset {seen.ends[key]}, before {offset}"
                )
            begins[key] = seen.ends[key] if offset == LATEST else _kept(options, seen, key, offset)
    return begins


def ends_of(options: SourceOptions, view: ClusterView, seen: TopicSnapshot, begins: Mapping[QueueKey, int]) -> Ends:
    """Where each queue of a batch ends. Raises ConfigError for an end before its begin, or beyond the queue."""
    ends = dict(seen.ends)
    if options.ending_timestamp is not None:
        ends = found_by_time(view, seen, options.ending_timestamp)
    elif not isinstance(options.ending_offsets, str):
        _check_known("endingOffsets", options.ending_offsets, seen)
        for key, offset in options.ending_offsets.items():
            if offset == LATEST or key not in ends:
                continue
            if offset > ends[key]:
                raise ConfigError(f"option endingOffsets: {queue_name(*key)} ends at offset {ends[key]}, before {offset}")
            if offset < begins.get(key, 0):
                raise ConfigError(
                    f"option endingOffsets: {queue_name(*key)} would end at offset {offset}, and it begins at {begins[key]}"
                )
            ends[key] = offset
    return ends


def found_by_time(view: ClusterView, seen: TopicSnapshot, time_ms: int) -> Ends:
    """The first offset of each queue that was stored then or later, its end when there is none."""
    asked = [key for key in seen.ends if seen.ends[key] > seen.begins[key] and not _is_older(seen, key, time_ms)]
    found = view.at_time(asked, time_ms) if asked else {}
    return {key: min(end, max(seen.begins[key], found.get(key, end))) for key, end in seen.ends.items()}


def _by_time(options: SourceOptions, view: ClusterView, seen: TopicSnapshot) -> Ends:
    time_ms = options.starting_timestamp
    assert time_ms is not None
    filled = [key for key in seen.ends if seen.ends[key] > seen.begins[key]]
    strict = options.starting_offsets_by_timestamp_strategy == "error"
    if strict and filled and all(_is_older(seen, key, time_ms) for key in filled):
        newest = max(seen.newest_ms[key] for key in filled)
        raise ConfigError(
            f"option startingTimestamp: no queue has a message stored at {time_ms} or later, the newest is of {newest}; "
            "startingOffsetsByTimestampStrategy=latest begins with what comes next"
        )
    return found_by_time(view, seen, time_ms)


def _is_older(seen: TopicSnapshot, key: QueueKey, time_ms: int) -> bool:
    """All that the queue has. Brokers of 4.x find their last message then, not the end."""
    newest = seen.newest_ms.get(key, 0)
    return 0 < newest < time_ms


def _kept(options: SourceOptions, seen: TopicSnapshot, key: QueueKey, offset: int) -> int:
    """An offset within its queue. Raises DataLoss, or takes the nearest end; what a slave lacks its master may have."""
    first, last = seen.begins[key], seen.ends[key]
    if offset == EARLIEST:
        return first
    if (key.topic, key.broker) not in seen.by_master:
        return offset
    if options.fail_on_data_loss:
        if offset < first:
            raise DataLoss(*key, offset, first, GONE)
        if offset > last:
            raise OffsetBeyond(*key, offset, last, SHORTER)
    return min(last, max(first, offset))


def _check_known(name: str, offsets: Mapping[QueueKey, int], seen: TopicSnapshot) -> None:
    for key in offsets:
        if key not in seen.ends and (key.topic, key.broker) not in seen.silent:
            there = ", ".join(f"{each.topic} {each.broker}:{each.queue}" for each in seen.ends) or "none"
            raise ConfigError(f"option {name} names {queue_name(*key)}, which the query does not read; it reads: {there}")
