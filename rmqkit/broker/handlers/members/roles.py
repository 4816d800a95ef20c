"""905: a name server reports that the smallest live broker id of a group has changed.

The request is one-way and only a hint. Notices can be lost or overtake each other, so the broker
ignores their content and asks the name servers at once.

Source: `broker/.../processor/AdminBrokerProcessor.notifyMinBrokerIdChange`.
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import hint
from rmqkit.runtime.calls import Call, Handlers, Response
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.nameserver import NotifyMinBrokerIdChangeRequest

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()


@rows.handles(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, NotifyMinBrokerIdChangeRequest, access=hint)
def min_broker_id_changed(broker: "BrokerView", call: Call[NotifyMinBrokerIdChangeRequest]) -> Response:
    name = call.args.broker_name
    if name and name != broker.config.identity.broker_name:
        broker.log.warning("notice-for-another-group", peer=str(call.conn.peer), broker_name=name)
    else:
        broker.roles.hint()
    return call.ok()
