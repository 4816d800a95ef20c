"""What slaves copy from this broker besides topics (21), groups (201) and delay offsets (45), and what Apache's ask for.

43 is the whole table of consumer offsets, to a master of ours that comes back with the times of resets, or, to our own
slaves, what changed in it (`broker/metadata/metadata_server.py`). Its integer keys are quoted, and it has no
`pullOffsetTable`: Apache 5.5.0 cannot pass over one without quotes. Timer checkpoint and metrics are those of a broker
on which no timer message ever was.

Source: `AdminBrokerProcessor.{getAllConsumerOffset,getTimerCheckPoint,getTimerMetrics,getAllMessageRequestMode}`,
`store/.../timer/TimerCheckpoint.java`, `store/.../timer/TimerMetrics.java`.
"""

from typing import TYPE_CHECKING

from rmqkit.runtime.calls import Call, Handlers, Response
from rmqkit.wire import fastjson
from rmqkit.wire.bodies import ConsumerOffsetTable, DataVersion
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.offsets import GetAllConsumerOffsetRequest

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()

#: seven i64: times and queue offsets of the timer, and the parts of a data version
TIMER_CHECKPOINT = bytes(56)
TIMER_METRICS = fastjson.dumps({"dataVersion": DataVersion(), "timingCount": {}})


@rows.handles(RequestCode.GET_ALL_CONSUMER_OFFSET, GetAllConsumerOffsetRequest)
def all_offsets(broker: "BrokerView", call: Call[GetAllConsumerOffsetRequest]) -> Response:
    if call.args.known_changes is not None:
        return broker.replication.metadata_server.ask(call)
    offsets = broker.offsets
    if call.args.resets:
        return call.ok(body=offsets.snapshot().encode())
    return call.ok(body=ConsumerOffsetTable(data_version=offsets.version, offset_table=offsets.table).encode())


@rows.handles(RequestCode.GET_TIMER_CHECK_POINT, NoFields)
def timer_checkpoint(broker: "BrokerView", call: Call[NoFields]) -> Response:
    return call.ok(body=TIMER_CHECKPOINT)


@rows.handles(RequestCode.GET_TIMER_METRICS, NoFields)
def timer_metrics(broker: "BrokerView", call: Call[NoFields]) -> Response:
    return call.ok(body=TIMER_METRICS)


@rows.handles(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, NoFields)
def request_modes(broker: "BrokerView", call: Call[NoFields]) -> Response:
    return call.ok(body=broker.replication.request_modes.table.encode())
