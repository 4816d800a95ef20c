"""How long takeover takes, ours beside Apache's, in alternating pairs: `make bench-failover ARGS="..."`.

    python -m tests.bench.failover [--pairs 15] [--timers upstream|fast] [--write]

A session is a fresh cluster of one make (`tests.interop.acting`): a name server, a group of a master and a slave, a group
of one master. The first group's master is stopped (SIGSTOP) and let go on, and when it is back in the route it is killed. A
probe outside measures what a client would see; the same one for both, with the same timers on both sides. The order of the
two makes turns from pair to pair, and never do both run at once.

*Detection* is from the fault to the route's change: of a killed broker the name server sees the connection end, of a
stopped one it waits `brokerNotActiveTimeoutMillis`. What follows is the group's own: from the route's change to the first
message that is read from the acting master, to the first lock, to the first delayed message in the other group.

The ratio is the median of the pairs; its interval is that of the order statistics around the median (95 % or the nearest
that so many pairs allow), which assumes nothing of how the times are spread.
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
    """What the probe saw, by fault. `comes_back`: whether a killed master of this make is waited for."""
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
    """Of each pair: make → fault → stage → seconds."""
    pairs: list[dict[str, dict[str, dict[str, float]]]] = []
    for number in range(chosen.pairs):
        pair = {}
        for make in (OURS, APACHE) if number % 2 == 0 else (APACHE, OURS):
            # Apache's killed master does not come back once a client has pulled: that is looked at in the first pair.
            pair[make] = session(make, TIMERS[chosen.timers], comes_back=make == OURS or number == 0)
            for fault, seen in pair[make].items():
                told = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in seen.items())
                print(f"{number + 1:>3} {make:>7} {fault:>5}: {told}", file=sys.stderr, flush=True)
        pairs.append(pair)
        if chosen.write:
            _keep(pairs, chosen)
    return pairs


# --- what is made of them -------------------------------------------------------------------------------------------------


def own(seen: Seen, stage: str) -> float | None:
    """Seconds of a stage; of what follows the route's change, since then. None where it was not seen."""
    if stage not in seen:
        return None
    if stage in ("route", "back"):
        return seen[stage]
    # Looked at by another thread: it may have seen the route a moment sooner.
    return max(0.0, seen[stage] - seen["route"]) if "route" in seen else None


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The order statistics between which the median lies with at least that probability; the extremes when too few."""
    ordered, count = sorted(values), len(values)
    for rank in range(count // 2, 0, -1):
        outside = 2 * sum(math.comb(count, each) for each in range(rank)) / 2**count
        if outside <= 1 - level:
            return ordered[rank - 1], ordered[count - rank]
    return ordered[0], ordered[-1]


#: below this both are as quick as the probe looks, and a ratio would be one of chances
RESOLUTION_S = 0.02


def row(pairs: Sequence[Mapping[str, Mapping[str, Seen]]], fault: str, stage: str) -> str:
    """Since the fault (or the return), the ratio, and the same of what is the group's own part of it."""
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
    parser.add_argument("--timers", choices=list(TIMERS), default="fast", help="of both sides (fast)")
    parser.add_argument("--write", action="store_true", help="keep the figures and make the page again")
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
