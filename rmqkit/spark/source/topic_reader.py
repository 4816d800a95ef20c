"""Reads a range of a queue as Arrow batches, in Spark's workers.

Pulls are sent ahead of their responses (`pulls`), over one connection (`link`) to a readable member
of the broker group (`replicas`). The records of the responses stay in the receive buffer until
there are BATCH_ROWS of them or `BATCH_BYTES_MAX` bytes. Then they become columns together
(`decode`).

No message is skipped silently. The next message must have the next offset. Where it does not:

    a slave is behind and lacks the offset          the next member; then wait (maxWaitForBroker)
    a master: below the queue's first offset        DataLoss: retention
    a master: at or behind the queue's end          ask again for CUT_WAIT_MS, then DataLoss:
                                                    the queue was truncated or recreated
    a master skips offsets (without a filter)       ask again `MISSING_TRIES` times, then DataLoss:
                                                    damage
    a record whose parts do not add up              DataLoss: damage; an error if read from a slave
    no member responds                              wait, or fail at once (whenDown)

Before anything counts as lost, the name servers are asked again which broker is master: the role
may move while a range is read.

With failOnDataLoss=false, a DataLoss is only logged as a warning, and reading continues behind the
lost messages. The end of a waiting time is always an error: unreachable messages are not lost.

Brokers compare tags by hash code, so the tags are compared again here.

Source: `client/.../impl/consumer/PullAPIWrapper.java`, `store/.../DefaultMessageStore.java`
(`getMessage`), `remoting/.../header/PullMessageRequestHeader.java` (`encode`).
"""

import logging
import time
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain, groupby
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqkit.errors import BrokerError, CorruptRecord, PeerUnreachable, RemoteProtocolError
from rmqkit.runtime.remoting import Sign
from rmqkit.spark.columns import COLUMNS, arrow_schema
from rmqkit.spark.decode import BATCH_BYTES_MAX, RECORD_SIZE_MIN, DecodedRecords, batches_of
from rmqkit.spark.link import Link, LinkReply
from rmqkit.spark.options import SourceOptions
from rmqkit.spark.source.pulls import Pull, Pulls
from rmqkit.spark.source.ranges import DataLoss, OffsetRange
from rmqkit.spark.source.replicas import Replicas
from rmqkit.wire.codes import MessageSysFlag, PullSysFlag, RequestCode, ResponseCode
from rmqkit.wire.properties import PROPERTY_TAGS
from rmqkit.wire.record import POSITION_QUEUE_OFFSET, POSITION_SYS_FLAG, Buffer, encode_copy
from rmqkit.wire.remoting.frames import CODEC_ROCKETMQ, frame
from rmqkit.wire.remoting.headers import binary_fields, encode_request
from rmqkit.wire.schema import from_ext, to_ext
from rmqkit.wire.schemas.pull import PullMessageRequest, PullMessageResponse

#: Apache's tools pull under this group name; user consumers never do.
READER_GROUP = "TOOLS_CONSUMER"
#: About this many rows make a batch; equal to Spark's own batches (`sessions.BATCH_ROWS`).
BATCH_ROWS = 8192
#: How often offsets that a response skips are requested before they count as lost.
MISSING_TRIES = 3
PAUSE_MS = 100
#: A master's pull responses may show the end of a queue later than its statistics do. Messages
#: behind the end that it shows count as lost after this time, in ms.
CUT_WAIT_MS = 3000
ANSWER_BYTES_MAX = 8 * 1024 * 1024
_WRAPPED = MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP
_FOUND = int(ResponseCode.SUCCESS)
_NOTHING = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED})
#: Response codes that neither another member nor a repeat will change.
_FINAL = frozenset(
    {
        ResponseCode.NO_PERMISSION,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    }
)
_i32 = Struct(">i").unpack_from
_i64 = Struct(">q").unpack_from
_opaque = Struct(">i").pack
#: Position of the request id in a frame with a binary header, behind size, mark, code, language and
#: version.
_OPAQUE_AT = 13

log = logging.getLogger("rmqkit.spark")


class PullRequests:
    """Builds the frames of pulls that differ only in request id (opaque), offset and count.

    They have the binary header, with the fields in the order in which Java's consumers write them:
    brokers decode it faster than JSON. The header stores the length of each number before its text,
    so there is one template for each combination of digits.
    """

    def __init__(self, request: PullMessageRequest) -> None:
        self._ext = to_ext(request)
        self._template = cache(self._made)

    def frame(self, opaque: int, offset: int, count: int, sign: Sign | None = None) -> bytes:
        """Return the frame of a pull. With `sign` it is signed; a signature fits no template."""
        if sign is None:
            return self._template(len(str(offset)), len(str(count))) % (_opaque(opaque), offset, count)
        return _encoded(opaque, sign({**self._ext, "queueOffset": str(offset), "maxMsgNums": str(count)}, b""))

    def _made(self, offset_digits: int, count_digits: int) -> bytes:
        places = {"queueOffset": "1" * offset_digits, "maxMsgNums": "2" * count_digits}
        fields = binary_fields(places)
        before, _, after = _encoded(0, self._ext | places).partition(fields)
        parts = [part.replace(b"%", b"%%") for part in (before[:_OPAQUE_AT], before[_OPAQUE_AT + 4 :], after)]
        numbers = fields.replace(b"1" * offset_digits, b"%d").replace(b"2" * count_digits, b"%d")
        return parts[0] + b"%b" + parts[1] + numbers + parts[2]


def _encoded(opaque: int, ext: Mapping[str, str]) -> bytes:
    return frame(encode_request(RequestCode.PULL_MESSAGE, opaque, ext, codec=CODEC_ROCKETMQ), codec=CODEC_ROCKETMQ)


class Chunk(NamedTuple):
    """Consecutive records: their positions in `buffer`, or in the link's buffer if that is None."""

    buffer: bytes | None
    starts: list[int]


class RangeReader:
    """Reads one range: sends pulls, checks the responses, and builds batches.

    `schema` is that of `columns.row_schema`.
    """

    def __init__(self, queue_range: OffsetRange, options: SourceOptions, schema: pa.Schema) -> None:
        self.range = queue_range
        self._name = queue_range.key.name
        self.options = options
        self.schema = schema
        self.tags = options.tags
        self.pulls: Pulls[Chunk] = Pulls(queue_range.begin, queue_range.end, is_filtered=bool(self.tags))
        self.replicas = Replicas(queue_range.topic, queue_range.broker, options)
        request = PullMessageRequest(
            consumer_group=READER_GROUP,
            topic=queue_range.topic,
            queue_id=queue_range.queue,
            queue_offset=0,
            max_msg_nums=1,
            sys_flag=PullSysFlag.SUBSCRIPTION,
            subscription=" || ".join(options.tags) or "*",
            expression_type="TAG",
            max_msg_bytes=ANSWER_BYTES_MAX,
        )
        self._requests = PullRequests(request)
        #: Records that are not in a batch yet, and their number.
        self._chunks: list[Chunk] = []
        self._rows = 0
        self._missed = (-1, 0)
        self._decode_json = None
        if options.decode == "json":
            from rmqkit.spark.decode_json import JsonBodies

            self._decode_json = JsonBodies(schema)

    # --- the loop

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages by offset, in batches of about BATCH_ROWS rows.

        Raises DataLoss if messages are gone, NoRoute or PeerUnreachable if no member of the broker
        group returns them in time, BrokerError if the broker refuses, and CompressionMissing if a
        body's compression is not installed.
        """
        pulls, replicas = self.pulls, self.replicas
        try:
            while pulls.position < pulls.end:
                link = replicas.connected()
                try:
                    self._send(link)
                    self._receive(link)
                    for chunk in pulls.done():
                        self._chunks.append(chunk)
                        self._rows += len(chunk.starts)
                        replicas.progressed()
                except (_AskNextMember, _Later, PeerUnreachable, RemoteProtocolError, CorruptRecord) as trouble:
                    yield from self._flush(link)
                    pulls.restart()
                    if isinstance(trouble, _AskNextMember):
                        replicas.turn(*trouble.args)
                    elif isinstance(trouble, _Later):
                        time.sleep(PAUSE_MS / 1000)
                    else:
                        replicas.failed(trouble)
                    continue
                if (self._rows >= BATCH_ROWS or link.held >= BATCH_BYTES_MAX) and pulls.is_whole:
                    yield from self._flush(link)
            if replicas.link is not None:
                yield from self._flush(replicas.link)
        finally:
            replicas.release()

    def _send(self, link: Link) -> None:
        requests = []
        for pull in self.pulls.due():
            pull.opaque = link.opaque()
            requests.append(self._requests.frame(pull.opaque, pull.begin, pull.count, link.sign))
        if requests:
            link.send(b"".join(requests), len(requests))

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
        """Handle a response that is not simply the next messages.

        It is filtered, contains inner batches, or skips offsets.
        """
        buffer: Buffer = link.buffer
        unwrapped = None
        if any(_is_wrapped(buffer, start) for start in starts):
            buffer = unwrapped = _records_apart(bytes(link.buffer[answer.begin : answer.end]))
            starts = record_starts(buffer, 0, len(buffer))
        offsets = [_i64(buffer, start + POSITION_QUEUE_OFFSET)[0] for start in starts]
        offset_next = _offsets(answer).next_begin_offset
        if offset_next <= pull.begin:
            raise RemoteProtocolError(f"{link.address} returned messages at {pull.begin}, but next offset {offset_next}")
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
        """Handle a response without messages to the first pull in flight."""
        found = _offsets(answer)
        is_beyond = pull.begin >= found.max_offset
        range_there = f"has offsets {found.min_offset} to {found.max_offset}"
        if not is_beyond and found.min_offset <= pull.begin:
            if found.next_begin_offset <= pull.begin:
                raise _AskNextMember(self._lacks(f"{range_there}, but returns nothing"))
            if self.tags:
                self.pulls.brought(pull, Chunk(None, []), min(found.next_begin_offset, pull.end))
            else:
                self._left_out(pull, answer, found.next_begin_offset)
        elif self.replicas.read_from != "master":
            raise _AskNextMember(self._lacks(range_there))
        elif is_beyond:
            self._wait_for_the_end()
            self._lost(pull.end, found.min_offset, _why_beyond(pull.begin, found))
        else:
            cause = "retention deleted them (fileReservedTime, diskMaxUsedSpaceRatio) before they were read"
            self._lost(min(found.min_offset, pull.end), found.min_offset, cause)

    def _refused(self, pull: Pull[Chunk], answer: LinkReply) -> None:
        if answer.code == ResponseCode.TOPIC_NOT_EXIST and self.replicas.read_from == "master":
            self._wait_for_the_end()
            self._lost(pull.end, 0, "the topic was deleted", or_is_forgotten=True)
            return
        why = answer.remark or answer.code
        text = f"{self.range.broker} refuses to return messages of {self._name} from offset {pull.begin}: {why}"
        error = BrokerError(text, code=answer.code, remark=answer.remark)
        raise error if answer.code in _FINAL else _AskNextMember(error)

    def _left_out(self, pull: Pull[Chunk], answer: LinkReply, upto: int) -> None:
        offset, tries = self._missed
        self._missed = pull.begin, tries + 1 if offset == pull.begin else 1
        if self._missed[1] < MISSING_TRIES:
            raise _Later
        if self.replicas.read_from != "master":
            raise _AskNextMember(self._lacks(f"skips offsets {pull.begin} to {upto - 1}"))
        cause = "the broker skips them: their records are damaged, or retention is deleting them now"
        self._lost(min(upto, pull.end), min(upto, _offsets(answer).max_offset), cause)

    def _wait_for_the_end(self) -> None:
        if self.replicas.stuck_s() < CUT_WAIT_MS / 1000:
            raise _Later

    def _lost(self, upto: int, smallest: int, cause: str, *, or_is_forgotten: bool = False) -> None:
        """Report the loss of the offsets from the position up to `upto`, according to the master.

        Raises _AskNextMember if the member is no longer master, DataLoss if loss is not allowed.
        """
        if not self.replicas.is_master_now(or_is_forgotten=or_is_forgotten):
            raise _AskNextMember(self._lacks("is no longer master according to the name servers, and lacks messages"))
        wanted = self.pulls.position
        if self.options.fail_on_data_loss:
            raise DataLoss(self.range.key, wanted, smallest, cause)
        log.warning("%s: offsets %d to %d are gone and skipped; likely cause: %s", self._name, wanted, upto - 1, cause)
        self.pulls.restart(upto)
        self.replicas.progressed()

    def _lacks(self, what: str) -> PeerUnreachable:
        member = self.replicas.member
        who = "no member" if member is None else f"{self.replicas.read_from} {member.address}"
        return PeerUnreachable(
            f"{who} {what} (queue {self.range.queue}, next offset {self.pulls.position})", kind="behind", address=who
        )

    # --- columns

    def _flush(self, link: Link) -> Iterator[pa.RecordBatch]:
        """Yield the collected records as batches, and free the link's buffer."""
        chunks, self._chunks, self._rows = self._chunks, [], 0
        for buffer, some in groupby(chunks, key=lambda chunk: chunk.buffer):
            starts = np.fromiter(chain.from_iterable(chunk.starts for chunk in some), np.int64)
            if len(starts):
                yield from self._columns(DecodedRecords(link.buffer if buffer is None else buffer, starts))
        link.forget()

    def _columns(self, records: DecodedRecords) -> Iterator[pa.RecordBatch]:
        schema, decode_json = self.schema, self._decode_json
        if decode_json is not None:
            schema = arrow_schema(name for name in COLUMNS if name in schema.names or name == "body")
        are_broken = records.are_broken([*schema.names, "tags"] if self.tags else schema.names)
        if are_broken.any():
            records = self._sound(records, are_broken)
        if ((records.sys_flags & _WRAPPED) == _WRAPPED).any():
            records = _apart(records)
        if self.tags:
            are_tagged = pc.is_in(records.properties.named(PROPERTY_TAGS), value_set=pa.array(self.tags, pa.string()))
            records = records.at(are_tagged.to_numpy(zero_copy_only=False))
        if not records.count:
            return
        constants = {"topic": self.range.topic, "broker": self.range.broker, "read_from": self.replicas.read_from}
        for batch in batches_of(records, schema, constants):
            yield batch if decode_json is None else decode_json.add(batch)

    def _sound(self, records: DecodedRecords, are_broken: "np.ndarray[Any, np.dtype[np.bool_]]") -> DecodedRecords:
        """Return the records whose parts add up.

        The others count as lost if the master has the same damaged records.

        Raises PeerUnreachable if the member is not master, and DataLoss if loss is not allowed.
        """
        for row in np.flatnonzero(are_broken).tolist():
            offset, why = int(records.head(POSITION_QUEUE_OFFSET)[row]), records.damage(row)
            if not self.replicas.is_master_now():
                what = f"has a damaged record at offset {offset} of {self._name}; the group's master may have it intact"
                raise self._lacks(what)
            if self.options.fail_on_data_loss:
                raise DataLoss(self.range.key, offset, offset + 1, why)
            log.warning("%s: offset %d is skipped: %s", self._name, offset, why)
        return records.at(~are_broken)


class _AskNextMember(Exception):
    """The member cannot return the next messages, for the reason given: ask the next member."""


class _Later(Exception):
    """Ask the same member again after PAUSE_MS."""


def record_starts(buffer: Buffer, begin: int, end: int) -> list[int]:
    """Return where the records in `buffer[begin:end]` start.

    Raises CorruptRecord unless they fill it exactly.
    """
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
        raise CorruptRecord("the body of a pull response does not consist of whole records")
    return starts


def _is_wrapped(buffer: Buffer, start: int) -> bool:
    flags: int = _i32(buffer, start + POSITION_SYS_FLAG)[0]
    return flags & _WRAPPED == _WRAPPED


def _apart(records: DecodedRecords) -> DecodedRecords:
    """Return the records with inner batches split.

    Only inner batches of one message are left here: they do not shift offsets, so `_found` takes
    their response for plain messages.
    """
    view = records.data.data
    buffer = _records_apart(b"".join(view[start : start + _i32(view, start)[0]] for start in records.starts.tolist()))
    return DecodedRecords(buffer, record_starts(buffer, 0, len(buffer)))


def _records_apart(body: bytes) -> bytes:
    from rmqkit.client.consumers.pull import unwrapped_records

    return b"".join(map(encode_copy, unwrapped_records(body)))


def _offsets(answer: LinkReply) -> PullMessageResponse:
    return from_ext(PullMessageResponse, answer.fields)


def _why_beyond(wanted: int, found: PullMessageResponse) -> str:
    lost = "its end was lost in a crash before a flush or in a takeover by a broker without it"
    if wanted == found.max_offset:
        return f"the queue now ends at {wanted}: {lost}, or the topic was deleted and recreated"
    where = f"ends at {found.max_offset}, before the next offset"
    return f"the queue {where}: the topic was deleted and recreated, {lost}, or this is another cluster"
