"""The two candidates: our cluster and Apache's, each a freshly started name server and one broker.

Only one of them runs at a time. Both use their default files and threads; both get the same
settings.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from rmqkit.cluster.health import status
from rmqkit.testing import clusters
from tests.interop import apache

OURS, APACHE = "rmqkit", "apache"

#: name -> heap in MB and further JVM flags: those of Apache's `bin/runbroker.sh` for a current
#: Java, and a small heap without flags
JVMS = {
    "shipped": (
        8192,
        "-server -XX:+UseG1GC -XX:G1HeapRegionSize=16m -XX:G1ReservePercent=25 -XX:InitiatingHeapOccupancyPercent=30"
        " -XX:SoftRefLRUPolicyMSPerMB=0 -XX:-OmitStackTraceInFastThrow -XX:+AlwaysPreTouch"
        " -XX:MaxDirectMemorySize=15g -XX:-UseLargePages -XX:-UseBiasedLocking -XX:+IgnoreUnrecognizedVMOptions",
    ),
    "1g": (1024, ""),
}
#: the default file sizes of the broker; the interop tests use smaller ones
DEFAULT_FILES = {
    "mappedFileSizeCommitLog": str(1 << 30),
    "mappedFileSizeConsumeQueue": str(300_000 * 20),
    "maxIndexNum": str(20_000_000),
    "maxHashSlotNum": str(5_000_000),
    "mappedFileSizeTimerLog": str(100 << 20),
}


class Running(NamedTuple):
    """A candidate that runs and answers requests."""

    name: str
    namesrv: str
    broker: str
    broker_pid: int
    nameserver_pid: int

    def cpu_s(self) -> float:
        """Return the broker's CPU time so far in seconds, user and system, all threads."""
        times = psutil.Process(self.broker_pid).cpu_times()
        return times.user + times.system

    def private_mb(self) -> dict[str, float]:
        """Return the private memory of each process in MB, without pages of files.

        Mapped files belong to the page cache, which the system can reclaim.
        """
        return {
            "broker": _anonymous_mb(self.broker_pid),
            "nameserver": _anonymous_mb(self.nameserver_pid),
        }


def _anonymous_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"no word about anonymous memory of process {pid}")


@contextmanager
def ours(settings: Mapping[str, str]) -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="ours-") as home:
        asked = {"brokerRole": "ASYNC_MASTER", **settings}
        running = clusters.start(Path(home), timeout_s=60, replicas=1, settings=asked)
        try:
            nodes = {node["kind"]: node for node in status.document(running.cluster)["nodes"]}
            broker, nameserver = nodes["broker"], nodes["nameserver"]
            yield Running(OURS, running.namesrv, broker["address"], broker["pid"], nameserver["pid"])
        finally:
            running.down(keep=False)


@contextmanager
def theirs(settings: Mapping[str, str], jvm: str = "1g") -> Iterator[Running]:
    asked = {**DEFAULT_FILES, **settings}
    heap_mb, flags = JVMS[jvm]
    # Java reads this variable itself. The name server gets it too, but is nearly idle.
    env = {"JDK_JAVA_OPTIONS": flags} if flags else {}
    with apache.ApacheCluster(broker_properties=asked, small=False, heap_mb=heap_mb, env=env) as cluster:
        broker, nameserver = cluster.broker, cluster.nameserver
        assert broker is not None
        assert nameserver is not None
        yield Running(APACHE, cluster.namesrv, cluster.broker_address, broker.pid, nameserver.pid)


def candidates(jvm: str) -> dict[str, Callable[[Mapping[str, str]], AbstractContextManager[Running]]]:
    return {OURS: ours, APACHE: lambda settings: theirs(settings, jvm)}


# --- start-up -------------------------------------------------------------------------------------


def start_up_s(name: str, jvm: str) -> float:
    """Return the seconds from the start of both nodes to the first acknowledged send."""
    return _our_start_up_s() if name == OURS else _their_start_up_s(jvm)


def _our_start_up_s() -> float:
    """Measure `rmqkit cluster up` as a user's shell runs it, including the start of the command."""
    with tempfile.TemporaryDirectory(prefix="ours-") as home:
        began_s = time.monotonic()
        up = run_rmqkit(home, "cluster", "up", "--any-port", "--replicas", "1", "--json")
        try:
            if up.returncode:
                raise RuntimeError(f"cluster up failed ({up.returncode}): {up.stderr.strip()[-500:]}")
            told = json.loads(up.stdout)
            master = next(node for node in told["nodes"] if node["kind"] == "broker" and node["broker_id"] == 0)
            send_first(told["namesrv"], master["address"])
            return time.monotonic() - began_s
        finally:
            run_rmqkit(home, "cluster", "down", "--purge")


def _their_start_up_s(jvm: str) -> float:
    began_s = time.monotonic()
    with theirs({}, jvm) as running:
        send_first(running.namesrv, running.broker)
        return time.monotonic() - began_s


def run_rmqkit(home: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rmqkit.cli.main", *arguments],
        env={**os.environ, "RMQKIT_HOME": home},
        capture_output=True,
        text=True,
        check=False,
    )


def send_first(namesrv: str, broker: str) -> None:
    """Send one message to a new topic, with a minimal request. Raises RuntimeError."""
    route = apache.ask(namesrv, 105, {"topic": "TBW102"})
    fields = {
        "producerGroup": "first",
        "topic": "FirstSend",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": str(time.time_ns() // 1_000_000),
        "flag": "0",
        "properties": "",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    answer = apache.ask(broker, 10, fields, b"first")
    if route["code"] != 0 or answer["code"] != 0:
        raise RuntimeError(f"the first send was not acknowledged: {route} {answer}")
