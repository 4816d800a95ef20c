"""906: members of a group exchange HA information. 907: HA connections, for administrators.

Source: `broker/.../processor/AdminBrokerProcessor.{updateBrokerHaInfo,getBrokerHaStatus}`.
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, inner, on_cluster
from rmqkit.runtime.calls import Call, Handlers, Response
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.admin import ExchangeHAInfoRequest

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()


@rows.handles(RequestCode.EXCHANGE_BROKER_HA_INFO, ExchangeHAInfoRequest, access=inner)
def exchange(broker: "BrokerView", call: Call[ExchangeHAInfoRequest]) -> Response:
    return call.ok(broker.replication.answers.exchange(call.args, call.conn.peer))


@rows.handles(RequestCode.GET_BROKER_HA_STATUS, NoFields, access=on_cluster(GET))
def status(broker: "BrokerView", call: Call[NoFields]) -> Response:
    return call.ok(body=broker.replication.runtime_info().encode())
