"""Whether a slave's log belongs to its master's, and what is done when it does not.

The HA stream itself never tells: a slave reports its end, and a master that has lost its last messages (power, a disk)
would simply go on from there once it is longer, with other messages at the same places. So before it reports, a slave
asks (906). Our masters compare the slave's last bytes with their own at the same place (`tail`): equal means that the
slave's log is the beginning of the master's. Apache's masters tell where their log ended when they started, and show what
they have at the place of the slave's last record (`shown`).

    ahead     the slave has bytes that its master never had
    foreign   the slave's log has other content than the master's at the same place

Either way the slave stops following and nothing is touched. With `haTruncateAhead` a slave that is ahead has its log cut
(`truncation`); a foreign log is never cut.
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
    """What is kept of the master last followed (`config/replication.json`)."""

    master_address: str = ""
    master_start_id: str = ""
    master_start_end: int = -1
    #: where this log begins because the master sent nothing older; 0 when nothing is missing
    history_begin: int = 0
    #: the log is being cut, or was, and offsets may lie beyond the ends of queues
    is_cut: bool = False
    #: the master's progress in special duties, as texts by name; None: cut by a version that did not ask
    progress: dict[str, str] | None = None


class DivergenceVerdict(NamedTuple):
    """`state` is None if the slave may follow; `cut_to` is where a cut would help, -1 where none does."""

    state: HaState | None = None
    why: str = ""
    cut_to: int = -1


def _foreign(end: int, said: ExchangeHAInfoResponse) -> DivergenceVerdict:
    return DivergenceVerdict(
        FOREIGN,
        f"the last bytes of this log, which ends at {end}, are not what {said.master_address} has there: it is the log of "
        "another group, or has gone its own way; nothing was cut. Move this store folder away to copy the master anew",
    )


def _too_old(end: int, said: ExchangeHAInfoResponse) -> DivergenceVerdict:
    return DivergenceVerdict(
        REFUSED,
        f"the log of the master {said.master_address} begins at {said.master_log_begin}, this log ends at {end}: what is "
        "between them was removed there. Move this store folder away to copy the master anew",
    )


class Divergence:
    def __init__(self, context: BrokerContext, store: StorageEngine, folder: str) -> None:
        self._context = context
        self._store = store
        self._file = AtomicFile(context.disk, f"{folder}/replication.json")
        self._known = _LastMaster()

    def load(self) -> None:
        """Raises AtomicFileDamaged."""
        self._known = self._file.load(lambda data: msgspec.json.decode(data, type=_LastMaster)) or _LastMaster()

    def tail(self, end: int | None = None) -> LogTail:
        """The last bytes of this log, or of those in front of `end`."""
        return tail_of(self._context, self._store, self._store.offset_written if end is None else end)

    def judge(self, said: ExchangeHAInfoResponse, shown: TailComparison | None = None) -> DivergenceVerdict:
        """`shown` is of an Apache master."""
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
            # What lies behind the record, the beginning of the next one, nobody has compared.
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
            "it never had; nothing was cut. haTruncateAhead=true keeps a copy of them and cuts them off",
            cut_to,
        )

    def follow(self, said: ExchangeHAInfoResponse) -> None:
        """This master is followed from now on."""
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
        """The start of the master that was followed last, "" before there was one."""
        return self._known.master_start_id

    def begin(self, history_begin: int) -> None:
        """The first bytes of this log have come; what is older than `history_begin` the master has and does not send."""
        self._keep(msgspec.structs.replace(self._known, history_begin=history_begin))

    @property
    def history_missing(self) -> str:
        """Said while older messages of the master are not here and will not come, also after a restart."""
        begin, store = self._known.history_begin, self._store
        if not begin or not store.offset_max or store.offset_min > begin:
            return ""
        return f"the master sent its log from {begin} on, its last file only: what is older is missing here"

    def _keep(self, known: _LastMaster, then: Callable[[], None] | None = None) -> None:
        """`then` is called in any case, once it is kept."""
        if known != self._known or then is not None:
            self._known = known
            self._file.save(lambda: msgspec.json.encode(self._known), then)

    # --- a truncation -------------------------------------------------------------------------------------------------

    @property
    def is_cut(self) -> bool:
        """Whether the log was cut off, or is about to be, and offsets may lie beyond the ends of queues."""
        return self._known.is_cut

    @property
    def cut_progress(self) -> dict[str, str] | None:
        """What `note_cut` has kept."""
        return self._known.progress

    def note_cut(self, progress: dict[str, str], then: Callable[[], None]) -> None:
        """The log is about to be cut off; `progress` is the master's in special duties, as texts."""
        self._keep(msgspec.structs.replace(self._known, is_cut=True, progress=progress), then)

    def note_cut_over(self) -> None:
        self._keep(msgspec.structs.replace(self._known, is_cut=False, progress=None))
