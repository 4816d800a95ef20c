"""Tables that slaves copy from this broker, ours or Apache's.

Topics (21), groups (201) and delay offsets (45) have handlers elsewhere.

43 returns the consumer offsets:

- to an Apache slave, the whole table,
- to a returning master of ours, the whole table with the times of resets, and the leases of lock
  mode `loose`,
- to our slaves, what changed in it (`broker/metadata/metadata_server.py`).

For an acting slave, the request of a returning master seals the handover (`roles/handover.py`), and
is answered once no put of a special duty is in flight.

Its integer keys are quoted, and it has no `pullOffsetTable`, since Apache 5.5.0 cannot skip one
with unquoted keys. The timer metrics count the timers that wait, by topic.

Source: `AdminBrokerProcessor.{getAllConsumerOffset,getTimerMetrics,getAllMessageRequestMode}`,
`store/.../timer/TimerMetrics.java`.
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, either, inner, on_cluster
from rmqkit.runtime.calls import LATER, Call, Handlers, Response
from rmqkit.wire.bodies import ConsumerOffsetTable
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.offsets import GetAllConsumerOffsetRequest

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()


@rows.handles(RequestCode.GET_ALL_CONSUMER_OFFSET, GetAllConsumerOffsetRequest, access=either(inner, on_cluster(GET)))
def all_offsets(broker: "BrokerView", call: Call[GetAllConsumerOffsetRequest]) -> Response:
    if call.args.known_changes is not None:
        return broker.replication.metadata_server.ask(call)
    handover = broker.roles.handover
    handover.seal()

    def answer() -> Response:
        offsets = broker.offsets
        if not call.args.resets:
            return call.ok(body=ConsumerOffsetTable(data_version=offsets.version, offset_table=offsets.table).encode())
        table = offsets.snapshot()
        if broker.role.is_acting and broker.leases is not None:
            table.leases = broker.leases.copy(broker.clock.mono_ms)
        return call.ok(body=table.encode())

    def finish() -> None:
        if call.is_alive:
            call.finish(answer())

    return LATER if handover.when_still(finish) else answer()


@rows.handles(RequestCode.GET_TIMER_METRICS, NoFields, access=on_cluster(GET))
def timer_metrics(broker: "BrokerView", call: Call[NoFields]) -> Response:
    return call.ok(body=broker.timers.counts.topics.metrics().encode())


@rows.handles(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, NoFields, access=either(inner, on_cluster(GET)))
def request_modes(broker: "BrokerView", call: Call[NoFields]) -> Response:
    return call.ok(body=broker.replication.request_modes.table.encode())
