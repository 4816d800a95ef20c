"""Whether a checkpoint belongs to the query that takes it up.

Beside the queues the offsets hold the clusters' names (`@clusters`) and a witness (`@witness`): one message that had been
stored when they were made, by queue, offset and store time. A name says little, as most clusters are called DefaultCluster,
and offsets of another cluster would read the wrong messages without an error. A witness that is gone says nothing.
"""

from collections.abc import Mapping
from typing import Any

from rmqkit.errors import ConfigError
from rmqkit.spark.options import SourceOptions
from rmqkit.spark.source.loss import queue_name
from rmqkit.spark.source.patterns import chosen
from rmqkit.spark.source.ranges import QueueKey, clusters, flat, topics
from rmqkit.spark.source.topics import ClusterView, TopicSnapshot

WITNESS = "@witness"


class OtherLog(ConfigError):
    """The checkpoint's offsets do not seem to be of the messages that are there."""


def witness_of(ends: Mapping[QueueKey, int], seen: TopicSnapshot) -> dict[str, Any] | None:
    """The newest message of the first queue that is read to its end."""
    for key in sorted(ends):
        stored_ms = seen.newest_ms.get(key, 0)
        if stored_ms > 0 and ends[key] == seen.ends[key] > seen.begins[key]:
            queue = {"topic": key.topic, "broker": key.broker, "queue": key.queue}
            return {**queue, "offset": ends[key] - 1, "storeTime": stored_ms}
    return None


def check_choice(options: SourceOptions, start: Mapping[str, Any]) -> None:
    """Raises ConfigError for a checkpoint of topics or queues that the options do not choose."""
    foreign = [str(key) for key in flat(start) if not _chooses(options, key)]
    if foreign:
        asked = ", ".join(options.subscribe or options.assign) or f"subscribePattern={options.subscribe_pattern}"
        raise ConfigError(
            f"the checkpoint is of topics {', '.join(topics(start))}, the query reads {asked}: it leaves out {foreign[0]}. "
            "Choose that as well, or begin with a new checkpointLocation"
        )


def _chooses(options: SourceOptions, key: QueueKey) -> bool:
    if options.subscribe_pattern:
        return chosen(key.topic, options.subscribe_pattern)
    if options.assign:
        return key.queue in options.assign.get(key.topic, {}).get(key.broker, ())
    return key.topic in options.subscribe


def check_cluster(options: SourceOptions, view: ClusterView, start: Mapping[str, Any], seen: TopicSnapshot) -> None:
    """Raises ConfigError for a checkpoint of another cluster by its name, OtherLog by its brokers or its witness."""
    at = f"name servers {';'.join(options.namesrv)}"
    here, there = seen.clusters, clusters(start)
    if here and there and not set(here) & set(there):
        raise ConfigError(
            f"the checkpoint is of cluster {', '.join(there)}, the query reads cluster {', '.join(here)} ({at}): set "
            "namesrv to the other one, or begin with a new checkpointLocation"
        )
    brokers = {key.broker for key in flat(start)}
    shown = {key.broker for key in [*seen.ends, *seen.closed]} | {broker for _, broker in seen.silent}
    if brokers and shown and not brokers & shown:
        raise OtherLog(
            f"the checkpoint is of brokers {', '.join(sorted(brokers))}, the query reads {', '.join(sorted(shown))} "
            f"({at}): if that is another cluster begin with a new checkpointLocation, else set failOnDataLoss=false"
        )
    witness = start.get(WITNESS)
    if witness:
        key, offset = QueueKey(witness["topic"], witness["broker"], witness["queue"]), witness["offset"]
        stored_ms = view.stored_ms(key, offset)
        if stored_ms is not None and stored_ms != witness["storeTime"]:
            raise OtherLog(
                "the checkpoint is of another cluster, or of a topic that was made anew: the message at offset "
                f"{offset} of {queue_name(*key)} was stored at {witness['storeTime']} there (cluster {', '.join(there)}), "
                f"and at {stored_ms} here (cluster {', '.join(here)}, {at}). Begin with a new checkpointLocation"
            )
