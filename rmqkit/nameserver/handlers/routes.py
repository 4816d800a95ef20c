"""Routes: 105 route of a topic, 106 cluster info, 901 members of a broker name.

The JSON always has quoted integer keys and no whitespace. Every client reads this form (the Go
client splits the text itself, old Java clients accept both forms). So the caller's version and
`acceptStandardJsonOnly` make no difference.

Source: `namesrv/.../processor/ClientRequestProcessor.java`, `DefaultRequestProcessor.java`.
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, PUB, SUB, either, in_body, inner, on_cluster, on_topic
from rmqkit.nameserver import answers
from rmqkit.nameserver.kv import ORDER_TOPIC_CONFIG
from rmqkit.runtime.calls import Call, Handlers, Response
from rmqkit.runtime.names import NAME_SIZE_MAX
from rmqkit.wire.bodies import MemberGroupBody
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.nameserver import GetBrokerMemberGroupRequest, GetRouteInfoRequest
from rmqkit.wire.topic_names import AUTO_CREATE_TOPIC

if TYPE_CHECKING:
    from rmqkit.nameserver.view import NameServerView

FAQ_URL = "https://rocketmq.apache.org/docs/bestPractice/06FAQ"

rows = Handlers()

_ON_TOPIC = on_topic(PUB, SUB, GET)
#: T:P/S/g. Every producer needs the route of the topic after which others are created
ROUTE = in_body(
    f"{_ON_TOPIC.text}; {AUTO_CREATE_TOPIC} any user",
    lambda caller, call: None if call.args.topic == AUTO_CREATE_TOPIC else _ON_TOPIC.refusal(caller, call),
)


@rows.handles(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequest, access=ROUTE)
def get_route_info_by_topic(ns: "NameServerView", call: Call[GetRouteInfoRequest]) -> Response:
    args = call.args
    settings = ns.config.nameserver
    if settings.need_wait_for_service and ns.clock.mono_ms - ns.started_ms < settings.wait_for_service_ms:
        return call.error(ResponseCode.SYSTEM_ERROR, "name server not ready")
    zone_name = args.zone_name if args.zone_mode and args.zone_name and not args.zone_name.isspace() else None
    route = answers.route(ns.routes, args.topic, zone_name, support_acting=settings.support_acting_master)
    if route is None:
        topic = args.topic[:NAME_SIZE_MAX]
        remark = f"No topic route info in name server for the topic: {topic}\nSee {FAQ_URL} for further details."
        return call.error(ResponseCode.TOPIC_NOT_EXIST, remark)
    if settings.order_message_enable:
        route.order_topic_conf = ns.kv.get(ORDER_TOPIC_CONFIG, args.topic)
    return call.ok(body=route.encode())


@rows.handles(RequestCode.GET_BROKER_CLUSTER_INFO, NoFields, access=on_cluster(GET))
def get_broker_cluster_info(ns: "NameServerView", call: Call[NoFields]) -> Response:
    return call.ok(body=answers.cluster_info(ns.routes).encode())


@rows.handles(RequestCode.GET_BROKER_MEMBER_GROUP, GetBrokerMemberGroupRequest, access=either(inner, on_cluster(GET)))
def get_broker_member_group(ns: "NameServerView", call: Call[GetBrokerMemberGroupRequest]) -> Response:
    group = answers.member_group(ns.routes, call.args.cluster_name, call.args.broker_name)
    return call.ok(body=MemberGroupBody(broker_member_group=group).encode())
