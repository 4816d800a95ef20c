"""The metrics of pop, named as in a scrape of Apache's exporter (with units).

`rocketmq_pop_revive_lag_milliseconds` is a number of messages; the unit in the name is upstream's.
Its meaning differs: in Apache's revive topic, checkpoints arrive when they are due. Here they
arrive with the pop, so the lag counts the messages that are due and not handed out again.

`rocketmq_pop_buffer_scan_time_consume` is left out: no buffer is scanned.

Source: `broker/.../metrics/PopMetricsManager.java`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rmqkit.broker.special.pop.counts import PopCounts
from rmqkit.metrics.families import Family, Sample
from rmqkit.store.contract import PutStatus

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

Samples = Callable[["BrokerView"], Iterator[Sample]]


def _counts(choose: Callable[[PopCounts], Mapping[Any, int]]) -> Samples:
    """Return a function that samples counters; their keys become labels."""

    def samples(broker: BrokerView) -> Iterator[Sample]:
        for key, count in list(choose(broker.revive.counts).items()):
            yield tuple([each.name if isinstance(each, PutStatus) else str(each) for each in key]), count

    return samples


def _due(value: Callable[[int, int], int]) -> Samples:
    """Return a function that samples `value(messages, age in ms)` for each revive queue."""

    def samples(broker: BrokerView) -> Iterator[Sample]:
        revive, wall_ms = broker.revive, broker.clock.wall_ms
        found = dict.fromkeys(range(revive.queue_count), (0, 0))
        for pending in revive.pending if revive.is_on else ():
            if pending.due_ms <= wall_ms:
                messages, age_ms = found.get(pending.revive_queue, (0, 0))
                found[pending.revive_queue] = messages + pending.left, max(age_ms, wall_ms - pending.due_ms)
        for queue_id, (messages, age_ms) in found.items():
            yield (str(queue_id),), value(messages, age_ms)

    return samples


def _one(value: Callable[[BrokerView], int]) -> Samples:
    return lambda broker: iter([((), value(broker))])


_OF_PUT = ("consumer_group", "topic", "revive_message_type", "put_status")
_OF_READ = ("consumer_group", "topic", "queue_id", "revive_message_type")

FAMILIES: tuple[Family, ...] = (
    Family(
        "rocketmq_pop_revive_in_message_total",
        "counter",
        "Checkpoints and acks put into the revive topic",
        _OF_PUT,
        _counts(lambda counts: counts.put),
        switch="pop",
    ),
    Family(
        "rocketmq_pop_revive_out_message_total",
        "counter",
        "Checkpoints and acks read from the revive topic",
        _OF_READ,
        _counts(lambda counts: counts.read),
        switch="pop",
    ),
    Family(
        "rocketmq_pop_revive_retry_messages_total",
        "counter",
        "Messages put into retry topics because their invisible time ended without an ack",
        ("consumer_group", "topic", "put_status"),
        _counts(lambda counts: counts.retried),
        switch="pop",
    ),
    Family(
        "rocketmq_pop_revive_lag_milliseconds",
        "gauge",
        "Messages that are due and not handed out again, by revive queue (the unit in the name is upstream's)",
        ("queue_id",),
        _due(lambda messages, age_ms: messages),
        switch="pop",
    ),
    Family(
        "rocketmq_pop_revive_latency_milliseconds",
        "gauge",
        "How long the oldest of these messages has been due, in ms",
        ("queue_id",),
        _due(lambda messages, age_ms: age_ms),
        switch="pop",
    ),
    Family(
        "rocketmq_pop_checkpoint_buffer_size",
        "gauge",
        "Checkpoints with messages that are not acked",
        (),
        _one(lambda broker: len(broker.revive.pending) if broker.revive.is_on else 0),
        switch="pop",
    ),
    Family(
        "rocketmq_pop_offset_buffer_size",
        "gauge",
        "Queues of a group whose next offset is ahead of the committed one",
        (),
        _one(lambda broker: len(broker.pop_offsets)),
        switch="pop",
    ),
)
