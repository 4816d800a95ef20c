"""Subscription groups: create, change, delete, list, read back.

Source: `broker/.../processor/AdminBrokerProcessor.{updateAndCreateSubscriptionGroup,
updateAndCreateSubscriptionGroupList,getAllSubscriptionGroup,deleteSubscriptionGroup,
getSubscriptionGroup,updateAndGetGroupForbidden,querySubscriptionByConsumer}`.
"""

from typing import TYPE_CHECKING, Any

from rmqkit.access.rules import DELETE, GET, GROUP, UPDATE, either, every, inner, lists, named, on_group, on_topic
from rmqkit.broker.handlers.admin.table_saves import answer_when_kept, check_may_change, page_of
from rmqkit.broker.handlers.demands import GROUP_CREATED, GROUPS_CREATED
from rmqkit.broker.names import group_fault, retry_topic, topic_fault
from rmqkit.broker.tables.attributes import GROUP_ATTRIBUTES, altered
from rmqkit.broker.tables.groups import FORBIDDEN_MAX, GROUPS_MAX
from rmqkit.broker.tables.topics import QUEUE_COUNT_MAX
from rmqkit.runtime.calls import Call, Handlers, Refused, Response
from rmqkit.wire.bodies import GroupForbidden, SubscriptionGroupConfig, SubscriptionGroupList, SubscriptionOfGroup
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.groups import (
    DeleteSubscriptionGroupRequest,
    GetAllSubscriptionGroupRequest,
    GetAllSubscriptionGroupResponse,
    GetSubscriptionGroupConfigRequest,
    QuerySubscriptionByConsumerRequest,
    UpdateGroupForbiddenRequest,
)

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()

#: least valid number of retries; -1 means the client's default
RETRY_TIMES_MIN = -1


@rows.handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, NoFields, access=GROUP_CREATED)
def create(broker: "BrokerView", call: Call[NoFields]) -> Response:
    _put(broker, call, [SubscriptionGroupConfig.decode(call.body)])
    return _answer_when_kept(broker, call)


@rows.handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, NoFields, access=GROUPS_CREATED)
def create_list(broker: "BrokerView", call: Call[NoFields]) -> Response:
    """Create or change several groups: all of them or none."""
    _put(broker, call, SubscriptionGroupList.decode(call.body).group_config_list)
    return _answer_when_kept(broker, call)


def _put(broker: "BrokerView", call: Call[Any], configs: list[SubscriptionGroupConfig]) -> None:
    """Create or change groups, after all were checked. Attributes are changes to existing ones."""
    check_may_change(broker)
    changed = {}
    for config in configs:
        fault = _fault(config)
        if fault:
            raise Refused(ResponseCode.INVALID_PARAMETER, fault)
        known = broker.groups.by_name.get(config.group_name)
        before = None if known is None else known.attributes
        try:
            config.attributes = altered(before, config.attributes.items(), GROUP_ATTRIBUTES)
        except ValueError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if config != known:
            changed[config.group_name] = config
    new_count = sum(name not in broker.groups.by_name for name in changed)
    if new_count and len(broker.groups.by_name) + new_count > GROUPS_MAX:
        raise Refused(ResponseCode.SYSTEM_BUSY, f"this broker would hold more than {GROUPS_MAX} groups")
    if changed:
        call.changing()
        broker.groups.put_all(list(changed.values()))


def _fault(config: SubscriptionGroupConfig) -> str | None:
    fault = group_fault(config.group_name)
    if fault is not None:
        return fault
    if not 0 <= config.retry_queue_nums <= QUEUE_COUNT_MAX:
        return f"retryQueueNums {config.retry_queue_nums} is not between 0 and {QUEUE_COUNT_MAX}"
    if config.retry_max_times < RETRY_TIMES_MIN:
        return f"retryMaxTimes {config.retry_max_times} is less than {RETRY_TIMES_MIN}"
    return None


def _answer_when_kept(broker: "BrokerView", call: Call[Any]) -> Response:
    return answer_when_kept(call, broker.groups, broker.groups.save, "subscriptionGroup.json")


@rows.handles(
    RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupRequest, access=on_group(DELETE, field="group_name")
)
def delete(broker: "BrokerView", call: Call[DeleteSubscriptionGroupRequest]) -> Response:
    """Delete a group and, with `clean_offset`, its offsets and its retry topic."""
    check_may_change(broker)
    group = call.args.group_name
    call.changing()
    broker.groups.delete(group)
    broker.statistics.forget_group(group)
    if call.args.clean_offset:
        broker.offsets.remove_group(group)
        broker.delete_topic(retry_topic(group))
    return _answer_when_kept(broker, call)


@rows.handles(
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GetAllSubscriptionGroupRequest, access=either(inner, lists(GROUP))
)
def all_groups(broker: "BrokerView", call: Call[GetAllSubscriptionGroupRequest]) -> Response:
    """Return all groups and their bans, or one page by name if the peer asks for pages.

    Deviation: the first page also has the bans of unknown groups. Upstream's pages lack them, so
    upstream's slaves never get them.
    """
    table, args = broker.groups.snapshot(), call.args
    configs, bans = table.subscription_group_table, table.forbidden_table
    table.subscription_group_table = {name: configs[name] for name in call.visible(GROUP, configs)}
    table.forbidden_table = {name: bans[name] for name in call.visible(GROUP, bans)}
    total = len(table.subscription_group_table)
    page = page_of(
        broker.config,
        table.subscription_group_table,
        table.data_version,
        first=args.group_seq,
        asked_version=args.data_version,
        count=args.max_group_num,
    )
    if page is not None:
        is_first = bool(page) and page[0] == min(table.subscription_group_table)
        table.subscription_group_table = {name: table.subscription_group_table[name] for name in page}
        table.forbidden_table = {
            name: topics
            for name, topics in table.forbidden_table.items()
            if name in table.subscription_group_table or (is_first and name not in configs)
        }
    return call.ok(GetAllSubscriptionGroupResponse(total_group_num=total), table.encode())


@rows.handles(
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
    QuerySubscriptionByConsumerRequest,
    access=named(("topic", on_topic(GET)), ("group", on_group(GET, field="group"))),
)
def subscription(broker: "BrokerView", call: Call[QuerySubscriptionByConsumerRequest]) -> Response:
    """Return a group's subscription to a topic, without one if the group is offline."""
    args = call.args
    group = broker.clients.consumers.get(args.group)
    found = None if group is None or args.topic is None else group.subscriptions.get(args.topic)
    return call.ok(body=SubscriptionOfGroup(group=args.group, topic=args.topic, subscription_data=found).encode())


@rows.handles(
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GetSubscriptionGroupConfigRequest, access=on_group(GET, field="group")
)
def group_config(broker: "BrokerView", call: Call[GetSubscriptionGroupConfigRequest]) -> Response:
    """Return a group's configuration.

    If groups may be created automatically, the request creates a missing group. Apache's broker was
    observed to do the same.
    """
    config = broker.groups.get(call.args.group)
    if config is None:
        return call.error(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {call.args.group}")
    return call.ok(body=config.encode())


@rows.handles(
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
    UpdateGroupForbiddenRequest,
    access=every(on_topic(UPDATE), on_group(UPDATE, field="group")),
)
def group_forbidden(broker: "BrokerView", call: Call[UpdateGroupForbiddenRequest]) -> Response:
    """Ban a group from a topic, lift the ban, or query it. Banned pulls get NO_PERMISSION."""
    args = call.args
    if args.readable is not None:
        fault = group_fault(args.group) or topic_fault(args.topic)
        if fault:
            raise Refused(ResponseCode.INVALID_PARAMETER, fault)
        check_may_change(broker)
        call.changing()
        if not broker.groups.allow_read(args.group, args.topic, args.readable):
            return call.error(ResponseCode.SYSTEM_BUSY, f"this broker holds {FORBIDDEN_MAX} bans already")
    readable = broker.groups.may_read(args.group, args.topic)
    body = GroupForbidden(group=args.group, topic=args.topic, readable=readable)
    return call.ok(body=body.encode())
