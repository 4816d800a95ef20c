"""Reading a range of a queue as Arrow batches: what runs in Spark's workers.

Pulls go out ahead of their answers (`pulls`), over one connection (`link`) to the member of the broker group that can be
read (`replicas`). The records of the answers stay where they were received until there are `batch_rows` of them or
`BATCH_BYTES_MAX` bytes; then they become columns at once (`decode`).

Nothing is passed over in silence. What comes next must be the next offset; where it is not:

    the member lacks it, being behind (a slave)     the next member; then wait, `wait_ms` at most
    below the queue's first offset, at a master     DataLoss: retention
    at or behind the queue's end, at a master       asked again for a while, then DataLoss: cut, or made anew
    a master leaves offsets out (no filter is on)   asked again `MISSING_TRIES` times, then DataLoss: damage
    a record whose parts do not add up              DataLoss: damage; an error where only a slave has it so
    no member answers                               wait, or fail at once (`when_down`)

Who is master is asked of the name servers again before anything is a loss: brokers change places within a range.

With `fail_on_data_loss` off a DataLoss is a warning in the log, and reading goes on behind what is gone. A wait that ends
is an error either way: what cannot be reached is not gone.

Tags are compared by the broker by their hash codes, so they are compared here again.

Source: `client/.../impl/consumer/PullAPIWrapper.java`, `store/.../DefaultMessageStore.java` (`getMessage`).
"""

import logging
import time
from collections.abc import Iterator
from itertools import chain, groupby
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqkit.errors import BrokerError, CorruptRecord, PeerUnreachable, RemoteProtocolError, RmqkitError
from rmqkit.spark.decode import BATCH_BYTES_MAX, DecodedRecords, batches_of
from rmqkit.spark.link import Link, LinkReply
from rmqkit.spark.source.loss import DataLoss, queue_name
from rmqkit.spark.source.pull_requests import PullRequests
from rmqkit.spark.source.pulls import Pull, Pulls
from rmqkit.spark.source.replicas import Replicas
from rmqkit.wire.codes import MessageSysFlag, PullSysFlag, ResponseCode
from rmqkit.wire.record import (
    POSITION_QUEUE_OFFSET,
    POSITION_SYS_FLAG,
    Buffer,
    Record,
    decode_record,
    encode_record,
)
from rmqkit.wire.schema import from_ext
from rmqkit.wire.schemas.pull import PullMessageRequest, PullMessageResponse

if TYPE_CHECKING:
    from rmqkit.spark.source.ranges import OffsetRange

READER_GROUP = "TOOLS_CONSUMER"
#: how often offsets that an answer leaves out are asked for
MISSING_TRIES = 3
PAUSE_MS = 100
#: a master may show the end of its queue a little later than it tells of it
CUT_WAIT_MS = 3000
ANSWER_BYTES_MAX = 8 * 1024 * 1024
RECORD_SIZE_MIN = 91
_WRAPPED = MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP
_FOUND = int(ResponseCode.SUCCESS)
_NOTHING = {
    int(code) for code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
}
#: answers that another member or a later time will not change
_FINAL = {
    int(code)
    for code in (
        ResponseCode.NO_PERMISSION,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    )
}
_i32 = Struct(">i").unpack_from
_i64 = Struct(">q").unpack_from

log = logging.getLogger("rmqkit.spark")


class ReadSettings(msgspec.Struct, frozen=True):
    """How a range is read. Goes to the workers pickled.

    `when_down`: with no broker of a group to be reached, `wait` up to `wait_ms` or `fail` at once. `time_from_ms` and
    `time_to_ms` bound the store time, the second exclusively. `decode_json_schema` is Spark's JSON text of a struct whose
    columns, and `_corrupt`, come after `columns`.
    """

    namesrv: tuple[str, ...]
    columns: tuple[str, ...]
    tags: str = "*"
    fail_on_data_loss: bool = True
    when_down: str = "wait"
    wait_ms: int = 120_000
    request_timeout_ms: int = 5_000
    batch_rows: int = 8192
    time_from_ms: int | None = None
    time_to_ms: int | None = None
    decode_json_schema: str = ""


def read_range(queue_range: "OffsetRange", settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """The messages of [begin, end) of one queue in the order of their offsets, as batches of about `batch_rows` rows.

    Raises DataLoss for messages that are gone, NoRoute or PeerUnreachable when no member of the broker group gives them in
    time, BrokerError when the broker refuses, CompressionMissing for a body whose compression is not installed.
    """
    reader = RangeReader(queue_range, settings)
    try:
        yield from reader.batches()
    finally:
        reader.replicas.release()


class Chunk(NamedTuple):
    """Records that follow each other: where they start in `buffer`, or in the link's when that is None."""

    buffer: bytes | None
    starts: list[int]


class RangeReader:
    """One range on its way into batches."""

    def __init__(self, queue_range: "OffsetRange", settings: ReadSettings) -> None:
        self.range = queue_range
        self.settings = settings
        tags = settings.tags.strip()
        #: as a broker reads the expression (`FilterAPI.buildSubscriptionData`)
        self.tags = [] if tags in ("", "*") else [tag.strip() for tag in tags.split("||") if tag.strip()]
        self.pulls: Pulls[Chunk] = Pulls(queue_range.begin, queue_range.end, is_filtered=bool(self.tags))
        self.replicas = Replicas(
            settings.namesrv,
            queue_range.topic,
            queue_range.broker,
            may_wait=settings.when_down != "fail",
            wait_ms=settings.wait_ms,
            request_timeout_ms=settings.request_timeout_ms,
        )
        request = PullMessageRequest(
            consumer_group=READER_GROUP,
            topic=queue_range.topic,
            queue_id=queue_range.queue,
            queue_offset=0,
            max_msg_nums=1,
            sys_flag=PullSysFlag.SUBSCRIPTION,
            subscription=tags or "*",
            expression_type="TAG",
            max_msg_bytes=ANSWER_BYTES_MAX,
        )
        self._requests = PullRequests(request)
        #: records that are no batch yet
        self._chunks: list[Chunk] = []
        self._rows = 0
        self._missed = (-1, 0)
        self._decode_json = None
        if settings.decode_json_schema:
            from rmqkit.spark.decode_json import JsonBodies

            self._decode_json = JsonBodies(settings.decode_json_schema)

    # --- the loop

    def batches(self) -> Iterator[pa.RecordBatch]:
        pulls, replicas = self.pulls, self.replicas
        while pulls.position < pulls.end:
            link = replicas.connected()
            try:
                self._send(link)
                self._receive(link)
                self._collect()
            except (_Elsewhere, _Later, PeerUnreachable, RemoteProtocolError, CorruptRecord) as trouble:
                yield from self._flush(link)
                pulls.restart()
                if isinstance(trouble, _Elsewhere):
                    replicas.turn(trouble.why)
                elif isinstance(trouble, _Later):
                    time.sleep(PAUSE_MS / 1000)
                else:
                    replicas.failed(trouble)
                continue
            is_enough = self._rows >= self.settings.batch_rows or link.held >= BATCH_BYTES_MAX
            if is_enough and pulls.is_whole:
                yield from self._flush(link)
        if replicas.link is not None:
            yield from self._flush(replicas.link)

    def _send(self, link: Link) -> None:
        due = self.pulls.due()
        if not due:
            return
        requests = []
        for pull in due:
            pull.opaque = link.opaque()
            requests.append(self._requests.frame(pull.opaque, pull.begin, pull.count))
        link.send(b"".join(requests), len(due))

    def _receive(self, link: Link) -> None:
        answer = link.receive()
        pull = self.pulls.answering(answer.opaque)
        if pull is None:
            return
        if answer.code == _FOUND:
            self._found(link, pull, answer)
        elif not self.pulls.is_first(pull):
            self.pulls.cut(pull)
        elif answer.code in _NOTHING:
            self._nothing(pull, answer)
        else:
            self._refused(pull, answer)

    def _collect(self) -> None:
        before = self.pulls.position
        for chunk in self.pulls.done():
            self._chunks.append(chunk)
            self._rows += len(chunk.starts)
        if self.pulls.position > before:
            self.replicas.progressed()

    # --- what an answer means

    def _found(self, link: Link, pull: Pull[Chunk], answer: LinkReply) -> None:
        buffer = link.buffer
        starts = record_starts(buffer, answer.begin, answer.end)
        upto = pull.begin + len(starts)
        if (
            starts
            and not self.tags
            and upto <= pull.end
            and not _is_wrapped(buffer, starts[-1])
            and _i64(buffer, starts[0] + POSITION_QUEUE_OFFSET)[0] == pull.begin
            and _i64(buffer, starts[-1] + POSITION_QUEUE_OFFSET)[0] == upto - 1
        ):
            self.pulls.brought(pull, Chunk(None, starts), upto, size=answer.end - answer.begin)
        else:
            self._sort_out(link, pull, answer, starts)

    def _sort_out(self, link: Link, pull: Pull[Chunk], answer: LinkReply, starts: list[int]) -> None:
        """An answer that is not just the next messages: filtered, with inner batches, or with a gap."""
        unwrapped = _unwrapped(link.buffer, answer, starts)
        buffer: Buffer = link.buffer
        if unwrapped is not None:
            buffer, starts = unwrapped, record_starts(unwrapped, 0, len(unwrapped))
        offsets = [_i64(buffer, start + POSITION_QUEUE_OFFSET)[0] for start in starts]
        offset_next = _offsets(answer).next_begin_offset
        if offset_next <= pull.begin:
            raise RemoteProtocolError(f"{link.address} found messages at {pull.begin} and goes on at {offset_next}")
        kept, upto = [], pull.begin
        for start, offset in zip(starts, offsets, strict=True):
            if pull.begin <= offset < pull.end and (self.tags or offset == upto):
                kept.append(start)
                upto += 1
            elif offset > upto:
                break
        if self.tags:
            self.pulls.brought(pull, Chunk(unwrapped, kept), min(offset_next, pull.end))
        elif kept:
            self.pulls.brought(pull, Chunk(unwrapped, kept), upto, is_telling=False)
        elif self.pulls.is_first(pull):
            self._left_out(pull, answer, min((each for each in offsets if each > pull.begin), default=offset_next))
        else:
            self.pulls.cut(pull)

    def _nothing(self, pull: Pull[Chunk], answer: LinkReply) -> None:
        """The first pull in flight brought nothing."""
        found = _offsets(answer)
        is_master = self.replicas.read_from == "master"
        is_beyond = pull.begin >= found.max_offset
        if not is_beyond and found.min_offset <= pull.begin:
            if found.next_begin_offset <= pull.begin:
                raise _Elsewhere(self._lacks(f"has offsets {found.min_offset} to {found.max_offset}, but gives nothing"))
            if self.tags:
                self.pulls.brought(pull, Chunk(None, []), min(found.next_begin_offset, pull.end))
                return
            self._left_out(pull, answer, found.next_begin_offset)
            return
        if not is_master:
            raise _Elsewhere(self._lacks(f"has offsets {found.min_offset} to {found.max_offset}"))
        if is_beyond:
            self._wait_for_the_end()
            self._lost(pull.end, found.min_offset, _why_beyond(pull.begin, found))
        else:
            cause = "retention deleted them (fileReservedTime, diskMaxUsedSpaceRatio) before they were read"
            self._lost(min(found.min_offset, pull.end), found.min_offset, cause)

    def _refused(self, pull: Pull[Chunk], answer: LinkReply) -> None:
        broker = self.range.broker
        error = BrokerError(
            f"{broker} refuses to give {self._name} from offset {pull.begin}: {answer.remark or answer.code}",
            code=answer.code,
            remark=answer.remark,
        )
        if answer.code in _FINAL:
            raise error
        if answer.code == ResponseCode.TOPIC_NOT_EXIST and self.replicas.read_from == "master":
            self._wait_for_the_end()
            self._lost(pull.end, 0, "the topic was deleted", or_is_forgotten=True)
            return
        raise _Elsewhere(error)

    def _left_out(self, pull: Pull[Chunk], answer: LinkReply, upto: int) -> None:
        offset, tries = self._missed
        self._missed = pull.begin, tries + 1 if offset == pull.begin else 1
        if self._missed[1] < MISSING_TRIES:
            raise _Later
        if self.replicas.read_from != "master":
            raise _Elsewhere(self._lacks(f"passes over offsets {pull.begin} to {upto - 1}"))
        cause = "the broker passes over them: their records are damaged, or retention is just deleting them"
        self._lost(min(upto, pull.end), min(upto, _offsets(answer).max_offset), cause)

    def _wait_for_the_end(self) -> None:
        if self.replicas.stuck_s() < CUT_WAIT_MS / 1000:
            raise _Later

    def _lost(self, upto: int, smallest: int, cause: str, *, or_is_forgotten: bool = False) -> None:
        """What begins at the position is gone up to `upto`, says the master; if it is still that."""
        if not self.replicas.is_master_now(or_is_forgotten=or_is_forgotten):
            raise _Elsewhere(self._lacks("was master, which the name servers do not say now; it has not all"))
        wanted = self.pulls.position
        if self.settings.fail_on_data_loss:
            raise DataLoss(self.range.topic, self.range.broker, self.range.queue, wanted, smallest, cause)
        log.warning("%s: offsets %d to %d are gone and left out; likely cause: %s", self._name, wanted, upto - 1, cause)
        self.pulls.restart(upto)
        self.replicas.progressed()

    @property
    def _name(self) -> str:
        return queue_name(self.range.topic, self.range.broker, self.range.queue)

    def _lacks(self, what: str) -> PeerUnreachable:
        member = self.replicas.member
        who = "nobody" if member is None else f"{self.replicas.read_from} {member.address}"
        return PeerUnreachable(
            f"{who} {what} of queue {self.range.queue}, wanted is {self.pulls.position}", kind="behind", address=who
        )

    def _elsewhere_only(self, offset: int) -> PeerUnreachable:
        who = str(self.replicas.member.address) if self.replicas.member else ""
        text = f"{who} has a damaged record at offset {offset} of {self._name}, which the group's master may have whole"
        return PeerUnreachable(text, kind="behind", address=who)

    # --- columns

    def _flush(self, link: Link) -> Iterator[pa.RecordBatch]:
        """What was collected, as batches; the link's buffer is free then."""
        chunks, self._chunks, self._rows = self._chunks, [], 0
        for buffer, some in groupby(chunks, key=lambda chunk: chunk.buffer):
            starts = np.fromiter(chain.from_iterable(chunk.starts for chunk in some), np.int64)
            if len(starts):
                yield from self._columns(DecodedRecords(link.buffer if buffer is None else buffer, starts))
        link.forget()

    def _columns(self, records: DecodedRecords) -> Iterator[pa.RecordBatch]:
        settings = self.settings
        names = settings.columns
        if self._decode_json is not None and "body" not in names:
            names = (*names, "body")
        try:
            records.check((*names, "tags") if self.tags else names)
        except CorruptRecord:
            records = self._sound(records)
        if ((records.sys_flags & _WRAPPED) == _WRAPPED).any():
            records = _apart(records)
        wanted = self._wanted(records)
        if wanted is not None:
            records = DecodedRecords(records.data, records.starts[wanted])
        if not records.count:
            return
        constants = {"topic": self.range.topic, "broker": self.range.broker, "read_from": self.replicas.read_from}
        for batch in batches_of(records, names, constants):
            yield batch if self._decode_json is None else self._decode_json.add(batch, settings.columns)

    def _wanted(self, records: DecodedRecords) -> NDArray[np.bool_] | None:
        """Which records the time and the tags let through; None for all."""
        settings = self.settings
        wanted = np.ones(records.count, np.bool_)
        if settings.time_from_ms is not None:
            wanted &= records.store_ms >= settings.time_from_ms
        if settings.time_to_ms is not None:
            wanted &= records.store_ms < settings.time_to_ms
        if self.tags:
            are_tagged = pc.is_in(records.tags(), value_set=pa.array(self.tags, pa.string()))
            wanted &= are_tagged.to_numpy(zero_copy_only=False)
        return None if wanted.all() else wanted

    def _sound(self, records: DecodedRecords) -> DecodedRecords:
        """Those whose parts add up; the others are lost, if it is the master that has them so."""
        sound, view = [], records.data.data
        for start in records.starts.tolist():
            try:
                decode_record(view, start, check_crc=False)
                sound.append(start)
            except CorruptRecord as error:
                offset = _i64(view, start + POSITION_QUEUE_OFFSET)[0]
                if not self.replicas.is_master_now():
                    raise self._elsewhere_only(offset) from None
                loss = DataLoss(self.range.topic, self.range.broker, self.range.queue, offset, offset + 1, str(error))
                if self.settings.fail_on_data_loss:
                    raise loss from None
                log.warning("%s: offset %d is left out: %s", self._name, offset, error)
        return DecodedRecords(records.data, np.array(sound, np.int64))


class _Elsewhere(Exception):
    """The member cannot give what is wanted: ask the next."""

    def __init__(self, why: RmqkitError) -> None:
        super().__init__(why)
        self.why = why


class _Later(Exception):
    """Ask again in a moment."""


def record_starts(buffer: Buffer, begin: int, end: int) -> list[int]:
    """Where the records between `begin` and `end` of `buffer` start. Raises CorruptRecord unless they fill it."""
    starts: list[int] = []
    add, size_at, at = starts.append, _i32, begin
    last = end - RECORD_SIZE_MIN
    while at <= last:
        add(at)
        (size,) = size_at(buffer, at)
        if size < RECORD_SIZE_MIN:
            break
        at += size
    if at != end:
        raise CorruptRecord("what a broker gave as messages are no records end to end")
    return starts


def _unwrapped(buffer: bytearray, answer: LinkReply, starts: list[int]) -> bytes | None:
    """The answer with the messages of inner batches as records of their own; None when it has no inner batch."""
    if not any(_is_wrapped(buffer, start) for start in starts):
        return None
    return _records_apart(bytes(buffer[answer.begin : answer.end]))


def _is_wrapped(buffer: Buffer, start: int) -> bool:
    flags: int = _i32(buffer, start + POSITION_SYS_FLAG)[0]
    return flags & _WRAPPED == _WRAPPED


def _apart(records: DecodedRecords) -> DecodedRecords:
    """The same with inner batches taken apart. Those of one message are not seen before, as they move no offset."""
    view = records.data.data
    ends = (records.starts + [_i32(view, start)[0] for start in records.starts.tolist()]).tolist()
    whole = b"".join(bytes(view[begin:end]) for begin, end in zip(records.starts.tolist(), ends, strict=True))
    buffer = _records_apart(whole)
    return DecodedRecords(buffer, np.array(record_starts(buffer, 0, len(buffer)), np.int64))


def _records_apart(body: bytes) -> bytes:
    from rmqkit.client.consumers.pull import unwrapped_records

    return b"".join(encode_record(**_fields(record)) for record in unwrapped_records(body))


def _fields(record: Record) -> dict[str, Any]:
    fields = record._asdict()
    for name in ("size", "magic", "body_crc"):
        del fields[name]
    return fields


def _offsets(answer: LinkReply) -> PullMessageResponse:
    return from_ext(PullMessageResponse, answer.fields)


def _why_beyond(wanted: int, found: PullMessageResponse) -> str:
    if wanted == found.max_offset:
        return (
            f"the queue ends at {found.max_offset} now: its end was cut off by a crash before a flush or by a takeover "
            "without it, or the topic was deleted and made anew"
        )
    return (
        f"the queue ends at {found.max_offset}, before what was read already: the topic was deleted and made anew, "
        "its end was cut off by a crash or a takeover, or this is another cluster"
    )
