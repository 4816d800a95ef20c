"""Engine `mapped`: a store in RocketMQ's file formats. This module connects its parts.

    append ──► CommitLog (buffered) ──settle──► one write ──► QueueTable (tails) ──► arrivals
                     │                                            │
                 LogFlush: sync, group commit      QueueFlush: tails to files, sync, checkpoint

The store folder contains `commitlog/`, `consumequeue/<topic>/<queue id>/` (`batchconsumequeue/` for
BatchCQ topics), `index/`, `checkpoint`, `lock` and `abort`. `abort` exists while a process has the
store open. If it exists at a start, the previous process did not stop cleanly.

Life cycle:

- `start` takes the lock and checks the files. Recovery then runs as a duty until `ready` is true.
- `stop` writes and syncs everything, saves the checkpoint and removes `abort`.
- While `failed` is not empty, the engine refuses puts: permanently after a failed sync, temporarily
  while the disk is full, a cut is running, or queue units or the pool cannot be written.

Source: `store/.../DefaultMessageStore.java`.
"""

import errno
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from sys import maxsize

from rmqkit.config import BrokerRole, NodeConfig
from rmqkit.errors import CannotStart
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.connection import Buffer
from rmqkit.runtime.ports import Completion
from rmqkit.store.batch_reader import read_batch_queue
from rmqkit.store.checkpoint import Checkpoint
from rmqkit.store.contract import (
    Arrival,
    EngineParts,
    Entry,
    GetStatus,
    IndexHits,
    Put,
    PutResult,
    PutRun,
    PutStatus,
    QueueRange,
    Read,
    RecordMatch,
    TagMatch,
)
from rmqkit.store.dispatch_limit import PER_TURN, DispatchLimit
from rmqkit.store.index.index import WAITING_MAX, Index
from rmqkit.store.log.commit_log import CommitLog
from rmqkit.store.log.files import LogFiles
from rmqkit.store.log.flush import LogFlush, Told
from rmqkit.store.log.scan import store_ms_of
from rmqkit.store.log.walk import LogWalk
from rmqkit.store.queue_reader import read_queue, search_by_time
from rmqkit.store.queues.batch_put import place_of
from rmqkit.store.queues.batch_queue import BatchQueue
from rmqkit.store.queues.consume_queue import PRE_BLANK_SIZE, UNIT, ConsumeQueue
from rmqkit.store.queues.extension import ADDRESS_MAX, tags_code_at
from rmqkit.store.queues.flush import UNITS_MAX, UNITS_SOON, QueueFlush
from rmqkit.store.queues.make_table import make_table
from rmqkit.store.recovery import Recovery
from rmqkit.store.retention import FIRST_MS, Retention
from rmqkit.store.steps import Steps
from rmqkit.store.truncation import close, cut

_new = tuple.__new__
_REFUSED = PutResult(PutStatus.SERVICE_NOT_AVAILABLE)

CHECKPOINT_MS = 1000
GIB = 1 << 30
#: the duties that run while the store is ready
DUTIES = (
    "store-flush",
    "store-queues",
    "store-checkpoint",
    "store-dispatch",
    "store-index",
    "store-retention",
    "store-commit",
)
#: bytes in the pool of transientStorePoolEnable above which `settle` writes the pool itself
POOL_MAX = 67_108_864


class MappedEngine:
    """The storage engine over RocketMQ's files.

    `parts.memory_size` is the machine's memory in bytes. The newest part of the log, as large as
    the share `accessMessageInMemoryMaxRatio` of it, counts as cached. `adapt` changes each
    configuration before the engine uses it.
    """

    def __init__(self, parts: EngineParts, *, adapt: Callable[[NodeConfig], NodeConfig] = lambda config: config) -> None:
        config = adapt(parts.config)
        self._adapt = adapt
        ports = parts.ports
        self.config = config
        self.ports = ports
        self.duties = parts.duties
        self.ready = False
        self.progress = "not started"
        self.failed = ""
        self.offset_confirmed: int | None = None
        self.root = config.paths.store_path_root_dir
        disk, clock = ports.disk, ports.clock
        self.disk = disk
        self.table = make_table(self.root, disk, config.consume_queue, parts, lambda at: self.log.record(at))
        self.log = CommitLog(
            disk=disk,
            clock=clock,
            files=LogFiles(disk, config.paths.store_path_commit_log, config.commit_log.mapped_file_size_commit_log),
            queues=self.table.by_key,
            make_queue=self.table.make,
            body_size_max=config.send.max_message_size,
            long_topics=config.send.auto_message_version_on_topic_len,
            prop_crc=config.commit_log.enabled_append_prop_crc,
        )
        self.checkpoint = Checkpoint(disk, f"{self.root}/checkpoint")
        self.flush = LogFlush(disk, clock, self.log, self._synced, self.broken, lambda: self.dispatched[1])
        self.ends = AtomicFile(disk, f"{self.root}/config/consumeQueueEnds.json")
        self.queue_flush = QueueFlush(
            disk=disk,
            table=self.table,
            checkpoint=self.checkpoint,
            ends=self.ends,
            dispatched=lambda: self.dispatched,
            sync_log=self.flush.sync,
            broken=self.broken,
        )
        #: delay level -> ms, for the due times in the queues of the schedule topic
        self.delay_levels = dict(enumerate(config.delay.levels_ms, 1))
        self.walk = LogWalk(self.log, 0, delay_levels=self.delay_levels)
        #: start, end and store time (ms) of the last record dispatched to the queues
        self.dispatched = (0, 0, 0)
        self.index = Index(
            disk=disk,
            clock=clock,
            log=self.log,
            folder=f"{self.root}/index",
            settings=config.index,
            notes=ports.log,
            filled=self._index_filled,
            broken=self.broken,
            wake=lambda: self.duties.wake("store-index", self.ports.clock.mono_ms),
        )
        self.index.waiting_max = min(config.consume_queue.put_msg_index_hight_water, WAITING_MAX)
        self.retention = Retention(self)
        self._pool = config.flush.transient_store_pool_enable and config.identity.broker_role is not BrokerRole.SLAVE
        self._limit = DispatchLimit()
        self._arrivals: list[Arrival] = []
        #: why puts are refused: permanently (`_broken`), or now, by cause (`_refused`)
        self._broken = ""
        self.is_broken = False
        self._refused: dict[str, str] = {}
        self._writeable = False
        self._steps: Steps | None = None
        self._stopped: list[Callable[[], None]] = []
        self._is_cutting = False
        self._machine_memory_size = parts.memory_size
        self._memory_size = parts.memory_size * config.pull.access_message_in_memory_max_ratio // 100

    # --- reports of the parts ---------------------------------------------------------------------

    def broken(self, reason: str) -> None:
        """Refuse all puts for good, after a failed sync or truncation. Log `reason` once."""
        if not self._broken:
            self._broken = reason
            self.is_broken = True
            self.ports.log.error("store-failed", reason=reason)
            self.flush.fail(reason)
            self._update_writeable()
            if self._steps is not None:
                self._steps.wake()

    def refuse(self, cause: str, reason: str) -> None:
        """Refuse puts because of `cause`; an empty `reason` ends the refusal."""
        before = self._refused.get(cause, "")
        if reason:
            self._refused[cause] = reason
        else:
            self._refused.pop(cause, None)
        if reason != before:
            self._update_writeable()
            if reason:
                self.ports.log.warning("store-refuses-puts", reason=reason)
            elif before:
                self.ports.log.info("store-takes-puts", was=before)

    def _update_writeable(self) -> None:
        self.failed = self._broken or next(iter(self._refused.values()), "")
        self._writeable = self.ready and not self._broken and not self._refused

    def _index_filled(self, end_ms: int) -> None:
        self.checkpoint.index_ms = max(self.checkpoint.index_ms, end_ms)

    def _synced(self) -> None:
        self.checkpoint.physic_ms = self.flush.synced_ms
        self.checkpoint.confirm_phy_offset = self.flush.whole_synced

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        steps = self._steps = Steps("store-recovery", self.duties, self.ports.clock)
        recovery = Recovery(self, steps)
        recovery.check_files()
        self.progress = "recovering"
        steps.begin(recovery.run(), self._recovered)

    def _recovered(self, error: OSError | None) -> None:
        if error is not None:
            what = f"{error.filename or self.root}: {error.strerror or error}"
            raise CannotStart(f"the store cannot be recovered: {what}; look at the disk, then start again")
        self._steps = None
        self.ready = True
        self.progress = ""
        self._update_writeable()
        now_ms = self.ports.clock.mono_ms
        flush = self.config.flush
        self.duties.add("store-flush", lambda _: self.flush.flush_due(self.config.flush), now_ms + 1)
        self.duties.add("store-queues", self._write_queues, now_ms + flush.flush_interval_consume_queue_ms)
        self.duties.add("store-checkpoint", self._save_checkpoint, now_ms + CHECKPOINT_MS)
        self.duties.add("store-dispatch", self._resume_dispatch, None)
        self.duties.add("store-index", self.index.run, now_ms)
        self.duties.add(
            "store-retention",
            self.retention.run,
            now_ms + min(FIRST_MS, 6 * self.config.retention.clean_resource_interval_ms),
        )
        if self._pool:
            self.duties.add("store-commit", self._commit_pool, now_ms + flush.commit_interval_commit_log_ms)

    def stop(self, then: Callable[[], None]) -> None:
        self._stopped.append(then)
        if len(self._stopped) > 1:
            return
        was_ready, self.ready = self.ready, False
        self._update_writeable()
        for name in DUTIES:
            self.duties.remove(name)
        if self._is_cutting:
            return  # close after the truncation: a partly truncated log must not be closed
        if self._steps is not None:
            self._steps.cancel()
        self._close(was_ready)

    def _close(self, was_ready: bool) -> None:
        steps = self._steps = Steps("store-stop", self.duties, self.ports.clock)
        # Records of this turn may not be written yet: `settle` or the work itself writes them.
        # Of a store that was never ready there is nothing to close: `abort` stays.
        steps.begin(close(self, steps) if was_ready else steps.wait(), self._closed)

    def _closed(self, error: OSError | None) -> None:
        if error is not None:
            self.ports.log.error("store-not-closed", error=str(error))
        for then in self._stopped:
            then()

    # --- duties -----------------------------------------------------------------------------------

    def _write_queues(self, now_ms: int) -> int:
        due_ms = self.queue_flush.run(now_ms, self.config.flush)
        self._check_backlog()
        return due_ms

    def _save_checkpoint(self, now_ms: int) -> int:
        self.checkpoint.save(self._checkpoint_saved)
        return now_ms + CHECKPOINT_MS

    def _checkpoint_saved(self, error: OSError | None) -> None:
        if error is not None:
            self.ports.log.warning("checkpoint-not-saved", error=str(error))

    def _resume_dispatch(self, now_ms: int) -> None:
        self._dispatch_from_log(self._limit.at_duty(self.log.offset_written, now_ms))

    def _commit_pool(self, now_ms: int) -> int:
        if self.flush.commit_wanted(self.config.flush):
            self.commit()
        return now_ms + max(self.config.flush.commit_interval_commit_log_ms, 1)

    # --- the turn ---------------------------------------------------------------------------------

    def append(self, put: Put) -> PutResult:
        return self.log.append(put) if self._writeable else _REFUSED

    def append_some(self, puts: Sequence[Put]) -> list[PutResult]:
        return self.log.append_some(puts) if self._writeable else [_REFUSED]

    def append_batch(self, put: Put, messages: Sequence[tuple[int, bytes, bytes, int]]) -> PutResult:
        return self.log.append_batch(put, messages) if self._writeable else _REFUSED

    def append_run(self, run: PutRun) -> Sequence[int]:
        return self.log.append_run(run) if self._writeable else ()

    def append_inner_batch(self, put: Put, count: int) -> PutResult:
        if not self._writeable:
            return _REFUSED
        queue = self.table.make(put.topic, put.queue_id)
        if queue is not None and not isinstance(queue, BatchQueue):
            # Made from replicated records, when this broker was a slave and did not know the topic.
            self.log.replace_queue(queue, self.table.batch_queue(queue))
        return self.log.append_inner_batch(put, count)

    def settle(self) -> Sequence[Arrival]:
        log = self.log
        if log.offset_max > log.offset_written and (not self._pool or log.offset_max - log.offset_written > POOL_MAX):
            caught_up = self.dispatched[1] == log.offset_written
            log.write()
            self._dispatch(caught_up, self._limit.at_write(log.offset_written, self.ports.clock.mono_ms))
        elif self.offset_confirmed is not None:
            self._dispatch(False)
        arrivals, self._arrivals = self._arrivals, []
        return arrivals

    def commit(self) -> bool:
        """Write the pool to the log. Return False if that failed; a later turn retries."""
        log = self.log
        if log.offset_max == log.offset_written:
            return True
        caught_up = self.dispatched[1] == log.offset_written
        try:
            log.commit()
        except OSError as error:
            self.refuse("pool", f"the commit log could not be written: {error.strerror or error}")
            return False
        self.refuse("pool", "")
        self._dispatch(caught_up)
        return True

    def _dispatch(self, caught_up: bool, count_max: int = PER_TURN) -> None:
        """Dispatch written records, at most `count_max` of those that must be read from the log.

        `caught_up`: all earlier records are dispatched already.
        """
        puts, is_whole, has_columns = self.log.take_puts()
        if puts and is_whole and caught_up and self.offset_confirmed is None:
            if has_columns:
                self.table.extend_mixed(puts, self._arrivals)
                self.index.extend_mixed(puts)
            else:
                self.table.extend(puts, self._arrivals)  # type: ignore[arg-type]
                self.index.extend(puts)  # type: ignore[arg-type]
            self.dispatched = place_of(puts[-1])
            self.flush.written_ms = self.dispatched[2]
        elif self.log.offset_written > self.dispatched[1]:
            self._dispatch_from_log(count_max)
        if self.table.waiting > UNITS_SOON:
            self.duties.wake("store-queues", self.ports.clock.mono_ms)
            if self.table.waiting > UNITS_MAX:
                self.write_queues()

    def _dispatch_from_log(self, count_max: int) -> None:
        """Dispatch replicated or newly confirmed records from the log; the duty does the rest."""
        walk = self.walk
        confirmed = self.offset_confirmed
        end = self.log.offset_written if confirmed is None else min(confirmed, self.log.offset_written)
        walk.position = self.dispatched[1]
        for _ in range(count_max):
            if walk.position >= end:
                return
            record = walk.next()
            if record is None or walk.position > end:
                return
            try:
                arrival = self.table.put(record)
            except OSError as error:
                self.ports.log.warning("queue-write-failed", topic=record.topic, error=str(error))
                break
            if arrival is not None:
                self._arrivals.append(arrival)
            self.index.add(record)
            self.dispatched = (record.phy_offset, walk.position, record.store_ms)
            self.flush.written_ms = record.store_ms
        self.duties.wake("store-dispatch", self.ports.clock.mono_ms + 1)

    def write_queues(self) -> None:
        """Write the tails of all queues now."""
        self.table.write_some(maxsize)
        self._check_backlog()

    def _check_backlog(self) -> None:
        """Refuse puts while tails cannot be written and more than UNITS_MAX units wait."""
        too_many = self.table.waiting > UNITS_MAX and bool(self.table.error)
        self.refuse("queues", f"consume queues cannot be written ({self.table.error})" if too_many else "")

    def configure(self, config: NodeConfig) -> None:
        self.config = config = self._adapt(config)
        # The limit never shrinks: a delayed message that is put again must still fit. The handlers
        # apply the new limit to new messages.
        self.log.body_size_max = max(self.log.body_size_max, config.send.max_message_size)
        self.index.waiting_max = min(config.consume_queue.put_msg_index_hight_water, WAITING_MAX)
        self.index.hits_max = config.index.max_msgs_num_batch
        self._memory_size = self._machine_memory_size * config.pull.access_message_in_memory_max_ratio // 100

    # --- the log ----------------------------------------------------------------------------------

    @property
    def offset_min(self) -> int:
        return self.log.offset_min

    @property
    def offset_max(self) -> int:
        return self.log.offset_max

    @property
    def offset_written(self) -> int:
        """End of the records whose puts may be answered; those in the pool are not readable yet."""
        return self.log.offset_max if self._pool else self.log.offset_written

    @property
    def offset_synced(self) -> int:
        return self.flush.offset_synced

    @property
    def offset_dispatched(self) -> int:
        return self.dispatched[1]

    def sync(self, offset: int, then: Told) -> None:
        if self._pool and offset > self.log.offset_written and not self.commit():
            then(False)
            return
        self.flush.sync(offset, then)

    def record(self, phy_offset: int) -> Buffer | None:
        return self.log.record(phy_offset)

    def read_log(self, phy_offset: int, size_max: int) -> Buffer:
        return self.log.view(phy_offset, size_max)

    def append_log(self, phy_offset: int, data: Buffer) -> bool:
        self._limit.copied_size += len(data)
        return self.ready and self._steps is None and not self._broken and self.log.append_raw(phy_offset, data)

    def expect_copy(self, offset_end: int) -> None:
        self._limit.copy_end = offset_end

    def truncate(self, phy_offset: int, then: Completion) -> None:
        if not self.ready or self._steps is not None:
            then(OSError(errno.EBUSY, "the store is not ready, or its log is being truncated"))
            return
        steps = self._steps = Steps("store-cut", self.duties, self.ports.clock)
        self.refuse("cut", f"the log is being truncated to {phy_offset}")
        self._is_cutting = True

        def ended(error: OSError | None) -> None:
            self._steps = None
            self._is_cutting = False
            self.index.go_on()
            if self.flush.is_held:
                self.broken(f"the log could not be truncated to {phy_offset}: {error}")
            self.refuse("cut", "")
            then(error)
            if self._stopped:
                self._close(True)

        steps.begin(cut(self, steps, phy_offset), ended)

    # --- queues -----------------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        size_max: int,
        tag_match: TagMatch | None = None,
        record_match: RecordMatch | None = None,
    ) -> Read:
        is_slave = (
            self.config.identity.broker_role is BrokerRole.SLAVE and not self.config.replication.offset_check_in_slave
        )
        queue = self.table.by_key.get((topic, queue_id))
        if queue is None:
            return Read(GetStatus.NO_MATCHED_LOGIC_QUEUE, offset if is_slave else 0, 0, 0)
        reader = read_batch_queue if isinstance(queue, BatchQueue) else read_queue
        return reader(
            self.log,
            queue,
            offset,
            offset_max=self._visible(queue),
            count_max=count_max,
            size_max=size_max,
            settings=self.config.pull,
            memory_size=self._memory_size,
            is_slave=is_slave,
            tag_match=tag_match,
            record_match=record_match,
        )

    def _visible(self, queue: ConsumeQueue) -> int:
        """Return one past the last queue offset that readers may see."""
        confirmed = self.offset_confirmed
        if confirmed is None or queue.phy_end <= confirmed:
            return queue.offset_max
        return queue.confirmed_max(confirmed)

    def entries(self, topic: str, queue_id: int, offset: int, count_max: int) -> Sequence[Entry]:
        queue = self.table.by_key.get((topic, queue_id))
        if queue is None or not queue.offset_min <= offset:
            return ()
        if isinstance(queue, BatchQueue):
            return queue.entries(offset, self._visible(queue), count_max)
        units = queue.units(offset, max(0, min(count_max, self._visible(queue) - offset)))
        # Half the cost of Entry(...).
        return [
            _new(
                Entry,
                (
                    number,
                    phy_offset,
                    0 if size == PRE_BLANK_SIZE else size,
                    tags_code if tags_code > ADDRESS_MAX else tags_code_at(queue, tags_code),
                    1,
                ),
            )
            for number, (phy_offset, size, tags_code) in enumerate(UNIT.iter_unpack(units), offset)
        ]

    def queue_range(self, topic: str, queue_id: int) -> QueueRange:
        queue = self.table.by_key.get((topic, queue_id))
        if queue is None:
            return QueueRange(topic, queue_id, 0, 0)
        offset_max = self._visible(queue)
        return QueueRange(topic, queue_id, min(queue.offset_min, offset_max), offset_max)

    def queue_is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        queue = self.table.by_key.get((topic, queue_id))
        unit = None if queue is None else queue.unit(offset)
        return unit is not None and unit[0] >= self.log.offset_max - self._memory_size

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        queue = self.table.by_key.get((topic, queue_id))
        if queue is None:
            return 0
        offset_max = self._visible(queue)
        offset_min = min(queue.offset_min, offset_max)
        if isinstance(queue, BatchQueue):
            return max(offset_min, min(queue.offset_by_time(timestamp_ms, upper=upper), offset_max))
        time_of = partial(self.store_time, topic, queue_id)
        return search_by_time(time_of, offset_min, offset_max, timestamp_ms, upper=upper)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        queue = self.table.by_key.get((topic, queue_id))
        unit = None if queue is None else queue.unit(offset)
        return -1 if unit is None else self._store_ms_at(unit[0])

    def _store_ms_at(self, phy_offset: int) -> int:
        """Return the store time in ms of the record at a physical offset, or -1."""
        record = self.log.record(phy_offset)
        return -1 if record is None else store_ms_of(record)

    def queues(self) -> Iterable[QueueRange]:
        by_key = self.table.by_key
        return [self.queue_range(*key) for key in sorted(by_key) if by_key[key].offset_max]

    def delete_topics(self, topics: Sequence[str]) -> int:
        names = list(dict.fromkeys(topics))
        count = self.table.detach(names)
        if count:
            self.log.forget_queues(set(names))
            self.queue_flush.delete(names, self.log.offset_max)
        return count

    def clean_log(self) -> None:
        self.retention.clean_log()
        self.duties.wake("store-retention", self.ports.clock.mono_ms)

    def clean_queues(self) -> None:
        self.retention.clean_queues()
        self.duties.wake("store-retention", self.ports.clock.mono_ms)

    # --- index and facts --------------------------------------------------------------------------

    def query(self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int) -> IndexHits:
        return self.index.query(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms)

    def facts(self) -> dict[str, str]:
        folder = self.log.files.folder
        log_ratio = self.retention.used_percent(folder) / 100
        usage = self.disk.usage(folder)
        first = self.log.record(self.log.offset_min)
        return {
            "commitLogMinOffset": str(self.log.offset_min),
            "commitLogMaxOffset": str(self.log.offset_max),
            "commitLogDiskRatio": str(log_ratio),
            f"commitLogDiskRatio_{folder}": str(log_ratio),
            "consumeQueueDiskRatio": str(self.retention.used_percent(self.table.folder) / 100),
            "commitLogDirCapacity": f"Total : {usage.total / GIB:.1f} GiB, Free : {usage.free / GIB:.1f} GiB.",
            "dispatchBehindBytes": str(self.log.offset_max - self.dispatched[1]),
            "earliestMessageTimeStamp": str(-1 if first is None else store_ms_of(first)),
            "remainHowManyDataToCommit": str(self.log.offset_max - self.log.offset_written),
            "remainHowManyDataToFlush": str(self.log.offset_max - self.flush.offset_synced),
            "storeProgress": self.progress or self.index.progress,
            "storeFailed": self.failed,
        }
