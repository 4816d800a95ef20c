"""Determines where a query begins and ends in each queue.

The options `startingOffsets`, `startingTimestamp`, `endingOffsets`, `endingTimestamp` and `group`
are applied to the current state of the cluster (a `TopicSnapshot`).

A queue that JSON offsets do not name begins at its earliest and ends at its latest message, so it
is not skipped by accident. Times are found by RocketMQ's search by store time (code 29), which
assumes that times increase within a queue.
"""

from collections.abc import Mapping

from rmqkit.errors import ConfigError, NoRoute
from rmqkit.spark.option_kinds import EARLIEST, LATEST
from rmqkit.spark.options import SourceOptions
from rmqkit.spark.source.loss import DataLoss, OffsetBeyond
from rmqkit.spark.source.ranges import Ends, QueueKey
from rmqkit.spark.source.topics import Topics, TopicSnapshot
from rmqkit.suggestions import suggest

GONE = "deleted by the broker's retention (fileReservedTime), or the topic was deleted and recreated"
FEWER = "the topic has fewer read queues than it had (raise readQueueNums until they are read)"
SHORTER = "the topic was deleted and recreated, the broker lost the end of its log, or the offsets are of another cluster"


def check_topics(options: SourceOptions, seen: TopicSnapshot, view: Topics) -> None:
    """Raise NoRoute if a selected topic or an assigned queue does not exist, with a suggestion."""
    for topic in seen.missing:
        hint = suggest(topic, view.all_topics(), "create it first")
        raise NoRoute(f"there is no topic {topic} (name servers {';'.join(options.namesrv)}){hint}")
    if options.subscribe_pattern and options.where == "batch" and not seen.ends and not seen.silent:
        raise NoRoute(f"no topic matches subscribePattern {options.subscribe_pattern!r}")
    for key in options.assign:
        if key not in seen.ends and key.group not in seen.silent:
            there = ", ".join(f"{each.broker}:{each.queue}" for each in seen.ends if each.topic == key.topic) or "none"
            raise NoRoute(f"option assign: {key.name} does not exist or is not readable; readable queues: {there}")


def begins_of(options: SourceOptions, view: Topics, seen: TopicSnapshot) -> Ends:
    """Return the offset where the query begins in each queue. Raises ConfigError or DataLoss."""
    if options.starting_timestamp is not None:
        _check_age(options, seen, options.starting_timestamp)
        return found_by_time(view, seen, options.starting_timestamp)
    where, begins = options.starting_offsets, dict(seen.begins)
    if where == "latest":
        return dict(seen.ends)
    if where == "group":
        begins |= view.of_group(options.group or options.commit_group, seen.ends)
        return {key: _within(options, seen, key, offset) for key, offset in begins.items()}
    if isinstance(where, str):
        return begins
    _check_known("startingOffsets", where, seen)
    for key, offset in where.items():
        if key in seen.ends:
            if offset > seen.ends[key] and key.group in seen.by_master:
                raise ConfigError(f"option startingOffsets: {key.name} ends at offset {seen.ends[key]}, before {offset}")
            begins[key] = seen.ends[key] if offset == LATEST else _within(options, seen, key, offset)
    return begins


def ends_of(options: SourceOptions, view: Topics, seen: TopicSnapshot, begins: Mapping[QueueKey, int]) -> Ends:
    """Return the offset where a batch ends in each queue (exclusive).

    Raises ConfigError for an end before the begin, or beyond the end of the queue.
    """
    if options.ending_timestamp is not None:
        return found_by_time(view, seen, options.ending_timestamp)
    ends = dict(seen.ends)
    if not isinstance(options.ending_offsets, str):
        _check_known("endingOffsets", options.ending_offsets, seen)
        for key, offset in options.ending_offsets.items():
            if offset == LATEST or key not in ends:
                continue
            if offset > ends[key]:
                raise ConfigError(f"option endingOffsets: {key.name} ends at offset {ends[key]}, before {offset}")
            if offset < begins.get(key, 0):
                raise ConfigError(
                    f"option endingOffsets: {key.name} would end at offset {offset}, but begins at {begins[key]}"
                )
            ends[key] = offset
    return ends


def found_by_time(view: Topics, seen: TopicSnapshot, time_ms: int) -> Ends:
    """Return each queue's first offset stored at `time_ms` or later, or else the queue's end."""
    asked = [key for key in _filled(seen) if not _is_older(seen, key, time_ms)]
    found = view.at_time(asked, time_ms) if asked else {}
    return {key: min(end, max(seen.begins[key], found.get(key, end))) for key, end in seen.ends.items()}


def _check_age(options: SourceOptions, seen: TopicSnapshot, time_ms: int) -> None:
    filled = _filled(seen)
    strict = options.starting_offsets_by_timestamp_strategy == "error"
    if strict and filled and all(_is_older(seen, key, time_ms) for key in filled):
        newest = max(seen.newest_ms[key] for key in filled)
        raise ConfigError(
            f"option startingTimestamp: no queue has a message stored at {time_ms} or later, the newest was stored at "
            f"{newest}; to begin with the next message, set startingOffsetsByTimestampStrategy=latest"
        )


def _filled(seen: TopicSnapshot) -> list[QueueKey]:
    return [key for key in seen.ends if seen.ends[key] > seen.begins[key]]


def _is_older(seen: TopicSnapshot, key: QueueKey, time_ms: int) -> bool:
    """Whether all messages of the queue were stored before `time_ms`.

    Such a queue is not searched: brokers of RocketMQ 4.x return the last message, not the end.
    """
    return 0 < seen.newest_ms.get(key, 0) < time_ms


def loss_at(seen: TopicSnapshot, key: QueueKey, offset: int) -> DataLoss | None:
    """Return the error for an offset that is outside its queue, or None.

    If only a slave answered there is none: the master may have what the slave lacks.
    """
    if key.group not in seen.by_master:
        return None
    if offset < seen.begins[key]:
        return DataLoss(key, offset, seen.begins[key], GONE)
    return OffsetBeyond(key, offset, seen.ends[key], SHORTER) if offset > seen.ends[key] else None


def _within(options: SourceOptions, seen: TopicSnapshot, key: QueueKey, offset: int) -> int:
    """Return the offset, moved into the queue if loss is allowed. Raises DataLoss if it is not."""
    if offset == EARLIEST:
        return seen.begins[key]
    error = loss_at(seen, key, offset)
    if error is None:
        return offset
    if options.fail_on_data_loss:
        raise error
    return min(seen.ends[key], max(seen.begins[key], offset))


def _check_known(name: str, offsets: Mapping[QueueKey, int], seen: TopicSnapshot) -> None:
    for key in offsets:
        if key not in seen.ends and key.group not in seen.silent:
            there = ", ".join(f"{each.topic} {each.broker}:{each.queue}" for each in seen.ends) or "none"
            raise ConfigError(f"option {name} names {key.name}, which the query does not read; it reads: {there}")
