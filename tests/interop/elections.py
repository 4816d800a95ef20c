"""Broker groups of controller mode and their controllers.

Controllers are inside the name servers (`embedded`), or processes of their own beside one name
server: `alone` (Apache's DLedger) or `jraft`. Each `Replica` has its own folder, and can be
stopped, killed and started by itself.
"""

import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rmqkit.wire import fastjson
from rmqkit.wire.record import iter_records
from tests.helpers.ports import free_base
from tests.interop import apache
from tests.interop.acting import send_code
from tests.interop.groups import SMALL_FILES, Member, _kind, read_log
from tests.interop.until import DEADLINE_S, until

GROUP = "broker-a"
EMBEDDED, ALONE, JRAFT = "embedded", "alone", "jraft"
_STARTUP = "org.apache.rocketmq.controller.ControllerStartup"
_METADATA, _SYNC_DATA, _EPOCHS = 1005, 1006, 1007
ELECTED = {
    "enableControllerMode": "true",
    "allAckInSyncStateSet": "true",
    "brokerHeartbeatInterval": "500",
    "controllerHeartBeatTimeoutMills": "5000",
    "syncBrokerMetadataPeriod": "1000",
}


class Replica(Member):
    """One broker of the group; the controllers give it its id."""

    def epochs(self) -> list[tuple[int, int]]:
        """Return (epoch, start) of each epoch of its log."""
        header, body = apache.ask_whole(self.address, _EPOCHS, {})
        assert header["code"] == 0, header
        return [(each["epoch"], each["startOffset"]) for each in fastjson.loads(body)["epochList"]]

    def stored(self, topic: str) -> int:
        """Return the number of the topic's messages in the log."""
        _, data = read_log(self.store, self.log_end())
        return sum(1 for record in iter_records(data) if record.topic == topic)

    def identity(self) -> str:
        path = self.store / "brokerIdentity"
        return path.read_text() if path.exists() else ""


class ElectedGroup:
    """Controllers with their name servers, and replicas: "ours" or "apache" each."""

    def __init__(
        self,
        home: Path,
        whose: list[str],
        settings: Mapping[str, str] | None = None,
        *,
        controllers: int = 1,
        kind: str = EMBEDDED,
        is_unclean: bool = False,
        whose_controllers: str = "apache",
        controller_settings: Mapping[str, str] | None = None,
        heap_mb: int = 512,
    ) -> None:
        """`kind` is EMBEDDED, ALONE or JRAFT.

        `is_unclean`: the controllers also elect a member that is not in sync.
        """
        self.controllers = [f"{apache.HOST}:{free_base((0,))}" for _ in range(controllers)]
        self._kind = kind
        own = _jraft(self.controllers) if kind == JRAFT else _dledger(self.controllers)
        shared = {
            "scanNotActiveBrokerInterval": "1000",
            "enableElectUncleanMaster": str(is_unclean).lower(),
            **(controller_settings or {}),
        }
        self._settings = [{**shared, **each} for each in own]
        names = range(controllers if kind == EMBEDDED else 1)
        ports = [apache.free_ports()[0] for _ in names]
        self.nameservers = [
            _kind(whose_controllers)(
                home=home / f"ns-{number}",
                ports=(ports[number], ports[number]),
                nameserver_properties=(
                    {"enableControllerInNamesrv": "true", **self._settings[number]} if kind == EMBEDDED else {}
                ),
            )
            for number in names
        ]
        self.namesrv = ";".join(each.namesrv for each in self.nameservers)
        self._alone = [apache.ApacheCluster(home=home / f"controller-{number}") for number in range(controllers)]
        self._processes: dict[int, subprocess.Popen[str]] = {}
        values = {
            **SMALL_FILES,
            **ELECTED,
            "namesrvAddr": self.namesrv,
            "controllerAddr": ";".join(self.controllers),
            **(settings or {}),
        }
        self.replicas = [
            Replica(each, home / f"broker-{number}", ports[0], values, heap_mb=heap_mb) for number, each in enumerate(whose)
        ]
        if kind != EMBEDDED:
            for number in range(controllers):
                self.start_controller(number)
        with ThreadPoolExecutor(controllers) as pool:
            list(pool.map(apache.ApacheCluster.start_nameserver, self.nameservers))
        until("a controller leads", lambda: self.leader() >= 0, deadline_s=apache.READY_TIMEOUT_S)

    def begin(self, topic: str) -> tuple[Replica, Replica]:
        """Start both replicas one after the other. Return master and slave, both in sync."""
        master, slave = self.replicas
        limit_s = apache.READY_TIMEOUT_S
        master.begin()
        until("the first replica is elected", lambda: self.takes_sends(master, topic), deadline_s=limit_s)
        slave.begin()
        self.until_in_sync(master, slave, deadline_s=limit_s)
        return master, slave

    def until_in_sync(self, *replicas: Replica, deadline_s: float = DEADLINE_S) -> None:
        """Wait until exactly these replicas are in sync."""
        wanted = {replica.address for replica in replicas}

        def is_reached() -> bool:
            for replica in replicas:
                replica.expect_runs()
            return self.in_sync() == wanted

        until(f"in sync: {wanted}", is_reached, deadline_s=deadline_s, seen=self._seen)

    def _seen(self) -> str:
        """Return what the controller and each replica say of the group, for a failed wait."""
        said = [f"\n{each.address} {_of_election(each.facts())}\n{each.last_lines()}" for each in self.replicas]
        return f"leader {self.leader()}, {self.state()}{''.join(said)}"

    def until_copied(self, source: Replica, copy: Replica) -> None:
        """Wait until both logs end at the same offset. Expect equal bytes and epochs."""
        until("the logs end at one offset", lambda: copy.log_end() == source.log_end() > 0)
        assert copy.epochs() == source.epochs()
        assert copy.log() == source.log()

    def start_controller(self, number: int) -> None:
        """Start a controller; one in a name server starts with it."""
        if self._kind == EMBEDDED:
            self.nameservers[number].start_nameserver()
        else:
            self._processes[number] = self._alone[number]._start("controller", _STARTUP, self._settings[number])

    def stop_controller(self, number: int) -> None:
        """Kill a controller; one in a name server dies with it."""
        if self._kind == EMBEDDED:
            self.nameservers[number].stop()
        else:
            apache.end(self._processes.pop(number), clean=False)

    def leader(self) -> int:
        """Return the number of the controller that leads, -1 if there is none."""
        for number, controller in enumerate(self.controllers):
            try:
                answer = apache.ask(controller, _METADATA, {})
            except OSError:
                continue
            if str(answer.get("extFields", {}).get("isLeader")) == "true":
                return number
        return -1

    def close(self) -> None:
        for replica in self.replicas:
            replica.kill()
        for number in list(self._processes):
            self.stop_controller(number)
        for each in self.nameservers:
            each.stop()

    def state(self) -> dict[str, Any]:
        """Return what the controller knows of the group (1006); {} if it does not know it."""
        try:
            header, body = apache.ask_whole(self.controllers[self.leader()], _SYNC_DATA, {}, fastjson.dumps([GROUP]))
        except OSError:
            return {}
        if header["code"] != 0:
            return {}
        found: dict[str, Any] = fastjson.loads(body)["replicasInfoTable"].get(GROUP, {})
        return found

    def in_sync(self) -> set[str]:
        """Return the addresses of the members in sync."""
        return {each["brokerAddress"] for each in self.state().get("inSyncReplicas", ())}

    def master(self) -> Replica | None:
        """Return the replica that the controller names master."""
        address = self.state().get("masterAddress")
        return next((each for each in self.replicas if each.address == address), None)

    def takes_sends(self, replica: Replica, topic: str) -> bool:
        try:
            return send_code(replica.address, topic, "") == 0
        except OSError:
            return False

    def send(self, replica: Replica, topic: str, count: int) -> None:
        """Send until `count` messages are acknowledged; one without an answer may be stored."""
        left = count

        def is_sent() -> bool:
            nonlocal left
            left -= self.takes_sends(replica, topic)
            return left == 0

        until(f"{count} messages are acknowledged", is_sent, pause_s=0.0)

    def failover_s(self, replica: Replica, topic: str) -> float:
        """Wait until the replica takes a send; return how long that took."""
        began_s = time.monotonic()
        until(f"{replica.address} takes a send", lambda: self.takes_sends(replica, topic), pause_s=0.05)
        return time.monotonic() - began_s


def _of_election(facts: Mapping[str, str]) -> dict[str, str]:
    wanted = ("election", "replication", "syncStateSet", "controllerLeader", "commitLogMaxOffset")
    return {key: value for key, value in facts.items() if key.startswith(wanted)}


def _dledger(addresses: list[str]) -> list[dict[str, str]]:
    """Return the settings of each controller that uses DLedger, or of ours."""
    peers = ";".join(f"n{number}-{address}" for number, address in enumerate(addresses))
    shared = {
        "controllerDLegerGroup": "group1",
        "controllerDLegerPeers": peers,
        "controllerStorePath": "./controller-store",
        "mappedFileSize": str(1024 * 1024),
    }
    return [{**shared, "controllerDLegerSelfId": f"n{number}"} for number in range(len(addresses))]


def _jraft(addresses: list[str]) -> list[dict[str, str]]:
    """Return the settings of each controller that uses jRaft; its log has a port of its own."""
    peers = [f"{apache.HOST}:{free_base((0,))}" for _ in addresses]
    shared = {
        "controllerType": "jRaft",
        "jRaftGroupId": "group1",
        "jRaftInitConf": ",".join(peers),
        "jRaftControllerRPCAddr": ",".join(addresses),
        "controllerStorePath": "./controller-store",
    }
    return [{**shared, "jRaftServerId": peer} for peer in peers]
