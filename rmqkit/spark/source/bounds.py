"""Determines where a query begins and ends in each queue, and checks its checkpoint.

The options `startingOffsets`, `startingTimestamp`, `endingOffsets`, `endingTimestamp` and `group`
are applied to the current state of the cluster (a `TopicSnapshot`).

A queue that JSON offsets do not name begins at its earliest and ends at its latest message, so it
is not skipped by accident. Times are found by RocketMQ's search by store time (code 29), which
assumes that times increase within a queue.

Beside the queues, the offsets of a checkpoint hold the names of the clusters (`@clusters`) and a
witness (`@witness`): queue, offset and store time of one message that was stored when the offsets
were made. The cluster's name alone proves little, because most clusters are named DefaultCluster;
and with the offsets of another cluster the query would silently read the wrong messages. If the
witness is no longer in its queue, it proves nothing.
"""

from collections.abc import Mapping
from typing import Any

from rmqkit.errors import ConfigError, NoRoute
from rmqkit.spark.option_kinds import EARLIEST, LATEST
from rmqkit.spark.options import SourceOptions
from rmqkit.spark.source.ranges import DataLoss, Ends, OffsetBeyond, QueueKey, clusters, flat, topics
from rmqkit.spark.source.topics import Topics, TopicSnapshot
from rmqkit.suggestions import suggest

GONE = "deleted by the broker's retention (fileReservedTime), or the topic was deleted and recreated"
FEWER = "the topic has fewer read queues than it had (raise readQueueNums until they are read)"
SHORTER = "the topic was deleted and recreated, the broker lost the end of its log, or the offsets are of another cluster"
WITNESS = "@witness"


def check_topics(options: SourceOptions, seen: TopicSnapshot, view: Topics) -> None:
    """Raise NoRoute if a selected topic or an assigned queue does not exist, with a suggestion."""
    for topic in seen.missing:
        hint = suggest(topic, view.all_topics(), "create it first")
        raise NoRoute(f"there is no topic {topic} (name servers {';'.join(options.namesrv)}){hint}")
    if options.subscribe_pattern and options.where == "batch" and not seen.ends and not seen.silent:
        raise NoRoute(f"no topic matches subscribePattern {options.subscribe_pattern!r}")
    for key in sorted(options.assign):
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
            there = ", ".join(map(str, seen.ends)) or "none"
            raise ConfigError(f"option {name} names {key.name}, which the query does not read; it reads: {there}")


def witness_of(ends: Mapping[QueueKey, int], seen: TopicSnapshot) -> dict[str, Any] | None:
    """Return the newest message of the first queue that is read to its end, or None."""
    for key in sorted(ends):
        stored_ms = seen.newest_ms.get(key, 0)
        if stored_ms > 0 and ends[key] == seen.ends[key] > seen.begins[key]:
            return {**key._asdict(), "offset": ends[key] - 1, "storeTime": stored_ms}
    return None


def check_choice(options: SourceOptions, start: Mapping[str, Any]) -> None:
    """Raise ConfigError if the checkpoint has topics or queues that the options do not select."""
    foreign = [str(key) for key in flat(start) if not options.selects(*key)]
    if foreign:
        asked = ", ".join(options.topics) or f"subscribePattern={options.subscribe_pattern}"
        raise ConfigError(
            f"the checkpoint has topics {', '.join(topics(start))}, the query reads {asked}: it leaves out {foreign[0]}. "
            "Select that as well, or start with a new checkpointLocation"
        )


def check_cluster(options: SourceOptions, view: Topics, start: Mapping[str, Any], seen: TopicSnapshot) -> str:
    """Check that the checkpoint is of the cluster that the query reads.

    Raises ConfigError if the cluster has another name. Returns a text if something else says that
    it is another cluster or a new topic, so that the offsets are wrong: none of the checkpoint's
    brokers is here, or the message at the witness's offset was stored at another time. Else "".
    """
    at = f"name servers {';'.join(options.namesrv)}"
    here, there = seen.clusters, clusters(start)
    if here and there and not set(here) & set(there):
        raise ConfigError(
            f"the checkpoint is of cluster {', '.join(there)}, the query reads cluster {', '.join(here)} ({at}): set "
            "namesrv to the checkpoint's cluster, or start with a new checkpointLocation"
        )
    brokers = {key.broker for key in flat(start)}
    shown = {key.broker for key in [*seen.ends, *seen.closed]} | {broker for _, broker in seen.silent}
    if brokers and shown and not brokers & shown:
        return (
            f"the checkpoint is of brokers {', '.join(sorted(brokers))}, the query reads {', '.join(sorted(shown))} "
            f"({at}): if that is another cluster, start with a new checkpointLocation, else set failOnDataLoss=false"
        )
    witness = start.get(WITNESS)
    if witness:
        key, offset = QueueKey(witness["topic"], witness["broker"], witness["queue"]), witness["offset"]
        stored_ms = view.stored_ms(key, offset)
        if stored_ms is not None and stored_ms != witness["storeTime"]:
            return (
                "the checkpoint is of another cluster, or of a topic that was deleted and recreated: the message at "
                f"offset {offset} of {key.name} was stored at {witness['storeTime']} according to the checkpoint "
                f"(cluster {', '.join(there)}), but at {stored_ms} in the cluster that the query reads "
                f"({', '.join(here)}, {at}). Start with a new checkpointLocation"
            )
    return ""
