"""The files of a member: `vote` and `log`, on the disk port.

    idle    ->  cut, vote, log, failed
    cut     ->  idle, failed
    vote    ->  idle, log, failed
    log     ->  idle, failed
    failed  ->  (end)

*cut*: a torn tail of the log file, found at the start, is cut off; batches wait for it.

A batch is saved in this order, each step only after the one before is durable:

1. *vote*: the vote file is replaced, if the ballot has changed. So the log never has an entry of a
   term that the vote file does not know yet.
2. *log*: one frame is written at the end of the log file and synced. A snapshot replaces the file
   as a whole instead: the snapshot, and the entries behind it.

Then `then` is called. One batch is in flight at a time, so at a power cut only the last frame may
be torn (`file_format.py`).

An error of the disk, of a sync above all, ends the storage for good: the kernel may have dropped
the pages, so a second sync would report a success that is none. `failed` says what happened; no
batch is confirmed any more. A restart reads what is really there.

Both files also exist as `.bak` after a replacement. These are never read: an older vote is worse
than none.
"""

from collections.abc import Callable
from enum import StrEnum

from rmqkit.controller.contract import ControllerLogFault
from rmqkit.controller.raft.core import RaftFiles, RaftWrites, VoteRecord
from rmqkit.controller.raft.entry_log import LogWrites
from rmqkit.controller.raft.file_format import (
    BadFile,
    LogContent,
    decode_log,
    decode_vote,
    encode_entries_frame,
    encode_start_frame,
    encode_vote,
)
from rmqkit.controller.raft.messages import ORIGIN
from rmqkit.runtime.ports import Disk
from rmqkit.runtime.states import Moves, StateMachine

ADVICE = "move the folder {folder} away; this controller then gets everything from the others, once all of them answer"


class StorageState(StrEnum):
    """The steps of a batch; the module head describes them."""

    IDLE = "idle"
    CUT = "cut"
    VOTE = "vote"
    LOG = "log"
    FAILED = "failed"


IDLE, CUT, VOTE, LOG, FAILED = StorageState

MOVES = Moves(
    {
        IDLE: (CUT, VOTE, LOG, FAILED),
        CUT: (IDLE, FAILED),
        VOTE: (IDLE, LOG, FAILED),
        LOG: (IDLE, FAILED),
        FAILED: (),
    }
)


class RaftStorage(StateMachine[StorageState]):
    """The files of one member below `folder`."""

    def __init__(self, disk: Disk, folder: str, self_id: str, group: int) -> None:
        super().__init__(MOVES)
        self.vote_path, self.log_path = f"{folder}/vote", f"{folder}/log"
        #: why nothing is saved any more, "" while it works
        self.failed = ""
        #: bytes of the log file
        self.log_size = 0
        self._folder = folder
        self._disk = disk
        self._self_id = self_id
        self._group = group
        self._batch: RaftWrites | None = None
        self._then: Callable[[], None] | None = None
        self._failed_then: Callable[[], None] = _nothing

    def load(self, failed: Callable[[], None]) -> RaftFiles:
        """Read the files, and cut a torn tail off. `failed` is called once, if the disk fails.

        Raises ControllerLogFault.
        """
        self._failed_then = failed
        ballot = self._load_vote()
        log = self._load_log()
        last_term = log.entries[-1].term if log.entries else log.start.term
        if ballot is None:
            if log.end:
                raise self._damaged(self.vote_path, "it is missing, and the log has entries: nobody knows its votes")
            ballot = VoteRecord()
        elif ballot.term < last_term:
            raise self._damaged(self.vote_path, f"it ends at term {ballot.term}, the log at {last_term}: it is too old")
        return RaftFiles(ballot, log.start, log.snapshot, log.entries)

    def _load_vote(self) -> VoteRecord | None:
        size = self._disk.size(self.vote_path)
        if size is None:
            return None
        try:
            return decode_vote(self._disk.read(self.vote_path, 0, size), self._self_id, self._group)
        except BadFile as error:
            raise self._damaged(self.vote_path, str(error)) from error

    def _load_log(self) -> LogContent:
        size = self._disk.size(self.log_path)
        if size is None:
            return LogContent(ORIGIN, b"", [], 0)
        try:
            log = decode_log(self._disk.read(self.log_path, 0, size), self._group)
        except BadFile as error:
            raise self._damaged(self.log_path, str(error)) from error
        self.log_size = log.end
        if log.end < size:
            self.move(CUT)
            self._disk.truncate(self.log_path, log.end, self._cut)
        return log

    @property
    def advice(self) -> str:
        """What to do if the files of this member cannot be used."""
        return ADVICE.format(folder=self._folder)

    def _damaged(self, path: str, reason: str) -> ControllerLogFault:
        return ControllerLogFault(f"{path}: {reason}; {self.advice}")

    def _cut(self, error: OSError | None) -> None:
        if error is not None:
            self._fail(self.log_path, error)
            return
        self.move(IDLE)
        if self._batch is not None:
            self._begin(self._batch)

    # --- saving

    def save(self, batch: RaftWrites, then: Callable[[], None]) -> None:
        """Save a batch; `then` is called once it is durable, and never if the disk fails."""
        assert self._batch is None, "one batch at a time"
        if self.state is FAILED:
            return
        self._batch, self._then = batch, then
        if self.state is IDLE:
            self._begin(batch)

    def _begin(self, batch: RaftWrites) -> None:
        if batch.ballot is None:
            self._save_log(batch.log)
            return
        self.move(VOTE)
        self._disk.replace(self.vote_path, encode_vote(batch.ballot, self._self_id, self._group), self._vote_saved)

    def _vote_saved(self, error: OSError | None) -> None:
        if error is not None:
            self._fail(self.vote_path, error)
        elif self._batch is not None:
            self._save_log(self._batch.log)

    def _save_log(self, log: LogWrites) -> None:
        if log.snapshot is not None:
            self.move(LOG)
            frame = encode_start_frame(log.start, log.snapshot, log.entries, self._group)
            self.log_size = len(frame)
            self._disk.replace(self.log_path, frame, self._log_saved)
        elif log.entries:
            self.move(LOG)
            frame = encode_entries_frame(log.entries, self._group, self.log_size)
            try:
                self._disk.write(self.log_path, self.log_size, [frame])
            except OSError as error:
                self._fail(self.log_path, error)
                return
            self.log_size += len(frame)
            self._disk.sync(self.log_path, self._log_saved)
        else:
            self._finish()

    def _log_saved(self, error: OSError | None) -> None:
        if error is not None:
            self._fail(self.log_path, error)
        else:
            self._finish()

    def _finish(self) -> None:
        if self.state is FAILED:
            return
        if self.state is not IDLE:
            self.move(IDLE)
        then, self._then, self._batch = self._then, None, None
        assert then is not None
        then()

    def _fail(self, path: str, error: OSError) -> None:
        if self.state is FAILED:
            return
        self.move(FAILED)
        self.failed = f"{path} cannot be written: {error.strerror or error}; repair the disk and restart the controller"
        self._batch = self._then = None
        self._failed_then()

    @property
    def busy(self) -> bool:
        """Whether the disk is at work."""
        return self._batch is not None or self.state is CUT

    def validate(self) -> None:
        assert self.state is CUT or (self._batch is not None) == (self.state in (VOTE, LOG))
        assert (self._then is None) == (self._batch is None)
        assert bool(self.failed) == (self.state is FAILED)


def _nothing() -> None:
    pass
