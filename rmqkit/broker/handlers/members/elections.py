"""1007: the epochs of this broker's log. 1008: a controller reports an election.

1008 is one-way and can be forged, so nothing in it counts: the broker asks the leader at once.

Source: `broker/.../processor/AdminBrokerProcessor.{getBrokerEpochCache,notifyBrokerRoleChanged}`.
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, hint, on_cluster
from rmqkit.runtime.calls import Call, Handlers, Refused, Response
from rmqkit.wire.bodies import EpochEntryCache
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.controller import NotifyBrokerRoleChangedRequest

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()


@rows.handles(RequestCode.GET_BROKER_EPOCH_CACHE, NoFields, access=on_cluster(GET))
def epochs(broker: "BrokerView", call: Call[NoFields]) -> Response:
    """Return the epochs. Raises Refused without controller mode."""
    election, identity = broker.election, broker.config.identity
    if election is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, "this request is only for controllerMode")
    end = broker.store.offset_max
    body = EpochEntryCache(
        cluster_name=identity.broker_cluster_name,
        broker_name=identity.broker_name,
        broker_id=max(election.own_id, 0),
        epoch_list=election.epochs.bodies(end),
        max_offset=end,
    )
    return call.ok(body=body.encode())


@rows.handles(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, NotifyBrokerRoleChangedRequest, access=hint)
def role_changed(broker: "BrokerView", call: Call[NotifyBrokerRoleChangedRequest]) -> Response:
    if broker.election is not None:
        broker.election.hint()
    return call.ok()
