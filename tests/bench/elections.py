"""Measures elections in controller mode, ours and Apache's: `make bench-elections ARGS="..."`.

    python -m tests.bench.elections [--pairs 12] [--timers fast upstream] [--write]

A session is a fresh group of one make (`tests.interop.elections`): three name servers, each with a
controller, and three brokers in sync. All timers and settings are the same for both makes, with
`allAckInSyncStateSet`. A session breaks the master twice: SIGKILL and SIGSTOP. After each fault the
broken broker returns, and the session waits until all three are in sync again. The order of the
makes alternates from pair to pair, and the order of the faults from two pairs to two pairs. The
makes never run at the same time.

One client sends all the time (`steady_writer`). *Acknowledged* is from the fault to its first
message that another broker acknowledged. *Elected* is from the fault to the first answer of the
controllers that names another master; between the two the new master prepares and becomes
reachable. At the end the session reads the topic at the last master: an acknowledged message that
is not there is *lost*.
"""

import argparse
import contextlib
import datetime
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.against_apache import DOCS, machine
from tests.bench.brokers import APACHE, OURS
from tests.bench.figures import wrapped, wrapped_page
from tests.bench.steady_writer import SteadyWriter
from tests.interop import apache
from tests.interop.acting import send_code
from tests.interop.elections import GROUP, ElectedGroup, Replica
from tests.interop.groups import TOPICS
from tests.interop.until import until

KEPT = DOCS / "failover" / "elections.json"
SECTION = DOCS / "failover" / "elections.md"
FAULTS = {"kill": "SIGKILL", "pause": "SIGSTOP"}
STAGES = {"elected": "another master elected", "acked": "first message acknowledged"}
GOAL = 0.5
TOPIC = "elections"
REPLICAS = 3

#: all timers of brokers and controllers in ms. `upstream` are Apache's defaults
TIMERS: Mapping[str, Mapping[str, int]] = {
    "fast": {
        "brokerHeartbeatInterval": 300,
        "controllerHeartBeatTimeoutMills": 2000,
        "brokerNotActiveTimeoutMillis": 2000,
        "scanNotActiveBrokerInterval": 500,
        "scanInactiveMasterInterval": 500,
        "syncBrokerMetadataPeriod": 1000,
        "checkSyncStateSetPeriod": 1000,
        "syncControllerMetadataPeriod": 2000,
        "haSendHeartbeatInterval": 1000,
        "haMaxTimeSlaveNotCatchup": 3000,
        "registerNameServerPeriod": 10_000,
    },
    "upstream": {
        "brokerHeartbeatInterval": 1000,
        "controllerHeartBeatTimeoutMills": 10_000,
        "brokerNotActiveTimeoutMillis": 10_000,
        "scanNotActiveBrokerInterval": 5000,
        "scanInactiveMasterInterval": 5000,
        "syncBrokerMetadataPeriod": 5000,
        "checkSyncStateSetPeriod": 5000,
        "syncControllerMetadataPeriod": 10_000,
        "haSendHeartbeatInterval": 5000,
        "haMaxTimeSlaveNotCatchup": 15_000,
        "registerNameServerPeriod": 30_000,
    },
}
_CONTROLLER_TIMERS = ("scanNotActiveBrokerInterval", "scanInactiveMasterInterval")
_FILES = {"mappedFileSizeCommitLog": str(16 << 20), "mappedFileSizeConsumeQueue": str(20 * 20_000)}
_HEAP_MB = 512
#: time of sends before the fault, and after the first acknowledgement of the new master
_LEAD_S, _AFTER_S = 2.0, 1.0
_TAKEOVER_S = 60.0
_WHOLE_S = 120.0
_POLL_S = 0.01

#: fault -> {"elected", "acked": seconds, missing if not reached; "sent", "lost": messages}
Session = dict[str, dict[str, float]]


def session(make: str, timers: Mapping[str, int], faults: Sequence[str]) -> Session:
    """Run one session and return what each fault did."""
    who = "ours" if make == OURS else "apache"
    values = {key: str(ms) for key, ms in timers.items()}
    found: Session = {}
    with tempfile.TemporaryDirectory(prefix="elections-") as home:
        group = ElectedGroup(
            Path(home),
            [who] * REPLICAS,
            {**_FILES, **{key: value for key, value in values.items() if key not in _CONTROLLER_TIMERS}},
            controllers=REPLICAS,
            whose_controllers=who,
            controller_settings={key: values[key] for key in _CONTROLLER_TIMERS},
            heap_mb=_HEAP_MB,
        )
        try:
            _start(group)
            acked = {}
            for fault in faults:
                found[fault], acked[fault] = _break_master(group, fault)
            master = group.master()
            assert master is not None
            stored = {record.body.decode() for record in master.queue(TOPIC, 0).records.values()}
            for fault, bodies in acked.items():
                found[fault]["sent"] = len(bodies)
                found[fault]["lost"] = len(set(bodies) - stored)
        finally:
            group.close()
    return found


def _start(group: ElectedGroup) -> None:
    """Start all replicas. Return once all are in sync and know the topic."""
    for replica in group.replicas:
        replica.begin()
    until("all replicas are in sync", lambda: _is_whole(group), deadline_s=apache.READY_TIMEOUT_S)
    until("a message is acknowledged", lambda: _is_sent(group), deadline_s=_WHOLE_S)
    until("all replicas know the topic", lambda: _knows_topic(group), deadline_s=_WHOLE_S)


def _is_sent(group: ElectedGroup) -> bool:
    master = group.master()
    try:
        return master is not None and send_code(master.address, TOPIC, "") == 0
    except OSError:
        return False


def _knows_topic(group: ElectedGroup) -> bool:
    return all(TOPIC in replica.table(TOPICS)["topicConfigTable"] for replica in group.replicas)


def _is_whole(group: ElectedGroup) -> bool:
    return group.in_sync() == {replica.address for replica in group.replicas}


def _break_master(group: ElectedGroup, fault: str) -> tuple[dict[str, float], list[str]]:
    """Break the master and repair it; return the seconds of the stages, and what was acknowledged."""
    old = group.master()
    assert old is not None
    seen: dict[str, float] = {}
    with contextlib.closing(SteadyWriter(group.nameservers[0].namesrv, TOPIC, GROUP, fault)) as writer:
        until("sends are acknowledged", lambda: len(writer.acks) > 0, deadline_s=_WHOLE_S)
        time.sleep(_LEAD_S)
        began_s = time.monotonic()
        (old.kill if fault == "kill" else old.pause)()
        elected = _Watch(group, old, began_s)
        while time.monotonic() < began_s + _TAKEOVER_S and "acked" not in seen:
            time.sleep(_POLL_S)
            first = writer.first_after(began_s, old.address)
            if first is not None:
                seen["acked"] = first.at_s - began_s
        elected.close()
        if elected.seen_s is not None:
            seen["elected"] = elected.seen_s
        time.sleep(_AFTER_S)
    (old.begin if fault == "kill" else old.resume)()
    until("all replicas are in sync again", lambda: _is_whole(group), deadline_s=_WHOLE_S)
    return seen, [ack.body for ack in writer.acks]


class _Watch:
    """Asks the controllers for the master until it is another one."""

    def __init__(self, group: ElectedGroup, old: Replica, began_s: float) -> None:
        self.seen_s: float | None = None
        self._ended = threading.Event()

        def look() -> None:
            while not self._ended.wait(_POLL_S):
                master = group.master()
                if master is not None and master is not old:
                    self.seen_s = time.monotonic() - began_s
                    return

        self._thread = threading.Thread(target=look, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


def measure(chosen: argparse.Namespace) -> dict[str, list[dict[str, Session]]]:
    """Return, for each set of timers, its pairs: make -> session."""
    found: dict[str, list[dict[str, Session]]] = {name: [] for name in chosen.timers}
    for name, pairs in found.items():
        for number in range(chosen.pairs):
            faults = list(FAULTS) if number // 2 % 2 == 0 else list(reversed(FAULTS))
            pair = {}
            for make in (OURS, APACHE) if number % 2 == 0 else (APACHE, OURS):
                began_s = time.monotonic()
                pair[make] = session(make, TIMERS[name], faults)
                for fault, seen in pair[make].items():
                    shown = ", ".join(f"{key} {value:.3g}" for key, value in seen.items())
                    print(f"{name:>8} {number + 1:>3} {make:>7} {fault:>5}: {shown}", file=sys.stderr, flush=True)
                print(f"{'':>8} {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
            pairs.append(pair)
            if chosen.write:
                _keep(found, chosen)
    return found


# --- evaluation -----------------------------------------------------------------------------------


def row(pairs: Sequence[Mapping[str, Session]], fault: str, stage: str) -> str:
    """Return a table row: the median times of both sides, and their ratio pair by pair."""
    times = {make: [pair[make].get(fault, {}).get(stage) for pair in pairs] for make in (OURS, APACHE)}
    ratios = [
        ours / theirs
        for ours, theirs in zip(times[OURS], times[APACHE], strict=True)
        if ours is not None and theirs is not None
    ]
    ratio = "–"
    if ratios:
        middle = statistics.median(ratios)
        shown = f"{middle:.2f}" if middle <= GOAL or stage != "acked" else f"**{middle:.2f}**"
        ratio = f"{shown} [{min(ratios):.2f}–{max(ratios):.2f}]"
    cells = [FAULTS[fault], STAGES[stage], *(_span(times[make]) for make in (OURS, APACHE)), ratio]
    return f"| {' | '.join(cells)} |"


def _span(times: Sequence[float | None]) -> str:
    there = [each for each in times if each is not None]
    if not there:
        return "never"
    never = f", never in {len(times) - len(there)}" if len(there) < len(times) else ""
    return f"{statistics.median(there):.2f} s [{min(there):.2f}–{max(there):.2f}]{never}"


def lost_row(pairs: Sequence[Mapping[str, Session]], fault: str) -> str:
    """Return a table row: acknowledged messages that were lost, of all that were acknowledged."""
    cells = []
    for make in (OURS, APACHE):
        of_make = [pair[make].get(fault, {}) for pair in pairs]
        lost, sent = (int(sum(each.get(key, 0) for each in of_make)) for key in ("lost", "sent"))
        cells.append(f"{lost} of {sent}")
    return f"| {FAULTS[fault]} | acknowledged messages lost | {' | '.join(cells)} | – |"


def table(pairs: Sequence[Mapping[str, Session]]) -> str:
    lines = ["| fault | what | rmqkit | Apache | ratio |", "|---|---|---:|---:|---:|"]
    for fault in FAULTS:
        lines += [row(pairs, fault, stage) for stage in STAGES]
        lines.append(lost_row(pairs, fault))
    return "\n".join(lines)


_TEXT = """# Elections, measured beside Apache RocketMQ {version}

How long a group in controller mode is without a master, here and at Apache. For people who choose
timers.

{made}

{tables}
- Each side has three name servers with a controller each, and three brokers in sync, with
  `allAckInSyncStateSet`. Both have the same settings. All processes share one machine.
- Times count from the fault, as median [smallest–largest] of all pairs. A ratio below 1 means that
  rmqkit is quicker. The goal for the first acknowledged message is {goal:g}; a ratio above it is
  bold.
- *Elected*: the controllers name another master. *Acknowledged*: one client, which asks the name
  server for the master every 10 ms and sends all the time, has its first message acknowledged by
  the new master. A client that asks more rarely notices later.
- *Lost*: acknowledged in the session, and not in the topic at the last master.
- A killed process closes its connections, which both makes notice at once. A stopped one is silent:
  both wait `controllerHeartBeatTimeoutMills` from its last heartbeat. rmqkit's controllers act when
  that time is over. Apache's act at their next look, every `scanNotActiveBrokerInterval`.
"""


def section(figures: Mapping[str, Any]) -> str:
    """Return the page."""
    tables = []
    for name, known in figures["sets"].items():
        timers = ", ".join(f"`{key}` {ms}" for key, ms in known["timers"].items())
        count = len(known["pairs"])
        head = f"{count} alternating pair{'s' if count > 1 else ''}. Timers in ms: {timers}."
        tables.append(f"## Timers: {name}\n\n{wrapped(head)}\n\n{table(known['pairs'])}\n")
    made = f"`make bench-elections` made this page. {figures['machine']} {figures['at'][:10]}."
    return wrapped_page(_TEXT.format(version=apache.VERSION, made=made, tables="\n".join(tables), goal=GOAL))


def _keep(found: Mapping[str, Sequence[Any]], chosen: argparse.Namespace) -> None:
    sets = json.loads(KEPT.read_text())["sets"] if KEPT.exists() else {}
    sets.update({name: {"timers": TIMERS[name], "pairs": pairs} for name, pairs in found.items() if pairs})
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    figures = {"at": now, "machine": machine(), "sets": sets}
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps(figures, indent=1) + "\n")
    SECTION.write_text(section(figures))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-elections", description="Elections, in alternating pairs.")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--timers", nargs="+", choices=list(TIMERS), default=["fast"], help="timers of both sides (fast)")
    parser.add_argument("--write", action="store_true", help="store the figures and regenerate the page")
    chosen = parser.parse_args(arguments)
    lacking = apache.missing_tools()
    if lacking:
        print(f"error: the benchmark needs Java 17 and Maven; {lacking}", file=sys.stderr)
        return 1
    for name, pairs in measure(chosen).items():
        print(f"{name}:\n{table(pairs)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
