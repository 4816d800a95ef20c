"""Checks that a checkpoint belongs to the query that resumes from it.

Beside the queues, the offsets hold the names of the clusters (`@clusters`) and a witness
(`@witness`): queue, offset and store time of one message that was stored when the offsets were
made. The cluster's name alone proves little, because most clusters are named DefaultCluster; and
with the offsets of another cluster the query would silently read the wrong messages. If the witness
is no longer in its queue, it proves nothing.
"""

from collections.abc import Mapping
from typing import Any

from rmqkit.errors import ConfigError
from rmqkit.spark.options import SourceOptions
from rmqkit.spark.source.ranges import QueueKey, clusters, flat, topics
from rmqkit.spark.source.topics import Topics, TopicSnapshot

WITNESS = "@witness"


class OtherLog(ConfigError):
    """The offsets of the checkpoint do not seem to belong to the messages in the cluster."""


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


def check_cluster(options: SourceOptions, view: Topics, start: Mapping[str, Any], seen: TopicSnapshot) -> None:
    """Check that the checkpoint is of the cluster that the query reads.

    Raises ConfigError if the cluster's name differs, and OtherLog if no broker is the same or the
    witness differs from the message at its offset.
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
        raise OtherLog(
            f"the checkpoint is of brokers {', '.join(sorted(brokers))}, the query reads {', '.join(sorted(shown))} "
            f"({at}): if that is another cluster, start with a new checkpointLocation, else set failOnDataLoss=false"
        )
    witness = start.get(WITNESS)
    if witness:
        key, offset = QueueKey(witness["topic"], witness["broker"], witness["queue"]), witness["offset"]
        stored_ms = view.stored_ms(key, offset)
        if stored_ms is not None and stored_ms != witness["storeTime"]:
            raise OtherLog(
                "the checkpoint is of another cluster, or of a topic that was deleted and recreated: the message at "
                f"offset {offset} of {key.name} was stored at {witness['storeTime']} according to the checkpoint "
                f"(cluster {', '.join(there)}), but at {stored_ms} in the cluster that the query reads "
                f"({', '.join(here)}, {at}). Start with a new checkpointLocation"
            )
