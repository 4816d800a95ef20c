"""Requests for the progress of special duties, one code per duty (delay levels: 45).

Slaves and a returning master send them.

Source: `AdminBrokerProcessor.getAllDelayOffset`.
"""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, either, inner, on_cluster
from rmqkit.broker.special.contract import SpecialRow
from rmqkit.runtime.calls import LATER, Call, Handlers, Response
from rmqkit.wire.schema import NoFields

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView


def handlers_of(special_rows: Iterable[SpecialRow]) -> Handlers:
    """Return the handlers for the request codes of these duties."""
    rows = Handlers()
    for each in special_rows:
        if each.code:
            rows.handles(each.code, NoFields, access=either(inner, on_cluster(GET)))(partial(progress, each.name))
    return rows


def progress(name: str, broker: "BrokerView", call: Call[NoFields]) -> Response:
    """Return a duty's progress.

    An acting master whose master is coming back answers once its puts in flight have ended
    (`roles/reverse_sync.py`).
    """

    def answer() -> Response:
        return call.ok(body=broker.special.encode(name))

    def finish() -> None:
        if call.is_alive:
            call.finish(answer())

    return LATER if broker.roles.handover.when_still(finish) else answer()
