"""Calls that brokers make to a client, on the client's own connections.

40 a group has changed: rebalance now. 220 somebody reset the group's offsets. 221 and 307 what a consumer is doing.
309 consume this one message now. Anything else, transaction checks (39) included, is answered with code 3 by remoting.

Source: `client/.../impl/ClientRemotingProcessor.java`.
"""

from typing import TYPE_CHECKING

from rmqkit.runtime.calls import Call, Handlers, Response
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.calls import NotifyConsumerIdsChangedRequest

if TYPE_CHECKING:
    from rmqkit.client.client import Client

PEER_CALLS = Handlers()


@PEER_CALLS.handles(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, NotifyConsumerIdsChangedRequest)
def members_changed(client: "Client", call: Call[NotifyConsumerIdsChangedRequest]) -> Response:
    consumer = client.consumers.get(call.args.consumer_group)
    if consumer is not None:
        consumer.members_changed()
    return call.ok()
