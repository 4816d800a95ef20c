"""Measures latency against rate, for both brokers: `make bench-latency ARGS="..."`.

    python -m tests.bench.open_loop [--pairs 3] [--seconds 4] [--rates 1000 5000 ...] [--write]

The load is an open loop: messages are sent at a fixed rate, whether or not earlier ones have been
answered. A time runs from the moment a message is due to be sent until Java's listener has it. So a
broker that stalls cannot hide the messages that wait meanwhile.

A pair is a session of each broker, one after the other. A session raises the rate step by step. Its
last step is the first one at which fewer than 95 % of the messages arrive in the window: the
broker, or the client beside it, is saturated. `--write` stores the figures, the table and the plot.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench import figures as kept
from tests.bench.against_apache import DOCS, FIGURES, PAGE, machine
from tests.bench.brokers import APACHE, JVMS, OURS, candidates
from tests.bench.load import Load
from tests.bench.rows import ASYNC_FLUSH, QUEUES, Session, put_under_load
from tests.interop import apache

KEPT = DOCS / "performance" / "latency.json"
SECTION = DOCS / "performance" / "latency.md"
PLOT = DOCS / "pictures" / "latency.svg"
RATES = (1_000, 2_000, 5_000, 10_000, 15_000, 20_000, 25_000, 30_000, 40_000)
#: share of the sent messages that a broker must deliver within the window
DELIVERED = 0.95
PERCENTILES = ("p50Ms", "p99Ms", "p999Ms")
GOAL = 0.5

#: side -> rate -> figures
Pair = Mapping[str, Mapping[str, Mapping[str, Any]]]


def measure(chosen: argparse.Namespace) -> list[Pair]:
    pairs: list[Pair] = []
    with Load() as load:
        for number in range(chosen.pairs):
            order = (OURS, APACHE) if number % 2 == 0 else (APACHE, OURS)
            pairs.append({side: _session(side, load, chosen) for side in order})
    return pairs


def _session(side: str, load: Load, chosen: argparse.Namespace) -> dict[str, Mapping[str, Any]]:
    done: dict[str, Mapping[str, Any]] = {}
    with candidates(chosen.jvm)[side]({"flushDiskType": ASYNC_FLUSH}) as running, load.session(running.namesrv):
        session = Session(running, load, chosen.lead, chosen.seconds)
        put_under_load(session, chosen.warm)
        for rate in chosen.rates:
            figure = done[str(rate)] = _step(session, rate)
            times = " / ".join(f"{figure[each]:,.1f}" for each in PERCENTILES)
            print(f"{side:>7} {rate:>7,}/s: {figure['perSecond']:>9,.0f}/s, {times} ms", file=sys.stderr, flush=True)
            if not is_delivered(figure, rate):
                break
    return done


def _step(session: Session, rate: int) -> Mapping[str, Any]:
    topic = session.topic(f"rate-{rate}")
    lead_ms, run_ms = int(session.lead_s * 1000), int(session.seconds * 1000)
    return session.do("e2e", topic, group=f"g-{topic}", rate=rate, size=1024, leadMs=lead_ms, runMs=run_ms)


def is_delivered(figure: Mapping[str, Any], rate: int) -> bool:
    return bool(figure["perSecond"] >= DELIVERED * rate)


def medians(pairs: Sequence[Pair], side: str) -> dict[int, dict[str, float]]:
    """Return the medians of each rate at which the side delivers in every pair."""
    found: dict[int, dict[str, float]] = {}
    for rate in sorted({int(rate) for pair in pairs for rate in pair[side]}):
        steps = [pair[side].get(str(rate)) for pair in pairs]
        whole = [step for step in steps if step is not None and is_delivered(step, rate)]
        if len(whole) == len(pairs):
            found[rate] = {each: statistics.median(step[each] for step in whole) for each in PERCENTILES}
    return found


def half_of_peak(ours: Mapping[int, Any], theirs: Mapping[int, Any]) -> int:
    """Return the highest rate, at most half of the lower peak. Raises ValueError without one."""
    peak = min(max(ours), max(theirs))
    return max(rate for rate in ours if rate in theirs and rate <= peak / 2)


_TEXT = """# Latency against rate

The table and the plot show how long a message takes from its producer to a listener while the rate
grows. They are for operators who must keep a latency.

{table}

![Latency against rate: rmqkit and Apache 5.5.0](../pictures/latency.svg)

Each cell has the 50th, the 99th and the 99.9th percentile in ms, the median of the pairs. Pairs:
{pairs}. A dash means that the broker did not deliver 95 % of the messages in the window in each pair.
{verdict}

{machine}

`make bench-latency` starts a name server and one broker, all rmqkit's or all Apache's, on the same
cores as the client. The client is one JVM with `rocketmq-client` 5.5.0: an asynchronous producer of
1 KiB messages, and a push consumer. Topics have {queues} queues. The load is an open loop: a time runs
from the moment a message is due to be sent, whether or not the producer was held up. Each step runs
for {lead_s:g} s before the measured window of {seconds:g} s, after {warm_s:g} s of other load. Apache's broker runs
with `{jvm}`.
"""


def section(figures: Mapping[str, Any]) -> str:
    """Return the section of the page."""
    pairs = figures["pairs"]
    ours, theirs = medians(pairs, OURS), medians(pairs, APACHE)
    lines = ["| messages a second | rmqkit | Apache |", "|---:|---:|---:|"]
    lines += [f"| {rate:,} | {_cell(ours.get(rate))} | {_cell(theirs.get(rate))} |" for rate in sorted({*ours, *theirs})]
    half = half_of_peak(ours, theirs)
    found = [pair[OURS][str(half)]["p999Ms"] / pair[APACHE][str(half)]["p999Ms"] for pair in pairs]
    ratio = statistics.median(found)
    verdict = (
        f"At {half:,} messages a second, the highest step up to half of the lower peak, the ratio of the 99.9th"
        f" percentiles is {ratio:.2f} [{min(found):.2f}–{max(found):.2f}]. The goal is at most {GOAL:g}, which is"
        f" {'reached' if ratio <= GOAL else '**not reached**'}."
    )
    text = _TEXT.format(
        table="\n".join(lines),
        pairs=len(pairs),
        verdict=verdict,
        machine=f"{figures['machine']} {figures['at'][:10]}.",
        **figures["method"],
    )
    return kept.wrapped_page(text)


def _cell(times: Mapping[str, float] | None) -> str:
    return "–" if times is None else " / ".join(f"{times[each]:,.3g}" for each in PERCENTILES)


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """Write the plot in the format of the path's suffix. Raises ImportError without matplotlib."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # The same figures give the same file.
    with mpl.rc_context({"svg.hashsalt": "latency", "svg.fonttype": "none"}):
        picture = Figure(figsize=(8, 4.5), layout="constrained")
        axes = picture.subplots()
        for side, label, color in ((OURS, "rmqkit", "tab:blue"), (APACHE, "Apache 5.5.0", "tab:orange")):
            found = medians(figures["pairs"], side)
            for each, line, name in (("p50Ms", ":", "p50"), ("p99Ms", "--", "p99"), ("p999Ms", "-", "p99.9")):
                times = [found[rate][each] for rate in found]
                axes.plot(list(found), times, line, color=color, marker=".", label=f"{label}, {name}")
        axes.set_yscale("log")
        axes.set_xlabel("messages of 1 KiB a second")
        axes.set_ylabel("from due to listener, ms")
        axes.grid(alpha=0.3)
        axes.legend(ncols=2, fontsize="small")
        picture.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-latency", description="Latency against rate, in pairs.")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--rates", type=int, nargs="+", default=RATES, metavar="RATE", help="messages a second")
    parser.add_argument("--seconds", type=float, default=4.0, help="measured seconds of each step (4)")
    parser.add_argument("--lead", type=float, default=1.0, help="unmeasured seconds before them (1)")
    parser.add_argument("--warm", type=float, default=20.0, help="seconds of load before the first step (20)")
    parser.add_argument("--jvm", choices=list(JVMS), default="1g", help="flags of Apache's broker (1g)")
    parser.add_argument("--write", action="store_true", help="store the figures and regenerate the page")
    chosen = parser.parse_args(arguments)
    apache.require_tools()
    figures = {
        "at": kept.now(),
        "machine": machine(),
        "method": {
            "warm_s": chosen.warm,
            "lead_s": chosen.lead,
            "seconds": chosen.seconds,
            "queues": QUEUES,
            "jvm": "-Xms{0}m -Xmx{0}m {1}".format(*JVMS[chosen.jvm]).strip(),
        },
        "pairs": measure(chosen),
    }
    text = section(figures)
    if chosen.write:
        kept.save(KEPT, figures)
        SECTION.write_text(text)
        draw(figures, PLOT)
        PAGE.write_text(kept.render(kept.load(FIGURES), FIGURES.parent))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
