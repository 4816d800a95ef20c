"""`rmqkit controller`: a controller in the foreground, its broker sets, elections and cleaning."""

import json
import re
import signal
import subprocess
import time

import pytest

from rmqkit.cluster.health.caller import Caller
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas import controller as schemas
from rmqkit.wire.schemas.nameserver import BrokerHeartbeatRequest
from tests.helpers.ports import free_base

NAME, CLUSTER = "broker-a", "DefaultCluster"
ASK_S = 30
#: between two polls, so that they leave the processor to the nodes
POLL_S = 0.05


class Brokers:
    """Brokers as a controller sees them: connections that send what Apache's brokers send."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: dict[int, Caller] = {}

    def join(self, number: int) -> None:
        caller = self._open[number] = Caller("127.0.0.1", self._port, time.monotonic() + ASK_S)
        address = f"10.0.0.{number}:10911"
        common = {"cluster_name": CLUSTER, "broker_name": NAME}
        for code, request in (
            (
                RequestCode.CONTROLLER_APPLY_BROKER_ID,
                schemas.ApplyBrokerIdRequest(**common, applied_broker_id=number, register_check_code=f"{address};1"),
            ),
            (
                RequestCode.CONTROLLER_REGISTER_BROKER,
                schemas.RegisterBrokerToControllerRequest(**common, broker_id=number, broker_address=address),
            ),
            (
                RequestCode.BROKER_HEARTBEAT,
                BrokerHeartbeatRequest(**common, broker_addr=address, broker_id=number, heartbeat_timeout_mills=600_000),
            ),
        ):
            assert caller.call(code, request).head.code == 0

    def elect(self, number: int) -> None:
        request = schemas.ElectMasterRequest(cluster_name=CLUSTER, broker_name=NAME, broker_id=number)
        assert self._open[number].call(RequestCode.CONTROLLER_ELECT_MASTER, request).head.code == 0

    def alter(self, number: int, body: bytes) -> None:
        request = schemas.AlterSyncStateSetRequest(broker_name=NAME, master_broker_id=number, master_epoch=1)
        assert self._open[number].call(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, request, body).head.code == 0

    def leave(self, number: int) -> None:
        self._open.pop(number).__exit__(None, None, None)

    def close(self) -> None:
        for number in list(self._open):
            self.leave(number)


def ready_port(process: "subprocess.Popen[str]", node: str) -> int:
    """Return the port in the line by which the node says that it is ready."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(rf" {node} ready .*remoting_port=(\d+)", line):
            return int(found[1])
    pytest.fail(f"{node} did not start")


@pytest.fixture
def at(shell):
    """The port of a controller that runs alone."""
    process = shell.outside.start(
        *("controller", "run", "--set", "listenPort=0", "--set", "bindAddress=127.0.0.1"),
        *("--set", f"controllerStorePath={shell.home}/controller"),
        stderr=subprocess.PIPE,
    )
    yield ready_port(process, "controller")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    process.stderr.close()


@pytest.fixture
def brokers(at):
    """Two brokers: 1 is master, and both are in the SyncStateSet."""
    made = Brokers(at)
    try:
        made.join(1)
        made.elect(1)
        made.join(2)
        made.alter(1, b'{"syncStateSet":[1,2],"syncStateSetEpoch":1}')
        yield made
    finally:
        made.close()


def test_status_and_members(shell, at, brokers):
    shown = shell.json("controller", "status", NAME, "-a", at)
    assert shown["controllers"] == [{"id": "n0", "address": f"127.0.0.1:{at}", "state": "leader", "term": 1}]
    (row,) = shown["sets"]
    assert (row["master_id"], row["master_epoch"], row["in_sync"], row["dead"]) == (1, 1, [1, 2], [])
    assert "10.0.0.1:10911" in shell.run("controller", "status", NAME, "-a", f"127.0.0.1:{at}").stdout
    members = shell.json("controller", "members", NAME, "-a", at)["members"]
    assert [(each["broker_id"], each["role"], each["in_sync"], each["alive"]) for each in members] == [
        (1, "master", True, True),
        (2, "slave", True, True),
    ]
    assert "do not know the broker set x" in shell.error("controller", "members", "x", "-a", at, code=1)


def test_elect_and_clean(shell, at, brokers):
    done = shell.json("controller", "elect", NAME, 2, "-a", at)
    assert (done["master_id"], done["master_epoch"], done["changed"]) == (2, 2, True)
    again = shell.run("controller", "elect", NAME, 2, "-a", at).stdout
    assert "is master already, epoch 2" in again
    assert "Failed to elect" in shell.error("controller", "elect", NAME, 1, "-a", at, code=1), "1 is not in sync"
    assert "broker 1 is alive" in shell.error("controller", "clean", NAME, "--id", 1, "-a", at, code=1)
    assert "has no broker 7; there are: 2, 1" in shell.error("controller", "clean", NAME, "--id", 7, "-a", at, code=2)
    shell.run("controller", "clean", NAME, "--id", 1, "--living", "-a", at)
    assert [each["broker_id"] for each in shell.json("controller", "members", NAME, "-a", at)["members"]] == [2]
    shell.run("controller", "clean", NAME, "--living", "-a", at)
    assert shell.json("controller", "status", NAME, "-a", at)["sets"] == []


def test_a_dead_master_is_replaced(shell, at, brokers):
    brokers.leave(1)
    deadline_s = time.monotonic() + ASK_S
    while (row := shell.json("controller", "status", NAME, "-a", at)["sets"][0])["master_id"] != 2:
        assert time.monotonic() < deadline_s, row
        time.sleep(POLL_S)
    assert (row["master_epoch"], row["in_sync"], row["others"], row["dead"]) == (2, [2], [1], [1])


class Group:
    """Three controllers, each a process of its own, with the log `raft`."""

    def __init__(self, shell) -> None:
        base = free_base((0, 1, 2))
        self._shell = shell
        self.ports = [base, base + 1, base + 2]
        self.peers = ";".join(f"n{at}-127.0.0.1:{port}" for at, port in enumerate(self.ports))
        self.at = ";".join(f"127.0.0.1:{port}" for port in self.ports)
        self._processes: dict[int, subprocess.Popen[str]] = {}
        for port in self.ports:
            self.start(port)

    def start(self, port: int) -> None:
        at = self.ports.index(port)
        process = self._processes[port] = self._shell.outside.start(
            *("controller", "run", "--set", "bindAddress=127.0.0.1", "--set", f"controllerDLegerPeers={self.peers}"),
            *("--set", f"controllerDLegerSelfId=n{at}", "--set", f"controllerStorePath={self._shell.home}/c{at}"),
            stderr=subprocess.PIPE,
        )
        ready_port(process, "controller")

    def kill(self, port: int) -> None:
        process = self._processes.pop(port)
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()

    def states(self) -> dict[str, str]:
        shown = self._shell.json("controller", "status", NAME, "-a", self.at, code=None)
        return {each["id"]: each["state"] for each in shown["controllers"]}

    def lead(self) -> int:
        """Return the port of the leader, once there is one."""
        deadline_s = time.monotonic() + ASK_S
        while True:
            found = self._shell.run("controller", "status", NAME, "-a", self.at, "--json", code=None)
            shown = json.loads(found.stdout) if found.returncode == 0 else {"controllers": []}
            leaders = [each["address"] for each in shown["controllers"] if each["state"] == "leader"]
            if len(leaders) == 1:
                return int(leaders[0].rpartition(":")[2])
            assert time.monotonic() < deadline_s, (found.stdout, found.stderr)
            time.sleep(POLL_S)

    def close(self) -> None:
        for port in list(self._processes):
            self.kill(port)


@pytest.mark.long
def test_three_controllers_survive_their_leader(shell):
    group = Group(shell)
    try:
        leader = group.lead()
        brokers = Brokers(leader)
        try:
            brokers.join(1)
            brokers.elect(1)
            brokers.join(2)
            brokers.alter(1, b'{"syncStateSet":[1,2],"syncStateSetEpoch":1}')
        finally:
            group.kill(leader)
            brokers.close()
        second = group.lead()
        assert second != leader
        (row,) = shell.json("controller", "status", NAME, "-a", group.at)["sets"]
        assert (row["master_id"], row["master_epoch"], row["in_sync"]) == (1, 1, [1, 2])
        brokers = Brokers(second)
        try:
            brokers.join(1)
            brokers.join(2)
            done = shell.json("controller", "elect", NAME, 2, "-a", group.at)
        finally:
            brokers.close()
        assert (done["master_id"], done["master_epoch"]) == (2, 2)
        group.start(leader)
        deadline_s = time.monotonic() + ASK_S
        while sorted(group.states().values()) != ["follower", "follower", "leader"]:
            assert time.monotonic() < deadline_s, group.states()
            time.sleep(POLL_S)
    finally:
        group.close()


def test_an_unreachable_controller_is_an_error(shell):
    assert "Connection refused" in shell.error("controller", "status", "-a", "127.0.0.1:1", code=3)
    for words in (("status",), ("members", NAME), ("elect", NAME, 1), ("clean", NAME)):
        told = shell.error("controller", *words, "-a", "127.0.0.1:1", code=3)
        assert "no controller answers" in told
        assert "--preset controller" in told
    assert "not an address" in shell.error("controller", "status", "-a", "a:b", code=2)


def test_a_name_server_hosts_a_controller(shell, tmp_path):
    """`enableControllerInNamesrv`: one process, two ports, one file of settings."""
    port = free_base((0,))
    conf = tmp_path / "namesrv.conf"
    conf.write_text(
        "listenPort=0\nbindAddress=127.0.0.1\nenableControllerInNamesrv=true\ncontrollerDLegerGroup=group1\n"
        f"controllerDLegerPeers=n0-127.0.0.1:{port}\ncontrollerDLegerSelfId=n0\n"
        f"controllerStorePath={tmp_path}/controller\nkvConfigPath={tmp_path}/kv.json\n"
    )
    process = shell.outside.start("nameserver", "run", "-c", conf, stderr=subprocess.PIPE)
    try:
        nameserver = ready_port(process, "nameserver")
        shown = shell.json("controller", "status", "-a", port, "-n", f"127.0.0.1:{nameserver}")
        assert shown["controllers"] == [{"id": "n0", "address": f"127.0.0.1:{port}", "state": "leader", "term": 1}]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        process.stderr.close()
