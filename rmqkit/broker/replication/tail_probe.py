"""Compares this log's last record with the record that an Apache master has at the same offset.

An Apache master compares no logs itself. It only reports where its log ended when it started (906).
That alone is not enough: a slave that took over another broker's store folder would look ahead, and
a master that lost its end twice at the same offset would go unnoticed. So the slave requests the
master's record at the offset of its own last record (VIEW_MESSAGE_BY_ID):

- the same bytes: this log is the beginning of the master's;
- no record: the slave asks where the master's log begins and ends (GET_BROKER_RUNTIME_INFO). Then
  the master has either removed the record, or never had it.

Source: `broker/.../processor/QueryMessageProcessor.viewMessageById`,
`AdminBrokerProcessor.prepareRuntimeInfo`.
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
    """This log's last record (by the queues) from `begin` to `end`, compared with the master's.

    `is_same` is None if the master has no record at `begin`; its log then goes from `log_begin` to
    `log_end`, which are -1 otherwise.
    """

    begin: int
    end: int
    is_same: bool | None
    log_begin: int = -1
    log_end: int = -1


#: called with the comparison, None for a log without records; and with why it failed, else ""
Then = Callable[[TailComparison | None, str], None]


def ask(remoting: Remoting, store: StorageEngine, master: Address, then: Then) -> None:
    """Compare this log's last record with the master's.

    Call `then` once, possibly before returning.
    """
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
            # Just after its start an Apache master answers with an error.
            then(None, f"the master {master} does not report yet where its log ends")
            return
        try:
            table = KVTable.decode(outcome.body).table
            log_begin, log_end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
        except (RemoteProtocolError, KeyError, ValueError) as error:
            then(None, f"the master {master} does not report where its log ends: {error!r}")
            return
        then(shown._replace(log_begin=log_begin, log_end=log_end), "")

    remoting.call(master, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_ms=TIMEOUT_MS, then=came)


def _last_record(store: StorageEngine) -> tuple[int, Buffer]:
    """Return (offset, bytes) of the last record that a queue has; no bytes if there is none."""
    last = -1
    for queue in store.queues():
        for entry in store.entries(queue.topic, queue.queue_id, queue.offset_max - 1, 1):
            if entry.size:
                last = max(last, entry.phy_offset)
    return last, (store.record(last) or b"") if last >= 0 else b""
