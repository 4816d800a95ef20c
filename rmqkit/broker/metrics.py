"""Prometheus metrics of a broker, named as in a scrape of Apache's exporter (with units).

Nothing is counted here. Each scrape reads the counters of `statistics.py`, the tables of topics,
groups, offsets and clients, and the facts of the store. Only `rocketmq_rpc_latency_milliseconds`
costs time on every request, so it has its own switch (`rpcLatencyMetrics`).

Consumer lag is reported for every group that is online or has committed offsets (Apache: only for
groups that are online). A queue without a committed offset counts as consumed up to the group's
last pull, or to its end if the group never pulled it. The label `message_type` is the type of the
topic; Apache examines each message. `special/metrics.py` has the metrics of timers and
transactions.

Source: `broker/.../metrics/{BrokerMetricsManager,ConsumerLagCalculator}.java`,
`store/.../metrics/DefaultStoreMetricsManager.java`,
`remoting/.../metrics/RemotingMetricsManager.java`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqkit.access.audit import refusals
from rmqkit.broker.names import is_system_topic
from rmqkit.broker.roles import runtime_info
from rmqkit.broker.special.metrics import STORE, TIMER_FAMILIES, TRANSACTION_FAMILIES
from rmqkit.broker.special.pop.metrics import FAMILIES as POP_FAMILIES
from rmqkit.broker.statistics import SIZE_BOUNDS
from rmqkit.metrics.endpoint import MetricsEndpoint
from rmqkit.metrics.families import Family, Sample
from rmqkit.metrics.histogram import HistogramTable
from rmqkit.metrics.latency import BOUNDS, Latency
from rmqkit.metrics.latency import LABELS as LATENCY_LABELS
from rmqkit.metrics.node_families import requests
from rmqkit.wire.codes import Version
from rmqkit.wire.topic_names import DLQ_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView
    from rmqkit.runtime.connection import Outbox

SYSTEM_GROUP_PREFIX = "cid_rmq_sys_"
GROUP = ("consumer_group", "topic", "is_retry", "is_system")
#: upstream's names of the consume modes (`ConsumeType.getTypeCN`)
CONSUME_MODES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
UNKNOWN = "unknown"


def endpoint(broker: BrokerView, outbox: Outbox) -> MetricsEndpoint:
    """Return a broker's metrics endpoint. Starts to measure request latency if that is enabled."""
    settings = broker.config.metrics
    identity = broker.config.identity
    is_on = {
        "": True,
        "connection": settings.connection,
        "lag_and_dlq": settings.lag_and_dlq,
        "message_store": settings.message_store,
        "pop": broker.config.pop.metrics,
        "remoting": settings.remoting,
        "request": settings.request,
        "stats": settings.stats,
        "transactions": broker.config.transactions.metrics,
    }
    if settings.request:
        broker.statistics.sizes = HistogramTable(SIZE_BOUNDS)
    families = [each for each in FAMILIES if is_on[each.switch]]
    if settings.remoting and settings.rpc_latency:
        latency = Latency()
        broker.remoting.measure(latency.call, latency.record)
        families.append(latency_family(latency))
    return MetricsEndpoint(
        broker,
        families,
        {"cluster": identity.broker_cluster_name, "node_type": "broker", "node_id": identity.broker_name},
        settings,
        outbox=outbox,
        clock=broker.clock,
        duties=broker.duties,
        log=broker.log,
        healthy=lambda: broker.serving and not broker.stopping and not broker.store.failed,
    )


def latency_family(latency: Latency) -> Family:
    """Return the histogram of request latencies, in ms."""
    return Family(
        "rocketmq_rpc_latency_milliseconds",
        "histogram",
        "Time from the turn that received a request to the turn that answered it; parked pulls have is_long_polling",
        LATENCY_LABELS,
        lambda broker: latency.samples(),
        BOUNDS,
        "remoting",
    )


def flag(value: bool) -> str:
    return "true" if value else "false"


def is_system(topic: str, group: str = "") -> bool:
    """Return whether the topic or the group belongs to the system."""
    return is_system_topic(topic) or group.lower().startswith(SYSTEM_GROUP_PREFIX)


# --- messages


def message_type(broker: BrokerView, topic: str) -> str:
    """Return the topic's attribute `message.type` in lower case; "normal" if it has none."""
    config = broker.topics.by_name.get(topic)
    attributes: Any = getattr(config, "attributes", None) or {}
    return str(attributes.get("message.type", "normal")).lower()


def _in(broker: BrokerView, field: str) -> Iterator[Sample]:
    for topic, count in list(broker.statistics.puts.table.items()):
        yield (topic, message_type(broker, topic), flag(is_system(topic))), getattr(count, field)


def _out(broker: BrokerView, field: str) -> Iterator[Sample]:
    for (topic, group), count in list(broker.statistics.gets.table.items()):
        yield (topic, group, flag(topic.startswith(RETRY_PREFIX)), flag(is_system(topic, group))), getattr(count, field)


def _dead_letters(broker: BrokerView) -> Iterator[Sample]:
    for topic, count in list(broker.statistics.puts.table.items()):
        if topic.startswith(DLQ_PREFIX):
            group = topic[len(DLQ_PREFIX) :]
            yield (group, flag(is_system(topic, group))), count.messages


# --- consumers


class GroupLag(NamedTuple):
    """Lag of a group in one topic, in messages. Times are store times in ms, 0 if nothing waits."""

    #: not committed, and the earliest of these messages
    lag: int = 0
    lag_from_ms: int = 0
    #: pulled but not committed, or popped but not acked
    inflight: int = 0
    #: not pulled, and the earliest of these messages
    ready: int = 0
    ready_from_ms: int = 0


def pairs(broker: BrokerView) -> list[tuple[str, str]]:
    """Return (group, topic) of all subscriptions and committed offsets whose topic exists."""
    found: dict[tuple[str, str], None] = {}
    for group in broker.clients.consumers.values():
        for topic in group.subscriptions:
            found[group.name, topic] = None
    for key in broker.offsets.table:
        topic, _, name = key.partition("@")
        found[name, topic] = None
    return [pair for pair in found if pair[1] in broker.topics.by_name]


def behind(broker: BrokerView, group: str, topic: str) -> GroupLag:
    """Return a group's lag in a topic, summed over the queues, with the earliest of the times."""
    config = broker.topics.by_name.get(topic)
    lag = inflight = ready = lag_from_ms = ready_from_ms = 0
    for queue_id in range(0 if config is None else config.write_queue_nums):
        end = broker.store.queue_range(topic, queue_id).offset_max
        committed = broker.offsets.query(group, topic, queue_id)
        pulled = broker.statistics.pulled(topic, group, queue_id)
        if committed < 0:
            committed = end if pulled < 0 else pulled
        if pulled < 0:
            pulled = committed
        lag += max(0, end - committed)
        inflight += max(0, pulled - committed) + broker.revive.pending.in_flight.get((topic, group, queue_id), 0)
        ready += max(0, end - pulled)
        if end > committed:
            lag_from_ms = _earlier(lag_from_ms, broker.store.store_time(topic, queue_id, committed))
        if end > pulled:
            ready_from_ms = _earlier(ready_from_ms, broker.store.store_time(topic, queue_id, pulled))
    return GroupLag(lag, lag_from_ms, inflight, ready, ready_from_ms)


def _earlier(one_ms: int, other_ms: int) -> int:
    """Return the earlier of two times; a time of 0 or less is unknown. 0 if both are unknown."""
    known = [each for each in (one_ms, other_ms) if each > 0]
    return min(known, default=0)


def _behind(value: Callable[[GroupLag, int], int]) -> Callable[[BrokerView], Iterator[Sample]]:
    def samples(broker: BrokerView) -> Iterator[Sample]:
        for group, topic in pairs(broker):
            labels = (group, topic, flag(topic.startswith(RETRY_PREFIX)), flag(is_system(topic, group)))
            yield labels, value(behind(broker, group, topic), broker.clock.wall_ms)

    return samples


# --- clients


def _producers(broker: BrokerView) -> Iterator[Sample]:
    found = Counter(
        (*_client(member.language, member.version), "remoting")
        for members in broker.clients.producers.values()
        for member in members.values()
    )
    yield from found.items()


def _consumers(broker: BrokerView) -> Iterator[Sample]:
    found = Counter(
        (
            group.name,
            *_client(member.language, member.version),
            CONSUME_MODES.get(group.consume_type, "unknown"),
            "remoting",
            flag(group.name.lower().startswith(SYSTEM_GROUP_PREFIX)),
        )
        for group in broker.clients.consumers.values()
        for member in group.members.values()
    )
    yield from found.items()


def _client(language: Any, version: int) -> tuple[str, str]:
    try:
        return str(language).lower(), Version(version).name.lower()
    except ValueError:  # not the number of a known release
        return str(language).lower(), UNKNOWN


# --- the node itself


def _one(value: Callable[[Any], float], *labels: str) -> Callable[[BrokerView], list[Sample]]:
    return lambda broker: [(labels, value(broker))]


def _waiting(broker: BrokerView) -> Iterator[Sample]:
    yield ("send",), len(broker.puts)
    yield ("pull",), broker.arrivals.count


def _fact(key: str) -> Callable[[BrokerView], list[Sample]]:
    """Return a function that samples a numeric fact of the engine, if the engine has it."""

    def samples(broker: BrokerView) -> list[Sample]:
        text = broker.store.facts().get(key, "")
        return [(("local", "disk"), int(text))] if text.isdigit() else []

    return samples


def _storage_size(broker: BrokerView) -> list[Sample]:
    usage = broker.ports.disk.usage("")
    return [(("local", "disk"), usage.total - usage.free)]


def _reserve_time(broker: BrokerView) -> list[Sample]:
    earliest_ms = int(broker.store.facts().get("earliestMessageTimeStamp", -1))
    return [(("local", "disk"), max(0, broker.clock.wall_ms - earliest_ms))] if earliest_ms > 0 else []


def _sizes(broker: BrokerView) -> Iterator[Sample]:
    for topic, histogram in broker.statistics.sizes.items() if broker.statistics.sizes is not None else ():
        yield (topic, message_type(broker, topic), flag(is_system(topic))), histogram


FAMILIES: tuple[Family, ...] = (
    Family("rocketmq_processor_watermark", "gauge", "Waiting calls: puts for the disk, pulls for messages",
           ("processor",), _waiting, switch="stats"),
    Family("rocketmq_broker_permission", "gauge", "Permission of the broker: sum of 4 (read) and 2 (write)", (),
           _one(lambda broker: broker.config.topics.broker_permission), switch="stats"),
    Family("rocketmq_topic_number", "gauge", "Topics", (), _one(lambda broker: len(broker.topics.by_name)),
           switch="stats"),
    Family("rocketmq_consumer_group_number", "gauge", "Subscription groups", (),
           _one(lambda broker: len(broker.groups.by_name)), switch="stats"),
    Family("rocketmq_messages_in_total", "counter", "Messages stored", ("topic", "message_type", "is_system"),
           lambda broker: _in(broker, "messages"), switch="request"),
    Family("rocketmq_throughput_in_total", "counter", "Bytes stored", ("topic", "message_type", "is_system"),
           lambda broker: _in(broker, "size"), switch="request"),
    Family("rocketmq_message_size", "histogram", "Bytes of a stored message", ("topic", "message_type", "is_system"),
           _sizes, SIZE_BOUNDS, switch="request"),
    Family("rocketmq_messages_out_total", "counter", "Messages delivered to consumers",
           ("topic", "consumer_group", "is_retry", "is_system"), lambda broker: _out(broker, "messages"),
           switch="request"),
    Family("rocketmq_throughput_out_total", "counter", "Bytes delivered to consumers",
           ("topic", "consumer_group", "is_retry", "is_system"), lambda broker: _out(broker, "size"), switch="request"),
    Family("rocketmq_producer_connections", "gauge", "Connected producers",
           ("language", "version", "protocol_type"), _producers, switch="connection"),
    Family("rocketmq_consumer_connections", "gauge", "Connected consumers",
           ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"), _consumers,
           switch="connection"),
    Family("rocketmq_consumer_lag_messages", "gauge", "Messages that a group has not consumed yet", GROUP,
           _behind(lambda each, now_ms: each.lag), switch="lag_and_dlq"),
    Family("rocketmq_consumer_lag_latency_milliseconds", "gauge", "Age of the oldest message not consumed yet", GROUP,
           _behind(lambda each, now_ms: max(0, now_ms - each.lag_from_ms) if each.lag_from_ms else 0),
           switch="lag_and_dlq"),
    Family("rocketmq_consumer_inflight_messages", "gauge",
           "Messages pulled and not committed, or popped and not acked", GROUP,
           _behind(lambda each, now_ms: each.inflight), switch="lag_and_dlq"),
    Family("rocketmq_consumer_ready_messages", "gauge", "Messages not pulled yet", GROUP,
           _behind(lambda each, now_ms: each.ready), switch="lag_and_dlq"),
    Family("rocketmq_consumer_queueing_latency_milliseconds", "gauge", "Age of the oldest message not pulled yet", GROUP,
           _behind(lambda each, now_ms: max(0, now_ms - each.ready_from_ms) if each.ready_from_ms else 0),
           switch="lag_and_dlq"),
    Family("rocketmq_send_to_dlq_messages_total", "counter", "Messages sent to a dead-letter topic",
           ("consumer_group", "is_system"), _dead_letters, switch="lag_and_dlq"),
    Family("rocketmq_storage_size_bytes", "gauge", "Bytes used on the disk of the store", STORE, _storage_size,
           switch="message_store"),
    Family("rocketmq_storage_flush_behind_bytes", "gauge", "Bytes of the log not synced yet", STORE,
           _fact("remainHowManyDataToFlush"), switch="message_store"),
    Family("rocketmq_storage_dispatch_behind_bytes", "gauge", "Bytes of the log not dispatched to the queues yet", STORE,
           _fact("dispatchBehindBytes"), switch="message_store"),
    Family("rocketmq_storage_message_reserve_time_milliseconds", "gauge", "Age of the oldest stored message", STORE,
           _reserve_time, switch="message_store"),
    *TIMER_FAMILIES,
    *TRANSACTION_FAMILIES,
    Family("rmqkit_requests_total", "counter", "Requests taken", ("request_code",), requests, switch="remoting"),
    Family("rmqkit_access_refused_total", "counter", "Requests and connections refused by access control", ("reason",),
           lambda broker: refusals(broker.access.audit), switch="stats"),
    Family("rmqkit_access_changes_total", "counter", "Changes of users and access rules", (),
           _one(lambda broker: broker.access.audit.change_count), switch="stats"),
    Family("rmqkit_puts_failed_total", "counter", "Puts refused by the store or lost in a failed write", (),
           _one(lambda broker: broker.puts.failed_count), switch="message_store"),
    Family("rmqkit_broker_role", "gauge", "1 for the broker's current role and online state, 0 for all others",
           ("role", "online"), lambda broker: runtime_info.samples(broker.roles), switch="stats"),
    Family("rmqkit_role_changes_total", "counter", "Changes of the role or of the online state", (),
           _one(lambda broker: broker.role.change_count), switch="stats"),
    Family("rmqkit_escape_waiting_messages", "gauge",
           "Due messages of an acting master that no other master has stored yet, including those in a spool", (),
           _one(lambda broker: broker.escape.waiting()), switch="message_store"),
    Family("rmqkit_escaped_messages_total", "counter",
           "Messages that an acting master has moved to another master or to a spool", (),
           _one(lambda broker: broker.escape.escaped), switch="message_store"),
    Family("rmqkit_uptime_seconds", "gauge", "Seconds since the broker started", (),
           _one(lambda broker: max(0, broker.clock.wall_ms - broker.statistics.boot_ms) // 1000), switch="stats"),
    *POP_FAMILIES,
)  # fmt: skip
