"""Subscription groups: create, change, delete, list, read back; all offsets in one answer.

Source: `broker/.../processor/AdminBrokerProcessor.{updateAndCreateSubscriptionGroup,getAllSubscriptionGroup,
deleteSubscriptionGroup,getSubscriptionGroup,getAllConsumerOffset}`.
"""

from typing import TYPE_CHECKING, Any

from rmqkit.broker.groups import GROUPS_MAX
from rmqkit.broker.names import group_fault, retry_topic
from rmqkit.runtime.calls import LATER, Call, Handlers, Refused, Response
from rmqkit.wire.bodies import SubscriptionGroupConfig
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.groups import (
    DeleteSubscriptionGroupRequest,
    GetAllSubscriptionGroupRequest,
    GetAllSubscriptionGroupResponse,
    GetSubscriptionGroupConfigRequest,
)

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker

rows = Handlers()

PAGE_MAX = 2000


@rows.handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, NoFields)
def create(broker: "Broker", call: Call[NoFields]) -> Response:
    config = SubscriptionGroupConfig.decode(call.body)
    fault = group_fault(config.group_name)
    if fault:
        raise Refused(ResponseCode.INVALID_PARAMETER, fault)
    known = broker.groups.by_name.get(config.group_name)
    if known is None and len(broker.groups.by_name) >= GROUPS_MAX:
        raise Refused(ResponseCode.SYSTEM_BUSY, f"this broker holds {GROUPS_MAX} groups already")
    if config != known:
        call.changing()
        broker.groups.put(config)
    return _answer_when_kept(broker, call)


def _answer_when_kept(broker: "Broker", call: Call[Any]) -> Response:
    """Success when the file has it."""

    def saved() -> None:
        error = broker.groups.save_error
        if error is None:
            call.finish(call.ok())
        else:
            remark = f"done, but subscriptionGroup.json could not be written: {error}"
            call.finish(call.error(ResponseCode.SYSTEM_ERROR, remark))

    broker.groups.save(saved)
    return LATER


@rows.handles(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupRequest)
def delete(broker: "Broker", call: Call[DeleteSubscriptionGroupRequest]) -> Response:
    group = call.args.group_name
    call.changing()
    broker.groups.delete(group)
    if call.args.clean_offset:
        broker.offsets.remove_group(group)
        broker.delete_topic(retry_topic(group))
    return _answer_when_kept(broker, call)


@rows.handles(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GetAllSubscriptionGroupRequest)
def all_groups(broker: "Broker", call: Call[GetAllSubscriptionGroupRequest]) -> Response:
    table = broker.groups.snapshot()
    total = len(table.subscription_group_table)
    if call.args.group_seq is not None:
        first = max(0, call.args.group_seq)
        count = min(PAGE_MAX, call.args.max_group_num or PAGE_MAX)
        page = sorted(table.subscription_group_table)[first : first + count]
        table.subscription_group_table = {name: table.subscription_group_table[name] for name in page}
    return call.ok(GetAllSubscriptionGroupResponse(total_group_num=total), table.encode())


@rows.handles(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GetSubscriptionGroupConfigRequest)
def group_config(broker: "Broker", call: Call[GetSubscriptionGroupConfigRequest]) -> Response:
    """Asking for a group makes it where groups may come into being by themselves, as Apache's broker was seen to do."""
    config = broker.groups.get(call.args.group)
    if config is None:
        return call.error(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {call.args.group}")
    return call.ok(body=config.encode())


@rows.handles(RequestCode.GET_ALL_CONSUMER_OFFSET, NoFields)
def all_offsets(broker: "Broker", call: Call[NoFields]) -> Response:
    return call.ok(body=broker.offsets.snapshot().encode())
