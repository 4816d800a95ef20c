"""Watching a real cluster during a drill: what each broker says of itself and of the groups' offsets, and a new
client's read.

One thread a broker, on a connection of its own that is made again when it breaks (a new run of the node has a new `boot`);
one thread that reads as a client would that has just learned the routes. A node that does not answer in `ASK_S` is a row
with outcome fail.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from rmqkit.cluster.caller import NoAnswer
from rmqkit.cluster.readiness import Target
from rmqkit.drill.asking import SILENT, Asked
from rmqkit.drill.history import FAIL, OK, History, Row
from rmqkit.runtime.connection import Address

EVERY_S = 0.25
ASK_S = 0.5
JOIN_S = 3.0


class Watch:
    """`groups` are those whose offsets are looked at, `queues` how many the topic has on each broker."""

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
    ) -> None:
        self.history = history
        self.now_ms = now_ms
        self.topic = topic
        self.groups = groups
        self.queues = queues
        self.broker = broker
        self._targets = targets
        self._nameserver = nameserver
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        #: the newest look at each broker
        self.last: dict[str, Row] = {}
        #: broker name → broker id → address, as the name server has it now
        self.route: dict[str, dict[int, str]] = {}
        #: (node, group, queue) that had an offset; from then on one that is gone is told as well
        self.held: set[tuple[str, str, int]] = set()

    def start(self) -> None:
        for target in self._targets:
            self._thread(partial(self._watch, target))
        self._thread(self._probe)

    def _thread(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="drill-watch", daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(JOIN_S)
        self._threads.clear()

    def _watch(self, target: Target) -> None:
        asked: Asked | None = None
        while not self._stop.is_set():
            begun_ms = self.now_ms()
            try:
                if asked is None:
                    asked = Asked(target.host, target.port, ASK_S)
                look(self, asked.within(ASK_S), target)
            except SILENT as error:
                if asked is not None:
                    asked.close()
                asked = None
                self._add_node(target, begun_ms, FAIL, error=str(error))
            self._stop.wait(EVERY_S)
        if asked is not None:
            asked.close()

    def add_facts(self, target: Target, begun_ms: int, facts: Mapping[str, str], **more: Any) -> None:
        """One look at a broker's runtime facts."""
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

    # --- a new client's read

    def _probe(self) -> None:
        while not self._stop.is_set():
            with suppress(*SILENT), Asked(self._nameserver.host, self._nameserver.port, ASK_S) as asked:
                self.route = asked.route(self.topic)
            members = self.route.get(self.broker)
            if members:
                self._read_from(min(members), members[min(members)])
            self._stop.wait(EVERY_S)

    def _read_from(self, broker_id: int, address: str) -> None:
        begun_ms = self.now_ms()
        node = f"{self.broker}-{broker_id}"
        known: dict[str, Any] = {"client": "probe", "invoke_ms": begun_ms, "broker": self.broker, "queue": 0}
        try:
            host, port = Address.parse(address)
            with Asked(host, port, ASK_S) as asked:
                offset_min, end = asked.offsets(self.topic, 0)
                records, _ = asked.pull(self.topic, 0, max(offset_min, end - 1), 1)
            if not records:
                raise NoAnswer("nothing to read yet")
        except SILENT as error:
            self.history.add(
                "probe", complete_ms=self.now_ms(), outcome=FAIL, error=str(error), node=node, broker_id=broker_id, **known
            )
            return
        offset = records[-1].queue_offset
        self.history.add("probe", complete_ms=self.now_ms(), offset=offset, node=node, broker_id=broker_id, **known)


def look(watch: Watch, asked: Asked, target: Target, **more: Any) -> None:
    """One look at one broker: its facts, and what it holds of the groups' offsets. Raises one of `SILENT`."""
    begun_ms = watch.now_ms()
    facts = asked.runtime()
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
                    **more,
                )


def wait_until(holds: Callable[[], bool], most_s: float, pause_s: float = 0.05) -> bool:
    """Whether it came to hold in that time."""
    until_s = time.monotonic() + most_s
    while not holds():
        if time.monotonic() >= until_s:
            return False
        time.sleep(pause_s)
    return True


def _number(text: str | None) -> int | None:
    return int(text) if text and text.lstrip("-").isdigit() else None
