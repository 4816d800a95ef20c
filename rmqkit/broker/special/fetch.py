"""Asks a member of the group for its progress in all special duties, with one request per duty."""

from collections.abc import Callable, Iterable

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.special.contract import Progress, Snapshot, SpecialRow
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address
from rmqkit.wire.codes import ResponseCode


def ask_progress(
    context: BrokerContext,
    address: Address,
    rows: Iterable[SpecialRow],
    timeout_ms: int,
    then: Callable[[Progress | None], None],
) -> None:
    """Ask the broker at `address` for its progress and call `then` once with it.

    `then` gets None as soon as one answer is missing or cannot be decoded. A duty that the broker
    does not know, because its version is older, is left out.
    """
    progress: dict[str, Snapshot] = {}
    left = list(rows)

    def next_row() -> None:
        if not left:
            then(progress)
            return
        row = left.pop(0)

        def answered(outcome: Outcome) -> None:
            if not isinstance(outcome, CallFailed) and outcome.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                next_row()
                return
            if isinstance(outcome, CallFailed) or not outcome.is_ok:
                then(None)
                return
            try:
                progress[row.name] = row.decode(outcome.body)
            except RemoteProtocolError as error:
                context.log.warning(f"{row.progress.replace(' ', '-')}-unreadable", reason=str(error))
                then(None)
            else:
                next_row()

        context.remoting.call(address, row.code, timeout_ms=timeout_ms, then=answered)

    next_row()
