"""Prometheus metrics of a controller.

`role` and `active_broker_num` have the names and values of Apache's controller; the others are our
own. Only the leader knows what it decided, but each controller has the table: the series of broker
sets are on all of them.

Source: `controller/.../metrics/ControllerMetricsManager.java`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rmqkit.access.audit import refusals
from rmqkit.metrics.endpoint import MetricsEndpoint
from rmqkit.metrics.families import Family, Sample
from rmqkit.metrics.node_families import NODE_FAMILIES

if TYPE_CHECKING:
    from rmqkit.controller.node import Controller
    from rmqkit.controller.sets.table import BrokerSet

#: values of `role`
UNKNOWN, CANDIDATE, FOLLOWER, LEADER = range(4)
_OF_SET = ("cluster", "broker_set")


def endpoint(controller: Controller) -> MetricsEndpoint:
    group = controller.group
    return MetricsEndpoint(
        controller,
        FAMILIES,
        {"node_type": "controller", "node_id": controller.name, "group": group.name, "peer_id": group.self_id},
        controller.config.metrics,
        outbox=controller.outbox,
        clock=controller.clock,
        duties=controller.duties,
        log=controller.ports.log,
        healthy=lambda: not controller.stopping and not controller.log.failed,
    )


def _role(controller: Controller) -> Iterator[Sample]:
    leadership = controller.log.leadership
    if controller.log.failed:
        role = UNKNOWN
    elif not leadership.id:
        role = CANDIDATE
    else:
        role = LEADER if leadership.is_self else FOLLOWER
    yield (), role


def _active(controller: Controller) -> Iterator[Sample]:
    yield from Counter((live.cluster, name) for (name, _), live in controller.live.items()).items()


def _log_fact(name: str) -> Callable[[Controller], Iterator[Sample]]:
    def samples(controller: Controller) -> Iterator[Sample]:
        value = controller.log.facts().get(name, "")
        if value.isdigit():
            yield (), int(value)

    return samples


def _of_sets(value: Callable[[BrokerSet], int]) -> Callable[[Controller], Iterator[Sample]]:
    def samples(controller: Controller) -> Iterator[Sample]:
        for each in controller.sets.sets.values():
            yield (each.cluster, each.broker_name), value(each)

    return samples


FAMILIES: tuple[Family, ...] = (
    Family("role", "gauge", "Role in the group of controllers: 0 unknown, 1 candidate, 2 follower, 3 leader", (), _role),
    Family("active_broker_num", "gauge", "Brokers of a set whose heartbeats arrive here", _OF_SET, _active),
    Family("rmqkit_controller_term", "gauge", "Term of the newest leader that this controller knows", (),
           lambda controller: [((), controller.log.leadership.term)]),
    Family("rmqkit_controller_log_entries", "gauge", "Entries of the log of decisions", (), _log_fact("entries")),
    Family("rmqkit_controller_log_bytes", "gauge", "Bytes of the log of decisions on disk", (), _log_fact("bytes")),
    Family("rmqkit_controller_messages_refused_total", "counter",
           "Messages of other controllers that were refused: they contradict this one's table or log", (),
           _log_fact("refused")),
    Family("rmqkit_broker_set_members", "gauge", "Registered brokers of a set", _OF_SET,
           _of_sets(lambda each: len(each.replicas))),
    Family("rmqkit_broker_set_in_sync", "gauge", "Brokers in the SyncStateSet of a set", _OF_SET,
           _of_sets(lambda each: len(each.sync_ids))),
    Family("rmqkit_broker_set_has_master", "gauge", "Whether a set has a master: 0 or 1", _OF_SET,
           _of_sets(lambda each: int(each.master_id is not None))),
    Family("rmqkit_broker_set_master_epoch", "gauge", "Epoch of the newest election of a set", _OF_SET,
           _of_sets(lambda each: each.master_epoch)),
    Family("rmqkit_masters_replaced_total", "counter", "Dead masters that this controller replaced", (),
           lambda controller: [((), controller.watch.replaced)]),
    Family("rmqkit_access_refused_total", "counter", "Requests and connections refused by access control", ("reason",),
           lambda controller: refusals(controller.access.audit)),
    *NODE_FAMILIES,
)  # fmt: skip
