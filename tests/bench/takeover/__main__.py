"""Runs takeovers with pending work, ours and Apache's in turn: `make bench-takeover ARGS="..."`.

    python -m tests.bench.takeover [--fault kill pause isolate] [--pairs 5] [--write]

A session is a fresh cluster of one make (`tests.interop.acting`): a name server, a group of a
master and a slave, and a group of one master. All brokers have the same settings. A session takes
about two minutes:

1. Timers, half messages and messages to pop are sent to the group of two. Some of the latter are
   popped and acked, some are popped and not acked. A group commits offsets all the time.
2. The master fails: it is killed, paused, or its network is cut (`network`). It is away for 25 s.
   Meanwhile the timers are due, the producer knows the outcomes of its transactions, and the
   invisible time of what was popped ends.
3. The master returns. What can be read is counted at the end of the outage, and again once nothing
   is missing, or after 30 s.

With `--write` each pair is added to docs/performance/takeover.json, and docs/comparison.md is
regenerated. The pairs of earlier runs stay; `--fresh` replaces those of the faults that run.
"""

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rmqkit import Message
from tests.bench.against_apache import machine
from tests.bench.brokers import APACHE, OURS
from tests.bench.failover import TIMERS as TIMERS_OF_BROKERS
from tests.bench.figures import now
from tests.bench.takeover import load, network, page
from tests.interop import apache
from tests.interop.acting import BROKEN, ActingCluster, Probe

FAULTS = ("kill", "pause", "isolate")
SETTINGS = {
    "transactionTimeOut": "3000",
    "transactionCheckInterval": "1000",
    "transactionCheckMax": "100",
    "transactionOpBatchInterval": "200",
}
TIMERS = HALVES = 100
#: popped and acked, popped and not acked, not popped before the fault
ACKED, UNACKED, LEFT = 96, 64, 40
#: time from the sends to the fault; the slave copies everything meanwhile
_BEFORE_S = 8.0
#: the first timer is due this long after the fault, and the last one before the end of the outage
_FIRST_DUE_S, _SPREAD_S = 4.0, 14.0
_OUTAGE_S = 25.0
_POP_S = 10.0
_BACK_S = 45.0
_SETTLE_S = 30.0
_HEAP_MB = 512


def session(make: str, fault: str, timers: Mapping[str, int]) -> dict[str, Any]:
    """Run one takeover and return its counts."""
    who = "ours" if make == OURS else "apache"
    with tempfile.TemporaryDirectory(prefix="takeover-") as home, contextlib.ExitStack() as stack:
        makes = dict.fromkeys(("ns", "a0", "a1", "b0"), who)
        link = stack.enter_context(contextlib.closing(network.Link())) if fault == "isolate" else None
        of_nodes = link.of_nodes() if link else None
        cluster = ActingCluster(Path(home), makes, timers, SETTINGS, of_nodes, heap_mb=_HEAP_MB)
        stack.callback(cluster.close)
        cluster.start()
        load.prepare(cluster)
        master = cluster.master
        faults = {"kill": (master.kill, master.begin), "pause": (master.pause, master.resume)}
        if link is not None:
            faults["isolate"] = (link.cut, link.heal)
        return _Takeover(cluster, stack).run(*faults[fault])


class _Takeover:
    """One session after the start of its cluster."""

    def __init__(self, cluster: ActingCluster, stack: contextlib.ExitStack) -> None:
        self.cluster = cluster
        self.halves = stack.enter_context(contextlib.closing(load.Halves(cluster.namesrv, HALVES)))
        self.pops = stack.enter_context(contextlib.closing(load.Pops(cluster)))
        self.progress = stack.enter_context(contextlib.closing(load.Progress(cluster)))
        numbers = range(ACKED + UNACKED + LEFT)
        self.popped = load.send_all(cluster.namesrv, [Message(load.POPPED, f"pop {number}") for number in numbers])
        self._pop_until(ACKED, ack=True)
        due_ms = time.time_ns() // 1_000_000 + int((_BEFORE_S + _FIRST_DUE_S) * 1000)
        spread = random.Random(1)
        self.timers = load.send_all(
            cluster.namesrv,
            [
                Message(load.TIMERS, f"timer {number}", deliver_at=due_ms + int(spread.random() * _SPREAD_S * 1000))
                for number in range(TIMERS)
            ],
        )
        self.fault_s = (due_ms / 1000 - _FIRST_DUE_S) - time.time() + time.monotonic()

    def _pop_until(self, count: int, *, ack: bool) -> None:
        """Pop at the master until `count` messages more were given. Raises RuntimeError."""
        wanted = len(self.pops.given) + count
        end_s = time.monotonic() + 20
        while (missing := wanted - len(self.pops.given)) > 0:
            if time.monotonic() > end_s:
                raise RuntimeError(f"{missing} of {count} messages were not popped in 20 s")
            # What an unanswered pop took would be missing from the counts.
            self.pops.pop(self.cluster.master.address, BROKEN, ack=ack, count=min(16, missing), timeout_s=_POP_S)

    def run(self, breaks: Callable[[], None], returns: Callable[[], None]) -> dict[str, Any]:
        cluster, pops = self.cluster, self.pops
        time.sleep(max(0.0, self.fault_s - 4 - time.monotonic()))
        acked_before = set(pops.acked)
        self._pop_until(UNACKED, ack=False)
        unacked = set(pops.given) - acked_before
        left = set(self.popped) - set(pops.given)
        time.sleep(max(0.0, self.fault_s - time.monotonic()))
        breaks()
        began_s = time.monotonic()
        self.halves.decide()
        pops.start()
        time.sleep(max(0.0, began_s + _OUTAGE_S - time.monotonic()))
        during = {topic: load.copies((cluster.slave, cluster.other), topic) for topic in (load.TIMERS, load.TRANSACTIONS)}
        found: dict[str, Any] = {
            "timers": len(self.timers),
            "timersDuring": len(during[load.TIMERS]),
            "committed": len(self.halves.committed),
            "committedDuring": sum(body in during[load.TRANSACTIONS] for body in self.halves.committed),
            "unacked": len(unacked),
            "unackedDuring": pops.given_since(unacked, began_s),
            "left": len(left),
            "leftDuring": pops.given_since(left, began_s),
        }
        found["backSeconds"] = self._back(returns)
        found |= self._settled()
        pops.close()
        self.progress.close()
        found["givenAfterAck"] = pops.given_after_ack()
        found["popLost"] = sum(body not in pops.given for body in self.popped)
        found["unackedLost"] = len(unacked) - pops.given_since(unacked, began_s)
        went_back = Counter[str]()
        for address, lacking in self.progress.went_back:
            went_back["return" if address == cluster.master.address else "takeover"] += lacking
        found["backAtTakeover"], found["backAtReturn"] = went_back["takeover"], went_back["return"]
        found["checks"] = self.halves.asked
        return found

    def _back(self, returns: Callable[[], None]) -> float | None:
        """Let the master return. Return the seconds until it accepts messages; None for never."""
        with contextlib.closing(Probe(self.cluster)) as probe:
            returns()
            probe.returned()
            probe.wait("back", most_s=_BACK_S)
            return probe.seen.get("back")

    def _settled(self) -> dict[str, int]:
        """Count once nothing is missing, or after 30 s."""
        cluster = self.cluster
        end_s = time.monotonic() + _SETTLE_S
        while True:
            # The slave has what its master has, and the master may be away still.
            group = cluster.master if cluster.master.facts() else cluster.slave
            timers = load.copies((group, cluster.other), load.TIMERS)
            halves = load.copies((group, cluster.other), load.TRANSACTIONS)
            missing = [body for body in self.timers if body not in timers]
            missing_halves = [body for body in self.halves.committed if body not in halves]
            is_whole = not missing and not missing_halves and len(self.pops.acked) >= len(self.popped)
            if is_whole or time.monotonic() > end_s:
                break
            time.sleep(1)
        return {
            "timersTwice": sum(count > 1 for count in timers.values()),
            "timersLost": len(missing),
            "committedTwice": sum(halves[body] > 1 for body in self.halves.committed),
            "committedSurplus": sum(max(0, halves[body] - 1) for body in self.halves.committed),
            "committedLost": len(missing_halves),
            "rolledBackDelivered": sum(body in halves for body in self.halves.rolled_back),
        }


def measure(chosen: argparse.Namespace) -> bool:
    """Run all pairs; return whether all of them could be counted."""
    figures = page.load()
    is_whole = True
    timers = TIMERS_OF_BROKERS[chosen.timers]
    for fault in chosen.fault:
        if chosen.fresh:
            figures["faults"].pop(fault, None)
        for number in range(chosen.pairs):
            pair: dict[str, dict[str, Any]] = {}
            for make in (OURS, APACHE) if number % 2 == 0 else (APACHE, OURS):
                began_s = time.monotonic()
                try:
                    pair[make] = session(make, fault, timers)
                except network.NetworkError:
                    raise
                except (apache.ApacheError, AssertionError, RuntimeError, OSError) as error:
                    # On a busy machine a broker may not start in time. Other pairs are still good.
                    print(f"{fault} {number + 1} {make:>7} FAILED: {error}", file=sys.stderr, flush=True)
                    break
                took_s = time.monotonic() - began_s
                print(
                    f"{fault} {number + 1} {make:>7} [{took_s:.0f} s]: {json.dumps(pair[make])}",
                    file=sys.stderr,
                    flush=True,
                )
            if len(pair) < 2:
                is_whole = False
                continue
            figures["faults"].setdefault(fault, []).append(pair)
            figures["timers"], figures["machine"] = timers, machine()
            figures["settings"] = SETTINGS
            figures["at"] = now()
            if chosen.write:
                page.keep(figures)
        if figures["faults"].get(fault):
            print("\n".join(page.rows(fault, figures["faults"][fault])), flush=True)
    return is_whole


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-takeover", description="Takeovers with pending work, in pairs.")
    parser.add_argument("--fault", nargs="+", choices=FAULTS, default=list(FAULTS), help=", ".join(FAULTS))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--timers", choices=list(TIMERS_OF_BROKERS), default="fast", help="timers of both sides (fast)")
    parser.add_argument("--fresh", action="store_true", help="replace earlier pairs of these faults")
    parser.add_argument("--write", action="store_true", help="store the figures and regenerate the page")
    chosen = parser.parse_args(arguments)
    apache.require_tools()
    try:
        if "isolate" in chosen.fault and not network.is_own():
            return network.enter("tests.bench.takeover", arguments)
        if network.is_own():
            network.loopback_up()
        return 0 if measure(chosen) else 1
    except network.NetworkError as error:
        print(f"error: {error}; --fault kill pause needs no such right", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
