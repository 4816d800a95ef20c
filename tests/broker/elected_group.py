"""`ElectedGroup`: a broker group in controller mode, with a scripted controller in virtual time.

The controller decides by the rules of `ReplicasInfoManager`, for one group. Its data survives a
restart. A test may drop its answers, or change its data.
"""

from typing import Any

from rmqkit.access.rules import inner
from rmqkit.broker.election.election import MASTER, Election
from rmqkit.broker.node import Broker
from rmqkit.runtime.calls import LATER, Call, Handlers, Response
from rmqkit.runtime.connection import Address, Connection
from rmqkit.runtime.node import BaseNode
from rmqkit.runtime.ports import Ports
from rmqkit.runtime.remoting import Remoting
from rmqkit.wire.bodies import BrokerReplicasInfo, ReplicaIdentity, ReplicasInfo, SyncStateSet
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.controller import (
    AlterSyncStateSetRequest,
    AlterSyncStateSetResponse,
    ApplyBrokerIdRequest,
    ApplyBrokerIdResponse,
    BrokerHeartbeatResponse,
    ElectMasterRequest,
    ElectMasterResponse,
    GetMetaDataResponse,
    GetNextBrokerIdRequest,
    GetNextBrokerIdResponse,
    GetReplicaInfoRequest,
    GetReplicaInfoResponse,
    NotifyBrokerRoleChangedRequest,
    RegisterBrokerToControllerRequest,
    RegisterBrokerToControllerResponse,
)
from rmqkit.wire.schemas.nameserver import BrokerHeartbeatRequest
from tests.broker.replica_group import Group

CONTROLLER = Address("10.0.3.1", 9870)
NAME = "broker-a"
HEARTBEAT_INTERVAL_MS = 300
HEARTBEAT_TIMEOUT_MS = 3000


class Decisions:
    """What the controller knows of the group."""

    def __init__(self) -> None:
        self.codes: dict[int, str] = {}
        self.addresses: dict[int, str] = {}
        self.next_id = 1
        self.master = -1
        self.epoch = 0
        self.version = 0
        self.in_sync: list[int] = []
        #: codes whose requests are applied, but not answered
        self.mute: set[int] = set()
        #: codes whose requests are neither applied nor answered
        self.deaf: set[int] = set()
        #: whether leases count, as at controllers of rmqkit; Apache's ignore them
        self.heeds_lease = False
        #: every elected (epoch, id)
        self.elected: list[tuple[int, int]] = []


rows = Handlers()


class ScriptedController(BaseNode):
    """A controller that always leads."""

    def __init__(self, name: str, ports: Ports, data: Decisions) -> None:
        super().__init__(name, ports)
        self.data = data
        #: by id: when its heartbeat ends, epoch and end of its log, and its connection
        self.live: dict[int, tuple[int, tuple[int, int], Connection]] = {}
        self.remoting = Remoting(
            self, outbox=self.outbox, clock=self.clock, duties=self.duties, log=ports.log, tables={"remoting": rows}
        )
        self.duties.add("scan", self._scan, 0)

    def opened(self, conn: Connection) -> None:
        self.remoting.opened(conn)

    def received(self, conn: Connection, data: bytes) -> None:
        self.remoting.received(conn, data)

    def closed(self, conn: Connection, reason: str) -> None:
        self.remoting.closed(conn, reason)
        for broker_id, (_, _, own) in list(self.live.items()):
            if own is conn:
                del self.live[broker_id]
                self._lost(broker_id)

    def _scan(self, now_ms: int) -> int:
        for broker_id, (until_ms, _, _) in list(self.live.items()):
            if now_ms >= until_ms:
                del self.live[broker_id]
                self._lost(broker_id)
        return now_ms + 200

    def _lost(self, broker_id: int) -> None:
        data = self.data
        if broker_id == data.master and not self.elect():
            data.master, data.epoch = -1, data.epoch + 1

    def elect(self, designate: int = -1) -> bool:
        """Elect the best live member in sync. Return whether there is one; tell all members."""
        data = self.data
        found = [(self.live[each][1], -each) for each in data.in_sync if each in self.live]
        if designate >= 0:
            found = [each for each in found if -each[1] == designate]
        if not found:
            return False
        data.master = -max(found)[1]
        data.epoch, data.version, data.in_sync = data.epoch + 1, data.version + 1, [data.master]
        data.elected.append((data.epoch, data.master))
        push = NotifyBrokerRoleChangedRequest(master_broker_id=data.master, master_epoch=data.epoch)
        for broker_id in self.live:
            address = Address.parse(data.addresses[broker_id])
            self.remoting.oneway(address, RequestCode.NOTIFY_BROKER_ROLE_CHANGED, push)
        return True

    def sync_state_set(self) -> bytes:
        return SyncStateSet(sync_state_set=sorted(self.data.in_sync), sync_state_set_epoch=self.data.version).encode()

    def answer(self, call: Call[Any], code: int, response: Response) -> Response:
        return LATER if code in self.data.mute else response

    def is_deaf(self, code: int) -> bool:
        return code in self.data.deaf

    def master_fields(self) -> dict[str, Any]:
        data = self.data
        if data.master < 0:
            return {"master_epoch": data.epoch}
        address = data.addresses[data.master]
        return {"master_broker_id": data.master, "master_address": address, "master_epoch": data.epoch}


@rows.handles(RequestCode.BROKER_HEARTBEAT, BrokerHeartbeatRequest, access=inner)
def beat(node: ScriptedController, call: Call[BrokerHeartbeatRequest]) -> Response:
    args = call.args
    assert args.broker_id is not None
    if args.broker_id in node.data.addresses and not node.is_deaf(904):
        until_ms = node.clock.mono_ms + (args.heartbeat_timeout_mills or 0)
        if node.data.heeds_lease and args.lease_mills is not None:
            until_ms = node.clock.mono_ms + args.lease_mills * 5 // 4
        node.live[args.broker_id] = until_ms, (args.epoch or 0, args.max_offset or 0), call.conn
    return node.answer(call, 904, call.ok(BrokerHeartbeatResponse(is_leader=True) if node.data.heeds_lease else None))


@rows.handles(RequestCode.CONTROLLER_GET_METADATA_INFO, NoFields, access=inner)
def metadata(node: ScriptedController, call: Call[NoFields]) -> Response:
    return call.ok(GetMetaDataResponse(controller_leader_address=str(CONTROLLER), is_leader=True))


@rows.handles(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, GetNextBrokerIdRequest, access=inner)
def next_id(node: ScriptedController, call: Call[GetNextBrokerIdRequest]) -> Response:
    return call.ok(GetNextBrokerIdResponse(next_broker_id=node.data.next_id))


@rows.handles(RequestCode.CONTROLLER_APPLY_BROKER_ID, ApplyBrokerIdRequest, access=inner)
def apply_id(node: ScriptedController, call: Call[ApplyBrokerIdRequest]) -> Response:
    data, wanted, code = node.data, call.args.applied_broker_id, call.args.register_check_code
    assert wanted is not None
    assert code is not None
    if data.codes.get(wanted, code) != code:
        return call.error(ResponseCode.CONTROLLER_BROKER_ID_INVALID, "taken")
    if wanted not in data.codes:
        data.codes[wanted], data.addresses[wanted] = code, code.partition(";")[0]
        data.next_id = wanted + 1
    return node.answer(call, 1013, call.ok(ApplyBrokerIdResponse()))


@rows.handles(RequestCode.CONTROLLER_REGISTER_BROKER, RegisterBrokerToControllerRequest, access=inner)
def register(node: ScriptedController, call: Call[RegisterBrokerToControllerRequest]) -> Response:
    data, broker_id = node.data, call.args.broker_id
    if broker_id not in data.codes:
        return call.error(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "unknown id")
    data.addresses[broker_id] = call.args.broker_address or ""
    fields = node.master_fields() if data.master in node.live else {}
    return call.ok(RegisterBrokerToControllerResponse(sync_state_set_epoch=data.version, **fields), node.sync_state_set())


@rows.handles(RequestCode.CONTROLLER_ELECT_MASTER, ElectMasterRequest, access=inner)
def elect(node: ScriptedController, call: Call[ElectMasterRequest]) -> Response:
    data, args = node.data, call.args
    code, remark = ResponseCode.SUCCESS, ""
    if not data.epoch:
        data.in_sync = [args.broker_id]
        if args.broker_id not in node.live or not node.elect():
            return call.error(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "not alive")
    elif data.master in node.live and not args.designate_elect:
        code, remark = ResponseCode.CONTROLLER_MASTER_STILL_EXIST, "kept"
    elif not node.elect(args.broker_id if args.designate_elect else -1):
        return call.error(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "nobody in sync is alive")
    fields = ElectMasterResponse(sync_state_set_epoch=data.version, **node.master_fields())
    return call.ok(fields, node.sync_state_set())._replace(code=code, remark=remark)


@rows.handles(RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfoRequest, access=inner)
def replica_info(node: ScriptedController, call: Call[GetReplicaInfoRequest]) -> Response:
    if not node.data.epoch:
        return call.error(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, "unknown group")
    return call.ok(GetReplicaInfoResponse(**node.master_fields()), node.sync_state_set())


@rows.handles(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, NoFields, access=inner)
def sync_data(node: ScriptedController, call: Call[NoFields]) -> Response:
    members = {
        each: ReplicaIdentity(alive=each in node.live, broker_id=each, broker_address=address, broker_name=NAME)
        for each, address in node.data.addresses.items()
    }
    info = ReplicasInfo(
        in_sync_replicas=[each for key, each in members.items() if key in node.data.in_sync],
        not_in_sync_replicas=[each for key, each in members.items() if key not in node.data.in_sync],
    )
    return call.ok(body=BrokerReplicasInfo(replicas_info_table={NAME: info}).encode())


@rows.handles(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, AlterSyncStateSetRequest, access=inner)
def alter(node: ScriptedController, call: Call[AlterSyncStateSetRequest]) -> Response:
    data, told = node.data, SyncStateSet.decode(call.body)
    if node.is_deaf(1001):
        return LATER
    checks = (
        (sorted(told.sync_state_set) == sorted(data.in_sync), ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        (call.args.master_broker_id != data.master, ResponseCode.CONTROLLER_INVALID_MASTER),
        (call.args.master_epoch != data.epoch, ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH),
        (told.sync_state_set_epoch != data.version, ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
        (any(each not in node.live for each in told.sync_state_set), ResponseCode.CONTROLLER_BROKER_NOT_ALIVE),
        (data.master not in told.sync_state_set, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
    )
    for is_wrong, code in checks:
        if is_wrong:
            return call.error(code, "refused")
    data.in_sync, data.version = list(told.sync_state_set), data.version + 1
    answer = call.ok(AlterSyncStateSetResponse(new_sync_state_set_epoch=data.version), node.sync_state_set())
    return node.answer(call, 1001, answer)


class ElectedGroup(Group):
    """A group of controller mode; its brokers are `broker-0`, `broker-1`, … whatever their ids."""

    def __init__(self, *, brokers: int = 2, seed: int = 1, **settings: Any) -> None:
        self.data = Decisions()
        super().__init__(
            slaves=brokers - 1,
            seed=seed,
            **{
                "enableControllerMode": True,
                "controllerAddr": str(CONTROLLER),
                "allAckInSyncStateSet": True,
                "inSyncReplicas": 1,
                "brokerHeartbeatInterval": HEARTBEAT_INTERVAL_MS,
                "controllerHeartBeatTimeoutMills": HEARTBEAT_TIMEOUT_MS,
                "syncBrokerMetadataPeriod": 500,
                "checkSyncStateSetPeriod": 500,
                "slaveTimeout": 1000,
                **settings,
            },
        )
        self.world.add_node("ctl", lambda ports: ScriptedController("ctl", ports, self.data), CONTROLLER.host)
        self.world.listen("ctl", "remoting", CONTROLLER)

    def election(self, name: str) -> Election:
        found: Broker = self.node(name)
        election = found.view.election
        assert election is not None
        return election

    def master_names(self) -> list[str]:
        return [each for each in self.hosts if self.world.is_alive(each) and self.election(each).state is MASTER]

    def settled(self, count: int = 2) -> str:
        """Wait for one master and `count` members in sync. Return the master's name."""
        self.until(lambda: len(self.master_names()) == 1 and len(self.data.in_sync) == count)
        name = self.master_names()[0]
        self.until(lambda: self.election(name).facts()["syncStateSet"].count(";") == count - 1)
        return name

    def other(self, name: str) -> str:
        return next(each for each in self.hosts if each != name)
