"""Watches a real cluster during a drill.

It records the state of each broker, the offsets of the groups, the route of the broken group, and
reads as a new client would do them.

- One thread for each broker polls it over its own connection, and reconnects when that breaks (a
  new run of the node has a new `boot`).
- One thread polls the name server.
- One thread reads as a client that has just learned the routes.

A node that does not answer within `ASK_S` gets a row with outcome fail. From the fault until the
recovery, polls are `QUICK_S` apart, which is the accuracy of the stages of a takeover. The offsets
of groups are polled every `EVERY_S`.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rmqkit.cluster.health.caller import NoAnswer
from rmqkit.cluster.health.elections import election_of
from rmqkit.cluster.health.readiness import Target
from rmqkit.cluster.health.roles import role_of
from rmqkit.drill.history import FAIL, FAULT_BEGINS, IN_SYNC_AGAIN, LOAD_ENDS, OK, History, HistoryRow
from rmqkit.drill.real.node_client import SILENT, NodeClient
from rmqkit.drill.roles import RoleRows
from rmqkit.runtime.connection import Address

EVERY_S = 0.25
QUICK_S = 0.03
ASK_S = 0.5
#: during the fault, a read that takes longer is given up and repeated by the current route
QUICK_ASK_S = 0.15
JOIN_S = 3.0


class ClusterWatch:
    """The watcher of one drill.

    `groups` are the groups whose offsets are polled. `queues` is the number of queues on each
    broker.
    """

    def __init__(
        self,
        history: History,
        now_ms: Callable[[], int],
        *,
        targets: Sequence[Target],
        nameserver: Target,
        topic: str,
        groups: Sequence[str],
        queues: int,
        broker: str,
        cluster: str,
    ) -> None:
        """`broker` is the broken group, `cluster` the cluster name with which brokers register."""
        self.history = history
        self.now_ms = now_ms
        self.topic = topic
        self.groups = groups
        self.queues = queues
        self.broker = broker
        self.roles = RoleRows(history)
        self._wall_ms = time.time() * 1000 - now_ms()
        self._cluster = cluster
        self._quick = threading.Event()
        #: from the name server: the node that the route shows as id 0, the listed ids, whether it
        #: is writable
        self.shown: tuple[str, list[int], bool] = ("", [], False)
        self._nodes = {target.address: target for target in targets}
        self._targets = targets
        self._nameserver = nameserver
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        #: the newest poll of each broker
        self.last: dict[str, HistoryRow] = {}
        #: broker name → broker id → address, as the name server has it now
        self.route: dict[str, dict[int, str]] = {}
        #: addresses of brokers in controller mode
        self.elected: set[str] = set()
        #: (node, group, queue) that had an offset; a missing one is recorded from then on
        self.held: set[tuple[str, str, int]] = set()

    def start(self) -> None:
        for target in self._targets:
            self._thread(partial(self._watch, target))
        self._thread(self._routes)
        self._thread(self._probe)

    def seen(self, row: HistoryRow) -> None:
        """Poll quickly from the fault until the recovery."""
        if row.kind == "event" and row.key == FAULT_BEGINS:
            self._quick.set()
        elif row.kind == "event" and row.key in (IN_SYNC_AGAIN, LOAD_ENDS):
            self._quick.clear()

    def _pause(self) -> None:
        """Wait for the next poll; the fault ends a slow wait."""
        if self._quick.is_set():
            self._stop.wait(QUICK_S)
        else:
            self._quick.wait(EVERY_S)

    def _thread(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="drill-watch", daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        self._stop.set()
        self._quick.set()
        for thread in self._threads:
            thread.join(JOIN_S)
        self._threads.clear()
        self.roles.flush()

    def _watch(self, target: Target) -> None:
        asked: NodeClient | None = None
        next_s = 0.0
        while not self._stop.is_set():
            begun_ms = self.now_ms()
            is_whole = time.monotonic() >= next_s
            try:
                if asked is None:
                    asked = NodeClient(target.host, target.port, ASK_S)
                look(self, asked.within(ASK_S), target, whole=is_whole)
            except SILENT as error:
                if asked is not None:
                    asked.close()
                asked = None
                self.roles.silent(target.plan.node, target.plan.broker_name, begun_ms, self.now_ms())
                if is_whole:
                    self._add_node(target, begun_ms, FAIL, error=str(error))
            if is_whole:
                next_s = time.monotonic() + EVERY_S - QUICK_S
            self._pause()
        if asked is not None:
            asked.close()

    def add_facts(self, target: Target, begun_ms: int, facts: Mapping[str, str], **more: Any) -> None:
        """Record a poll of a broker's runtime facts."""
        elected = _elected(facts)
        if elected:
            self.elected.add(target.address)
        self._add_node(
            target,
            begun_ms,
            OK,
            role=facts.get("replicationRole", "master" if target.plan.broker_id == 0 else "slave"),
            state=facts.get("replicationState", ""),
            why=facts.get("replicationWhy", ""),
            in_sync=_number(facts.get("replicationInSync")),
            gap=_number(facts.get("replicationGap")),
            end=_number(facts.get("commitLogMaxOffset")),
            boot=facts.get("bootTimestamp", ""),
            **elected,
            **more,
        )

    def _add_node(self, target: Target, begun_ms: int, outcome: str, **extra: Any) -> None:
        plan = target.plan
        self.last[plan.node] = self.history.add(
            "node",
            client=plan.node,
            invoke_ms=begun_ms,
            complete_ms=self.now_ms(),
            outcome=outcome,
            broker=plan.broker_name,
            **extra,
        )

    def add_role(self, target: Target, begun_ms: int, facts: Mapping[str, str]) -> None:
        """Record the role in a broker's runtime facts, if they have one."""
        said = role_of(facts)
        if said is not None:
            self.roles.told(
                target.plan.node,
                target.plan.broker_name,
                target.plan.broker_id,
                role=said.role,
                online=said.online,
                members=[int(each) for each in said.members],
                invoke_ms=begun_ms,
                complete_ms=self.now_ms(),
                why=said.why,
                boot=facts.get("bootTimestamp", ""),
                since_ms=round(said.since_ms - self._wall_ms),
                epoch=_elected(facts).get("epoch"),
            )

    # --- the name server's route

    def _routes(self) -> None:
        asked: NodeClient | None = None
        while not self._stop.is_set():
            begun_ms = self.now_ms()
            try:
                if asked is None:
                    asked = NodeClient(self._nameserver.host, self._nameserver.port, ASK_S)
                members = asked.within(ASK_S).members(self._cluster, self.broker)
                self.route = asked.route(self.topic)
                address, writable = asked.shown(self.topic, self.broker)
                target = self._nodes.get(address)
                self._add_route((target.plan.node if target else address, members, writable), begun_ms)
            except SILENT:
                if asked is not None:
                    asked.close()
                asked = None
            self._pause()
        if asked is not None:
            asked.close()

    def _add_route(self, shown: tuple[str, list[int], bool], begun_ms: int) -> None:
        if shown == self.shown:
            return
        self.shown = shown
        node, members, writable = shown
        self.history.add(
            "route",
            client=self._nameserver.plan.node,
            key=node,
            value=",".join(map(str, members)),
            invoke_ms=begun_ms,
            complete_ms=self.now_ms(),
            broker=self.broker,
            members=members,
            writable=writable,
        )

    # --- a new client's read

    def _probe(self) -> None:
        asked: NodeClient | None = None
        address = ""
        while not self._stop.is_set():
            members = self.route.get(self.broker)
            if members:
                if members[min(members)] != address and asked is not None:
                    asked.close()
                    asked = None
                address = members[min(members)]
                asked = self._read_from(min(members), address, asked)
            self._pause()
        if asked is not None:
            asked.close()

    def _read_from(self, broker_id: int, address: str, asked: NodeClient | None) -> NodeClient | None:
        """Read the last message of a queue from the broker that the route has under this id, over
        the open connection if there is one.

        The row names the broker's own id. In controller mode this is the id in the route; the route
        shows an acting slave as id 0, so elsewhere it is the id in the plan.

        Return the connection, or None if the read failed.
        """
        begun_ms = self.now_ms()
        ask_s = QUICK_ASK_S if self._quick.is_set() else ASK_S
        target = self._nodes.get(address)
        known: dict[str, Any] = {"client": "probe", "invoke_ms": begun_ms, "broker": self.broker, "queue": 0}
        known["node"] = target.plan.node if target else address
        known["broker_id"] = broker_id if target is None or address in self.elected else target.plan.broker_id
        try:
            if asked is None:
                host, port = Address.parse(address)
                asked = NodeClient(host, port, ask_s)
            offset_min, end = asked.within(ask_s).offsets(self.topic, 0)
            records, _ = asked.pull(self.topic, 0, max(offset_min, end - 1), 1)
            if not records:
                raise NoAnswer("nothing to read yet")
        except SILENT as error:
            if asked is not None:
                asked.close()
            self.history.add("probe", complete_ms=self.now_ms(), outcome=FAIL, error=str(error), **known)
            return None
        self.history.add("probe", complete_ms=self.now_ms(), offset=records[-1].queue_offset, **known)
        return asked


def look(watch: ClusterWatch, asked: NodeClient, target: Target, *, whole: bool = True, **more: Any) -> None:
    """Poll one broker.

    Record its role; with `whole`, also its other facts and the group offsets that it holds. Raises
    one of `SILENT`.
    """
    begun_ms = watch.now_ms()
    facts = asked.runtime()
    watch.add_role(target, begun_ms, facts)
    if not whole:
        return
    watch.add_facts(target, begun_ms, facts, **more)
    for group in watch.groups:
        for queue in range(watch.queues):
            begun_ms = watch.now_ms()
            offset = asked.committed(group, watch.topic, queue)
            place = (target.plan.node, group, queue)
            if offset is not None or place in watch.held:
                watch.held.add(place)
                watch.history.add(
                    "committed",
                    client=target.plan.node,
                    key=group,
                    invoke_ms=begun_ms,
                    complete_ms=watch.now_ms(),
                    broker=target.plan.broker_name,
                    queue=queue,
                    offset=-1 if offset is None else offset,
                    boot=facts.get("bootTimestamp", ""),
                    each=True,
                    **more,
                )


def _elected(facts: Mapping[str, str]) -> dict[str, int]:
    """Return epoch and confirm offset of a broker in controller mode; {} for others."""
    said = election_of(facts)
    return {} if said is None else {"epoch": said.epoch, "confirm": said.confirm_offset or 0}


def _number(text: str | None) -> int | None:
    return int(text) if text and text.lstrip("-").isdigit() else None
