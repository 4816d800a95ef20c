"""Decides whether a slave's log is the beginning of its master's, and if not, what is wrong.

The HA stream itself does not show this. A slave reports only its end. If a master has lost its last
messages (power, disk) and grows past that end again, it would continue from there, although the
bytes before it differ. So before a slave reports, it compares the logs (906):

- Our masters compare the slave's last bytes with their own at the same offset (`tail`). If they are
  equal, the slave's log is the beginning of the master's.
- Apache's masters report where their log ended when they started, and return their record at the
  offset of the slave's last record (`shown`).

There are two ways to differ:

    ahead     the slave has bytes that its master never had
    foreign   the slave's log has other bytes than the master's at the same offset

In both cases the slave stops following, and nothing is changed. With `haTruncateAhead` a slave that
is ahead truncates its log (`truncation`). A foreign log is never truncated.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.replication.ha_state import AHEAD, FOREIGN, REFUSED, HaState
from rmqkit.broker.replication.log_tail import LogTail, tail_of
from rmqkit.broker.replication.tail_probe import TailComparison
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.schemas.admin import ExchangeHAInfoResponse


class _LastMaster(msgspec.Struct, rename="camel"):
    """The master that this slave followed last, as saved in `config/replication.json`."""

    master_address: str = ""
    master_start_id: str = ""
    master_start_end: int = -1
    #: where this log begins because the master sent nothing older; 0 if nothing is missing
    history_begin: int = 0
    #: a truncation was begun, and consumer offsets may still lie beyond the ends of queues
    is_cut: bool = False
    #: the master's progress in special duties, as texts by name; None: a version that did not ask
    #: for it has truncated the log
    progress: dict[str, str] | None = None


class DivergenceVerdict(NamedTuple):
    """Whether a slave may follow its master.

    `state` is None if it may. `cut_to` is the offset at which truncating the log would help, -1 if
    truncating does not help.
    """

    state: HaState | None = None
    why: str = ""
    cut_to: int = -1


def _foreign(end: int, said: ExchangeHAInfoResponse) -> DivergenceVerdict:
    return DivergenceVerdict(
        FOREIGN,
        f"this log ends at {end}, and before that offset the master {said.master_address} has other bytes: the log is "
        "another group's or has diverged; nothing was truncated. To copy the master again, move this store folder away",
    )


def _too_old(end: int, said: ExchangeHAInfoResponse) -> DivergenceVerdict:
    return DivergenceVerdict(
        REFUSED,
        f"the log of the master {said.master_address} begins at {said.master_log_begin}, this log ends at {end}: the "
        "master has removed the bytes between. To copy the master again, move this store folder away",
    )


class Divergence:
    """Judges whether this log belongs to a master's, and remembers the master followed last."""

    def __init__(self, context: BrokerContext, store: StorageEngine, folder: str) -> None:
        self._context = context
        self._store = store
        self._file = AtomicFile(context.disk, f"{folder}/replication.json")
        self._known = _LastMaster()

    def load(self) -> None:
        """Load what is saved of the last master. Raises AtomicFileDamaged."""
        self._known = self._file.load(lambda data: msgspec.json.decode(data, type=_LastMaster)) or _LastMaster()

    def tail(self, end: int | None = None) -> LogTail:
        """Return the tail of this log, or of the part in front of `end`."""
        return tail_of(self._context, self._store, self._store.offset_written if end is None else end)

    def judge(self, said: ExchangeHAInfoResponse, shown: TailComparison | None = None) -> DivergenceVerdict:
        """Judge a master's answer to 906.

        `shown` has the tail probe of an Apache master, None for ours.
        """
        end = self._store.offset_written
        if end == 0 or said.tail_matches == "true":
            return DivergenceVerdict()
        if said.master_log_begin is not None and end < said.master_log_begin:
            return _too_old(end, said)
        start_end = said.master_flush_offset
        if shown is not None:
            return self._judge_shown(said, shown, end, -1 if start_end is None else start_end)
        if said.master_log_end is not None and end > said.master_log_end:
            return self._ahead(end, said.master_log_end, start_end)
        if said.tail_matches == "false":
            is_new = said.master_start_id != self._known.master_start_id
            if is_new and start_end is not None and 0 <= start_end < end and self._follows_same(said):
                return self._ahead(end, start_end, start_end)
            return _foreign(end, said)
        if said.tail_matches is None and start_end is not None and self._is_new(said) and end > start_end >= 0:
            return self._ahead(end, start_end, start_end)
        return DivergenceVerdict()

    def _judge_shown(
        self, said: ExchangeHAInfoResponse, shown: TailComparison, end: int, start_end: int
    ) -> DivergenceVerdict:
        if shown.is_same:
            # Bytes after the record (the start of an incomplete next one) were not compared.
            if self._is_new(said) and shown.end <= start_end < end:
                return self._ahead(end, start_end, start_end)
            return DivergenceVerdict()
        if shown.is_same is None:
            if shown.log_end < shown.end:
                return self._ahead(end, shown.log_end, start_end if start_end >= 0 else None)
            if shown.begin < shown.log_begin:
                return DivergenceVerdict()  # the master has removed it
        elif self._follows_same(said) and 0 <= start_end < end:
            return self._ahead(end, start_end, start_end)
        return _foreign(end, said)

    def has_followed(self, said: ExchangeHAInfoResponse) -> bool:
        """Whether this master is the one that was followed last."""
        return bool(said.master_address) and self._known.master_address == said.master_address

    def _follows_same(self, said: ExchangeHAInfoResponse) -> bool:
        return self._known.master_address in ("", said.master_address)

    def _is_new(self, said: ExchangeHAInfoResponse) -> bool:
        """Whether an Apache master was started since this slave last followed it."""
        return said.master_flush_offset != self._known.master_start_end

    def _ahead(self, end: int, master_end: int, start_end: int | None) -> DivergenceVerdict:
        cut_to = master_end if start_end is None else min(master_end, start_end)
        return DivergenceVerdict(
            AHEAD,
            f"this log ends at {end}, and the master's ended at {cut_to} when it started: {end - cut_to} bytes here that "
            "it never had; nothing was truncated. haTruncateAhead=true copies them to diverged/ and truncates the log",
            cut_to,
        )

    def follow(self, said: ExchangeHAInfoResponse) -> None:
        """Save that the slave follows this master from now on."""
        self._keep(
            msgspec.structs.replace(
                self._known,
                master_address=said.master_address or "",
                master_start_id=said.master_start_id or "",
                master_start_end=-1 if said.master_flush_offset is None else said.master_flush_offset,
            )
        )

    @property
    def start_id(self) -> str:
        """The start id of the master that was followed last; "" before the first one."""
        return self._known.master_start_id

    def begin(self, history_begin: int) -> None:
        """Save where this log begins; called when its first bytes arrive.

        The master has bytes before `history_begin`, but does not send them.
        """
        self._keep(msgspec.structs.replace(self._known, history_begin=history_begin))

    @property
    def history_missing(self) -> str:
        """A sentence for status if older messages of the master are missing here, else "".

        They will not come later. The sentence stays after a restart, until retention has removed
        the offset where this log began.
        """
        begin, store = self._known.history_begin, self._store
        if not begin or not store.offset_max or store.offset_min > begin:
            return ""
        return f"the master sent only its last log file, from {begin} on: older messages are missing here"

    def _keep(self, known: _LastMaster, then: Callable[[], None] | None = None) -> None:
        """Save `known` if it has changed. Call `then` in either case, once the file is current."""
        if known != self._known or then is not None:
            self._known = known
            self._file.save(lambda: msgspec.json.encode(self._known), then)

    # --- a truncation -----------------------------------------------------------------------------

    @property
    def is_cut(self) -> bool:
        """Whether a truncation was begun and offsets may still lie beyond the ends of queues."""
        return self._known.is_cut

    @property
    def cut_progress(self) -> dict[str, str] | None:
        """The `progress` that `note_cut` has saved."""
        return self._known.progress

    def note_cut(self, progress: dict[str, str], then: Callable[[], None]) -> None:
        """Save that the log is about to be truncated, and the master's `progress` as texts."""
        self._keep(msgspec.structs.replace(self._known, is_cut=True, progress=progress), then)

    def note_cut_over(self) -> None:
        """Save that offsets and progress fit the truncated log."""
        self._keep(msgspec.structs.replace(self._known, is_cut=False, progress=None))
