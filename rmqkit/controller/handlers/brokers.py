"""Requests of brokers: 904 heartbeat, 1001 to 1004, 1012 and 1013.

All but heartbeats are decisions: followers answer CONTROLLER_NOT_LEADER. A heartbeat that is no
one-way request is answered with what this controller knows of the set; the answer of the leader
renews the lease of an rmqkit master.

Source: `controller/.../processor/ControllerRequestProcessor.java`.
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import inner, inner_change
from rmqkit.controller.sets import decisions
from rmqkit.runtime.calls import Call, Handlers, Response
from rmqkit.runtime.names import check_address, check_name
from rmqkit.wire.bodies import SyncStateSet
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schemas import controller as schemas
from rmqkit.wire.schemas.nameserver import BrokerHeartbeatRequest

if TYPE_CHECKING:
    from rmqkit.controller.view import ControllerView

rows = Handlers()


@rows.handles(RequestCode.BROKER_HEARTBEAT, BrokerHeartbeatRequest, access=inner)
def heartbeat(controller: "ControllerView", call: Call[BrokerHeartbeatRequest]) -> Response:
    args = call.args
    if args.broker_id is None:
        return call.error(ResponseCode.CONTROLLER_INVALID_REQUEST, "Heart beat with empty brokerId")
    leads = controller.log.leadership.is_self
    brokers = controller.sets.get(args.broker_name)
    if brokers is None or args.broker_id not in brokers.replicas:
        if leads:
            return call.error(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "Broker hasn't been registered")
        return call.ok(schemas.BrokerHeartbeatResponse(is_leader=False))
    call.changing()
    controller.watch.watch_timeout(controller.live.record(call.conn, args, controller.clock.mono_ms))
    return call.ok(
        schemas.BrokerHeartbeatResponse(
            is_leader=leads,
            master_broker_id=brokers.master_id,
            master_epoch=brokers.master_epoch,
            sync_state_set_epoch=brokers.sync_epoch,
        )
    )


@rows.handles(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, schemas.AlterSyncStateSetRequest, access=inner)
def alter_sync_state_set(controller: "ControllerView", call: Call[schemas.AlterSyncStateSetRequest]) -> Response:
    body = SyncStateSet.decode(call.body)
    return controller.decide(
        call, lambda: decisions.alter_sync_state_set(controller.sets, controller.live, call.args, body)
    )


@rows.handles(RequestCode.CONTROLLER_ELECT_MASTER, schemas.ElectMasterRequest, access=inner_change)
def elect_master(controller: "ControllerView", call: Call[schemas.ElectMasterRequest]) -> Response:
    def decide() -> decisions.Resolution:
        unclean = controller.config.controller.elect_unclean
        return decisions.elect_master(controller.sets, controller.live, call.args, unclean=unclean)

    return controller.decide(call, decide)


@rows.handles(RequestCode.CONTROLLER_REGISTER_BROKER, schemas.RegisterBrokerToControllerRequest, access=inner)
def register_broker(controller: "ControllerView", call: Call[schemas.RegisterBrokerToControllerRequest]) -> Response:
    if call.args.broker_address:
        check_address("brokerAddress", call.args.broker_address)
    return controller.decide(call, lambda: decisions.register_broker(controller.sets, controller.live, call.args))


@rows.handles(RequestCode.CONTROLLER_GET_REPLICA_INFO, schemas.GetReplicaInfoRequest, access=inner)
def get_replica_info(controller: "ControllerView", call: Call[schemas.GetReplicaInfoRequest]) -> Response:
    return controller.decide(call, lambda: decisions.get_replica_info(controller.sets, call.args))


@rows.handles(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, schemas.GetNextBrokerIdRequest, access=inner)
def get_next_broker_id(controller: "ControllerView", call: Call[schemas.GetNextBrokerIdRequest]) -> Response:
    return controller.decide(call, lambda: decisions.get_next_broker_id(controller.sets, call.args))


@rows.handles(RequestCode.CONTROLLER_APPLY_BROKER_ID, schemas.ApplyBrokerIdRequest, access=inner)
def apply_broker_id(controller: "ControllerView", call: Call[schemas.ApplyBrokerIdRequest]) -> Response:
    args = call.args
    check_name("clusterName", args.cluster_name or "")
    check_name("brokerName", args.broker_name or "")
    check_name("registerCheckCode", args.register_check_code or "")
    check_address("address in registerCheckCode", (args.register_check_code or "").partition(";")[0])
    return controller.decide(call, lambda: decisions.apply_broker_id(controller.sets, args))
