"""Measures the time of takeovers, ours and Apache's: `make bench-failover ARGS="..."`.

    python -m tests.bench.failover [--pairs 15] [--timers upstream|fast] [--write]

A session is a fresh cluster of one make (`tests.interop.acting`): a name server, a group of a
master and a slave, and a group of one master. The first group's master is paused (SIGSTOP) and
resumed. Once it is back in the route, it is killed. An external probe measures what a client would
see. The probe and the timers are the same for both makes. Their order alternates from pair to pair,
and they never run at the same time.

*Detection* is from the fault to the change of the route. For a killed broker the name server sees
the connection end; for a paused one it waits `brokerNotActiveTimeoutMillis`. The later stages are
the group's own. They last from the change of the route to the first message read from the acting
master, the first lock, and the first delayed message in the other group.

The ratio is the median of the pairs. Its interval is between order statistics around the median, at
95 % or the nearest level that the number of pairs allows. It assumes no distribution of the times.
"""

import argparse
import contextlib
import datetime
import json
import math
import statistics
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.against_apache import DOCS, machine
from tests.bench.brokers import APACHE, OURS
from tests.interop import apache
from tests.interop.acting import FAST_TIMERS, UPSTREAM_TIMERS, ActingCluster, Probe

KEPT = DOCS / "failover" / "timings.json"
SECTION = DOCS / "failover" / "timings.md"
TIMERS = {"upstream": UPSTREAM_TIMERS, "fast": FAST_TIMERS}
STAGES = {
    "route": "route changed (detection)",
    "read": "first message read from the acting master",
    "lock": "first queue lock from it",
    "delayed": "first delayed message in the other group",
    "back": "master back in the route, and takes messages",
}
_LOAD_S = 4.0
_TAKEOVER_S = 30.0
_BACK_S = 45.0
_HEAP_MB = 512

Seen = Mapping[str, float]


def session(make: str, timers: Mapping[str, int], *, comes_back: bool) -> dict[str, dict[str, float]]:
    """Run one session and return fault -> stage -> seconds, as the probe saw it.

    `comes_back` says whether to wait for the return of a killed master of this make.
    """
    who = "ours" if make == OURS else "apache"
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="failover-") as home:
        cluster = ActingCluster(Path(home), dict.fromkeys(("ns", "a0", "a1", "b0"), who), timers, heap_mb=_HEAP_MB)
        try:
            cluster.start()
            found["pause"] = _pause(cluster)
            found["kill"] = _kill(cluster, comes_back=comes_back)
        finally:
            cluster.close()
    return found


def _pause(cluster: ActingCluster) -> dict[str, float]:
    with contextlib.closing(Probe(cluster)) as probe:
        with probe.load():
            time.sleep(_LOAD_S)
            probe.fault(cluster.master.pause)
            probe.wait("route", "read", "lock", "delayed", most_s=_TAKEOVER_S)
        cluster.master.resume()
        probe.returned()
        probe.wait("back", most_s=_BACK_S)
        return dict(probe.seen)


def _kill(cluster: ActingCluster, *, comes_back: bool) -> dict[str, float]:
    with contextlib.closing(Probe(cluster)) as probe:
        with probe.load():
            time.sleep(_LOAD_S)
            probe.fault(cluster.master.kill)
            probe.wait("route", "read", "lock", "delayed", most_s=_TAKEOVER_S)
        if comes_back:
            cluster.master.begin()
            probe.returned()
            probe.wait("back", most_s=_BACK_S)
        return dict(probe.seen)


def measure(chosen: argparse.Namespace) -> list[dict[str, dict[str, dict[str, float]]]]:
    """Return, for each pair, make → fault → stage → seconds."""
    pairs: list[dict[str, dict[str, dict[str, float]]]] = []
    for number in range(chosen.pairs):
        pair = {}
        for make in (OURS, APACHE) if number % 2 == 0 else (APACHE, OURS):
            # Apache's killed master does not return once a client has pulled. Only the first pair
            # checks that.
            pair[make] = session(make, TIMERS[chosen.timers], comes_back=make == OURS or number == 0)
            for fault, seen in pair[make].items():
                told = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in seen.items())
                print(f"{number + 1:>3} {make:>7} {fault:>5}: {told}", file=sys.stderr, flush=True)
        pairs.append(pair)
        if chosen.write:
            _keep(pairs, chosen)
    return pairs


# --- evaluation -----------------------------------------------------------------------------------


def own(seen: Seen, stage: str) -> float | None:
    """Return the seconds of a stage, for later stages since the change of the route.

    None means that the probe did not see the stage.
    """
    if stage not in seen:
        return None
    if stage in ("route", "back"):
        return seen[stage]
    # Another thread of the probe polls the route and may see it slightly later than this stage.
    return max(0.0, seen[stage] - seen["route"]) if "route" in seen else None


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Return the order statistics that enclose the median with probability `level` or more.

    With too few values, return the extremes.
    """
    ordered, count = sorted(values), len(values)
    for rank in range(count // 2, 0, -1):
        outside = 2 * sum(math.comb(count, each) for each in range(rank)) / 2**count
        if outside <= 1 - level:
            return ordered[rank - 1], ordered[count - rank]
    return ordered[0], ordered[-1]


#: resolution of the probe in seconds; if both times are shorter, their ratio would be noise
RESOLUTION_S = 0.02


def row(pairs: Sequence[Mapping[str, Mapping[str, Seen]]], fault: str, stage: str) -> str:
    """Return a table row: both times and their ratio, in total and of the group's own part.

    Times are since the fault, or since the return of the master.
    """
    whole = {make: [pair[make].get(fault, {}).get(stage) for pair in pairs] for make in (OURS, APACHE)}
    parts = {make: [own(pair[make].get(fault, {}), stage) for pair in pairs] for make in (OURS, APACHE)}
    seen = " / ".join(str(sum(each is not None for each in whole[make])) for make in (OURS, APACHE))
    own_part = "| – | – | – |" if stage in ("route", "back") else f"| {_compared(parts)} |"
    return f"| {fault} | {STAGES[stage]} | {_compared(whole)} {own_part} {seen} |"


def _compared(times: Mapping[str, Sequence[float | None]]) -> str:
    told = []
    for make in (OURS, APACHE):
        there = [each for each in times[make] if each is not None]
        told.append(f"{statistics.median(there):.2f} s" if there else "never")
    ratios = [
        max(one, RESOLUTION_S) / max(two, RESOLUTION_S)
        for one, two in zip(times[OURS], times[APACHE], strict=True)
        if one is not None and two is not None
    ]
    if not ratios:
        return f"{told[0]} | {told[1]} | –"
    low, high = median_interval(ratios)
    return f"{told[0]} | {told[1]} | {statistics.median(ratios):.2f} [{low:.2f}–{high:.2f}]"


_TEXT = """# Takeover, measured beside Apache RocketMQ {version}

How long each stage of a takeover takes, here and at Apache. For people who choose timers.

{made}

| fault | stage | rmqkit | Apache | ratio, median [95 %] | own part: rmqkit | Apache | ratio | seen |
|---|---|---:|---:|---:|---:|---:|---:|---:|
{rows}

- A ratio below 1 means that rmqkit is quicker.
- Times count from the fault. The *own part* of a stage counts from the change of the route
  (*detection*), so that a slow detection does not hide a quick stage.
- rmqkit's name servers wait one heartbeat longer than `brokerNotActiveTimeoutMillis`, so that a
  broker that stalled notices it before they do.
- *Master back* counts from the master's return (SIGCONT, or the start of its process) to a message
  that it accepts from a client that used the route.
- *Seen* says in how many sessions a stage was reached (rmqkit / Apache).
- The probe polls every 20 ms. A shorter time counts as 20 ms in a ratio.

The probe waited {back_s:.0f} s for Apache's killed master in one session. That master does not return
once a client has pulled from its slave: its pre-online cannot read the slave's answer to code 43.
Apache's stopped master accepts sends at once, without asking what was consumed meanwhile, and is in
the route again with its next registration.
"""


def section(figures: Mapping[str, Any]) -> str:
    pairs = figures["pairs"]
    timers = ", ".join(f"{name} {ms} ms" for name, ms in figures["timers"].items())
    rows = [row(pairs, fault, stage) for fault in ("kill", "pause") for stage in STAGES]
    made = (
        f"`make bench-failover` made this page: {len(pairs)} alternating pairs, the same timers on both sides ({timers})."
    )
    return _TEXT.format(
        version=apache.VERSION,
        made=textwrap.fill(f"{made} {figures['machine']} {figures['at'][:10]}.", 100),
        rows="\n".join(rows),
        back_s=_BACK_S,
    )


def _keep(pairs: Sequence[Any], chosen: argparse.Namespace) -> None:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    figures = {"at": now, "machine": machine(), "timers": TIMERS[chosen.timers], "pairs": list(pairs)}
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps(figures, indent=1) + "\n")
    SECTION.write_text(section(figures))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-failover", description="Takeover, in alternating pairs.")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--timers", choices=list(TIMERS), default="fast", help="timers of both sides (fast)")
    parser.add_argument("--write", action="store_true", help="store the figures and regenerate the page")
    chosen = parser.parse_args(arguments)
    lacking = apache.missing_tools()
    if lacking:
        print(f"error: the benchmark needs Java 17 and Maven; {lacking}", file=sys.stderr)
        return 1
    pairs = measure(chosen)
    for fault in ("kill", "pause"):
        for stage in STAGES:
            print(row(pairs, fault, stage))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
