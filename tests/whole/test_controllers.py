"""Three controllers as real processes: killed, stopped, with a full disk, and with TLS and keys."""

import random
import resource
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.requests import send_fields
from tests.helpers.certificates import Certificates
from tests.helpers.ports import free_base
from tests.helpers.signing import INNER, ROOT, SETTINGS
from tests.whole.controllers import CLUSTER, HOST, NAME, Controllers, Process, ask, until

pytestmark = pytest.mark.long

ROUNDS = 8
OK, NO_PERMISSION, NOT_LEADER = 0, 16, 2007
#: bytes that a file of the controller with a full disk may have
FULL = 24_000


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Controllers]:
    made = Controllers(tmp_path)
    yield made
    made.close()


def fields(**more: Any) -> dict[str, str]:
    return {"clusterName": CLUSTER, "brokerName": NAME, **{name: str(value) for name, value in more.items()}}


def change(group: Controllers, number: int) -> int:
    """Let the leader give an address to broker 1; return the code of the answer, -1 without one."""
    try:
        request = fields(brokerId=1, brokerAddress=f"10.0.0.1:{1000 + number}")
        return int(group.ask(group.leader(), 1003, request).code)
    except OSError:
        return -1


def begin(group: Controllers) -> None:
    taken = group.ask(group.lead(), 1013, fields(appliedBrokerId=1, registerCheckCode="10.0.0.1:1000;1"))
    assert taken.code == OK, taken.remark


def follows(group: Controllers, at: int) -> None:
    until(lambda: group.metadata(at).get("controllerLeaderId"), f"n{at} knows a leader")


def address_of(state: Any) -> str:
    (member,) = [*state["inSyncReplicas"], *state["notInSyncReplicas"]]
    return str(member["brokerAddress"])


def test_controllers_killed_in_turn_agree_at_the_end(group: Controllers) -> None:
    """What was acknowledged is there after each round; each knows the same when it leads."""
    begin(group)
    pick, number, acked = random.Random(1), 0, 0
    for _ in range(ROUNDS):
        victim = pick.randrange(3)
        for _ in range(pick.randrange(1, 8)):
            number += 1
            if change(group, number) == OK:
                acked = number
        group.kill(victim)
        number = acked = number + 1
        until(lambda number=number: change(group, number) == OK, "two of three go on")
        assert address_of(group.known()) == f"10.0.0.1:{1000 + acked}"
        group.start(victim)
        follows(group, victim)
    states = {}
    for last in range(3):
        until(lambda last=last: _moved_to(group, last), f"n{last} leads")
        states[last] = group.state(last)
    assert states[0] == states[1] == states[2]
    assert address_of(states[0]) == f"10.0.0.1:{1000 + acked}"
    for process in group.processes.values():
        assert "node failed" not in process.events()


def _moved_to(group: Controllers, wanted: int) -> bool:
    """Restart the leader; return whether `wanted` leads then."""
    leader = group.lead()
    if leader != wanted:
        group.kill(leader)
        group.lead()
        group.start(leader)
        follows(group, leader)
    return group.lead() == wanted and group.state(wanted) is not None


def test_a_stopped_leader_is_replaced_and_steps_down(group: Controllers) -> None:
    begin(group)
    old = group.lead()
    group.processes[old].pause()
    try:
        others = [at for at in range(3) if at != old]
        new = until(lambda: [at for at in others if group.metadata(at).get("isLeader") == "true"], "another leads")[0]
        assert group.ask(new, 1003, fields(brokerId=1, brokerAddress="10.0.0.1:2000")).code == OK
    finally:
        group.processes[old].resume()
    until(lambda: group.metadata(old).get("controllerLeaderId") == f"n{new}", "the old one follows the new one")
    assert group.metadata(old)["isLeader"] == "false"
    assert group.ask(old, 1004, fields()).code == NOT_LEADER
    assert address_of(group.state(new)) == "10.0.0.1:2000"


def _full() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, FULL))


def test_a_controller_whose_disk_is_full_says_so_and_the_others_go_on(tmp_path: Path) -> None:
    """The limit of its files stands for the full disk: a write fails in the same place."""
    group = Controllers(tmp_path, {"controllerSnapshotEntries": 100_000})
    try:
        begin(group)
        victim = (group.lead() + 1) % 3
        group.kill(victim)
        group.start(victim, limit=_full)
        follows(group, victim)
        number = 0

        def has_failed() -> bool:
            nonlocal number
            for _ in range(20):
                number += 1
                assert change(group, number) == OK
            return "problem" in group.metadata(victim)

        until(has_failed, "its disk is full")
        problem = group.metadata(victim)["problem"]
        assert "log cannot be written" in problem
        assert "restart the controller" in problem
        assert group.metadata(victim)["isLeader"] == "false"
        assert change(group, 7) == OK
        group.kill(victim)
        group.start(victim)
        follows(group, victim)
        assert "problem" not in group.metadata(victim)
    finally:
        group.close()


def test_tls_and_keys_everywhere(tmp_path: Path) -> None:
    """Controllers, name server and brokers demand TLS and signatures, and sign themselves."""
    certificates = Certificates(tmp_path / "tls")
    pair = certificates.pair("node")
    secure = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": pair.cert,
        "tls.server.keyPath": pair.key,
        "tls.client.trustCertPath": certificates.trust,
        "useTLS": "true",
        **dict(each.split("=", 1) for each in SETTINGS),
    }
    trust = ssl.create_default_context(cafile=certificates.trust)
    group = Controllers(tmp_path, secure, user=INNER, trust=trust)
    nodes: list[Process] = []
    try:
        leader = group.lead()
        port = group.ports[leader]
        with pytest.raises(OSError, match=r"closed|reset"):
            ask(port, 1005)
        wrong = {"nobody": None, "a wrong key": (INNER[0], "wrong"), "a stranger": ("stranger", "x")}
        peer = {"group": "controllers", "sender": f"n{(leader + 1) % 3}", "receiver": f"n{leader}"}
        for who, keys in wrong.items():
            for code in (904, 1001, 1002, 1003, 1004, 1005, 1006, 1009, 1010, 1011, 1012, 1013):
                assert ask(port, code, fields(brokerId=1), user=keys, trust=trust).code == NO_PERMISSION, (who, code)
            assert ask(port, 60010, peer, b"x" * 80, user=keys, trust=trust).code == NO_PERMISSION, who
        assert ask(port, 1005, user=ROOT, trust=trust).code == OK
        assert group.lead() == leader

        base = free_base((0, 2, 4, 5, 12, 14, 15))
        nodes.append(_nameserver(tmp_path, base, secure))
        brokers = [base + 4, base + 14]
        for at, each in enumerate(brokers):
            nodes.append(_broker(tmp_path / f"b{at}", base, each, group, secure))
            ids = list(range(1, at + 2))
            until(lambda ids=ids: _in_sync(group) == ids, f"{ids} are in sync")
        master = _master_port(group)
        sent = until(
            lambda: ask(master, 310, send_fields(), b"x", user=ROOT, trust=trust).code == OK, "the master takes it"
        )
        assert sent
        nodes[1 + brokers.index(master)].kill()
        until(lambda: _master_port(group) not in (0, master), "the other broker is elected")
        new = _master_port(group)
        until(lambda: ask(new, 310, send_fields(), b"y", user=ROOT, trust=trust).code == OK, "the new master takes it")

        rogue = {**secure, "innerClientAuthenticationCredentials": '{"accessKey":"node","secretKey":"wrong"}'}
        base = free_base((0, 2, 3))
        refused = sum(each.events().count("access-refused") for each in group.processes.values())
        nodes.append(_broker(tmp_path / "rogue", base, base + 2, group, rogue))
        until(lambda: _is_refused(group, refused), "the audit names it")
        state = group.known()
        assert len(state["inSyncReplicas"]) + len(state["notInSyncReplicas"]) == 2
    finally:
        for node in nodes:
            node.kill()
        group.close()


def _nameserver(home: Path, port: int, secure: dict[str, Any]) -> Process:
    own = {"listenPort": port, "bindAddress": HOST, "kvConfigPath": home / "ns/kv.json"}
    return Process("nameserver", home / "ns", {**secure, **own, "configStorePath": home / "ns/ns.properties"})


def _broker(folder: Path, namesrv: int, port: int, group: Controllers, secure: dict[str, Any]) -> Process:
    own = {
        "enableControllerMode": "true",
        "allAckInSyncStateSet": "true",
        "controllerAddr": ";".join(group.addresses),
        "namesrvAddr": f"{HOST}:{namesrv}",
        "brokerName": NAME,
        "brokerClusterName": CLUSTER,
        "listenPort": port,
        "bindAddress": HOST,
        "brokerIP1": HOST,
        "brokerIP2": HOST,
        "storePathRootDir": folder / "store",
        "mappedFileSizeCommitLog": 1 << 20,
        "autoCreateTopicEnable": "true",
        "checkSyncStateSetPeriod": 1000,
        "syncBrokerMetadataPeriod": 1000,
    }
    return Process("broker", folder, {**secure, **own})


def _is_refused(group: Controllers, before: int) -> bool:
    """Whether a controller has noted a wrong signature, after the first `before`."""
    refusals = [line for each in group.processes.values() for line in each.lines() if line["event"] == "access-refused"]
    return len(refusals) > before


def _in_sync(group: Controllers) -> list[int]:
    state = group.state(group.lead())
    return [each["brokerId"] for each in state["inSyncReplicas"]] if state else []


def _master_port(group: Controllers) -> int:
    address = (group.state(group.lead()) or {}).get("masterAddress") or ":0"
    return int(address.rpartition(":")[2])
