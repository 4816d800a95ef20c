"""Broker groups of controller mode, with controllers inside the name servers.

Each `Replica` has its own folder, and can be stopped, killed and started by itself.
"""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rmqkit.wire import fastjson
from tests.helpers.ports import free_base
from tests.interop import apache
from tests.interop.acting import send_code
from tests.interop.groups import SMALL_FILES, Member, _kind
from tests.interop.until import until

GROUP = "broker-a"
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

    def identity(self) -> str:
        path = self.store / "brokerIdentity"
        return path.read_text() if path.exists() else ""


class ElectedGroup:
    """Name servers with controllers, and replicas: "ours" or "apache" each."""

    def __init__(
        self,
        home: Path,
        whose: list[str],
        settings: Mapping[str, str] | None = None,
        *,
        controllers: int = 1,
        is_unclean: bool = False,
        whose_controllers: str = "apache",
        controller_settings: Mapping[str, str] | None = None,
        heap_mb: int = 512,
    ) -> None:
        """`is_unclean`: the controllers also elect a member that is not in sync."""
        ports = [apache.free_ports()[0] for _ in range(controllers)]
        self.controllers = [f"{apache.HOST}:{free_base((0,))}" for _ in range(controllers)]
        shared = {
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": ";".join(f"n{number}-{each}" for number, each in enumerate(self.controllers)),
            "controllerStorePath": "./controller",
            "mappedFileSize": str(1024 * 1024),
            "scanNotActiveBrokerInterval": "1000",
            "enableElectUncleanMaster": str(is_unclean).lower(),
            **(controller_settings or {}),
        }
        self.nameservers = [
            _kind(whose_controllers)(
                home=home / f"ns-{number}",
                ports=(port, port),
                nameserver_properties={**shared, "controllerDLegerSelfId": f"n{number}"},
            )
            for number, port in enumerate(ports)
        ]
        self.namesrv = ";".join(each.namesrv for each in self.nameservers)
        values = {
            **SMALL_FILES,
            **ELECTED,
            "namesrvAddr": self.namesrv,
            "controllerAddr": ";".join(self.controllers),
            **(settings or {}),
        }
        self.replicas = [
            Replica(each, home / f"broker-{number}", ports[0], values, heap_mb=heap_mb)
            for number, each in enumerate(whose)
        ]
        with ThreadPoolExecutor(controllers) as pool:
            list(pool.map(apache.ApacheCluster.start_nameserver, self.nameservers))
        until("a controller leads", lambda: self.leader() >= 0)

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

    def failover_s(self, replica: Replica, topic: str) -> float:
        """Wait until the replica takes a send; return how long that took."""
        began_s = time.monotonic()
        until(f"{replica.address} takes a send", lambda: self.takes_sends(replica, topic), pause_s=0.05)
        return time.monotonic() - began_s
