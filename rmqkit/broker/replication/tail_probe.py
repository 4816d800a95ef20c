"""What an Apache master has at the place of this log's last record.

Such a master compares nothing itself, and of its log it tells only where it ended at its start (906): that alone calls a
slave ahead that took over the folder of another broker, and misses a master that lost its end twice at the same place. So
the slave asks for the record at the place of its own last one (VIEW_MESSAGE_BY_ID). The same bytes there: this log is the
beginning of the master's. None there: where its log begins and ends (GET_BROKER_RUNTIME_INFO) says whether the master has
removed them, or never had them.

Source: `broker/.../processor/QueryMessageProcessor.viewMessageById`, `AdminBrokerProcessor.prepareRuntimeInfo`.
"""

from collections.abc import Callable
from typing import NamedTuple

from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address, Buffer
from rmqkit.runtime.remoting import Remoting
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.bodies import KVTable
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.messages import ViewMessageRequest

TIMEOUT_MS = 3000


class TailComparison(NamedTuple):
    """This log's last record, as far as the queues know, lies from `begin` to `end`. `is_same` is None when the master
    shows nothing there; its log then goes from `log_begin` to `log_end`."""

    begin: int
    end: int
    is_same: bool | None
    log_begin: int = -1
    log_end: int = -1


#: what was shown, None for a log without records; or why it is not known, else ""
Then = Callable[[TailComparison | None, str], None]


def ask(remoting: Remoting, store: StorageEngine, master: Address, then: Then) -> None:
    """`then` is called once, perhaps at once."""
    begin, record = _last_record(store)
    if not record:
        then(None, "")
        return
    end = begin + len(record)

    def came(outcome: Outcome) -> None:
        if isinstance(outcome, CallFailed):
            then(None, f"the master's main port {master} does not answer: {outcome.text}")
        elif outcome.is_ok:
            then(TailComparison(begin, end, bytes(outcome.body) == bytes(record)), "")
        else:
            _ask_range(remoting, master, TailComparison(begin, end, None), then)

    request = ViewMessageRequest(offset=begin)
    remoting.call(master, RequestCode.VIEW_MESSAGE_BY_ID, request, timeout_ms=TIMEOUT_MS, then=came)


def _ask_range(remoting: Remoting, master: Address, shown: TailComparison, then: Then) -> None:
    def came(outcome: Outcome) -> None:
        if isinstance(outcome, CallFailed) or not outcome.is_ok:
            # Just after its start it answers with an error.
            then(None, f"the master {master} does not tell where its log ends yet")
            return
        try:
            table = KVTable.decode(outcome.body).table
            log_begin, log_end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
        except (RemoteProtocolError, KeyError, ValueError) as error:
            then(None, f"the master {master} does not tell where its log ends: {error!r}")
            return
        then(shown._replace(log_begin=log_begin, log_end=log_end), "")

    remoting.call(master, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_ms=TIMEOUT_MS, then=came)


def _last_record(store: StorageEngine) -> tuple[int, Buffer]:
    """(offset, bytes) of the record that is last in the log among those in queues; without bytes when there is none."""
    last = -1
    for queue in store.queues():
        for entry in store.entries(queue.topic, queue.queue_id, queue.offset_max - 1, 1):
            if entry.size:
                last = max(last, entry.phy_offset)
    return last, (store.record(last) or b"") if last >= 0 else b""
