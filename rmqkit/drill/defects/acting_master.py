"""Defects of groups whose slaves act for their masters; see `table.py`.

Most of them are bugs that Apache's brokers had: the numbers are issues of apache/rocketmq.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from rmqkit.broker.locks.strict import Strict
from rmqkit.broker.roles.role import Role
from rmqkit.drill.defects.defect import Defect, defect, replace
from rmqkit.store.contract import Put, PutStatus

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker

ONE_MASTER, LOCKS, DELAY, PROGRESS = "one-master", "locks-exclusive", "delay-kept", "progress-forward"
EQUAL = "logs-equal"
#: attempts after which the broker gives up an escaping message
TRIES = 4
#: one in this many escapes is taken for a failure
ONE_IN = 4

ACTING: list[Defect] = []
_acting = partial(defect, ACTING, family="acting")


# --- roles


@_acting(
    "acts-while-master",
    ONE_MASTER,
    "a slave continues to act as master although the master is alive again",
    needs="a takeover",
)
def _acts_while_master(broker: Broker) -> None:
    replace(broker.roles.acting, "_why_end", lambda: "")


@_acting(
    "no-self-isolation",
    DELAY,
    "a master that was paused or isolated continues as if it had not been",
    needs="a master that is unreachable but does not end",
)
def _no_self_isolation(broker: Broker) -> None:
    roles = broker.roles
    if not roles.broker_id:
        replace(roles, "isolate", lambda why: None)
        replace(roles._members, "_on_dropped", lambda why: None)


@_acting(
    "releases-out-of-contact",
    DELAY,
    "an isolated master continues to release delayed messages, which the acting slave releases too",
    needs="a master that is isolated",
)
def _releases_out_of_contact(broker: Broker) -> None:
    destination = broker.roles.destinations[Role.MASTER]
    replace(destination, "put", lambda put, origin, then: broker.puts.put(put, then))


@_acting(
    "skips-reverse-sync",
    PROGRESS,
    "a returning master serves without copying newer metadata from its group",
    needs="a takeover and a return",
)
def _skips_reverse_sync(broker: Broker) -> None:
    offsets, metadata = broker.offsets, broker.replication.metadata
    start = metadata.start

    def started() -> None:
        start()
        offsets.untold = None  # and slaves do not report newer offsets by themselves

    replace(metadata, "start", started)
    if not broker.replication.is_slave:
        replace(broker.roles.pre_online, "start", lambda then: then(""))


@_acting(
    "strict-lock-forgets",
    LOCKS,
    "a restarted broker votes on locks at once, without its earlier votes",
    needs="strict locks, a restart within a lease, and another broker that coordinates the votes",
)
def _strict_lock_forgets(broker: Broker) -> None:
    if isinstance(broker.locks, Strict):
        replace(broker.locks.vote_recovery, "votes_from_ms", lambda now_ms: 0)


# --- delayed messages


def _while_escaping(broker: Broker, change: Callable[..., None]) -> None:
    """Replace the put of due messages by `change(escape, put, origin, then)`."""
    destination = broker.roles.destinations[Role.ACTING]
    put_once = destination.put
    replace(destination, "put", lambda put, origin, then: change(put_once, put, origin, then))


@_acting(
    "escape-retry-cap",
    DELAY,
    f"the acting master gives up an escaping message after {TRIES} attempts",
    needs="no live master, for a while",
    issues=("#7927",),
)
def _escape_retry_cap(broker: Broker) -> None:
    tries: dict[str, int] = {}

    def capped(escape: Any, put: Put, origin: str, then: Callable[[PutStatus], None]) -> None:
        def ended(status: PutStatus) -> None:
            tries[origin] = tries.get(origin, 0) + 1
            then(PutStatus.PUT_OK if tries[origin] >= TRIES else status)

        escape(put, origin, ended)

    _while_escaping(broker, capped)


@_acting(
    "escape-to-the-dead",
    DELAY,
    f"after a takeover, messages escape to the dead master of an outdated route, and are given up after {TRIES} attempts",
    needs="a takeover",
    issues=("#7923", "#7927"),
)
def _escape_to_the_dead(broker: Broker) -> None:
    tries: dict[str, int] = {}

    def misled(escape: Any, put: Put, origin: str, then: Callable[[PutStatus], None]) -> None:
        tries[origin] = tries.get(origin, 0) + 1
        if len(tries) > 2 * TRIES:
            escape(put, origin, then)
        else:
            then(PutStatus.PUT_OK if tries[origin] >= TRIES else PutStatus.SERVICE_NOT_AVAILABLE)

    _while_escaping(broker, misled)


@_acting(
    "escape-bypassed",
    EQUAL,
    "an acting slave appends an escaping message to its own log after a failed attempt",
    needs="no live master, for a while",
    issues=("#7577",),
)
def _escape_bypassed(broker: Broker) -> None:
    tried: set[str] = set()

    def bypassed(escape: Any, put: Put, origin: str, then: Callable[[PutStatus], None]) -> None:
        if origin in tried:
            broker.puts.put(put, then)
        else:
            tried.add(origin)
            escape(put, origin, then)

    _while_escaping(broker, bypassed)


@_acting(
    "escaped-unnoticed",
    DELAY,
    "after an error, an acting slave puts a message on another master a second time",
    needs="a takeover",
    issues=("#7601",),
)
def _escaped_unnoticed(broker: Broker) -> None:
    seen: set[str] = set()

    def unnoticed(escape: Any, put: Put, origin: str, then: Callable[[PutStatus], None]) -> None:
        def ended(status: PutStatus) -> None:
            is_first = status is PutStatus.PUT_OK and origin not in seen
            seen.add(origin)
            then(PutStatus.UNKNOWN_ERROR if is_first and len(seen) % ONE_IN == 0 else status)

        escape(put, origin, ended)

    _while_escaping(broker, unnoticed)


@_acting(
    "delay-progress-not-saved",
    DELAY,
    "the progress of the delay levels is never written",
    needs="the end of the whole group",
)
def _delay_progress_not_saved(broker: Broker) -> None:
    replace(broker.view.delay.offsets, "save", lambda then=None: None if then is None else then())


@_acting(
    "delay-progress-not-saved-at-stop",
    DELAY,
    "the progress of the delay levels is not written at a clean stop, and never by a slave",
    needs="a clean restart of the whole group",
    issues=("#3473", "#2259"),
)
def _not_saved_at_stop(broker: Broker) -> None:
    # Slaves must not save either: a starting master would take the progress from its slave's copy.
    offsets = broker.view.delay.offsets
    save = offsets.save

    def saved(then: Callable[[], None] | None = None) -> None:
        if not broker.stopping and not broker.replication.is_slave:
            save(then)
        elif then is not None:
            then()

    replace(offsets, "save", saved)
