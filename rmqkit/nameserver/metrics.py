"""Prometheus metrics of a name server. Apache's name server has none, so the names are our own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rmqkit.access.audit import refusals
from rmqkit.metrics.endpoint import MetricsEndpoint
from rmqkit.metrics.families import Family, Sample
from rmqkit.metrics.node_families import NODE_FAMILIES

if TYPE_CHECKING:
    from rmqkit.nameserver.view import NameServerView


def endpoint(ns: NameServerView) -> MetricsEndpoint:
    return MetricsEndpoint(
        ns,
        FAMILIES,
        {"node_type": "nameserver", "node_id": ns.name},
        ns.config.metrics,
        outbox=ns.outbox,
        clock=ns.clock,
        duties=ns.duties,
        log=ns.ports.log,
        healthy=lambda: not ns.stopping,
    )


def _brokers(ns: NameServerView) -> Iterator[Sample]:
    found = Counter(
        (group.cluster, "master" if broker_id == 0 else "slave")
        for group in ns.routes.groups.values()
        for broker_id in group.members
    )
    yield from found.items()


def _groups(ns: NameServerView) -> Iterator[Sample]:
    yield from Counter((group.cluster,) for group in ns.routes.groups.values()).items()


def _acting(ns: NameServerView) -> Iterator[Sample]:
    yield from Counter((group.cluster,) for group in ns.routes.groups.values() if group.needs_acting_master).items()


FAMILIES: tuple[Family, ...] = (
    Family("rmqkit_brokers", "gauge", "Registered brokers", ("cluster", "role"), _brokers),
    Family("rmqkit_broker_groups", "gauge", "Registered broker names", ("cluster",), _groups),
    Family("rmqkit_acting_masters", "gauge", "Broker names without a master that may have an acting master", ("cluster",),
           _acting),
    Family("rmqkit_min_broker_id_notices_total", "counter", "Notices sent because a group's smallest broker id changed", (),
           lambda ns: [((), ns.notices.sent)]),
    Family("rmqkit_topics", "gauge", "Topics that have a route", (), lambda ns: [((), len(ns.routes.topics))]),
    Family("rmqkit_queues", "gauge", "Queue entries of all routes", (), lambda ns: [((), ns.routes.queue_count)]),
    Family("rmqkit_kv_entries", "gauge", "Entries of the key-value configuration", (),
           lambda ns: [((), sum(map(len, ns.kv.tables.values())))]),
    Family("rmqkit_access_refused_total", "counter", "Requests and connections refused by access control", ("reason",),
           lambda ns: refusals(ns.access.audit)),
    *NODE_FAMILIES,
)  # fmt: skip
