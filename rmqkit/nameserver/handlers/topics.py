"""Topics for administrators.

205 and 327 remove and add the write permission of a broker; 206, 224, 304 and 311 to 313 list
topics; 216 deletes a topic; 217 registers one.

Source: `namesrv/.../processor/DefaultRequestProcessor.java`.
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, TOPIC, UPDATE, either, lists, on_cluster
from rmqkit.nameserver import answers
from rmqkit.runtime.calls import Call, Handlers, Refused, Response
from rmqkit.runtime.names import NAME_SIZE_MAX, check_name, shown
from rmqkit.wire.bodies import TopicList, TopicRoute
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas import nameserver as schemas

if TYPE_CHECKING:
    from rmqkit.nameserver.view import NameServerView

rows = Handlers()


@rows.handles(RequestCode.WIPE_WRITE_PERM_OF_BROKER, schemas.WipeWritePermOfBrokerRequest, access=on_cluster(UPDATE))
def wipe_write_perm_of_broker(ns: "NameServerView", call: Call[schemas.WipeWritePermOfBrokerRequest]) -> Response:
    call.changing()
    count = ns.routes.change_perm(call.args.broker_name, writable=False)
    ns.ports.log.info(
        "write-perm-wiped", broker_name=call.args.broker_name[:NAME_SIZE_MAX], topics=count, peer=str(call.conn.peer)
    )
    return call.ok(schemas.WipeWritePermOfBrokerResponse(wipe_topic_count=count))


@rows.handles(RequestCode.ADD_WRITE_PERM_OF_BROKER, schemas.AddWritePermOfBrokerRequest, access=on_cluster(UPDATE))
def add_write_perm_of_broker(ns: "NameServerView", call: Call[schemas.AddWritePermOfBrokerRequest]) -> Response:
    call.changing()
    count = ns.routes.change_perm(call.args.broker_name, writable=True)
    ns.ports.log.info(
        "write-perm-added", broker_name=call.args.broker_name[:NAME_SIZE_MAX], topics=count, peer=str(call.conn.peer)
    )
    return call.ok(schemas.AddWritePermOfBrokerResponse(add_topic_count=count))


@rows.handles(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, NoFields, access=either(on_cluster(GET), lists(TOPIC)))
def get_all_topic_list(ns: "NameServerView", call: Call[NoFields]) -> Response:
    if not ns.config.nameserver.enable_all_topic_list:
        return call.error(ResponseCode.SYSTEM_ERROR, "disable")
    listed = answers.all_topics(ns.routes)
    listed.topic_list = list(call.visible(TOPIC, listed.topic_list, whole=on_cluster(GET)))
    return _listed(call, listed)


@rows.handles(RequestCode.GET_TOPICS_BY_CLUSTER, schemas.GetTopicsByClusterRequest, access=on_cluster(GET))
def get_topics_by_cluster(ns: "NameServerView", call: Call[schemas.GetTopicsByClusterRequest]) -> Response:
    _check_lists(ns)
    return _listed(call, answers.topics_of_cluster(ns.routes, call.args.cluster))


@rows.handles(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, NoFields, access=on_cluster(GET))
def get_system_topic_list(ns: "NameServerView", call: Call[NoFields]) -> Response:
    return _listed(call, answers.system_topics(ns.routes))


@rows.handles(RequestCode.GET_UNIT_TOPIC_LIST, NoFields, access=on_cluster(GET))
def get_unit_topic_list(ns: "NameServerView", call: Call[NoFields]) -> Response:
    _check_lists(ns)
    return _listed(call, answers.unit_topics(ns.routes))


@rows.handles(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, NoFields, access=on_cluster(GET))
def get_has_unit_sub_topic_list(ns: "NameServerView", call: Call[NoFields]) -> Response:
    _check_lists(ns)
    return _listed(call, answers.unit_sub_topics(ns.routes))


@rows.handles(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, NoFields, access=on_cluster(GET))
def get_has_unit_sub_ununit_topic_list(ns: "NameServerView", call: Call[NoFields]) -> Response:
    _check_lists(ns)
    return _listed(call, answers.unit_sub_ununit_topics(ns.routes))


@rows.handles(RequestCode.DELETE_TOPIC_IN_NAMESRV, schemas.DeleteTopicFromNamesrvRequest, access=on_cluster(UPDATE))
def delete_topic(ns: "NameServerView", call: Call[schemas.DeleteTopicFromNamesrvRequest]) -> Response:
    topic, cluster = call.args.topic, call.args.cluster_name or None
    check_name("topic", topic)
    call.changing()
    ns.routes.delete_topic(topic, cluster)
    ns.ports.log.info("topic-deleted", topic=topic, cluster=cluster, peer=str(call.conn.peer))
    return call.ok()


@rows.handles(RequestCode.REGISTER_TOPIC_IN_NAMESRV, schemas.RegisterTopicRequest, access=on_cluster(UPDATE))
def register_topic(ns: "NameServerView", call: Call[schemas.RegisterTopicRequest]) -> Response:
    topic = call.args.topic
    check_name("topic", topic)
    if not call.body:
        return call.ok()
    queues = TopicRoute.decode(call.body).queue_datas
    if any(min(each.read_queue_nums, each.write_queue_nums) < 0 for each in queues):
        return call.error(ResponseCode.SYSTEM_ERROR, f"topic {shown(topic)} has a negative number of queues")
    call.changing()
    if not ns.routes.register_topic(topic, queues):
        return call.error(ResponseCode.SYSTEM_ERROR, "the table of topics is full")
    return call.ok()


def _check_lists(ns: "NameServerView") -> None:
    if not ns.config.nameserver.enable_topic_list:
        raise Refused(ResponseCode.SYSTEM_ERROR, "disable")


def _listed(call: Call[NoFields] | Call[schemas.GetTopicsByClusterRequest], topics: TopicList) -> Response:
    return call.ok(body=topics.encode())
