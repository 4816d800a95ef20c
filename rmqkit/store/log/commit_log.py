"""The commit log: all records of a broker, one after the other, in files of equal size.

A put takes three steps:

1. `append` assigns the offsets and buffers the record. Nothing is on disk yet.
2. `write`, once per turn, writes everything buffered, with one vectored write per file.
3. `take_puts` hands the written records to the queues.

Between `append` and `write` only `offset_max` moves. A failed write resets it, together with the
queue offsets assigned in this turn.

    offset_min <= offset_written (in the file, readable) <= offset_max (with this turn's records)

A record never crosses a file boundary. If it does not fit with 8 bytes to spare, a blank record
(i32 rest of the file, i32 magic) ends the file and the record starts the next one. The same holds
for a whole batch.

The bytes behind the end of the log are always zeroes. Bytes that a failed write may have left are
overwritten, at once or before the next write. Otherwise a recovery could take a refused record for
a stored one.

Replicated bytes (`append_raw`) are buffered the same way. Their records are found later by reading
them back.

Source: `store/.../CommitLog.java`, `store/.../MessageExtEncoder.java`.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, count
from operator import gt
from struct import Struct
from zlib import crc32

from rmqkit.runtime.connection import Buffer
from rmqkit.runtime.ports import Clock, Disk
from rmqkit.store.contract import Put, PutResult, PutRun, PutStatus, StoreWriteError
from rmqkit.store.log.batch_records import encode_records, encode_run
from rmqkit.store.log.files import LogFiles
from rmqkit.store.log.scan import BLANK_SIZE, CRC_PROPERTY_SIZE, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN
from rmqkit.store.log.uniform_batch import UniformBatch
from rmqkit.store.queues.batch_put import BatchPut, ColumnPut, RunPut, rows_of
from rmqkit.store.queues.batch_put import Put as QueuePut
from rmqkit.store.queues.consume_queue import ConsumeQueue
from rmqkit.store.queues.table import PREPARED, ROLLED_BACK
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.properties import PROPERTIES_SIZE_MAX
from rmqkit.wire.record import encode_blank

_V4, _V6 = 8, 20
#: (size of born host, size of store host) -> the record's fields before its body
_HEADS = {(born, store): Struct(f">IIIiiqqiq{born}sq{store}siqi") for born in (_V4, _V6) for store in (_V4, _V6)}
_HEAD_V4 = _HEADS[_V4, _V4].pack
_HEAD_V4_SIZE = _HEADS[_V4, _V4].size
_CHECK = Struct(">IIIiiqq")
#: bytes that `record` reads at first; most records are not longer
_RECORD_GUESS = 2048
_V6_FLAGS = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6
_NOT_QUEUED = MessageSysFlag.TRANSACTION_PREPARED

_new = tuple.__new__
_PUT_OK = PutStatus.PUT_OK
_TOO_BIG = PutResult(PutStatus.MESSAGE_ILLEGAL)
_PROPERTIES_TOO_BIG = PutResult(PutStatus.PROPERTIES_SIZE_EXCEEDED)

QueueOf = Callable[[str, int], ConsumeQueue | None]


class CommitLog:
    """The log of one engine.

    `body_size_max` bounds each body in bytes. `long_topics` allows topics above 127 bytes (V2
    records). `prop_crc` adds the CRC property to every record.
    """

    def __init__(
        self,
        *,
        disk: Disk,
        clock: Clock,
        files: LogFiles,
        queues: dict[tuple[str, int], ConsumeQueue],
        make_queue: QueueOf,
        body_size_max: int,
        long_topics: bool = True,
        prop_crc: bool = False,
    ) -> None:
        self.disk = disk
        self.clock = clock
        self.files = files
        self.body_size_max = body_size_max
        self.offset_max = 0
        self.offset_written = 0
        self._queues = queues
        self._make_queue = make_queue
        self._long_topics = long_topics
        self._prop_crc = prop_crc
        #: end offset of the file that the next record goes to
        self._file_end = files.file_size
        #: buffered: the buffers of the current run (one run per file) and the runs before it, as
        #: (offset of the first byte, buffers)
        self._run: list[Buffer] = []
        self._run_start = 0
        self._runs: list[tuple[int, list[Buffer]]] = []
        self._puts: list[QueuePut | ColumnPut] = []
        #: whether a put stands for several records
        self._has_columns = False
        #: whether bytes were buffered whose records are not in `_puts`
        self._is_raw = False
        #: (offset, size) of bytes that failed writes may have left behind the end of the log
        self._stale: list[tuple[int, int]] = []

    # --- putting ----------------------------------------------------------------------------------

    def append(self, put: Put) -> PutResult:
        """Assign offsets to one message and buffer its record."""
        return self.append_some((put,))[0]

    def append_some(self, puts: Sequence[Put]) -> list[PutResult]:
        """Assign offsets to messages and buffer their records, up to the first that is refused.

        Return their results; only the last can be a refusal.
        """
        queues, prop_crc, store_ms = self._queues, self._prop_crc, self.clock.wall_ms
        run, lined_up, phy_offset = self._run, self._puts, self.offset_max
        results: list[PutResult] = []
        for put in puts:
            (
                topic, queue_id, flag, sys_flag, born_ms, born_host, store_host,
                reconsume_times, prepared_offset, body, properties, tags_code,
            ) = put  # fmt: skip
            queue = queues.get((topic, queue_id)) or self._make_queue(topic, queue_id)
            body_size = len(body)
            if queue is None or body_size > self.body_size_max or (queue.magic == MAGIC_V2 and not self._long_topics):
                results.append(_TOO_BIG)
                break
            if prop_crc:
                properties = _with_crc_room(properties)
            properties_size = len(properties)
            if properties_size > PROPERTIES_SIZE_MAX:
                results.append(_PROPERTIES_TOO_BIG)
                break
            if len(born_host) == _V4 and len(store_host) == _V4:
                head_pack, head_size = _HEAD_V4, _HEAD_V4_SIZE
                sys_flag &= ~_V6_FLAGS
            else:
                head_pack, head_size, sys_flag = _head_of(born_host, store_host, sys_flag)
            tail = queue.topic_field + properties_size.to_bytes(2, "big") + properties
            size = head_size + body_size + len(tail)
            phy_next = phy_offset + size
            if phy_next + BLANK_SIZE > self._file_end:
                if size + BLANK_SIZE > self.files.file_size:
                    results.append(_TOO_BIG)
                    break
                self.offset_max = phy_offset
                phy_offset = self._roll()
                phy_next, run = phy_offset + size, self._run
            if sys_flag & _NOT_QUEUED:
                queue_offset = 0
                kind = ROLLED_BACK if sys_flag & MessageSysFlag.TRANSACTION_COMMIT else PREPARED
                lined_up.append((queue, kind, phy_offset, size, tags_code, properties, store_ms))
            else:
                queue_offset = queue.offset_next
                queue.offset_next = queue_offset + 1
                lined_up.append((queue, queue_offset, phy_offset, size, tags_code, properties, store_ms))
            head = head_pack(
                size, queue.magic, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, phy_offset, sys_flag, born_ms,
                born_host, store_ms, store_host, reconsume_times, prepared_offset, body_size,
            )  # fmt: skip
            run += (head, body, _with_crc(head, body, tail) if prop_crc else tail)
            # A third cheaper than PutResult(...).
            results.append(_new(PutResult, (_PUT_OK, phy_offset, queue_offset, phy_next, (), 0)))
            phy_offset = phy_next
        self.offset_max = phy_offset
        return results

    def append_batch(self, put: Put, messages: Sequence[tuple[int, bytes, bytes, int]]) -> PutResult:
        """Buffer the records of a batch in one file, all or none, with consecutive offsets.

        A `UniformBatch` is encoded by column, unless each record needs a CRC property.
        """
        queue = self._queues.get((put.topic, put.queue_id)) or self._make_queue(put.topic, put.queue_id)
        if queue is None or not messages or put.sys_flag & MessageSysFlag.TRANSACTION_MASK:
            return _TOO_BIG
        crc_room = CRC_PROPERTY_SIZE + 1 if self._prop_crc else 0
        head_pack, head_size, sys_flag = _head_of(put.born_host, put.store_host, put.sys_flag)
        fixed = head_size + len(queue.topic_field) + 2
        size = (fixed + crc_room) * len(messages)
        uniform = messages if isinstance(messages, UniformBatch) and not crc_room else None
        if uniform is not None:
            if uniform.properties_size > PROPERTIES_SIZE_MAX:
                return _PROPERTIES_TOO_BIG
            if uniform.body_size_max > self.body_size_max:
                return _TOO_BIG
            size += uniform.size
        else:
            for _, body, properties, _ in messages:
                if len(properties) + crc_room > PROPERTIES_SIZE_MAX:
                    return _PROPERTIES_TOO_BIG
                if len(body) > self.body_size_max:
                    return _TOO_BIG
                size += len(body) + len(properties)
        if size + BLANK_SIZE > self.files.file_size or (queue.magic == MAGIC_V2 and not self._long_topics):
            return _TOO_BIG
        if self.offset_max + size + BLANK_SIZE > self._file_end:
            self._roll()
        if uniform is not None:
            return self._append_uniform(uniform, put, queue, sys_flag, fixed)
        phy_offset, store_ms = self.offset_max, self.clock.wall_ms
        first = queue_offset = queue.offset_next
        topic_field, magic, queue_id, born_ms = queue.topic_field, queue.magic, put.queue_id, put.born_ms
        born_host, store_host, reconsume_times = put.born_host, put.store_host, put.reconsume_times
        parts: list[Buffer] = []
        phy_offsets: list[int] = []
        prop_crc, lined_up = self._prop_crc, self._puts.append
        for flag, body, properties, tags_code in messages:
            if prop_crc:
                properties = _with_crc_room(properties)
            properties_size, body_size = len(properties), len(body)
            size = fixed + body_size + properties_size
            # Like `append`, inlined and without its checks: one call per record costs too much.
            head = head_pack(
                size, magic, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, phy_offset, sys_flag, born_ms,
                born_host, store_ms, store_host, reconsume_times, 0, body_size,
            )  # fmt: skip
            tail = topic_field + properties_size.to_bytes(2, "big") + properties
            parts += (head, body, _with_crc(head, body, tail) if prop_crc else tail)
            lined_up((queue, queue_offset, phy_offset, size, tags_code, properties, store_ms))
            phy_offsets.append(phy_offset)
            queue_offset += 1
            phy_offset += size
        # Join into one buffer: writing hundreds of small ones costs more than this copy.
        self._run.append(b"".join(parts))
        queue.offset_next, self.offset_max = queue_offset, phy_offset
        return PutResult(_PUT_OK, phy_offsets[0], first, phy_offset, phy_offsets)

    def _append_uniform(
        self, batch: UniformBatch, put: Put, queue: ConsumeQueue, sys_flag: int, fixed_size: int
    ) -> PutResult:
        """Buffer the records of a uniform batch as one put."""
        phy_offset, first, store_ms = self.offset_max, queue.offset_next, self.clock.wall_ms
        data, phy_offsets, sizes = encode_records(
            batch,
            put,
            queue,
            sys_flag=sys_flag,
            queue_offset=first,
            phy_offset=phy_offset,
            store_ms=store_ms,
            fixed_size=fixed_size,
        )
        phy_next = phy_offset + len(data)
        self._run.append(data)
        fields = queue, first, phy_offsets, sizes, batch.tags_code, batch.properties, store_ms, phy_next
        self._puts.append(_new(BatchPut, fields))
        self._has_columns = True
        queue.offset_next, self.offset_max = first + len(sizes), phy_next
        return _new(PutResult, (_PUT_OK, phy_offset, first, phy_next, phy_offsets, 0))

    def append_run(self, run: PutRun) -> Sequence[int]:
        """Buffer the records of a run by column; return their sizes.

        Ends before a message that `append` would refuse, or whose record gets no unit. Takes none
        if each record needs a CRC property.
        """
        if self._prop_crc:
            return ()
        queues: dict[tuple[str, int], ConsumeQueue] = {}
        #: by queue: size of a record without body and properties; too big for a file without queue
        fixed: dict[tuple[str, int], int] = {}
        for key in dict.fromkeys(run.queues):
            queue = self._queues.get(key) or self._make_queue(*key)
            if queue is None or (queue.magic == MAGIC_V2 and not self._long_topics):
                fixed[key] = self.files.file_size
            else:
                queues[key] = queue
                fixed[key] = _HEAD_V4_SIZE + len(queue.topic_field) + 2
        body_sizes, properties_sizes = list(map(len, run.bodies)), list(map(len, run.properties))
        columns = zip(run.queues, body_sizes, properties_sizes, strict=True)
        sizes = [fixed[key] + body_size + properties_size for key, body_size, properties_size in columns]
        limits = self.files.file_size - BLANK_SIZE, self.body_size_max, PROPERTIES_SIZE_MAX, 0
        limited = sizes, body_sizes, properties_sizes, [each & _NOT_QUEUED for each in run.sys_flags]
        if any(map(gt, map(max, limited), limits)):
            rows = enumerate(zip(*limited, strict=True))
            first = next(at for at, row in rows if any(map(gt, row, limits)))
            return self.append_run(run.part(0, first)) if first else ()
        begin = 0
        while begin < len(sizes):
            ends = list(accumulate(sizes[begin:], initial=self.offset_max))
            fitting = bisect_right(ends, self._file_end - BLANK_SIZE) - 1
            if fitting <= 0:
                self._roll()
                continue
            end = begin + fitting
            is_whole = fitting == len(sizes)
            self._append_part(run if is_whole else run.part(begin, end), queues, sizes[begin:end], ends[: fitting + 1])
            begin = end
        return sizes

    def _append_part(
        self, run: PutRun, queues: Mapping[tuple[str, int], ConsumeQueue], sizes: Sequence[int], ends: list[int]
    ) -> None:
        """Buffer the records of a run in this file. They begin at `ends`, whose last is the end."""
        self.offset_max, store_ms = ends.pop(), self.clock.wall_ms
        column = [queues[key] for key in run.queues]
        counts = {key: count(queue.offset_next) for key, queue in queues.items()}
        queue_offsets = list(map(next, map(counts.__getitem__, run.queues)))
        for key, queue in queues.items():
            queue.offset_next = next(counts[key])
        self._run.append(encode_run(run, column, queue_offsets, ends, sizes, store_ms))
        fields = column, queue_offsets, ends, sizes, run.tags_codes, run.properties, store_ms, self.offset_max
        self._puts.append(RunPut._make(fields))
        self._has_columns = True

    def append_inner_batch(self, put: Put, count: int) -> PutResult:
        """Buffer one record with `count` messages, which takes that many queue offsets.

        Apache: `BatchConsumeQueue.assignQueueOffset`, `increaseQueueOffset`.
        """
        queue = self._queues.get((put.topic, put.queue_id)) or self._make_queue(put.topic, put.queue_id)
        if queue is None:
            return _TOO_BIG
        first = queue.offset_next
        result = self.append(put._replace(properties=props.put(put.properties, _INNER_BASE, b"%d" % first)))
        if result.status is _PUT_OK:
            queue.offset_next = first + count
        return result._replace(inner_count=count)

    def append_raw(self, phy_offset: int, data: Buffer) -> bool:
        """Buffer replicated bytes, which may contain parts of records.

        Return False if `phy_offset` is not the end of the log. An empty log may start at the start
        of any file: a new replica starts where its master's log does.
        """
        if phy_offset != self.offset_max:
            files = self.files
            if self.offset_max != files.start or phy_offset % files.file_size or phy_offset < files.end:
                return False
            files.remove_from(0, lambda: _ignore)
            files.begin(phy_offset)
            self.move_to(phy_offset)
        self._is_raw = True
        view = memoryview(data)
        while view:
            part = view[: self._file_end - self.offset_max]
            self._run.append(part)
            self.offset_max += len(part)
            view = view[len(part) :]
            if self.offset_max == self._file_end:
                self._end_run()
        return True

    def _roll(self) -> int:
        """End the file with a blank record. Return the offset where the next file starts."""
        self._run.append(encode_blank(self._file_end - self.offset_max))
        self.offset_max = self._file_end
        self._end_run()
        return self.offset_max

    def _end_run(self) -> None:
        """End the current run: the next byte belongs to the next file."""
        self._runs.append((self._run_start, self._run))
        self._run = []
        self._run_start = self._file_end
        self._file_end += self.files.file_size

    # --- writing ----------------------------------------------------------------------------------

    def write(self) -> None:
        """Write everything buffered.

        Raises StoreWriteError; the log's end and the assigned queue offsets are then reset.
        """
        self._line_up()
        runs = list(self._runs)
        try:
            self._write_runs()
        except OSError as error:
            for queue, queue_offset, *_ in reversed(rows_of(self._puts)):
                if queue_offset >= 0:
                    queue.offset_next = queue_offset
            self._puts.clear()
            self._runs.clear()
            self._stale += [(first, sum([len(buffer) for buffer in buffers])) for first, buffers in runs]
            self.move_to(self.offset_written)
            try:
                self.clean_stale()
            except OSError:
                pass  # retried before the next write
            raise StoreWriteError(error) from error
        self.offset_written = self.offset_max

    def commit(self) -> None:
        """Like `write`, but keep what could not be written for another attempt. Raises OSError."""
        self._line_up()
        try:
            self._write_runs()
        except OSError:
            self.offset_written = self._runs[0][0]
            raise
        self.offset_written = self.offset_max

    def _line_up(self) -> None:
        if self._run:
            self._runs.append((self._run_start, self._run))
            self._run = []
        self._run_start = self.offset_max

    def _write_runs(self) -> None:
        """Write the runs; remove each from the list once it is written."""
        files = self.files
        runs = self._runs
        if self._stale:
            self.clean_stale()
        while runs:
            first, buffers = runs[0]
            if first >= files.end:
                if files.start == files.end:
                    files.begin(first)
                files.extend()
            self.disk.write(files.path(first), first % files.file_size, buffers)
            del runs[0]

    def clean_stale(self) -> None:
        """Overwrite bytes that failed writes may have left with zeroes. Raises OSError."""
        files = self.files
        while self._stale:
            offset, size = self._stale[-1]
            if files.start <= offset < files.end:
                self.disk.write(files.path(offset), offset % files.file_size, [bytes(size)])
            self._stale.pop()

    def take_puts(self) -> tuple[list[QueuePut | ColumnPut], bool, bool]:
        """Return the records written since the last call.

        Also whether nothing else was written, and whether a put stands for several records. If
        replicated bytes were written too, the caller must read their records back.
        """
        puts, self._puts = self._puts, []
        is_whole, self._is_raw = not self._is_raw, False
        has_columns, self._has_columns = self._has_columns, False
        return puts, is_whole, has_columns

    def forget_queues(self, topics: set[str]) -> None:
        """Detach buffered records from the deleted queues of these topics: they get no unit."""
        rows = rows_of(self._puts)
        self._puts = [_changed(put, put[0], PREPARED) if put[0].topic in topics else put for put in rows]

    def replace_queue(self, before: ConsumeQueue, after: ConsumeQueue) -> None:
        """Give the units of buffered records to the queue that replaces theirs."""
        self._puts = [_changed(put, after, put[1]) if put[0] is before else put for put in rows_of(self._puts)]

    def move_to(self, offset: int) -> None:
        """Make `offset` the end of the log. Nothing may be buffered."""
        waiting = len(self._run) + len(self._runs)
        assert not waiting, "records wait to be written"
        self.offset_written = self.offset_max = self._run_start = offset
        self._file_end = self.files.floor(offset) + self.files.file_size

    # --- reading ----------------------------------------------------------------------------------

    @property
    def offset_min(self) -> int:
        return self.files.start

    def view(self, offset: int, size: int) -> Buffer:
        """Return written bytes from one file.

        Fewer than `size` if the file or the log ends before; none outside the log, or if the file
        cannot be read.
        """
        files = self.files
        in_file = offset % files.file_size
        size = min(size, self.offset_written - offset, files.file_size - in_file)
        if size <= 0 or offset < files.start:
            return b""
        try:
            return self.disk.view(files.path(offset), in_file, size)
        except OSError:
            return b""

    def record(self, phy_offset: int) -> Buffer | None:
        """Return the whole record that starts at `phy_offset`, or None.

        Checks size, magic and offset, not the CRC.
        """
        head = self.view(phy_offset, _RECORD_GUESS)
        if len(head) < _CHECK.size:
            return None
        size, magic, _, _, _, _, phy = _CHECK.unpack_from(head)
        if phy != phy_offset or magic not in (MAGIC_V1, MAGIC_V2) or size < RECORD_SIZE_MIN:
            return None
        found = head[:size] if size <= len(head) else self.view(phy_offset, size)
        return found if len(found) == size else None


def _head_of(born_host: bytes, store_host: bytes, sys_flag: int) -> tuple[Callable[..., bytes], int, int]:
    """Return the head's packer and size for these hosts, and `sys_flag` with the right V6 bits."""
    head = _HEADS[len(born_host), len(store_host)]
    sys_flag &= ~_V6_FLAGS
    if len(born_host) == _V6:
        sys_flag |= MessageSysFlag.BORN_HOST_V6
    if len(store_host) == _V6:
        sys_flag |= MessageSysFlag.STORE_HOST_V6
    return head.pack, head.size, sys_flag


def _changed(put: QueuePut, queue: ConsumeQueue, queue_offset: int) -> QueuePut:
    """Return a put with another queue and queue offset."""
    return queue, queue_offset, *put[2:]


def _ignore(error: OSError | None) -> None:
    """Ignore the error: an empty file that stays before the log does no harm."""


_INNER_BASE = props.PROPERTY_INNER_BASE.encode()
_CRC_NAME = props.PROPERTY_CRC32.encode()


def _with_crc_room(properties: bytes) -> bytes:
    """Return the properties with a placeholder CRC property at the end (`enabledAppendPropCRC`)."""
    return props.put(properties, _CRC_NAME, b"0000000000")


def _with_crc(head: bytes, body: bytes, tail: bytes) -> bytes:
    """Return the record's tail with its CRC property filled in.

    The CRC covers everything before that property. Its digits are least significant first.
    """
    checked = tail[:-CRC_PROPERTY_SIZE]
    number = crc32(checked, crc32(body, crc32(head))) & 0x7FFFFFFF
    return checked + _CRC_NAME + b"\x01" + f"{number:010d}"[::-1].encode() + b"\x02"
