"""How consumers get messages: 400, 401 and the file messageRequestMode.json (also 402).

Source: `remoting/.../protocol/body/{QueryAssignmentRequestBody,QueryAssignmentResponseBody}.java`,
`remoting/.../protocol/body/SetMessageRequestModeRequestBody.java`.
"""

from typing import ClassVar

from msgspec import field

from rmqkit.wire.bodies.base import Body
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.schema import Int32


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
