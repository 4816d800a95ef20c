"""Recovery: turns the files on disk into a usable store, in bounded steps.

`check_files` runs synchronously inside `start`: it takes the lock, and checks the checkpoint and
the names and sizes of the log files. It changes nothing, and raises if the store is in use or
damaged. A duty then steps through the rest:

1. Write and sync `abort`: from here on the store counts as open.
2. Load the queues and find the record T up to which every unit is durable. T is the later of the
   two records that the checkpoint (`logicsPhysicalOffset`) and `consumeQueueEnds.json` vouch for.
   If neither does: after a clean stop, T is the last record that has a unit; after an unclean stop,
   reading starts at the newest log file that Apache's rule allows (store times of the checkpoint),
   or at the log's start. Then check the last 8 MiB of records before T again. Their units are not
   rebuilt from the log, so damage there would be served.
3. After an unclean stop, drop the units of records behind T: they may mix old and new pages.
4. Read the log from T to its end: check sizes, offsets and CRCs, and add units. The log ends where
   no complete record starts. A last record with a hole in its properties, which no CRC covers,
   counts as incomplete. If a queue lacks units before T, units were lost: rebuild them from the
   whole log.
5. If the log ends before data that was once synced (`confirmPhyOffset`), it is damaged and the
   start fails. Otherwise the rest is a torn tail. After an unclean stop, overwrite it with zeroes
   and remove later files, so that no later recovery takes its bytes for records (Apache leaves
   them: #10666).
6. Sync the last files of the log and correct the queues' ranges. The store is ready; the index
   catches up in the background.

Source: `store/.../DefaultMessageStore.java` (`load`, `recover`), `store/.../CommitLog.java`
(`recoverNormally`, `recoverAbnormally`).
"""

from collections.abc import Generator
from typing import TYPE_CHECKING

from rmqkit.errors import CannotStart, RmqkitError
from rmqkit.runtime.atomic_file import AtomicFileDamaged
from rmqkit.store.log.files import FileChain
from rmqkit.store.log.scan import BLANK_SIZE, ScanResult, may_be_torn
from rmqkit.store.log.walk import LogWalk
from rmqkit.store.queues.consume_queue import ConsumeQueue
from rmqkit.store.queues.flush import QueueEnds, load_ends
from rmqkit.store.queues.load import QueueLoad
from rmqkit.store.steps import Steps, Work

if TYPE_CHECKING:
    from rmqkit.store.mapped import MappedEngine

#: limits of one step: bytes of the log read, records checked, queues handled
BYTES_PER_STEP = 8_388_608
RECORDS_PER_STEP = 4096
QUEUES_PER_STEP = 256
_CHUNK_SIZE = 1_048_576
_ZEROES = bytes(_CHUNK_SIZE)
_ADVICE = "restore it from a backup or copy the store of a replica; nothing was changed"


class Recovery:
    """The recovery of one engine: `check_files`, then the steps of `run`. Used once."""

    def __init__(self, engine: "MappedEngine", steps: Steps) -> None:
        self._engine = engine
        self._steps = steps
        self._log = engine.log
        self._disk = engine.disk
        self._abort = f"{engine.root}/abort"
        self._is_clean = True
        self._loaded = FileChain()
        self._ends = QueueEnds()
        #: the log was once durable up to this offset
        self._synced = 0
        self._last: ScanResult | None = None

    # --- synchronous ------------------------------------------------------------------------------

    def check_files(self) -> None:
        """Take the lock and check the files, without changing any.

        Raises RmqkitError if the store is in use, unusable or damaged.
        """
        engine, files = self._engine, self._log.files
        if "," in files.folder:
            raise RmqkitError(f"storePathCommitLog = {files.folder}: several folders are not supported, name one")
        try:
            self._disk.lock(f"{engine.root}/lock", b"lock")
        except BlockingIOError:
            raise RmqkitError(f"{engine.root} is in use by another process: stop it or choose another folder") from None
        except OSError as error:
            raise RmqkitError(f"{engine.root} cannot be used: {error.strerror or error}") from error
        self._is_clean = self._disk.size(self._abort) is None
        engine.checkpoint.load()
        try:
            self._ends = load_ends(engine.ends)
        except AtomicFileDamaged as error:
            engine.ports.log.warning("queue-ends-damaged", error=str(error))
        self._loaded = files.load()
        checkpoint = engine.checkpoint
        self._synced = max(checkpoint.confirm_phy_offset, checkpoint.logics_phy_offset, self._ends.phy_offset)
        problem = self._loaded.problem
        if problem and not self._is_clean and files.end >= self._synced:
            # A power loss can leave files that were never synced in this state.
            engine.ports.log.warning("commit-log-torn", problem=problem)
        elif problem or files.end < self._synced or (not len(files) and checkpoint.physic_ms):
            problem = problem or f"{files.path(files.end)} is missing, though it held synced records"
            raise RmqkitError(f"the commit log is damaged: {problem}; {_ADVICE}")

    def _record_at(self, offset: int) -> ScanResult | None:
        record = LogWalk(self._log, offset).next()
        return record if record is not None and record.phy_offset == offset else None

    # --- in steps ---------------------------------------------------------------------------------

    def run(self) -> Work:
        """Recover, step by step. Raises CannotStart for damage, OSError if the disk fails."""
        engine, log = self._engine, self._log
        yield from self._open()
        load = QueueLoad(engine.table, log.files.end)
        for _ in load.run():
            engine.progress = load.text
            yield False
        log.move_to(log.files.end)
        start, is_known = self._trusted(load.phy_max)
        is_exact = is_known and self._ends.phy_offset == start
        missing, rejected = self._missing(load, is_exact)
        if is_known:
            yield from self._check_before(start)
        if missing:
            yield from self._disclaim_queues()
        yield from self._remove(load.strangers)
        yield from self._prune(start, is_known, is_exact, rejected)
        end = -1
        if not missing:
            end = yield from self._read_log(start, strict=start > log.files.start)
            if end < 0:
                yield from self._disclaim_queues()
        if end < 0:
            self._last = None
            engine.ports.log.warning("queues-rebuilt", reason="units are missing", log_start=log.files.start)
            end = yield from self._read_log(log.files.start, strict=False)
        self._check_end(end)
        yield from self._end_at(start, end)
        for done, queue in enumerate(engine.table):
            if queue.phy_end > end:
                queue.cut(end)
            queue.correct_min(log.files.start)
            queue.offset_next = queue.offset_max
            if done % QUEUES_PER_STEP == 0:
                yield False
        last = self._last
        if last is not None:
            engine.dispatched = (last.phy_offset, end, last.store_ms)
        else:
            engine.dispatched = (start if is_known else end, end, engine.checkpoint.logics_ms)
        engine.flush.recovered(end, engine.dispatched[2])
        engine.queue_flush.vouched = self._ends
        if any(deleted > end for deleted in self._ends.deleted.values()):
            # The deletion is durable, but the last of the deleted records are lost. New records
            # will take their offsets and must not count as deleted.
            engine.queue_flush.clamp(end, self._steps.awaiting_call())
            yield from self._steps.wait()
        engine.index.load(is_clean=self._is_clean, index_ms=engine.checkpoint.index_ms)
        engine.index.cut(end, self._steps.awaiting_call())
        yield from self._steps.wait(lambda: engine.is_broken)
        engine.index.go_on()

    def _open(self) -> Work:
        """Write `abort` and repair the chain of log files."""
        engine, files = self._engine, self._log.files
        # Apache writes its process id. A node does not know its process, so it writes the start
        # time.
        self._disk.write(self._abort, 0, [str(engine.ports.clock.wall_ms).encode()])
        self._disk.sync(self._abort, self._steps.awaiting())
        yield from self._steps.wait()
        strangers = list(self._loaded.strangers)
        if self._loaded.short and strangers[0] == files.path(files.end):
            # A power loss shortened a file that was never synced.
            files.extend()
            del strangers[0]
        yield from self._remove(strangers)

    def _trusted(self, phy_max: int) -> tuple[int, bool]:
        """Return the offset to read the log from, and whether it is known.

        It is known if a record with a durable unit starts there.
        """
        engine, log = self._engine, self._log
        start = log.files.start
        for offset in sorted({self._ends.phy_offset, engine.checkpoint.logics_phy_offset}, reverse=True):
            if offset >= start and (offset > 0 or self._ends.phy_offset == 0) and log.record(offset) is not None:
                return offset, True
        if self._is_clean and phy_max >= start and log.record(phy_max) is not None:
            return phy_max, True
        # Apache's isMappedFileMatchedRecover. Without a checkpoint, read the whole log.
        ms_min = engine.checkpoint.ms_min
        first = log.files.end
        while ms_min and first > start:
            first -= log.files.file_size
            record = self._record_at(first)
            if record is not None and 0 < record.store_ms <= ms_min:
                return first, False
        return start, False

    def _check_before(self, start: int) -> Work:
        """Check the last `BYTES_PER_STEP` bytes of records before `start` once more.

        Their units are not rebuilt, so records that the disk has damaged would be served.
        """
        check_crc = self._engine.config.commit_log.check_crc_on_recover
        walk = LogWalk(self._log, self._record_before(start, BYTES_PER_STEP), check_crc=check_crc)
        records = 0
        while walk.position < start:
            if walk.next() is None:
                self._check_end(walk.position)
                return
            records += 1
            if records % RECORDS_PER_STEP == 0:
                yield False

    def _record_before(self, start: int, size: int) -> int:
        """Return the start of a record at most `size` bytes before `start`, else `start`."""
        log, low = self._log, start - size
        if low <= log.files.start:
            return log.files.start
        record = self._record_at(start)
        queue = None if record is None else self._engine.table.by_key.get((record.topic, record.queue_id))
        unit = None if queue is None else queue.unit(queue.first_at(low, queue.offset_min))
        known = [offset for offset in (log.files.floor(start), unit[0] if unit else -1) if low <= offset < start]
        return min((offset for offset in known if self._record_at(offset) is not None), default=start)

    def _missing(self, load: QueueLoad, is_exact: bool) -> tuple[bool, set[tuple[str, int]]]:
        """Return whether vouched-for units are missing, and the queues whose units to drop."""
        known = self._ends.ranges
        rejected: set[tuple[str, int]] = set()
        for key, queue in self._engine.table.by_key.items():
            first, count = known.pop(key, (0, 0))
            is_short = queue.offset_max < count or queue.offset_min > first < count
            if is_short or (key in load.doubtful and not is_exact):
                rejected.add(key)
        is_gone = any(count for _, count in known.values()) or load.is_misplaced
        return bool(rejected) or is_gone or (bool(load.strangers) and self._ends.phy_offset < 0), rejected

    def _disclaim_queues(self) -> Work:
        """Make the checkpoint vouch for no units until the lost ones are rebuilt."""
        self._engine.checkpoint.logics_phy_offset = self._engine.checkpoint.logics_ms = 0
        self._engine.checkpoint.save(self._steps.awaiting())
        yield from self._steps.wait()

    def _prune(self, start: int, is_known: bool, is_exact: bool, rejected: set[tuple[str, int]]) -> Work:
        """Drop the units that neither the saved ends nor the checkpoint vouch for."""
        engine = self._engine
        known = self._ends.ranges
        for done, queue in enumerate(engine.table):
            key = queue.topic, queue.queue_id
            _, count = known.get(key, (0, 0))
            if key in rejected:
                queue.cut_to(queue.offset_min)
            elif is_exact and queue.offset_max > count:
                queue.cut_to(max(count, queue.offset_min))
            if not self._is_clean:
                # The unit of a known record is durable itself and stays.
                if queue.phy_end > start:
                    queue.cut(start + is_known)
                self._clear_behind(queue)
            # A queue whose records have all left the log may continue at any offset.
            queue.correct_min(self._log.files.start)
            if done % QUEUES_PER_STEP == 0:
                engine.progress = f"consume queues {done}/{len(engine.table)}"
                yield False

    def _clear_behind(self, queue: ConsumeQueue) -> None:
        """Zero the bytes behind a queue's end, until 64 KiB of zeroes follow.

        They are units of records that a power loss undid.
        """
        files = queue.files
        position = queue.position_end
        while position < files.end:
            size = min(65_536, files.file_size - position % files.file_size)
            if self._disk.read(files.path(position), position % files.file_size, size) == _ZEROES[:size]:
                return
            self._disk.write(files.path(position), position % files.file_size, [_ZEROES[:size]])
            queue.unsynced[files.floor(position)] = None
            position += size

    def _read_log(self, start: int, *, strict: bool) -> Generator[bool, None, int]:
        """Read records from `start` to the end of the log and add their units. Return the end.

        With `strict`, return -1 if a queue lacks units before a record.
        """
        engine, log = self._engine, self._log
        settings = engine.config.commit_log
        walk = LogWalk(log, start, check_crc=settings.check_crc_on_recover, delay_levels=engine.delay_levels)
        deleted = self._ends.deleted
        table = engine.table
        records, stepped = 0, start
        while (record := walk.next()) is not None:
            if may_be_torn(record) and LogWalk(log, walk.position, check_crc=True).next() is None:
                return record.phy_offset
            self._last = record
            if record.phy_offset >= deleted.get(record.topic, 0):
                queue = table.by_key.get((record.topic, record.queue_id))
                has = 0 if queue is None else queue.offset_max
                if strict and record.sys_flag & 0x4 == 0 and record.queue_offset > has:
                    return -1
                table.put(record)
            records += 1
            if records % RECORDS_PER_STEP == 0 or walk.position - stepped > BYTES_PER_STEP:
                stepped = walk.position
                engine.progress = f"commit log: {walk.position - start} of at most {log.files.end - start} bytes"
                engine.write_queues()
                yield False
        return walk.position

    def _check_end(self, end: int) -> None:
        """Raise CannotStart if the log ends before data that was once synced."""
        files = self._log.files
        if end < self._synced:
            path, position = files.path(end), end % files.file_size
            raise CannotStart(
                f"the commit log is damaged: {path} holds no valid record at byte {position}, but the log was synced up to "
                f"{self._synced}; {_ADVICE}"
            )

    def _end_at(self, start: int, end: int) -> Work:
        """Make `end` the end of the log, durably. `start`: where reading began."""
        engine, log = self._engine, self._log
        files = log.files
        if end < files.end and (not self._is_clean or any(bytes(log.view(end, BLANK_SIZE)))):
            position, is_logged = end, files.end > files.floor(end) + files.file_size
            if is_logged:
                engine.ports.log.warning("commit-log-cut", offset=end, files_behind=True)
            files.remove_from(files.floor(end) + files.file_size, self._steps.awaiting)
            yield from self._steps.wait()
            while position < files.end:
                engine.progress = f"commit log: clearing {files.end - position} bytes behind its end"
                step_end = min(files.end, position + BYTES_PER_STEP)
                while position < step_end:
                    size = min(_CHUNK_SIZE, step_end - position)
                    path, in_file = files.path(position), position % files.file_size
                    if in_file >= self._disk.data_end(path):
                        position += files.file_size - in_file
                        break
                    if self._disk.read(path, in_file, size) != _ZEROES[:size]:
                        if not is_logged:
                            # Log before writing, so that a kill in between leaves a trace.
                            engine.ports.log.warning("commit-log-cut", offset=end, files_behind=False)
                            is_logged = True
                        self._disk.write(path, in_file, [_ZEROES[:size]])
                    position += size
                yield False
        log.move_to(end)
        if len(files):
            for offset in range(files.floor(start), min(end + 1, files.end), files.file_size):
                self._disk.sync(files.path(offset), self._steps.awaiting())
            yield from self._steps.wait()

    def _remove(self, paths: list[str]) -> Work:
        for path in paths:
            self._engine.ports.log.warning("removed", path=path)
            self._disk.remove(path, self._steps.awaiting())
        yield from self._steps.wait()
