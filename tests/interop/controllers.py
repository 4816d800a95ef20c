"""A controller, a name server of ours, and brokers in controller mode that they serve."""

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
    """One of our controllers and `brokers` brokers of Apache's, which are not started yet."""

    def __init__(self, home: Path, *, brokers: int = 2, settings: Mapping[str, str] | None = None) -> None:
        nameserver_port, _ = apache.free_ports()
        self.port = free_base((0,))
        self.address = f"{apache.HOST}:{self.port}"
        self._nodes = OurNodes(home=home / "ns", ports=(nameserver_port, nameserver_port))
        self.namesrv = self._nodes.namesrv
        self.controller_settings = {
            "controllerDLegerGroup": "controllers",
            "controllerDLegerPeers": f"n0-{self.address}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": "./controller",
            "configStorePath": "./controller.properties",
            "bindAddress": apache.HOST,
            "scanInactiveMasterInterval": "1000",
            **(settings or {}),
        }
        self._controller: Any = None
        values = {**BROKER_SETTINGS, "controllerAddr": self.address}
        self.brokers = [Member("apache", home / f"broker{at}", nameserver_port, values) for at in range(1, brokers + 1)]
        self._nodes.start_nameserver()
        self.start_controller()

    def start_controller(self) -> None:
        self._controller = self._nodes._start("controller", "", self.controller_settings)
        until("the controller leads", lambda: self.metadata().is_leader)

    def kill_controller(self) -> None:
        apache.end(self._controller, clean=False)

    def close(self) -> None:
        for broker in self.brokers:
            broker.kill()
        apache.end(self._controller, clean=False)
        self._nodes.stop()

    def output(self) -> str:
        return self._nodes.output("controller")

    def metadata(self) -> GetMetaDataResponse:
        """Return the answer to 1005, without fields while the controller does not answer."""
        try:
            header = apache.ask(self.address, _METADATA, {})
        except OSError:
            return GetMetaDataResponse()
        return from_ext(GetMetaDataResponse, header.get("extFields", {}))

    def replicas(self) -> ReplicasInfo:
        """Return what the controller knows of the group; empty if it does not know it."""
        _, body = apache.ask_whole(self.address, _SYNC_STATE_DATA, {}, encode_names([BROKER]))
        return BrokerReplicasInfo.decode(body).replicas_info_table.get(BROKER, ReplicasInfo())

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
