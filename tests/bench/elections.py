"""Measures elections in controller mode, ours and Apache's: `make bench-elections ARGS="..."`.

    python -m tests.bench.elections [--pairs 12] [--timers fast upstream] [--write]

A session is a fresh group of one make (`tests.interop.elections`): three name servers, each with a
controller, and three brokers in sync. All timers and settings are the same for both makes, with
`allAckInSyncStateSet`. A session breaks the master twice: SIGKILL and SIGSTOP. After each fault the
broken broker returns, and the session waits until all three are in sync again. The order of the
makes alternates from pair to pair, and the order of the faults from two pairs to two pairs. The
makes never run at the same time.

One client sends all the time (`steady_writer`). `acked` is from the fault to its first message that
another broker acknowledged. `elected` is from the fault to the first answer of the controllers that
names another master. `served` is the rest: the new master prepares and becomes reachable. `whole`
is from the return of the old master until all three brokers are in sync. At the end the session
reads the topic at the last master: an acknowledged message that is not there is lost.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench import figures as kept
from tests.bench.against_apache import DOCS, machine
from tests.bench.brokers import APACHE, OURS
from tests.bench.steady_writer import SteadyWriter
from tests.interop import apache
from tests.interop.acting import send_code
from tests.interop.elections import GROUP, ElectedGroup, Replica
from tests.interop.groups import TOPICS
from tests.interop.until import until

KEPT = DOCS / "failover" / "elections.json"
SECTION = DOCS / "failover" / "elections.md"
FAULTS = {"kill": "SIGKILL", "pause": "SIGSTOP"}
STAGES = {
    "acked": "first message acknowledged",
    "elected": "of it: until another master is elected",
    "served": "of it: from then on",
    "whole": "all in sync again, from the return of the old master",
}
GOAL = 0.5
#: resolution of the client in seconds; if both times are shorter, their ratio would be noise
RESOLUTION_S = 0.02
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

#: tries to start a group; a busy machine can be too slow for short timeouts
_TRIES = 3

#: fault -> {"acked", "elected", "served", "whole": seconds, missing if not reached; "sent", "lost":
#: messages}. A fault that was not tried is missing
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
                if "whole" not in found[fault]:
                    break
            stored = _stored(group)
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


def _stored(group: ElectedGroup) -> set[str]:
    """Return the bodies in the topic at the master."""
    until("the group has a master", lambda: group.master() is not None, deadline_s=_WHOLE_S)
    master = group.master()
    assert master is not None
    return {record.body.decode() for record in master.queue(TOPIC, 0).records.values()}


def _break_master(group: ElectedGroup, fault: str) -> tuple[dict[str, float], list[str]]:
    """Break the master and repair it; return the stages in seconds, and the acknowledged bodies."""
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
        if len(seen) == 2:
            # Another thread asks the controllers, and may see the election after the first message.
            seen["served"] = max(0.0, seen["acked"] - seen["elected"])
        time.sleep(_AFTER_S)
    began_s = time.monotonic()
    (old.begin if fault == "kill" else old.resume)()
    while "whole" not in seen and time.monotonic() < began_s + _WHOLE_S:
        if _is_whole(group):
            seen["whole"] = time.monotonic() - began_s
        time.sleep(_POLL_S)
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
    for number in range(chosen.pairs):
        for name, pairs in found.items():
            pairs.append(_pair(number, name))
            if chosen.write:
                _keep(found)
    return found


def _pair(number: int, name: str) -> dict[str, Session]:
    """Run a session of each make."""
    faults = list(FAULTS) if number // 2 % 2 == 0 else list(reversed(FAULTS))
    pair = {}
    for make in (OURS, APACHE) if number % 2 == 0 else (APACHE, OURS):
        began_s = time.monotonic()
        pair[make] = _repeated(make, TIMERS[name], faults)
        for fault, seen in pair[make].items():
            shown = ", ".join(f"{key} {value:.3g}" for key, value in seen.items())
            print(f"{name:>8} {number + 1:>3} {make:>7} {fault:>5}: {shown}", file=sys.stderr, flush=True)
        print(f"{'':>8} {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
    return pair


def _repeated(make: str, timers: Mapping[str, int], faults: Sequence[str]) -> Session:
    """Run a session; if its group does not start, run it again."""
    for left in reversed(range(_TRIES)):
        try:
            return session(make, timers, faults)
        except (AssertionError, apache.ApacheError) as error:
            if not left:
                raise
            print(f"{make}: {error}; again", file=sys.stderr, flush=True)
    raise AssertionError("unreachable")


# --- evaluation -----------------------------------------------------------------------------------


def row(pairs: Sequence[Mapping[str, Session]], fault: str, stage: str) -> str:
    """Return a table row: the median times of both sides, and their ratio pair by pair."""
    tried = _tried(pairs, fault)
    times = {make: [each[at].get(stage) for each in tried] for at, make in enumerate((OURS, APACHE))}
    ratios = _ratios(tried, stage)
    ratio = "–"
    if ratios:
        middle = statistics.median(ratios)
        shown = f"{middle:.2f}" if middle <= GOAL or stage != "acked" else f"**{middle:.2f}**"
        ratio = f"{shown} [{min(ratios):.2f}–{max(ratios):.2f}]"
    cells = [FAULTS[fault], STAGES[stage], *(_span(times[make]) for make in (OURS, APACHE)), ratio]
    return f"| {' | '.join(cells)} |"


def medians(pairs: Sequence[Mapping[str, Session]], fault: str, stage: str) -> tuple[float, float, float]:
    """Return the median times of both sides in seconds, and the median of the ratios."""
    tried = [each for each in _tried(pairs, fault) if stage in each[0] and stage in each[1]]
    ours, theirs = (statistics.median(each[at][stage] for each in tried) for at in (0, 1))
    return ours, theirs, statistics.median(_ratios(tried, stage))


def _tried(pairs: Sequence[Mapping[str, Session]], fault: str) -> list[tuple[Mapping[str, float], Mapping[str, float]]]:
    """Return what both sides of each pair measured of a fault."""
    return [(pair[OURS][fault], pair[APACHE][fault]) for pair in pairs if fault in pair[OURS] and fault in pair[APACHE]]


def _ratios(tried: Sequence[tuple[Mapping[str, float], Mapping[str, float]]], stage: str) -> list[float]:
    return [
        max(ours[stage], RESOLUTION_S) / max(theirs[stage], RESOLUTION_S)
        for ours, theirs in tried
        if stage in ours and stage in theirs
    ]


def _span(times: Sequence[float | None]) -> str:
    there = [each for each in times if each is not None]
    if not there:
        return "never" if times else "–"
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
- Times are median [smallest–largest] of all pairs. A ratio below 1 means that rmqkit is quicker.
  The goal for the first acknowledged message is {goal:g}; a ratio above it is bold. A time below
  {resolution_ms:.0f} ms counts as {resolution_ms:.0f} ms in a ratio.
- *Acknowledged*: from the fault until the new master has acknowledged a message of a client that
  sends all the time and asks the name server for the master every 10 ms. A client that asks more
  rarely notices later. *Elected*: until the controllers name another master.
- A side that was not in sync again within {whole_s:.0f} s has no further fault in that session.
- *Lost*: acknowledged in the session, and not in the topic at the last master.
- A killed process closes its connections, which both makes notice at once. A stopped one is silent.
  rmqkit's controllers replace it after half of `controllerHeartBeatTimeoutMills`, since a master of
  rmqkit's refuses messages by then ([the lease](../elections.md)). Apache's master has no lease.
  Its controllers wait for the whole time-out, and act at their next look, every
  `scanNotActiveBrokerInterval`.
"""


def section(figures: Mapping[str, Any]) -> str:
    """Return the page."""
    tables = []
    for name, known in figures["sets"].items():
        timers = ", ".join(f"`{key}` {ms}" for key, ms in known["timers"].items())
        count = len(known["pairs"])
        head = f"{count} alternating pair{'s' if count > 1 else ''}. Timers in ms: {timers}."
        tables.append(f"## Timers: {name}\n\n{kept.wrapped(head)}\n\n{table(known['pairs'])}\n")
    made = f"`make bench-elections` made this page. {figures['machine']} {figures['at'][:10]}."
    values = {"version": apache.VERSION, "goal": GOAL, "made": made, "tables": "\n".join(tables)}
    return kept.wrapped_page(_TEXT.format(**values, resolution_ms=RESOLUTION_S * 1000, whole_s=_WHOLE_S))


def _keep(found: Mapping[str, Sequence[Any]]) -> None:
    sets = json.loads(KEPT.read_text())["sets"] if KEPT.exists() else {}
    sets.update({name: {"timers": TIMERS[name], "pairs": pairs} for name, pairs in found.items() if pairs})
    figures = {"at": kept.now(), "machine": machine(), "sets": sets}
    kept.save(KEPT, figures)
    SECTION.write_text(section(figures))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-elections", description="Elections, in alternating pairs.")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--timers", nargs="+", choices=list(TIMERS), default=["fast"], help="timers of both sides (fast)")
    parser.add_argument("--write", action="store_true", help="store the figures and regenerate the page")
    chosen = parser.parse_args(arguments)
    apache.require_tools()
    for name, pairs in measure(chosen).items():
        print(f"{name}:\n{table(pairs)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
