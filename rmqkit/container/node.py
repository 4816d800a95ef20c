"""The container's own node: it listens on a port of its own and adds and removes brokers of its process when asked.

The work is done by `BrokerHost`, which the process gives it: reading a configuration file, starting and stopping a broker.
A request is answered when that is done, or after `ANSWER_MS`, which is before an administrator's call gives up: then with
success and a remark that says what is still under way.

Only whoever is on this machine may ask for a change (or anybody with `remoteConfigUpdateEnable`), and only configuration
files that the housing allows are read. Somebody on another machine is never told what stands in them.

    902 ADD_BROKER      configPath
    903 REMOVE_BROKER   brokerClusterName, brokerName, brokerId; 211 when there is no such broker
     26 GET_BROKER_CONFIG        the container's own settings, as properties text
     28 GET_BROKER_RUNTIME_INFO  `containerBrokers`: its brokers as JSON (`BrokerSummary`)

Source: `container/.../BrokerContainerProcessor.java`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from rmqkit.config import NetworkLimits
from rmqkit.container.container import BrokerKey
from rmqkit.runtime.calls import LATER, Call, Handlers, Refused, Response
from rmqkit.runtime.connection import Connection
from rmqkit.runtime.node import BaseNode
from rmqkit.runtime.ports import Ports
from rmqkit.runtime.remoting import TAG, Remoting
from rmqkit.wire import properties_text
from rmqkit.wire.bodies import KVTable
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.admin import AddBrokerRequest, RemoveBrokerRequest

#: mqadmin and ours give up after 3 s
ANSWER_MS = 2500
#: changes under way at a time
CHANGES_MAX = 16
PATH_SIZE_MAX = 4096
LATE_DUTY = "late-answers"
NOT_FROM_HERE = (
    "brokers are added and removed from the container's own machine; remoteConfigUpdateEnable=true in the file of its first"
    " broker lets other machines do it"
)


class BrokerSummary(NamedTuple):
    """One broker as the container tells of it; `state` is starting, serving or stopping."""

    cluster: str
    name: str
    broker_id: int
    address: str
    state: str
    config: str
    store: str


class ChangeResult(NamedTuple):
    """How a change went: `error` is "" when it did. `for_others` is said instead to somebody on another machine."""

    error: str = ""
    code: int = ResponseCode.SYSTEM_ERROR
    for_others: str = ""


Then = Callable[[ChangeResult], None]


class BrokerHost(Protocol):
    def add(self, path: str, then: Then) -> None:
        """Start a broker by its file; `then` is called once, in a later turn."""

    def remove(self, identity: BrokerKey, then: Then) -> None: ...
    def shown(self) -> Sequence[BrokerSummary]: ...
    def settings(self) -> Mapping[str, str]:
        """The container's own, by Apache's names."""


rows = Handlers()


class ContainerNode(BaseNode):
    def __init__(
        self, name: str, ports: Ports, housing: BrokerHost, *, limits: NetworkLimits, remote_update: bool = False
    ) -> None:
        super().__init__(name, ports)
        self.housing = housing
        self.remote_update = remote_update
        self.log = ports.log
        self._changes: dict[int, _Change] = {}
        self._last = 0
        self.remoting = Remoting(
            self,
            outbox=self.outbox,
            clock=ports.clock,
            duties=self.duties,
            log=ports.log,
            tables={TAG: rows},
            frame_size_max=limits.frame_size_max,
            frame_complete_ms=limits.frame_complete_ms,
            partial_bytes_max=limits.partial_bytes_max,
            unread_bytes_max=limits.outbox_max,
        )
        self.duties.add(LATE_DUTY, self._answer_late, None)

    def opened(self, conn: Connection) -> None:
        self.remoting.opened(conn)

    def received(self, conn: Connection, data: bytes) -> None:
        self.remoting.received(conn, data)

    def closed(self, conn: Connection, reason: str) -> None:
        self.remoting.closed(conn, reason)

    def stop(self) -> None:
        self.remoting.unavailable = "the container is stopping"
        self.stopped = True

    def check_allowed(self, call: Call[Any]) -> None:
        """Raises Refused."""
        if call.conn.is_remote and not self.remote_update:
            raise Refused(ResponseCode.NO_PERMISSION, NOT_FROM_HERE)
        if len(self._changes) >= CHANGES_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"the container makes {CHANGES_MAX} changes already; ask again later")

    def park(self, call: Call[Any], what: str, late: str) -> Then:
        """The function that answers a call when a change is done; `late` is said when that takes long."""
        call.changing()
        self._last += 1
        number = self._last
        until_ms = self.clock.mono_ms + ANSWER_MS
        self._changes[number] = _Change(call, until_ms, late)
        self.duties.wake(LATE_DUTY, min(each.until_ms for each in self._changes.values() if not each.answered))
        self.log.info("change-asked", what=what, peer=str(call.conn.peer))

        def done(outcome: ChangeResult) -> None:
            change = self._changes.pop(number)
            if outcome.error:
                self.log.warning("change-failed", what=what, reason=outcome.error)
            else:
                self.log.info("change-done", what=what)
            if not change.answered:
                call.finish(_answer(call, outcome))

        return done

    def _answer_late(self, now_ms: int) -> int | None:
        open_changes = [each for each in self._changes.values() if not each.answered]
        for change in [each for each in open_changes if each.until_ms <= now_ms]:
            change.answered = True
            change.call.finish(Response(ResponseCode.SUCCESS, None, b"", change.late))
        return min((each.until_ms for each in open_changes if not each.answered), default=None)


class _Change:
    __slots__ = ("answered", "call", "late", "until_ms")

    def __init__(self, call: Call[Any], until_ms: int, late: str) -> None:
        self.call = call
        self.until_ms = until_ms
        self.late = late
        self.answered = False


def _answer(call: Call[Any], outcome: ChangeResult) -> Response:
    if not outcome.error:
        return call.ok()
    hides = call.conn.is_remote and outcome.for_others
    return call.error(outcome.code, outcome.for_others if hides else outcome.error)


@rows.handles(RequestCode.ADD_BROKER, AddBrokerRequest)
def add_broker(node: ContainerNode, call: Call[AddBrokerRequest]) -> Response:
    node.check_allowed(call)
    path = (call.args.config_path or "").strip()
    if not path:
        return call.error(ResponseCode.SYSTEM_ERROR, "addBroker config path is empty")
    if len(path) > PATH_SIZE_MAX:
        return call.error(ResponseCode.SYSTEM_ERROR, f"a configPath has at most {PATH_SIZE_MAX} characters")
    node.housing.add(path, node.park(call, f"add {path}", "it has been started and is not serving yet: it recovers"))
    return LATER


@rows.handles(RequestCode.REMOVE_BROKER, RemoveBrokerRequest)
def remove_broker(node: ContainerNode, call: Call[RemoveBrokerRequest]) -> Response:
    node.check_allowed(call)
    args = call.args
    identity = BrokerKey(args.broker_cluster_name, args.broker_name, args.broker_id)
    node.housing.remove(identity, node.park(call, f"remove {identity}", "it has been asked to stop and is not gone yet"))
    return LATER


@rows.handles(RequestCode.GET_BROKER_CONFIG, NoFields)
def get_config(node: ContainerNode, call: Call[NoFields]) -> Response:
    return call.ok(body=properties_text.encode(node.housing.settings()).encode())


@rows.handles(RequestCode.GET_BROKER_RUNTIME_INFO, NoFields)
def runtime_info(node: ContainerNode, call: Call[NoFields]) -> Response:
    brokers = [each._asdict() for each in node.housing.shown()]
    return call.ok(body=KVTable(table={"containerBrokers": msgspec.json.encode(brokers).decode()}).encode())
