"""The container's own node: adds and removes brokers of its process on request.

It listens on its own port. The work is done by a `BrokerHost`, which the process provides: it reads
configuration files, starts and stops brokers. A request is answered when its change is done, or
after `ANSWER_MS` with success and a remark about what is still in progress: an administrator's call
would time out soon after.

Only a peer on this machine may request a change, unless `remoteConfigUpdateEnable` is set. Only
configuration files that the `BrokerHost` allows are read, and a peer on another machine never sees
their content in an error.

    902 ADD_BROKER      configPath
    903 REMOVE_BROKER   brokerClusterName, brokerName, brokerId; 211 if the broker is unknown
     26 GET_BROKER_CONFIG        the container's own settings, as properties text
     28 GET_BROKER_RUNTIME_INFO  `containerBrokers`: its brokers as JSON (`BrokerSummary`)

Source: `container/.../BrokerContainerProcessor.java`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from rmqkit.access.audit import Audit
from rmqkit.access.gate import AccessGate
from rmqkit.access.rules import GET, UPDATE, on_cluster
from rmqkit.access.table import Accounts
from rmqkit.config import AccessSettings, NetworkLimits
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

#: mqadmin and rmqkit's admin time out after 3 s
ANSWER_MS = 2500
#: changes in progress at a time
CHANGES_MAX = 16
PATH_SIZE_MAX = 4096
LATE_DUTY = "late-answers"
NOT_FROM_HERE = (
    "brokers can only be added and removed on the container's own machine; remoteConfigUpdateEnable=true in the file of its"
    " first broker allows others"
)


class BrokerSummary(NamedTuple):
    """One broker as the container reports it; `state` is starting, serving or stopping."""

    cluster: str
    name: str
    broker_id: int
    address: str
    state: str
    config: str
    store: str


class ChangeResult(NamedTuple):
    """The result of a change; `error` is "" for success.

    A peer on another machine gets `for_others` instead of `error`, unless it is "".
    """

    error: str = ""
    code: int = ResponseCode.SYSTEM_ERROR
    for_others: str = ""


Then = Callable[[ChangeResult], None]


class BrokerHost(Protocol):
    """What the container's node uses of the process.

    Each `then` is called once, in a later turn.
    """

    def add(self, path: str, then: Then) -> None:
        """Start the broker of a configuration file."""

    def remove(self, identity: BrokerKey, then: Then) -> None: ...
    def tables(self) -> Sequence[Accounts]:
        """Return the users and rules of the brokers that have access control."""

    def shown(self) -> Sequence[BrokerSummary]: ...
    def settings(self) -> Mapping[str, str]:
        """Return the container's own settings by Apache's names."""


rows = Handlers()


class ContainerNode(BaseNode):
    """The node behind the container's port."""

    def __init__(
        self,
        name: str,
        ports: Ports,
        housing: BrokerHost,
        *,
        limits: NetworkLimits,
        remote_update: bool = False,
        access: AccessSettings | None = None,
    ) -> None:
        """`access` are the settings of the first broker. A user is known by the tables of all."""
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
            limits=limits,
        )
        if access is not None and access.is_on:
            self.remoting.gate = AccessGate(
                housing.tables,
                Audit(ports.log, ports.clock, access.failures_max),
                has_rules=access.has_rules,
                inner=access.inner,
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
        """Raise Refused if the peer may not make changes, or too many are in progress."""
        if call.conn.is_remote and not self.remote_update:
            raise Refused(ResponseCode.NO_PERMISSION, NOT_FROM_HERE)
        if len(self._changes) >= CHANGES_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"the container already makes {CHANGES_MAX} changes; ask again later")

    def park(self, call: Call[Any], what: str, late: str) -> Then:
        """Park a call, and return the function that takes the result of its change.

        `late` is the remark if the change takes longer than `ANSWER_MS`.
        """
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


@rows.handles(RequestCode.ADD_BROKER, AddBrokerRequest, access=on_cluster(UPDATE))
def add_broker(node: ContainerNode, call: Call[AddBrokerRequest]) -> Response:
    node.check_allowed(call)
    path = (call.args.config_path or "").strip()
    if not path:
        return call.error(ResponseCode.SYSTEM_ERROR, "addBroker config path is empty")
    if len(path) > PATH_SIZE_MAX:
        return call.error(ResponseCode.SYSTEM_ERROR, f"a configPath has at most {PATH_SIZE_MAX} characters")
    node.housing.add(path, node.park(call, f"add {path}", "the broker was started and is not serving yet: it recovers"))
    return LATER


@rows.handles(RequestCode.REMOVE_BROKER, RemoveBrokerRequest, access=on_cluster(UPDATE))
def remove_broker(node: ContainerNode, call: Call[RemoveBrokerRequest]) -> Response:
    node.check_allowed(call)
    args = call.args
    identity = BrokerKey(args.broker_cluster_name, args.broker_name, args.broker_id)
    node.housing.remove(identity, node.park(call, f"remove {identity}", "the broker was asked to stop and still runs"))
    return LATER


@rows.handles(RequestCode.GET_BROKER_CONFIG, NoFields, access=on_cluster(GET))
def get_config(node: ContainerNode, call: Call[NoFields]) -> Response:
    return call.ok(body=properties_text.encode(node.housing.settings()).encode())


@rows.handles(RequestCode.GET_BROKER_RUNTIME_INFO, NoFields, access=on_cluster(GET))
def runtime_info(node: ContainerNode, call: Call[NoFields]) -> Response:
    brokers = [each._asdict() for each in node.housing.shown()]
    return call.ok(body=KVTable(table={"containerBrokers": msgspec.json.encode(brokers).decode()}).encode())
