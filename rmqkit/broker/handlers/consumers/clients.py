"""Requests about clients: heartbeats, unregistering, members of a group, connection lists.

Source: `broker/.../processor/{ClientManageProcessor,ConsumerManageProcessor}.java`,
`broker/.../processor/AdminBrokerProcessor.java`.
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, SUB, on_cluster, on_group
from rmqkit.broker.filters.contract import FilterError
from rmqkit.broker.handlers.demands import CHECKED_CLIENT, HEARTBEAT, UNREGISTERED
from rmqkit.broker.handlers.messages.pull import check_filters_allowed
from rmqkit.broker.names import group_fault, retry_topic
from rmqkit.broker.tables.clients import CLIENTS_MAX, ClientChannel
from rmqkit.broker.tables.topics import UNIT_SUB
from rmqkit.runtime.calls import Call, Handlers, Refused, Response
from rmqkit.wire.bodies import (
    CheckClientBody,
    ClientConnection,
    ConsumerConnection,
    ConsumerListByGroup,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    decode_heartbeat,
)
from rmqkit.wire.codes import Language, RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.groups import (
    GetConsumerConnectionListRequest,
    GetConsumerListByGroupRequest,
    GetProducerConnectionListRequest,
    UnregisterClientRequest,
)

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()


@rows.handles(RequestCode.HEART_BEAT, NoFields, access=HEARTBEAT)
def heartbeat(broker: "BrokerView", call: Call[NoFields]) -> Response:
    """Register the client in each of its groups, and create the groups' retry topics.

    Consumer groups that are unknown and may not be created are skipped silently, as upstream does.

    A heartbeat with a fingerprint is one of the second version (`useHeartbeatV2` of Java's client).
    After one whose answer has no IS_SUB_CHANGE, the client leaves out its subscriptions until they
    change, or until an answer asks for them by IS_SUB_CHANGE.
    """
    data = decode_heartbeat(call.body)
    groups = len(data.consumer_data_set) + len(data.producer_data_set)
    if broker.clients.count + groups > CLIENTS_MAX:
        raise Refused(ResponseCode.SYSTEM_BUSY, f"more than {CLIENTS_MAX} clients on this broker")
    call.changing()
    now_ms = broker.clock.mono_ms
    changed, is_first_version = False, data.heartbeat_fingerprint == 0
    without_sub, wants_sub = data.without_sub and not is_first_version, is_first_version
    for consumer in data.consumer_data_set:
        group = broker.groups.get(consumer.group_name)
        if group is None:
            continue
        if group.retry_queue_nums > 0:
            topic = retry_topic(consumer.group_name)
            sys_flag = UNIT_SUB if consumer.unit_mode else 0
            broker.topics.create_system(topic, group.retry_queue_nums, sys_flag=sys_flag)
        notify = group.notify_consumer_ids_changed_enable
        changed |= broker.clients.consumer_heartbeat(
            call.conn, data.client_id, consumer, call.language, call.version, now_ms, notify, without_sub=without_sub
        )
        clients, fingerprint = broker.clients, data.heartbeat_fingerprint
        wants_sub |= clients.is_fingerprint_new(consumer.group_name, fingerprint, without_sub=without_sub)
        if broker.config.filters.enable_property_filter and not without_sub:
            broker.filters.register(consumer.group_name, consumer.subscription_data_set)
    for producer in data.producer_data_set:
        if group_fault(producer.group_name) is None:
            broker.clients.producer_heartbeat(
                call.conn, producer.group_name, data.client_id, call.language, call.version, now_ms
            )
    if changed:
        broker.client_calls.notify_groups()
    # Java clients read these two fields. The header's version tells them that SQL92 is supported.
    answer = call.ok({"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if wants_sub else "false"})
    # The consumer asks for the route of its retry topic next.
    return call.later(lambda finish: broker.registration.when_known(lambda: finish(answer)))


@rows.handles(RequestCode.UNREGISTER_CLIENT, UnregisterClientRequest, access=UNREGISTERED)
def unregister(broker: "BrokerView", call: Call[UnregisterClientRequest]) -> Response:
    call.changing()
    broker.clients.unregister(call.conn, call.args.producer_group, call.args.consumer_group)
    broker.client_calls.notify_groups()
    return call.ok()


@rows.handles(RequestCode.CHECK_CLIENT_CONFIG, NoFields, access=CHECKED_CLIENT)
def check_config(broker: "BrokerView", call: Call[NoFields]) -> Response:
    """Check the subscription of a consumer that starts. Only an invalid one is an error."""
    subscription = CheckClientBody.decode(call.body).subscription_data if call.body else None
    if subscription is not None and not subscription.is_tag_type:
        check_filters_allowed(broker, subscription.expression_type)
        try:
            broker.filters.filters.compile(subscription.expression_type or "", subscription.sub_string)
        except FilterError as error:
            return call.error(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))
    return call.ok()


@rows.handles(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequest, access=on_group(SUB, GET))
def consumer_list(broker: "BrokerView", call: Call[GetConsumerListByGroupRequest]) -> Response:
    """Return the client ids of a group's members.

    A group without members is an error, not an empty list, so that clients skip a rebalancing.
    """
    group = broker.clients.consumers.get(call.args.consumer_group)
    if group is None:
        return call.error(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {call.args.consumer_group}")
    return call.ok(body=ConsumerListByGroup(consumer_id_list=group.client_ids).encode())


@rows.handles(RequestCode.GET_CONSUMER_CONNECTION_LIST, GetConsumerConnectionListRequest, access=on_group(GET))
def consumer_connections(broker: "BrokerView", call: Call[GetConsumerConnectionListRequest]) -> Response:
    name = call.args.consumer_group
    group = broker.clients.consumers.get(name)
    if group is None:
        return call.error(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    body = ConsumerConnection(
        connection_set=[_connection(member) for member in group.members.values()],
        subscription_table=dict(group.subscriptions),
        consume_type=group.consume_type,
        message_model=group.message_model,
        consume_from_where=group.consume_from_where,
    )
    return call.ok(body=body.encode())


@rows.handles(RequestCode.GET_PRODUCER_CONNECTION_LIST, GetProducerConnectionListRequest, access=on_cluster(GET))
def producer_connections(broker: "BrokerView", call: Call[GetProducerConnectionListRequest]) -> Response:
    name = call.args.producer_group
    members = broker.clients.producers.get(name)
    if not members:
        return call.error(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    body = ProducerConnection(connection_set=[_connection(member) for member in members.values()])
    return call.ok(body=body.encode())


@rows.handles(RequestCode.GET_ALL_PRODUCER_INFO, NoFields, access=on_cluster(GET))
def all_producers(broker: "BrokerView", call: Call[NoFields]) -> Response:
    to_wall_ms = broker.clock.wall_ms - broker.clock.mono_ms
    table = {
        group: [
            ProducerInfo(
                client_id=each.client_id,
                remote_ip=f"/{each.conn.peer}",
                language=_language(each),
                version=each.version,
                last_update_timestamp=each.last_ms + to_wall_ms,
            )
            for each in members.values()
        ]
        for group, members in broker.clients.producers.items()
    }
    return call.ok(body=ProducerTable(data=table).encode())


def _connection(member: ClientChannel) -> ClientConnection:
    return ClientConnection(
        client_id=member.client_id,
        client_addr=str(member.conn.peer),
        language=_language(member),
        version=member.version,
    )


def _language(member: ClientChannel) -> str:
    language = member.language
    if isinstance(language, int):
        return Language(language).name if language in list(Language) else "OTHER"
    return language or "OTHER"
