"""A controller driven turn by turn. When a test ends, the invariants of its tables are checked."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rmqkit.config import from_values
from rmqkit.controller.node import Controller
from rmqkit.controller.single_log import make_single
from rmqkit.hookspecs import Factory
from tests.helpers.script import Client, Command, Script, ScriptDisk

PORT = 9000
NAME, CLUSTER = "broker-a", "DefaultCluster"


class Broker:
    """A broker of `broker-a` as a controller sees it: a connection, and the requests it sends."""

    def __init__(self, script: "ControllerScript", number: int) -> None:
        self.id = number
        self.address = f"10.0.1.{number}:10911"
        self._script = script
        self.client = script.connect(peer=f"10.0.1.{number}:40000")

    def connect_again(self) -> Client:
        """Open another connection and use it from now on; return the earlier one."""
        earlier, self.client = self.client, self._script.connect(peer=f"10.0.1.{self.id}:40001")
        return earlier

    def join(self) -> "Broker":
        """Apply for the id, register, and send a heartbeat, as `RM.startBasicService` does."""
        assert self.ask(1013, appliedBrokerId=self.id, registerCheckCode=f"{self.address};17").code == 0
        assert self.register().code == 0
        assert self.beat().code == 0
        return self

    def register(self) -> Command:
        return self.ask(1003, brokerId=self.id, brokerAddress=self.address)

    def beat(self, epoch: int = 0, offset: int = 0, **more: Any) -> Command:
        return self.ask(904, brokerAddr=self.address, brokerId=self.id, epoch=epoch, maxOffset=offset, **more)

    def elect(self, **more: Any) -> Command:
        return self.ask(1002, brokerId=self.id, designateElect="false", **more)

    def alter(self, ids: list[int], epoch: int, set_epoch: int) -> Command:
        body = {"syncStateSet": ids, "syncStateSetEpoch": set_epoch}
        fields = {"brokerName": NAME, "masterBrokerId": str(self.id), "masterEpoch": str(epoch)}
        return self.client.ask(1001, fields, json.dumps(body).encode())

    def ask(self, code: int, **fields: Any) -> Command:
        texts = {name: str(value) for name, value in fields.items()}
        return self.client.ask(code, {"clusterName": CLUSTER, "brokerName": NAME, **texts})

    def notices(self) -> list[Command]:
        """Return the 1008s that reached this broker's own port."""
        for each in [dialled for dialled in self._script.dialled if str(dialled.conn.peer) == self.address]:
            self._script.accept(each)
        links = [each for each in self._script.clients if each.conn.dialled and str(each.conn.peer) == self.address]
        return [command for link in links for command in link.take() if command.code == 1008]


class ControllerScript(Script[Controller]):
    """A controller, by default with the log for one controller."""

    def __init__(
        self, settings: dict[str, Any], disk: ScriptDisk | None = None, *, make_log: Factory = make_single
    ) -> None:
        values = {
            "controllerStorePath": "/controller",
            "configStorePath": "/controller/controller.properties",
            "controllerDLegerPeers": f"n0-10.0.0.9:{PORT}",
            "controllerDLegerSelfId": "n0",
            "controllerDLegerGroup": "controllers",
            **settings,
        }
        config = from_values("controller", values)
        super().__init__(lambda ports: Controller("c", ports, config, make_log, PORT), disk=disk)

    def broker(self, number: int) -> Broker:
        return Broker(self, number)

    def members(self) -> dict[str, Any]:
        """Return what 1006 says about the set, {} if it is unknown."""
        body = self.connect().ask(1006, None, json.dumps([NAME]).encode()).json
        found: dict[str, Any] = body["replicasInfoTable"].get(NAME, {})
        return found

    def state(self) -> tuple[int | None, int, list[int], int]:
        """Return master, master's epoch, SyncStateSet and its epoch."""
        found = self.members()
        ids = [each["brokerId"] for each in found["inSyncReplicas"]]
        return found.get("masterBrokerId"), found["masterEpoch"], ids, found["syncStateSetEpoch"]

    def pair(self) -> tuple[Broker, Broker]:
        """Return two brokers of a set: the first is master, both are in the SyncStateSet."""
        one, two = self.broker(1).join(), self.broker(2)
        assert one.elect().code == 0
        two.join()
        one.beat(1, 100)
        two.beat(1, 100)
        assert one.alter([1, 2], 1, 1).code == 0
        for each in (one, two):
            each.notices()
        return one, two


Make = Callable[..., ControllerScript]


@pytest.fixture
def make() -> Iterator[Make]:
    """Return a function that makes a controller: `make(enableElectUncleanMaster=True)`."""
    made: list[ControllerScript] = []

    def begin(*, disk: ScriptDisk | None = None, **settings: Any) -> ControllerScript:
        made.append(ControllerScript(settings, disk))
        return made[-1]

    yield begin
    for script in made:
        script.node.sets.validate()
        script.node.live.validate()
        script.node.queue.validate()


@pytest.fixture
def script(make: Make) -> ControllerScript:
    return make()
