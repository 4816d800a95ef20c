"""Measures the time of takeovers, ours and Apache's: `make bench-failover ARGS="..."`.

    python -m tests.bench.failover [--pairs 3] [--timers upstream|fast] [--write]

A session is a fresh cluster of one make (`tests.interop.acting`): a name server, a group of a
master and a slave, and a group of one master. The first group is put under load, with the load of
`bench-apache`: for 3 s (*first minute*) or 60 s (*warm*). Once the slave has copied everything, the
first group's master is killed or paused (SIGSTOP), and returns. An external probe measures what a
client would see.

A session has one fault. After it, the slave has acted once, and its JVM has loaded and partly
compiled what the next takeover needs. A pair is four sessions of each make: two faults in two
regimes. The probe, the load and the timers are the same for both makes. Their order alternates from
pair to pair, and they never run at the same time.

*Detection* is from the fault to the change of the route. For a killed broker the name server sees
the connection end; for a paused one it waits `brokerNotActiveTimeoutMillis`. The later stages are
the group's own. They last from the change of the route to the first message read from the acting
master, the first lock, and the first delayed message in the other group.

The ratio is the median of the pairs. Its interval is between order statistics around the median, at
95 % or the nearest level that the number of pairs allows. It assumes no distribution of the times.
"""

import argparse
import contextlib
import itertools
import math
import statistics
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench import figures as kept
from tests.bench.against_apache import DOCS, machine
from tests.bench.brokers import APACHE, DEFAULT_FILES, OURS
from tests.bench.load import Load
from tests.bench.rows import FIRST, FIRST_LOAD_S, WARM, WARM_AFTER_S, Session, put_under_load
from tests.bench.sync_master import HEAP_MB, Replicated, until_copied, until_readable
from tests.interop import apache
from tests.interop.acting import FAST_TIMERS, UPSTREAM_TIMERS, ActingCluster, Probe

KEPT = DOCS / "failover" / "timings.json"
SECTION = DOCS / "failover" / "timings.md"
TIMERS = {"upstream": UPSTREAM_TIMERS, "fast": FAST_TIMERS}
FAULTS = ("kill", "pause")
#: regime -> seconds under load before the fault
LOADS_S = {FIRST: FIRST_LOAD_S, WARM: WARM_AFTER_S}
#: Queue and index files have their default sizes, which the load needs. The log's files are small:
#: a killed master recovers the last ones before it returns
_FILES = {**DEFAULT_FILES, "mappedFileSizeCommitLog": str(16 << 20)}
STAGES = {
    "route": "route changed (detection)",
    "read": "first message read from the acting master",
    "lock": "first queue lock from it",
    "delayed": "first delayed message in the other group",
    "back": "master back in the route, and takes messages",
}
#: sends of the probe before the fault; the group's load has ended
_PROBE_S = 4.0
_TAKEOVER_S = 30.0
_BACK_S = 45.0

#: stage -> seconds
Seen = Mapping[str, float]
#: regime -> fault -> stages
Takeovers = dict[str, dict[str, Seen]]
#: pairs: make -> takeovers
Pairs = Sequence[Mapping[str, Mapping[str, Mapping[str, Seen]]]]


def session(
    make: str, timers: Mapping[str, int], load: Load, regime: str, fault: str, *, comes_back: bool
) -> dict[str, float]:
    """Run one takeover in a fresh cluster. Return stage -> seconds, as the probe saw it.

    `comes_back` says whether to wait for the master's return.
    """
    who = "ours" if make == OURS else "apache"
    nodes = dict.fromkeys(("ns", "a0", "a1", "b0"), who)
    with tempfile.TemporaryDirectory(prefix="failover-") as home:
        cluster = ActingCluster(Path(home), nodes, timers, _FILES, heap_mb=HEAP_MB, small=False)
        try:
            cluster.start_brokers()
            _put_under_load(make, cluster, load, regime)
            return _take_over(cluster, fault, comes_back=comes_back)
        finally:
            cluster.close()


def _put_under_load(make: str, cluster: ActingCluster, load: Load, regime: str) -> None:
    """Put the group of two under load. Return once its slave has copied everything."""
    # An Apache slave copies the topics after a minute. Before a warm fault it spends it under load.
    if regime == FIRST:
        cluster.await_slave()
    with load.session(cluster.namesrv):
        loaded = Session(Replicated(make, cluster), load, 0.0, 0.0, regime=regime)
        put_under_load(loaded, LOADS_S[regime])
    cluster.await_slave()
    until_copied(cluster)
    until_readable(cluster, loaded.name("load-async"))


def _take_over(cluster: ActingCluster, fault: str, *, comes_back: bool) -> dict[str, float]:
    master = cluster.master
    breaks, returns = {"kill": (master.kill, master.begin), "pause": (master.pause, master.resume)}[fault]
    with contextlib.closing(Probe(cluster)) as probe:
        with probe.load():
            time.sleep(_PROBE_S)
            probe.fault(breaks)
            probe.wait("route", "read", "lock", "delayed", most_s=_TAKEOVER_S)
        if comes_back:
            returns()
            probe.returned()
            probe.wait("back", most_s=_BACK_S)
        return dict(probe.seen)


def measure(chosen: argparse.Namespace) -> list[dict[str, Takeovers]]:
    """Return, for each pair, make -> regime -> fault -> stage -> seconds."""
    began_s = time.monotonic()
    pairs: list[dict[str, Takeovers]] = []
    with Load() as load:
        for number in range(chosen.pairs):
            pairs.append(_pair(number, load, TIMERS[chosen.timers]))
            if chosen.write:
                _keep(pairs, chosen)
            print(f"pair {number + 1} of {chosen.pairs}: {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
    return pairs


def _pair(number: int, load: Load, timers: Mapping[str, int]) -> dict[str, Takeovers]:
    pair: dict[str, Takeovers] = {make: {regime: {} for regime in LOADS_S} for make in (OURS, APACHE)}
    order = (OURS, APACHE) if number % 2 == 0 else (APACHE, OURS)
    for regime, fault, make in itertools.product(LOADS_S, FAULTS, order):
        # Apache's killed master does not return once a client has pulled. Only one session checks
        # that.
        comes_back = make == OURS or fault != "kill" or (number == 0 and regime == FIRST)
        began_s = time.monotonic()
        seen = pair[make][regime][fault] = session(make, timers, load, regime, fault, comes_back=comes_back)
        told = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in seen.items())
        took_s = time.monotonic() - began_s
        print(f"{number + 1:>3} {make:>7} {regime:>5} {fault:>5}: {told}  [{took_s:.0f} s]", file=sys.stderr, flush=True)
    return pair


# --- evaluation -----------------------------------------------------------------------------------


def takeovers(pairs: Pairs, make: str, regime: str, fault: str) -> list[Seen]:
    """Return what the probe saw in each pair."""
    return [pair[make].get(regime, {}).get(fault, {}) for pair in pairs]


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


def row(pairs: Pairs, regime: str, fault: str, stage: str) -> str:
    """Return a table row: both times and their ratio, in total and of the group's own part.

    Times are since the fault, or since the return of the master.
    """
    whole = _times(pairs, regime, fault, stage)
    parts = {make: [own(each, stage) for each in takeovers(pairs, make, regime, fault)] for make in (OURS, APACHE)}
    seen = " / ".join(str(sum(each is not None for each in whole[make])) for make in (OURS, APACHE))
    own_part = "| – | – | – |" if stage in ("route", "back") else f"| {_compared(parts)} |"
    return f"| {fault} | {STAGES[stage]} | {_compared(whole)} {own_part} {seen} |"


def _times(pairs: Pairs, regime: str, fault: str, stage: str) -> dict[str, list[float | None]]:
    return {make: [each.get(stage) for each in takeovers(pairs, make, regime, fault)] for make in (OURS, APACHE)}


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


_TITLES = {FIRST: "First minute", WARM: "Warm"}
_HEAD = """| fault | stage | rmqkit | Apache | ratio, median [95 %] | own part: rmqkit | Apache | ratio | seen |
|---|---|---:|---:|---:|---:|---:|---:|---:|"""
_NOT_MEASURED = "Not measured yet: run `make bench-failover ARGS=--write`."
_TEXT = """# Takeover, measured beside Apache RocketMQ {version}

How long each stage of a takeover takes, here and at Apache. For people who choose timers.

{made}

{tables}

## How it was measured

Each takeover has a fresh cluster of one make, because the Java process of a slave that has acted
once runs the next takeover with code that is loaded already. The group of master and slave is under
the load of `make bench-apache` for {first_load_s:g} s (*first minute*) or {warm_load_s:g} s (*warm*). The load ends. Once
the slave has everything, the probe sends 20 messages a second for {probe_s:g} s. Then the master is killed
(SIGKILL) or paused (SIGSTOP). Apache's slave needs a minute to copy the topics. In the first-minute
regime it spends this minute without load.

- A ratio below 1 means that rmqkit is quicker.
- Times count from the fault. The *own part* of a stage counts from the change of the route
  (*detection*), so that a slow detection does not hide a quick stage.
- rmqkit's name servers wait one heartbeat longer than `brokerNotActiveTimeoutMillis`, so that a
  broker that stalled notices it before they do.
- *Master back* counts from the master's return (SIGCONT, or the start of its process) to a message
  that it accepts from a client that used the route. The log's files have 16 MiB, so a killed master
  recovers little of a large log.
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
    made = (
        f"`make bench-failover` made this page: {len(pairs)} alternating pairs, the same timers on both sides ({timers})."
    )
    return _TEXT.format(
        version=apache.VERSION,
        made=textwrap.fill(f"{made} {figures['machine']} {figures['at'][:10]}.", 100),
        tables="\n\n".join(f"## {title}\n\n{_table(pairs, regime)}" for regime, title in _TITLES.items()),
        first_load_s=FIRST_LOAD_S,
        warm_load_s=WARM_AFTER_S,
        probe_s=_PROBE_S,
        back_s=_BACK_S,
    )


def _table(pairs: Pairs, regime: str) -> str:
    """Return the table of a regime."""
    if not _is_measured(pairs, regime):
        return _NOT_MEASURED
    rows = (row(pairs, regime, fault, stage) for fault in FAULTS for stage in STAGES)
    return "\n".join([_HEAD, *rows])


def summary(figures: Mapping[str, Any]) -> str:
    """Return the table of `docs/failover.md`: the times of both regimes, side by side."""
    pairs = figures["pairs"]
    lines = [
        "| fault | stage | rmqkit, first minute | Apache | ratio, first minute | rmqkit, warm | Apache | ratio, warm |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for fault, stage in itertools.product(FAULTS, STAGES):
        regimes = " | ".join(_compared(_times(pairs, regime, fault, stage)) for regime in LOADS_S)
        lines.append(f"| {fault} | {STAGES[stage]} | {regimes} |")
    return "\n".join(lines) if _is_measured(pairs, FIRST) else _NOT_MEASURED


def _is_measured(pairs: Pairs, regime: str) -> bool:
    """Return whether the pairs have the regime. Those of an older version belong to none."""
    return any(regime in pair[OURS] for pair in pairs)


def _keep(pairs: Sequence[Any], chosen: argparse.Namespace) -> None:
    figures = {"at": kept.now(), "machine": machine(), "timers": TIMERS[chosen.timers], "pairs": list(pairs)}
    kept.save(KEPT, figures)
    SECTION.write_text(section(figures))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-failover", description="Takeover, in alternating pairs.")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--timers", choices=list(TIMERS), default="fast", help="timers of both sides (fast)")
    parser.add_argument("--write", action="store_true", help="store the figures and regenerate the page")
    chosen = parser.parse_args(arguments)
    apache.require_tools()
    pairs = measure(chosen)
    for regime, title in _TITLES.items():
        print(f"{title}\n{_table(pairs, regime)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
