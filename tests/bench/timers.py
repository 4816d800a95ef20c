"""Measures pending timer messages in a broker in this process: memory, start after a kill, a burst.

    python -m tests.bench.timers [--count 1000000] [--burst 100000] [--json FILE]

1. `count` timers are stored, spread over 40 hours. The broker is on real files; the clock is the
   benchmark's own. Counted: µs per timer to accept (append and index), and the growth of the
   process's private memory.
2. The broker is dropped without a stop, as by kill -9, and started again on the same folder.
   Counted: seconds until the index is complete, by the timer log, and by the topic alone (without a
   timer log).
3. `burst` timers are due in one second. Counted: seconds until all are in their topic, and the
   longest turn.
"""

import argparse
import gc
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rmqkit import config, plugins
from rmqkit.broker.node import Broker
from rmqkit.broker.special.timer.duty import TimerDuty
from rmqkit.broker.special.timer.index import FOLLOWING
from rmqkit.runtime.ports import Clock, Ports
from rmqkit.shell.disk import OsDisk
from rmqkit.shell.log import stderr_log
from rmqkit.store.contract import Put
from rmqkit.wire import properties as props

TOPIC = "BenchmarkTest"
HOST = bytes((127, 0, 0, 1, 0, 0, 0, 1))
PER_TURN = 500
SPREAD_MS = 40 * 3_600_000
#: before the first timer is due: a broker that waits for its disk lets much of this clock pass
AHEAD_MS = 6 * 3_600_000
BODY = b"x" * 100


class TimerBench:
    """A broker on a folder, whose turns and clock the benchmark drives."""

    def __init__(self, folder: Path, wall_ms: int) -> None:
        self.clock = Clock(1_000, wall_ms)
        found = plugins.load([], entry_points=False)
        settings = ["brokerName=a", f"storePathRootDir={folder}", "bindAddress=127.0.0.1", "diskMaxUsedSpaceRatio=98"]
        node_config = config.load([], settings, "broker", host=config.Host())
        self.disk = OsDisk(folder, wake=lambda: None)
        ports = Ports(self.clock, self.disk, random.Random(1), stderr_log("error"))
        self.node = Broker("a", ports, node_config, found.broker_parts(node_config))
        self.node.start()
        self.longest_ms = 0.0

    @property
    def duty(self) -> TimerDuty:
        return self.node.special.find(TimerDuty)

    def turn(self, step_ms: int = 1) -> None:
        began = time.perf_counter()
        self.clock.mono_ms += step_ms
        self.clock.wall_ms += step_ms
        for completion, error in self.disk.take_completed():
            self.node.done(completion, error)
        self.node.run_due()
        self.node.settle()
        self.longest_ms = max(self.longest_ms, (time.perf_counter() - began) * 1000)

    def until(self, reached: Callable[[], bool]) -> float:
        """Turn until then; return the seconds that it took."""
        began = time.perf_counter()
        while not reached():
            self.turn()
        return time.perf_counter() - began

    def indexed(self) -> bool:
        index = self.duty.index
        end = self.node.store.queue_range("rmq_sys_wheel_timer", 0).offset_max if self.node.store.ready else -1
        return index.state is FOLLOWING and index.next == end

    def put(self, number: int, out_ms: int) -> None:
        put = Put(TOPIC, 0, 0, 0, 1, HOST, HOST, 0, 0, BODY, props.encode({"UNIQ_KEY": f"{number:032X}"}), 0)
        self.duty.append(put, out_ms // 1000 * 1000)

    def drop(self) -> None:
        """End as by kill -9: what was written stays."""
        self.disk.close()


def private_mib() -> float:
    """Return the private memory of this process: mapped parts of the log do not count."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no RssAnon in /proc/self/status")


def measure(count: int, burst: int) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="rmqkit-timers-"))
    wall_ms = 1_760_000_000_000
    figures: dict[str, float] = {"count": count, "burst": burst}
    try:
        bench = TimerBench(folder, wall_ms)
        bench.until(lambda: bench.node.serving and bench.duty.is_on)
        gc.collect()
        before = private_mib()
        began = time.perf_counter()
        for number in range(count):
            bench.put(number, wall_ms + AHEAD_MS + number * SPREAD_MS // count)
            if number % PER_TURN == PER_TURN - 1:
                bench.turn(0)
        bench.until(bench.indexed)
        figures["accept_us"] = (time.perf_counter() - began) * 1e6 / count
        gc.collect()
        figures["memory_mib"] = private_mib() - before
        figures["timer_log_mib"] = bench.duty.index.log.end / 2**20
        bench.drop()
        bench = TimerBench(folder, bench.clock.wall_ms)
        bench.until(lambda: bench.node.serving)
        figures["start_s"] = bench.until(bench.indexed)
        figures["start_turn_ms"] = bench.longest_ms
        assert bench.duty.index.wheel.units == count
        bench.drop()
        shutil.rmtree(folder / "timerlog")
        bench = TimerBench(folder, bench.clock.wall_ms)
        bench.until(lambda: bench.node.serving)
        figures["rebuild_s"] = bench.until(bench.indexed)
        assert bench.duty.index.wheel.units == count
        due_ms = bench.clock.wall_ms // 1000 * 1000 + 2 * 3_600_000
        for number in range(burst):
            bench.put(count + number, due_ms)
            if number % PER_TURN == PER_TURN - 1:
                bench.turn(0)
        bench.until(bench.indexed)
        step_ms = due_ms + 1000 - bench.clock.wall_ms
        bench.longest_ms = 0
        bench.turn(step_ms)
        store = bench.node.store
        figures["burst_s"] = bench.until(lambda: store.queue_range(TOPIC, 0).offset_max >= burst)
        figures["burst_us"] = figures["burst_s"] * 1e6 / burst
        figures["burst_turn_ms"] = bench.longest_ms
        bench.drop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--burst", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    figures = measure(arguments.count, arguments.burst)
    figures = {name: round(value, 2) for name, value in figures.items()}
    for name, value in figures.items():
        print(f"{name:15} {value}")
    if arguments.json is not None:
        machine = {"python": platform.python_version(), "cpus": os.cpu_count(), "system": platform.platform()}
        arguments.json.write_text(json.dumps({"machine": machine, "figures": figures}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
