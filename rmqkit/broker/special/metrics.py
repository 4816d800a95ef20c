"""Metrics of timers and transactions, named as in a scrape of Apache's exporter (with units).

Source: `store/.../metrics/DefaultStoreMetricsManager.java`,
`broker/.../metrics/BrokerMetricsManager.java` (`initTransactionMetrics`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from rmqkit.broker.special.timer.index import DELAY_BOUNDS_S
from rmqkit.broker.special.transactions.counts import LATENCY_BOUNDS_S
from rmqkit.metrics.families import Family, Sample

if TYPE_CHECKING:
    from rmqkit.broker.special.transactions.checks import TransactionChecks
    from rmqkit.broker.view import BrokerView

#: labels of the store, and their values
STORE = ("storage_type", "storage_medium")
LOCAL = ("local", "disk")
#: bounds of `rocketmq_timer_message_snapshot`, in s (`TimerMetrics.timerDist`)
TIMER_BOUNDS_S = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)


def _gauge(value: Callable[[BrokerView], float]) -> Callable[[BrokerView], Iterator[Sample]]:
    return lambda broker: iter([(LOCAL, value(broker))])


def _timers(counts: Callable[[BrokerView], Mapping[str, int]]) -> Callable[[BrokerView], Iterator[Sample]]:
    return lambda broker: (((topic, *LOCAL), count) for topic, count in list(counts(broker).items()))


def _timer_bounds(broker: BrokerView) -> Iterator[Sample]:
    before_s = 0
    for end_s in TIMER_BOUNDS_S:
        yield (str(end_s), *LOCAL), broker.timers.counts.within(before_s, end_s)
        before_s = end_s


def _timer_delays(broker: BrokerView) -> Iterator[Sample]:
    for topic, histogram in broker.timers.index.delays_s.items():
        yield (topic, *LOCAL), histogram


def _by_topic(counts: Callable[[TransactionChecks], Mapping[str, int]]) -> Callable[[BrokerView], Iterator[Sample]]:
    return lambda broker: (((topic,), count) for topic, count in list(counts(broker.transactions).items()))


def _finish_latency(broker: BrokerView) -> Iterator[Sample]:
    for topic, histogram in broker.transactions.counts.latency_s.items():
        yield (topic,), histogram


TIMER_FAMILIES: tuple[Family, ...] = (
    Family("rocketmq_timer_enqueue_lag", "gauge", "Timer messages stored but not indexed yet", STORE,
           _gauge(lambda broker: broker.timers.counts.unread), switch="message_store"),
    Family("rocketmq_timer_dequeue_lag", "gauge", "Timer messages that wait", STORE,
           _gauge(lambda broker: broker.timers.counts.waiting), switch="message_store"),
    Family("rocketmq_timer_dequeue_latency_milliseconds", "gauge", "How far the delivery is behind the clock, in ms", STORE,
           _gauge(lambda broker: broker.timers.behind_ms), switch="message_store"),
    Family("rocketmq_timing_messages", "gauge", "Timer messages that wait, by topic", ("topic", *STORE),
           _timers(lambda broker: broker.timers.counts.topics.by_topic()),
           switch="message_store"),
    Family("rocketmq_timer_enqueue_latency_milliseconds", "gauge", "Age of the oldest timer message not indexed yet", STORE,
           _gauge(lambda broker: broker.timers.counts.unread_ms), switch="message_store"),
    Family("rocketmq_timer_enqueue_total", "counter", "Timer messages indexed", ("topic", *STORE),
           _timers(lambda broker: broker.timers.index.indexed), switch="message_store"),
    Family("rocketmq_timer_dequeue_total", "counter", "Timer messages delivered, or stored again for a later turn",
           ("topic", *STORE), _timers(lambda broker: broker.timers.delivery.delivered), switch="message_store"),
    Family("rocketmq_timer_message_snapshot", "gauge",
           "Timer messages that are due within so many seconds, and not within the bound before", ("timer_bound_s", *STORE),
           _timer_bounds, switch="message_store"),
    Family("rocketmq_delay_message_latency_seconds", "histogram", "Delays of the timer messages that were indexed",
           ("topic", *STORE), _timer_delays, DELAY_BOUNDS_S, switch="message_store"),
)  # fmt: skip

TRANSACTION_FAMILIES: tuple[Family, ...] = (
    Family("rocketmq_half_messages", "gauge", "Half messages without an outcome", ("topic",),
           _by_topic(lambda checks: checks.waiting()), switch="transactions"),
    Family("rocketmq_commit_messages_total", "counter", "Half messages that were committed", ("topic",),
           _by_topic(lambda checks: checks.counts.committed), switch="transactions"),
    Family("rocketmq_rollback_messages_total", "counter", "Half messages that were rolled back", ("topic",),
           _by_topic(lambda checks: checks.counts.rolled_back), switch="transactions"),
    Family("rocketmq_finish_message_latency_milliseconds", "histogram",
           "Seconds from the birth of a half message to its commit; the unit in the name is Apache's", ("topic",),
           _finish_latency, LATENCY_BOUNDS_S, switch="transactions"),
)  # fmt: skip
