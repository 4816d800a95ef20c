"""Defects of groups whose master is elected by controllers; see `table.py`.

Simulated drills find them. Most of them are bugs that Apache's brokers have or had: the numbers are
issues of apache/rocketmq.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rmqkit.broker.election.election import Election
from rmqkit.broker.election.sync_states import SyncStates
from rmqkit.broker.election.takeover import Takeover
from rmqkit.broker.replication.divergence import DivergenceVerdict
from rmqkit.broker.replication.epoch_client import EpochClient
from rmqkit.broker.replication.epochs import Epochs
from rmqkit.drill.defects.defect import Defect, defect, replace
from rmqkit.runtime.calls import Call, Response
from rmqkit.runtime.connection import Address
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.ha.epochs import EpochStart, encode_epoch_report
from rmqkit.wire.schemas.controller import NotifyBrokerRoleChangedRequest

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker

SURVIVE, LEASE, RECOVERS, ENDS = "acknowledged-survive", "lease-kept", "recovers", "election-ends"
EPOCHS = "epochs-equal"

ELECTED: list[Defect] = []
elected = partial(defect, ELECTED, family="elections")


def _parts(broker: Broker) -> tuple[Election, SyncStates]:
    election, states = broker.view.election, broker.replication.sync_states
    assert election is not None
    assert states is not None
    return election, states


def _takeover(broker: Broker) -> Takeover:
    return _parts(broker)[0]._takeover


def _epochs(broker: Broker) -> Epochs:
    return _parts(broker)[0].epochs


def _follow(broker: Broker) -> EpochClient:
    follow = broker.replication.follow
    assert isinstance(follow, EpochClient)
    return follow


# --- acknowledged, and gone


@elected(
    "set-shrinks-alone",
    SURVIVE,
    "a master that loses a member acknowledges without it at once, before the controllers have agreed",
    needs="a master that loses its members and then the controllers",
    issues=("#9897", "#5663"),
)
def _set_shrinks_alone(broker: Broker) -> None:
    _, states = _parts(broker)
    gone = states.gone

    def alone(member: int) -> None:
        gone(member)
        states.ids -= {member}
        states.update()
        states.on_change()

    replace(states, "gone", alone)


@elected(
    "acks-alone",
    SURVIVE,
    "with allAckInSyncStateSet a message is acknowledged once its master has it",
    needs="an election",
)
def _acks_alone(broker: Broker) -> None:
    _, states = _parts(broker)

    def everything() -> None:
        if states.is_on:
            states._copied = states._confirmed = broker.store.offset_confirmed = broker.store.offset_written

    replace(states, "update", everything)


@elected(
    "reports-unsynced",
    SURVIVE,
    "with SYNC_FLUSH a slave acknowledges what is not on its disk yet, as Apache's slaves do",
    needs="SYNC_FLUSH, and a power cut of a slave that is elected",
)
def _reports_unsynced(broker: Broker) -> None:
    follow = _follow(broker)

    def report() -> None:
        conn, follow._report_due = follow._conn, False
        if conn is not None and not conn.closing and follow.state == "following":
            broker.outbox.send(conn, encode_epoch_report(broker.store.offset_written))

    replace(follow, "_report", report)


@elected(
    "confirms-all-at-restart",
    SURVIVE,
    "a master that was restarted in its epoch continues, although a member has more of the log",
    needs="ASYNC_FLUSH, and a power cut of a master that is back before the controllers notice",
)
def _confirms_all_at_restart(broker: Broker) -> None:
    takeover = _takeover(broker)
    begin = takeover.begin

    def trusting(epoch: int, members: Mapping[int, Address], rivals: Mapping[int, Address]) -> None:
        begin(epoch, members, {})

    replace(takeover, "begin", trusting)


# --- epochs


@elected(
    "epoch-moves",
    EPOCHS,
    "a master that is restarted in its epoch notes the end of its log as the start of that epoch",
    needs="a restart that the controllers do not notice",
)
def _epoch_moves(broker: Broker) -> None:
    epochs, takeover = _epochs(broker), _takeover(broker)
    begin = epochs.begin

    def moved(epoch: int, start: int) -> bool:
        if takeover.is_on and epochs.last == epoch and epochs.entries[-1].start < start:
            epochs.entries[-1] = EpochStart(epoch, start)
            return True
        return begin(epoch, start)

    replace(epochs, "begin", moved)


@elected(
    "stale-epochs",
    RECOVERS,
    "a log that has lost its end keeps the epochs of what is gone",
    needs="an election, and soon after it a power cut of a slave",
    issues=("#9942",),
)
def _stale_epochs(broker: Broker) -> None:
    replace(_epochs(broker), "cut", lambda offset: None)


@elected(
    "cut-by-length",
    EPOCHS,
    "a slave compares the ends of the logs alone, neither their epochs nor their bytes",
    needs="an old master that returns with other messages",
)
def _cut_by_length(broker: Broker) -> None:
    replace(_epochs(broker), "common_end", lambda theirs, their_end, own_end: min(their_end, own_end))
    replace(_follow(broker).divergence, "judge", lambda said, shown=None: DivergenceVerdict())


# --- who is master


@elected(
    "half-record-kept",
    RECOVERS,
    "a new master keeps half a record at the end of its log, and waits for its dispatch without an end",
    needs="an election while a record is under way in two transfers",
)
def _half_record_kept(broker: Broker) -> None:
    takeover = _takeover(broker)
    truncate = broker.store.truncate

    def kept(offset: int, then: Callable[[OSError | None], None]) -> None:
        if not takeover.is_on:
            truncate(offset, then)

    replace(broker.store, "truncate", kept)


@elected(
    "no-lease",
    LEASE,
    "a master that no controller answers continues to take messages",
    needs="a master that is isolated from the controllers for longer than an election takes",
    issues=("#7017", "#6662"),
)
def _no_lease(broker: Broker) -> None:
    election, _ = _parts(broker)
    replace(election, "_check_lease", lambda now_ms, **more: None)


@elected(
    "takeover-never-ends",
    ENDS,
    "a member that is elected after the first master never begins to take over",
    needs="an election of another member",
)
def _takeover_never_ends(broker: Broker) -> None:
    takeover = _parts(broker)[0]._takeover
    begin = takeover.begin

    def first_only(epoch: int, members: Mapping[int, Address], rivals: Mapping[int, Address]) -> None:
        begin(epoch, members, rivals)
        if epoch > 1:
            takeover.cancel()

    replace(takeover, "begin", first_only)


@elected(
    "obeys-notice",
    RECOVERS,
    "a broker trusts the content of a notice of an election (1008) from any peer",
    needs="an unknown peer that sends a notice",
)
def _obeys_notice(broker: Broker) -> None:
    election, _ = _parts(broker)

    def obey(view: Any, call: Call[NotifyBrokerRoleChangedRequest]) -> Response:
        told = call.args
        master, address, epoch = told.master_broker_id, told.master_address, told.master_epoch or 0
        is_settled = election.state in ("slave", "master")
        if is_settled and master is not None and master != election.own_id and address and epoch > election.epoch:
            election._follow(master, Address.parse(address), epoch)
        return call.ok()

    code = int(RequestCode.NOTIFY_BROKER_ROLE_CHANGED)
    for tag, rows in broker.remoting.tables.items():
        if code in rows:
            broker.remoting.tables[tag] = {**rows, code: rows[code]._replace(handler=obey)}
