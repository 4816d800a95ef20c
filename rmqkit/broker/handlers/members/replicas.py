"""What masters and slaves ask each other: 906, who is whose, and whether the slave's log belongs to the master's; and how
it goes, as administrators ask for it (907).

Source: `broker/.../processor/AdminBrokerProcessor.{exchangeBrokerHAInfo,getBrokerHaStatus}`.
"""

from typing import TYPE_CHECKING

from rmqkit.runtime.calls import Call, Handlers, Response
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.admin import ExchangeHAInfoRequest, ExchangeHAInfoResponse

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()


@rows.handles(RequestCode.EXCHANGE_BROKER_HA_INFO, ExchangeHAInfoRequest)
def exchange(broker: "BrokerView", call: Call[ExchangeHAInfoRequest]) -> Response:
    """A slave of ours binds its HA connection; one of Apache's asks with no field at all; a master that comes back names
    itself, and is followed from now on."""
    args = call.args
    if args.master_address is not None or args.master_ha_address is not None:
        return call.ok(broker.replication.summoned(args))
    if args.broker_name is not None:
        refusal = broker.replication.bind(args)
        if refusal:
            broker.log.warning("replica-refused", peer=str(call.conn.peer), reason=refusal)
            return call.error(ResponseCode.INVALID_PARAMETER, refusal)
    if broker.replication.is_slave:
        return call.ok(ExchangeHAInfoResponse(log_end=broker.store.offset_written))
    return call.ok(broker.replication.answer(args))


@rows.handles(RequestCode.GET_BROKER_HA_STATUS, NoFields)
def status(broker: "BrokerView", call: Call[NoFields]) -> Response:
    return call.ok(body=broker.replication.runtime_info().encode())
