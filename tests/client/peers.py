"""Peers: name servers and brokers as the client core sees them, on top of `Script`.

A peer is an address that accepts connections (`up`), refuses them (`down`), or accepts them and
never responds (`silent`). Routes, heartbeats and UNREGISTER_CLIENT are answered automatically.
Every other request waits in `asked` until a test answers it. `settle` lets the client and its peers
exchange messages until nothing changes. `advance` lets time pass in small steps, and settles at
each.

Bodies are literal text, so no code under test encodes the data that it then decodes.
"""

import json
from dataclasses import dataclass

from rmqkit.client.client import Client, ClientSettings
from rmqkit.runtime.connection import Address
from rmqkit.wire.codes import RequestCode
from tests.helpers.script import Client as FarEnd
from tests.helpers.script import Command, Script, write_command

CLIENT_ID = "10.0.0.9@7#77"
NS_1, NS_2 = "10.0.1.1:9876", "10.0.1.2:9876"
A, A_SLAVE, B = "10.0.2.1:10911", "10.0.2.1:10921", "10.0.2.2:10911"


@dataclass
class Asked:
    """A request that a peer has received and not yet answered."""

    peers: "Peers"
    far_end: FarEnd
    address: str
    command: Command

    @property
    def code(self) -> int:
        return self.command.code

    @property
    def ext(self) -> dict:
        return self.command.ext

    def answer(self, code: int = 0, ext: dict | None = None, body: bytes = b"", remark: str | None = None) -> None:
        self.far_end.send(write_command(code, ext, body, opaque=self.command.opaque, flag=1, remark=remark))
        self.peers.settle()


def route(*brokers, queues: int = 4, perm: int = 6, order: str | None = None) -> dict:
    """Return the TopicRouteData of (name, {id: address}) pairs."""
    data = {
        "brokerDatas": [
            {"brokerAddrs": {str(i): a for i, a in members.items()}, "brokerName": name, "cluster": "C"}
            for name, members in brokers
        ],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": name, "perm": perm, "readQueueNums": queues, "topicSysFlag": 0, "writeQueueNums": queues}
            for name, _ in brokers
        ],
    }
    if order is not None:
        data["orderTopicConf"] = order
    return data


ON_A = route(("broker-a", {0: A}))
ON_A_AND_B = route(("broker-a", {0: A}), ("broker-b", {0: B}))


class Peers:
    def __init__(self, *, namesrv=(NS_1,), routes: dict[str, dict] | None = None, **settings) -> None:
        self.routes = dict(routes or {})
        #: State of an address: up (the default), down, silent.
        self.states: dict[str, str] = {}
        self.asked: list[Asked] = []
        #: Codes that are answered with success automatically.
        self.easy = {RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT}
        #: By code, the body of an automatic response.
        self.always: dict[int, bytes] = {}
        #: All requests in order, as (address, code).
        self.log: list[tuple[str, int]] = []
        self.bodies: list[tuple[str, int, bytes]] = []
        self.commands: list[Command] = []
        #: By code, the remark with which access control refuses the request.
        self.denials: dict[int, str] = {}
        config = ClientSettings(client_id=CLIENT_ID, namesrv=tuple(map(Address.parse, namesrv)), **settings)
        self.script: Script[Client] = Script(lambda ports: Client("client", ports, config))
        self.client = self.script.node
        self.settle()

    # --- time and turns

    def do(self, action) -> None:
        """Run one turn with an action of the caller, and everything that follows from it."""
        self.script.turn(action)
        self.settle()

    def settle(self) -> None:
        for _ in range(1000):
            if not (self._dials() or self._requests()):
                due_ms = self.client.due_ms()
                if due_ms is None or due_ms > self.script.clock.mono_ms:
                    return
                self.script.turn()
        raise AssertionError("client and peers do not come to rest")

    def advance(self, ms: int, step_ms: int = 50) -> None:
        self.settle()
        for _ in range(ms // step_ms):
            self.script.advance(step_ms)
            self.settle()
        if ms % step_ms:
            self.script.advance(ms % step_ms)
            self.settle()

    def _dials(self) -> bool:
        moved = False
        for far_end in list(self.script.dialled):
            state = self.states.get(str(far_end.conn.peer), "up")
            if state == "down":
                self.script.refuse(far_end, "Connection refused")
                moved = True
            elif state != "unreachable":
                self.script.accept(far_end)
                moved = True
        return moved

    def _requests(self) -> bool:
        moved = False
        for far_end in list(self.script.clients):
            address = str(far_end.conn.peer)
            for command in far_end.take():
                moved = True
                if command.flag & 1:
                    self.asked.append(Asked(self, far_end, address, command))
                    continue
                self.log.append((address, command.code))
                self.bodies.append((address, command.code, command.body))
                self.commands.append(command)
                if self.states.get(address) != "silent":
                    self._got(Asked(self, far_end, address, command))
        return moved

    def _got(self, asked: Asked) -> None:
        if asked.code in self.denials:
            self._reply(asked, 16, b"", self.denials[asked.code])
        elif asked.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            found = self.routes.get(asked.ext["topic"])
            if found is None:
                self._reply(asked, 17, b"", "No topic route info in name server for the topic")
            else:
                self._reply(asked, 0, json.dumps(found, separators=(",", ":")).encode())
        elif asked.code in self.easy:
            self._reply(asked, 0)
        elif asked.code in self.always:
            self._reply(asked, 0, self.always[asked.code])
        else:
            self.asked.append(asked)

    @staticmethod
    def _reply(asked: Asked, code: int, body: bytes = b"", remark: str | None = None) -> None:
        asked.far_end.send(write_command(code, None, body, opaque=asked.command.opaque, flag=1, remark=remark))

    # --- checks

    def take(self, code: int, address: str | None = None) -> Asked:
        """Return the oldest waiting request with that code. There must be one."""
        for asked in self.asked:
            if asked.code == code and address in (None, asked.address):
                self.asked.remove(asked)
                return asked
        raise AssertionError(f"no request {code} waits at {address or 'any peer'}; there are {self.waiting()}")

    def take_all(self, code: int) -> list[Asked]:
        found = [asked for asked in self.asked if asked.code == code]
        self.asked = [asked for asked in self.asked if asked.code != code]
        return found

    def waiting(self) -> list[tuple[str, int]]:
        return [(asked.address, asked.code) for asked in self.asked]

    def times(self, code: int, address: str | None = None) -> int:
        """Return how often a request was made since the start."""
        return sum(1 for where, each in self.log if each == code and address in (None, where))

    def last_body(self, code: int, address: str | None = None) -> dict:
        body = next(body for where, each, body in reversed(self.bodies) if each == code and address in (None, where))
        return json.loads(body)

    def cut(self, address: str, reason: str = "connection reset by peer") -> None:
        """Break the connections of a peer."""
        for far_end in [each for each in self.script.clients if str(each.conn.peer) == address]:
            self.script.close(far_end, reason)
        self.asked = [asked for asked in self.asked if asked.address != address]
        self.settle()

    def tell(self, address: str, code: int, ext: dict | None = None, body: bytes = b"", *, flag: int = 2) -> None:
        """Send a request of a peer to the client."""
        far_end = next(each for each in self.script.clients if str(each.conn.peer) == address)
        far_end.send(write_command(code, ext, body, opaque=4711, flag=flag))
        self.settle()

    def answer_of_client(self, address: str) -> Command:
        """Return the client's response to a `tell` with flag 0."""
        found = [each for each in self.asked if each.command.flag & 1 and each.address == address]
        assert len(found) == 1, found
        self.asked.remove(found[0])
        return found[0].command
