"""Code 71101 shows the epochs that a broker knows, of one group and topic or of all.

    Admin().ask_broker("broker-a", 71101, {"group": "billing"}).body

It needs `plugins = fencing` in the broker's settings.
"""

from typing import TYPE_CHECKING

import msgspec

from rmqkit.access.rules import GET, on_cluster
from rmqkit.runtime.calls import Call, Handlers, Refused, Response
from rmqkit.wire.bodies.base import Body
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.schema import Ext
from rmqkit_fencing.plugin import NAME

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView
    from rmqkit_fencing.fencing import Fencing

GET_LOCK_EPOCHS = 71_101
SHOWN_MAX = 10_000

rows = Handlers()


class GetLockEpochsRequest(Ext, kw_only=True):
    """The fields of a request. Without `group` or `topic`, all groups or topics are meant."""

    group: str | None = None
    topic: str | None = None


class QueueEpoch(Body, kw_only=True):
    """The greatest epoch of a queue in a group, and the client that owns it.

    `age_millis` is the time since the epoch was last confirmed, in ms.
    """

    age_millis: int = 0
    client_id: str = ""
    epoch: int = 0
    group: str = ""
    queue_id: int = 0
    topic: str = ""


class LockEpochs(Body, kw_only=True):
    """The body of a response. `left_out` counts the entries beyond `SHOWN_MAX`."""

    epochs: list[QueueEpoch] = msgspec.field(default_factory=list)
    left_out: int = 0


@rows.handles(GET_LOCK_EPOCHS, GetLockEpochsRequest, access=on_cluster(GET))
def show(broker: "BrokerView", call: Call[GetLockEpochsRequest]) -> Response:
    fencing: Fencing | None = broker.plugins.get(NAME)
    if fencing is None:
        raise Refused(ResponseCode.NO_PERMISSION, "this broker has no epochs: its lockMode is not fencing")
    args, now_ms = call.args, broker.clock.mono_ms
    found = [
        QueueEpoch(
            age_millis=now_ms - epoch.since_ms,
            client_id=epoch.client_id,
            epoch=epoch.number,
            group=group,
            queue_id=queue.queue_id,
            topic=queue.topic,
        )
        for (group, queue), epoch in sorted(fencing.epochs.known.items())
        if args.group in (None, group) and args.topic in (None, queue.topic)
    ]
    body = LockEpochs(epochs=found[:SHOWN_MAX], left_out=max(0, len(found) - SHOWN_MAX))
    return call.ok(body=body.encode())
