"""Delay levels: how far each was delivered (45), which a slave copies from its master.

Source: `AdminBrokerProcessor.getAllDelayOffset`.
"""

from typing import TYPE_CHECKING

from rmqkit.broker.handlers.members import metadata
from rmqkit.runtime.calls import LATER, Call, Handlers, Response
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schema import NoFields

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

#: with what else slaves copy
rows = Handlers(metadata.rows)


@rows.handles(RequestCode.GET_ALL_DELAY_OFFSET, NoFields)
def all_delay_offsets(broker: "BrokerView", call: Call[NoFields]) -> Response:
    """An acting master whose master comes back answers when what it has sent out is answered (`roles/reverse_sync.py`)."""

    def answer() -> Response:
        return call.ok(body=broker.schedule.offsets.snapshot().encode())

    def finish() -> None:
        if call.is_alive:
            call.finish(answer())

    return LATER if broker.roles.give_way.when_still(finish) else answer()
