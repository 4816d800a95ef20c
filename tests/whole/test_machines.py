"""Runs the sample files of `examples/three_machines`, each machine a network namespace.

A namespace has an address and a loopback of its own, so a node that advertises 127.0.0.1 or a port
of another machine is found out here. The switch between them is a bridge in a fourth namespace: a
machine is cut off by taking its cable down. Needs root and `ip` (iproute2).
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.until import until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "three_machines"
MACHINES = (1, 2, 3)
NAMESRV = ";".join(f"10.77.0.{number}:9876" for number in MACHINES)
TIMEOUT_S = 60
#: longer than a slave takes to act: the name server's timeout for a silent broker, and a heartbeat
ACTING_S = 40

needs_namespaces = pytest.mark.skipif(
    not shutil.which("ip") or os.geteuid() != 0, reason="network namespaces need root and `ip`"
)
pytestmark = pytest.mark.long


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


class Machines:
    """Three network namespaces on one bridge, and the nodes in them."""

    def __init__(self, folder: Path) -> None:
        self._prefix = f"rmq{os.getpid()}"
        self._folder = folder
        self._lifeline, self._far_end = os.pipe()
        self._nodes: list[tuple[int, subprocess.Popen[bytes]]] = []
        self.switch = f"{self._prefix}s"

    def name(self, number: int) -> str:
        return f"{self._prefix}m{number}"

    def connect(self) -> None:
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "name", "lan", "type", "bridge")
        ip("-n", self.switch, "link", "set", "lan", "up")
        for number in MACHINES:
            name = self.name(number)
            ip("netns", "add", name)
            ip("-n", self.switch, "link", "add", f"p{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", self.switch, "link", "set", f"p{number}", "master", "lan", "up")
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def command(self, number: int, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.name(number), sys.executable, "-m", "rmqkit", *words]

    def start(self, number: int, kind: str) -> None:
        """Start a node with its sample file. Only folders differ: the namespaces share one disk."""
        file = "nameserver.toml" if kind == "nameserver" else f"broker-{number}.toml"
        text = (EXAMPLE / file).read_text().replace("/var/lib/rmqkit", str(self._folder / f"disk-{number}"))
        path = self._folder / f"{number}-{file}"
        path.write_text(text)
        with open(self._folder / f"{kind}-{number}.log", "ab") as log:
            process = subprocess.Popen(
                self.command(number, kind, "run", "-c", str(path), "--log-format", "json"),
                stdout=log, stderr=log, cwd=self._folder, pass_fds=[self._lifeline], env=self.environment(),
            )  # fmt: skip
        self._nodes.append((number, process))

    def run(self, number: int, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(number, *words), capture_output=True, text=True, timeout=TIMEOUT_S, cwd=self._folder,
            stdin=subprocess.DEVNULL, env=self.environment(),
        )  # fmt: skip

    def json(self, number: int, *words: str):
        done = self.run(number, *words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def power_off(self, number: int) -> None:
        """Kill every node of a machine. `ip netns exec` becomes the node, so the pids match."""
        for place, process in self._nodes:
            if place == number:
                process.kill()
                process.wait()

    def cable(self, number: int, state: str) -> None:
        ip("-n", self.switch, "link", "set", f"p{number}", state)

    def close(self) -> None:
        for _number, process in self._nodes:
            process.kill()
            process.wait()
        os.close(self._lifeline)
        os.close(self._far_end)
        for name in (*map(self.name, MACHINES), self.switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def environment(self) -> dict[str, str]:
        own = {"RMQKIT_HOME": str(self._folder / "home"), "NAMESRV_ADDR": NAMESRV}
        own["RMQKIT_LIFELINE_FD"] = str(self._lifeline)
        return {**os.environ, **own}


@pytest.fixture
def machines(tmp_path: Path):
    made = Machines(tmp_path)
    try:
        made.connect()
        for number in MACHINES:
            made.start(number, "nameserver")
        for number in MACHINES:
            made.start(number, "broker")
        until(lambda: in_sync(made) == 2, TIMEOUT_S)
        until(lambda: made.run(1, "topic", "create", "orders").returncode == 0, TIMEOUT_S)
        # A slave copies the topic table within half a second; until then it cannot serve the topic.
        until(lambda: all(knows_topic(made, slave) for slave in ("broker-a:1", "broker-a:2")))
        yield made
    finally:
        made.close()


def in_sync(machines: Machines) -> int:
    """How many slaves the master counts as in sync."""
    done = machines.run(1, "broker", "ha", "broker-a", "--json")
    if done.returncode != 0:
        return 0
    return sum(slave["in_sync"] for slave in json.loads(done.stdout)["broker-a"].get("slaves", ()))


def knows_topic(machines: Machines, broker: str) -> bool:
    ask = f"import rmqkit; admin = rmqkit.Admin(); print(admin.topic_config('orders', {broker!r})); admin.close()"
    words = machines.command(1)
    done = subprocess.run(
        [*words[: words.index("-m")], "-c", ask], capture_output=True, text=True, env=machines.environment(), check=True
    )
    return "orders" in done.stdout


def sent(machines: Machines, number: int, count: int) -> set[str]:
    acknowledged: set[str] = set()
    assert send(machines, number, count, acknowledged)
    return acknowledged


def send(machines: Machines, number: int, count: int, acknowledged: set[str]) -> bool:
    """Send; add the ids of what is acknowledged. Return whether everything is."""
    done = machines.run(number, "send", "orders", "--count", str(count), "--json")
    found = [json.loads(line).get("msg_id") for line in done.stdout.splitlines()]
    acknowledged.update(each for each in found if each)
    return done.returncode == 0


def read(machines: Machines, number: int) -> set[str]:
    """The ids that a reader on that machine gets; empty while nobody serves the topic."""
    done = machines.run(number, "consume", "orders", "--json", "--timeout", "5")
    return {json.loads(line)["msg_id"] for line in done.stdout.splitlines()}


def test_the_page_shows_the_sample_files():
    page = (EXAMPLE.parents[1] / "docs/do/machines.md").read_text()
    for name in ("nameserver.toml", "broker-1.toml", "rmqkit-broker.service"):
        assert (EXAMPLE / name).read_text() in page


@needs_namespaces
def test_every_machine_reads_on_after_the_masters_power_is_gone(machines):
    acknowledged = sent(machines, 2, 200) | sent(machines, 3, 100)
    assert read(machines, 2) == acknowledged
    machines.power_off(1)
    for number in (2, 3):
        until(lambda number=number: read(machines, number) == acknowledged, ACTING_S)
    machines.start(1, "nameserver")
    machines.start(1, "broker")
    until(lambda: in_sync(machines) == 2, TIMEOUT_S)
    acknowledged |= sent(machines, 3, 50)
    assert read(machines, 1) == acknowledged


@needs_namespaces
def test_a_master_without_its_cable_is_replaced_and_comes_back(machines):
    acknowledged = sent(machines, 2, 100)
    machines.cable(1, "down")
    until(lambda: read(machines, 3) == acknowledged, ACTING_S)
    assert "broker-a" in machines.run(2, "topic", "route", "orders").stdout
    machines.cable(1, "up")
    # Sends are refused at first. Then the master stores some alone: its connections to the slaves
    # are older than the cut, and TCP repeats the lost packets only after a pause.
    until(lambda: machines.run(2, "send", "orders", "again").returncode == 0, TIMEOUT_S)
    # That one may have come before the master knew of its successor, and then it refuses once more.
    until(lambda: send(machines, 2, 100, acknowledged), TIMEOUT_S)
    assert read(machines, 1) > acknowledged
