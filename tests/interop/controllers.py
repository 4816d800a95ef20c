"""Controllers and a name server of ours, and brokers in controller mode that they serve."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rmqkit.wire.bodies import BrokerReplicasInfo, ReplicasInfo, TopicRoute, encode_names
from rmqkit.wire.schema import from_ext
from rmqkit.wire.schemas.controller import GetMetaDataResponse
from tests.helpers.ports import free_base
from tests.interop import apache
from tests.interop.exchange import OurNodes
from tests.interop.groups import BROKER, SMALL_FILES, Member
from tests.interop.until import until

CLUSTER = "DefaultCluster"
_METADATA, _SYNC_STATE_DATA, _GET_ROUTE = 1005, 1006, 105
#: Apache's own periods are 5 s and 10 s; a check needs no longer pauses between its steps
BROKER_SETTINGS = {
    **SMALL_FILES,
    "enableControllerMode": "true",
    "allAckInSyncStateSet": "true",
    "brokerId": "-1",
    "brokerRole": "SLAVE",
    "slaveReadEnable": "true",
    "syncBrokerMetadataPeriod": "2000",
    "checkSyncStateSetPeriod": "2000",
    "syncControllerMetadataPeriod": "3000",
}


class ControlledGroup:
    """`controllers` of ours and `brokers` of Apache's. The brokers are not started yet."""

    def __init__(
        self, home: Path, *, brokers: int = 2, controllers: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        nameserver_port, _ = apache.free_ports()
        base = free_base(range(controllers))
        self.addresses = [f"{apache.HOST}:{base + at}" for at in range(controllers)]
        self._home = home
        self._nodes = OurNodes(home=home / "ns", ports=(nameserver_port, nameserver_port))
        self.namesrv = self._nodes.namesrv
        self._settings = {
            "controllerDLegerGroup": "controllers",
            "controllerDLegerPeers": ";".join(f"n{at}-{each}" for at, each in enumerate(self.addresses)),
            "bindAddress": apache.HOST,
            "scanInactiveMasterInterval": "1000",
            **(settings or {}),
        }
        self._controllers: dict[str, Any] = {}
        values = {**BROKER_SETTINGS, "controllerAddr": ";".join(self.addresses)}
        self.brokers = [Member("apache", home / f"broker{at}", nameserver_port, values) for at in range(1, brokers + 1)]
        self._nodes.start_nameserver()
        for each in self.addresses:
            self.start_controller(each)
        until("a controller leads", lambda: bool(self.leader()))

    def start_controller(self, address: str) -> None:
        at = self.addresses.index(address)
        own = {
            "controllerDLegerSelfId": f"n{at}",
            "controllerStorePath": f"./controller{at}",
            "configStorePath": f"./controller{at}.properties",
        }
        nodes = OurNodes(home=self._home / f"controller{at}", ports=(0, 0))
        self._controllers[address] = nodes._start("controller", "", {**self._settings, **own})

    def kill_controller(self, address: str) -> None:
        apache.end(self._controllers.pop(address), clean=False)

    def close(self) -> None:
        for broker in self.brokers:
            broker.kill()
        for address in list(self._controllers):
            self.kill_controller(address)
        self._nodes.stop()

    def leader(self) -> str:
        """Return the address of the controller that leads, "" without one."""
        for each in self.addresses:
            if self._metadata(each).is_leader:
                return each
        return ""

    def _metadata(self, address: str) -> GetMetaDataResponse:
        """Return the answer to 1005, without fields if the controller does not answer."""
        try:
            header = apache.ask(address, _METADATA, {})
        except OSError:
            return GetMetaDataResponse()
        return from_ext(GetMetaDataResponse, header.get("extFields", {}))

    def replicas(self) -> ReplicasInfo:
        """Return what the leader knows of the group; empty without leader, or if it is unknown."""
        leader = self.leader()
        if not leader:
            return ReplicasInfo()
        _, body = apache.ask_whole(leader, _SYNC_STATE_DATA, {}, encode_names([BROKER]))
        return BrokerReplicasInfo.decode(body or b"{}").replicas_info_table.get(BROKER, ReplicasInfo())

    def sync_ids(self) -> list[int]:
        return [each.broker_id or 0 for each in self.replicas().in_sync_replicas]

    def master(self) -> Member | None:
        """Return the present master, None without one."""
        address = self.replicas().master_address
        return next((each for each in self.brokers if each.address == address), None)

    def listed(self) -> dict[int, str]:
        """Return the addresses of the group by id, as the name server lists them."""
        header, body = apache.ask_whole(self.namesrv, _GET_ROUTE, {"topic": "TBW102"})
        found = TopicRoute.decode(body).broker_datas if header["code"] == 0 else []
        return dict(found[0].broker_addrs) if found else {}
