"""QUERY_ASSIGNMENT and SET_MESSAGE_REQUEST_MODE: the broker divides queues among a group's members.

A client asks which queues it reads, and whether it pulls or pops them. The queues are those of the
topic's route, which this broker asks a name server for. Pops need no division: by default each
member pops queue -1, which means all, of every broker. With `popShareQueueNum` = n it pops its own
share and those of the n members after it.

An answer without a list means: keep what you have. It is given while no name server answers.

The mode of a group and topic is set by an administrator, saved in messageRequestMode.json, and
copied by slaves (402).

Source: `broker/.../processor/QueryAssignmentProcessor.java`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rmqkit.broker.handlers.admin.table_saves import answer_when_kept, check_may_change
from rmqkit.broker.handlers.demands import ASSIGNED, MODE_SET
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import Answer, Call, CallFailed, Handlers, Outcome, Refused, Response
from rmqkit.wire.bodies import (
    MessageQueue,
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    TopicRoute,
)
from rmqkit.wire.codes import PermName, RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.nameserver import GetRouteInfoRequest
from rmqkit.wire.topic_names import RETRY_PREFIX

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()

ROUTE_TIMEOUT_MS = 3_000
#: `KeyBuilder`: the queue id that stands for all queues of a broker
ALL_QUEUES = -1
Queues = Sequence[MessageQueue]
Found = Callable[[Queues | None], None]


@rows.handles(RequestCode.SET_MESSAGE_REQUEST_MODE, NoFields, access=MODE_SET)
def set_request_mode(broker: "BrokerView", call: Call[NoFields]) -> Response:
    """Set whether a group pulls or pops a topic."""
    check_may_change(broker)
    mode = MessageRequestMode.decode(call.body)
    if mode.topic.startswith(RETRY_PREFIX):
        raise Refused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    if broker.topics.get(mode.topic) is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{mode.topic}] not exist")
    if broker.groups.get(mode.consumer_group) is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
    if mode.mode not in ("PULL", "POP"):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"mode {mode.mode!r} is neither PULL nor POP")
    call.changing()
    modes = broker.replication.request_modes
    modes.put(mode)
    return answer_when_kept(call, modes, modes.save, "messageRequestMode.json")


@rows.handles(RequestCode.QUERY_ASSIGNMENT, NoFields, access=ASSIGNED)
def query_assignment(broker: "BrokerView", call: Call[NoFields]) -> Response:
    """Return the queues of one member, and how it reads them."""
    asked = QueryAssignmentRequest.decode(call.body)
    mode = _mode(broker, asked.topic, asked.consumer_group)

    def begin(answer: Answer) -> None:
        def found(queues: Queues | None) -> None:
            assigned = None if queues is None else _assign(broker, asked, mode, queues)
            answer(call.ok(body=_body(assigned, mode).encode()))

        if broker.registration.nameservers:
            _ask(broker, asked.topic, 0, found)
        else:
            found(_own_queues(broker, asked.topic))

    return call.later(begin)


def _body(assigned: Queues | None, mode: MessageRequestMode) -> QueryAssignmentResponse:
    if assigned is None:
        return QueryAssignmentResponse()
    queues = list(dict.fromkeys(assigned))
    rows_of = [MessageQueueAssignment(message_queue=queue, mode=mode.mode) for queue in queues]
    return QueryAssignmentResponse(message_queue_assignments=rows_of)


def _mode(broker: "BrokerView", topic: str, group: str) -> MessageRequestMode:
    known = broker.replication.request_modes.get(topic, group)
    if known is not None:
        return known
    settings = broker.config.assignment
    mode = "PULL" if topic.startswith(RETRY_PREFIX) else str(settings.default_request_mode)
    share = settings.default_share_queue_num if mode == "POP" else 0
    return MessageRequestMode(topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=share)


# --- the queues of a topic


def _ask(broker: "BrokerView", topic: str, number: int, then: Found) -> None:
    """Ask the name servers in turn, from the `number`th on, for the queues of a topic."""
    nameservers = broker.registration.nameservers
    if number == len(nameservers):
        then(None)
        return

    def answered(outcome: Outcome) -> None:
        queues = _queues_of(topic, outcome)
        if queues is None:
            _ask(broker, topic, number + 1, then)
        else:
            then(queues)

    broker.remoting.call(
        nameservers[number],
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        GetRouteInfoRequest(topic=topic, accept_standard_json_only=True),
        timeout_ms=ROUTE_TIMEOUT_MS,
        then=answered,
    )


def _queues_of(topic: str, outcome: Outcome) -> Queues | None:
    if isinstance(outcome, CallFailed) or not outcome.is_ok:
        return None
    try:
        route = TopicRoute.decode(outcome.body)
    except RemoteProtocolError:
        return None
    return [
        MessageQueue(topic, each.broker_name, queue_id)
        for each in sorted(route.queue_datas, key=lambda each: each.broker_name)
        if each.perm & PermName.PERM_READ
        for queue_id in range(each.read_queue_nums)
    ]


def _own_queues(broker: "BrokerView", topic: str) -> Queues | None:
    config = broker.topics.get(topic)
    if config is None:
        return None
    return [MessageQueue(topic, broker.config.identity.broker_name, each) for each in range(config.read_queue_nums)]


# --- who gets which


def _assign(broker: "BrokerView", asked: QueryAssignmentRequest, mode: MessageRequestMode, queues: Queues) -> Queues | None:
    """Return the queues of the member that asks; None if the division is impossible."""
    if asked.message_model == "BROADCASTING" or not broker.config.assignment.server_load_balancer_enable:
        return queues
    group = broker.clients.consumers.get(asked.consumer_group)
    strategy = _STRATEGIES.get(asked.strategy_name)
    if group is None or strategy is None or asked.message_model != "CLUSTERING":
        return None
    members = sorted(group.client_ids)
    queues = sorted(queues)
    if not queues or not asked.client_id.strip():
        return None
    if mode.mode != "POP":
        return strategy(asked.client_id, queues, members)
    share = mode.pop_share_queue_num
    if share <= 0 or share >= len(members) - 1:
        return [queue._replace(queue_id=ALL_QUEUES) for queue in queues]
    if asked.client_id not in members:
        return []
    at = members.index(asked.client_id)
    if len(members) > len(queues):
        return [queues[at % len(queues)]]
    found: list[Any] = []
    for step in range(share + 1):
        found += strategy(members[(at + step) % len(members)], queues, members)
    return found


def average(client_id: str, queues: Queues, members: Sequence[str]) -> Queues:
    """Return a member's share: consecutive queues, the first members get one more.

    Source: `AllocateMessageQueueAveragely.allocate`.
    """
    if client_id not in members:
        return []
    at = members.index(client_id)
    size, more = divmod(len(queues), len(members))
    start = at * size + min(at, more)
    return queues[start : start + size + (at < more)]


def average_by_circle(client_id: str, queues: Queues, members: Sequence[str]) -> Queues:
    """Return a member's share: every n-th queue of n members."""
    return queues[members.index(client_id) :: len(members)] if client_id in members else []


_STRATEGIES = {"AVG": average, "AVG_BY_CIRCLE": average_by_circle}
