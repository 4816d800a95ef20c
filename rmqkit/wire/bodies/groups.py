"""Subscription groups: one (200, 352), several (225), the table (201, subscriptionGroup.json).

Also how their members get messages: 400, 401, and the table (402, messageRequestMode.json).

Source: `remoting/.../protocol/body/{QueryAssignmentRequestBody,QueryAssignmentResponseBody}.java`,
`remoting/.../protocol/body/SetMessageRequestModeRequestBody.java`.
"""

from typing import Any, ClassVar

from msgspec import field

from rmqkit.wire.bodies.base import Body
from rmqkit.wire.bodies.versions import DataVersion
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.schema import Int32, Int64


def _retry_policy() -> dict[str, Any]:
    return {"type": "CUSTOMIZED"}


class SubscriptionGroupConfig(Body, kw_only=True):
    """`remoting/.../protocol/subscription/SubscriptionGroupConfig.java`.

    `group_retry_policy` is passed on as received.
    """

    attributes: dict[str, str] = field(default_factory=dict)
    broker_id: Int64 = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: Int32 = 15
    group_name: str = ""
    group_retry_policy: dict[str, Any] = field(default_factory=_retry_policy)
    group_sys_flag: Int32 = 0
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: Int32 = 16
    retry_queue_nums: Int32 = 1
    subscription_data_set: list[dict[str, Any]] | None = None
    which_broker_when_consume_slowly: Int64 = 1


class SubscriptionGroupList(Body, kw_only=True):
    """The request of 225."""

    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


class GroupForbidden(Body, kw_only=True):
    """The response to 353: whether a group may read a topic."""

    group: str = ""
    readable: bool = True
    topic: str = ""


class SubscriptionGroupTable(Body, kw_only=True):
    """`SubscriptionGroupWrapper`; `forbidden_table` maps group, then topic, to bits."""

    data_version: DataVersion = DataVersion()
    forbidden_table: dict[str, dict[str, Int32]] = field(default_factory=dict)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)


class MessageRequestMode(Body, kw_only=True):
    """401: whether a group pulls or pops a topic."""

    consumer_group: str = ""
    mode: str = "PULL"
    pop_share_queue_num: Int32 = 0
    topic: str = ""


class MessageRequestModeTable(Body, kw_only=True):
    """The response to 402 and the file messageRequestMode.json: topic, then group, then mode."""

    message_request_mode_map: dict[str, dict[str, MessageRequestMode]] = field(default_factory=dict)


class QueryAssignmentRequest(Body, kw_only=True):
    """400."""

    client_id: str = ""
    consumer_group: str = ""
    message_model: str = ""
    strategy_name: str = ""
    topic: str = ""


class MessageQueueAssignment(Body, kw_only=True):
    """A queue of a member, and how the member reads it."""

    HAS_QUEUES: ClassVar[bool] = True

    attachments: dict[str, str] | None = None
    message_queue: MessageQueue | None = None
    mode: str = "PULL"


class QueryAssignmentResponse(Body, kw_only=True):
    """The response to 400; without a list, the client keeps the queues that it has."""

    HAS_QUEUES: ClassVar[bool] = True

    message_queue_assignments: list[MessageQueueAssignment] | None = None
