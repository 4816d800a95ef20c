"""Requests of brokers: 103 register, 104 unregister, 322 data version, 904 heartbeat, 60005 users.

Apache queues unregistrations and handles them in batches. Here each is handled at once, with the
same result.

Source: `namesrv/.../processor/DefaultRequestProcessor.java`.
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, either, inner, on_cluster
from rmqkit.errors import RemoteProtocolError
from rmqkit.nameserver.kv import ORDER_TOPIC_CONFIG
from rmqkit.nameserver.registration import BrokerRegistration, RegistrationResult, check, enter
from rmqkit.runtime.calls import Call, Handlers, Refused, Response
from rmqkit.runtime.names import check_name
from rmqkit.wire.bodies import AccessTableBody, DataVersion, KVTable, RegisterBrokerBody, TopicConfigAndMappingTable
from rmqkit.wire.codes import OwnRequestCode, RequestCode, ResponseCode, Version
from rmqkit.wire.record import body_crc
from rmqkit.wire.schemas import nameserver as schemas
from rmqkit.wire.schemas.access import PutAccessTableRequest

if TYPE_CHECKING:
    from rmqkit.nameserver.view import NameServerView

rows = Handlers()


@rows.handles(RequestCode.REGISTER_BROKER, schemas.RegisterBrokerRequest, access=inner)
def register_broker(ns: "NameServerView", call: Call[schemas.RegisterBrokerRequest]) -> Response:
    args = call.args
    if args.body_crc32 and args.body_crc32 != body_crc(call.body):
        return call.error(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    newcomer = _newcomer(ns, call)
    check(ns.routes, newcomer)
    call.changing()
    known = ns.routes.member(newcomer.cluster, newcomer.broker_name, newcomer.address) is not None
    registered = enter(
        ns.routes,
        newcomer,
        ns.clock.mono_ms,
        delete_missing_topics=ns.config.nameserver.delete_topic_with_broker_registration,
    )
    member = ns.routes.member(newcomer.cluster, newcomer.broker_name, newcomer.address)
    if not registered.ignored and member is not None:
        ns.liveness.registered(call.conn, member)
    _log_registration(ns, args, known, registered)
    master = registered.master
    ext = schemas.RegisterBrokerResponse()
    if master is not None:
        ext = schemas.RegisterBrokerResponse(ha_server_addr=master.ha_address, master_addr=master.address)
    body = b""
    if ns.config.nameserver.return_order_topic_config_to_broker:
        order_topics = ns.kv.namespace(ORDER_TOPIC_CONFIG)
        if order_topics is not None:
            body = KVTable(table=dict(order_topics)).encode()
    return Response(ResponseCode.SUCCESS, ext, body, registered.remark)


@rows.handles(RequestCode.UNREGISTER_BROKER, schemas.UnregisterBrokerRequest, access=inner)
def unregister_broker(ns: "NameServerView", call: Call[schemas.UnregisterBrokerRequest]) -> Response:
    args = call.args
    call.changing()
    if ns.routes.unregister_address(args.cluster_name, args.broker_name, args.broker_addr):
        ns.ports.log.info("broker-unregistered", broker_name=args.broker_name, address=args.broker_addr)
    return call.ok()


@rows.handles(RequestCode.QUERY_DATA_VERSION, schemas.QueryDataVersionRequest, access=either(inner, on_cluster(GET)))
def query_data_version(ns: "NameServerView", call: Call[schemas.QueryDataVersionRequest]) -> Response:
    args = call.args
    asked = DataVersion.decode(call.body) if call.body else None
    call.changing()
    member = ns.routes.record_heartbeat(args.cluster_name, args.broker_name, args.broker_addr, ns.clock.mono_ms)
    if member is None:
        return call.ok(schemas.QueryDataVersionResponse(changed=True))
    return call.ok(schemas.QueryDataVersionResponse(changed=asked != member.data_version), member.data_version.encode())


@rows.handles(RequestCode.BROKER_HEARTBEAT, schemas.BrokerHeartbeatRequest, access=inner)
def broker_heartbeat(ns: "NameServerView", call: Call[schemas.BrokerHeartbeatRequest]) -> Response:
    """Record a heartbeat.

    An unregistered broker gets SUCCESS too. It learns from 322 that it is unknown, and its next 103
    registers it.
    """
    args = call.args
    call.changing()
    ns.routes.record_heartbeat(args.cluster_name, args.broker_name, args.broker_addr, ns.clock.mono_ms)
    return call.ok()


@rows.handles(OwnRequestCode.PUT_ACCESS_TABLE, PutAccessTableRequest, access=inner)
def put_access_table(ns: "NameServerView", call: Call[PutAccessTableRequest]) -> Response:
    """Keep the users and rules of a broker group."""
    if not ns.access.is_on:
        return call.error(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "authentication is off (authenticationEnabled)")
    args, table = call.args, AccessTableBody.decode(call.body)
    check_name("cluster", args.cluster_name)
    check_name("broker", args.broker_name)
    refusal = ns.access.put(args.cluster_name, args.broker_name, args.broker_id, table)
    return call.error(ResponseCode.SYSTEM_ERROR, refusal) if refusal else call.ok()


def _newcomer(ns: "NameServerView", call: Call[schemas.RegisterBrokerRequest]) -> BrokerRegistration:
    args = call.args
    known = ns.routes.member(args.cluster_name, args.broker_name, args.broker_addr)
    # A registration over an abandoned connection may arrive after one over a newer connection.
    # Keep the newer connection's id: the close of the old connection follows, and must not
    # unregister the broker.
    conn_id = call.conn.id if known is None else max(call.conn.id, known.conn_id)
    try:
        table, filter_servers = _read_body(call)
    except RemoteProtocolError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"Failed to decode RegisterBrokerBody: {error}") from None
    return BrokerRegistration(
        cluster=args.cluster_name,
        broker_name=args.broker_name,
        broker_id=args.broker_id,
        address=args.broker_addr,
        ha_address=args.ha_server_addr,
        conn_id=conn_id,
        data_version=table.data_version,
        topics=table.topic_config_table,
        mappings=table.topic_queue_mapping_info_map,
        filter_servers=filter_servers,
        zone_name=args.zone_name,
        timeout_ms=args.heartbeat_timeout_millis,
        enable_acting_master=args.enable_acting_master,
    )


def _read_body(call: Call[schemas.RegisterBrokerRequest]) -> tuple[TopicConfigAndMappingTable, list[str] | None]:
    """Return topics and filter servers.

    Brokers before 3.0.11 send only topics; then the filter servers are None.
    """
    if call.version < Version.V3_0_11:
        return TopicConfigAndMappingTable.decode(call.body or b"{}"), None
    body = RegisterBrokerBody.decode_either(call.body, compressed=call.args.compressed, broker_version=call.version)
    return body.topic_config_serialize_wrapper, body.filter_server_list


def _log_registration(
    ns: "NameServerView", args: schemas.RegisterBrokerRequest, known: bool, registered: RegistrationResult
) -> None:
    fields = {"broker_name": args.broker_name, "broker_id": args.broker_id, "address": args.broker_addr}
    if registered.ignored:
        ns.ports.log.warning("registration-ignored", **fields, reason=registered.conflict)
    elif registered.conflict:
        ns.ports.log.warning("broker-id-taken-over", **fields, reason=registered.conflict)
    if registered.left_out:
        ns.ports.log.warning("topics-left-out", **fields, reason=registered.topics_left_out)
    if not known and not registered.ignored:
        ns.ports.log.info("broker-registered", **fields, cluster=args.cluster_name, ha_address=args.ha_server_addr)
