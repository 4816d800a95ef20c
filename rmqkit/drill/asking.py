"""Asking nodes directly: one connection to one node, whatever routes say. For watching replicas and for the last reading.

A connection is to one process: what is asked over it belongs to one run of the node (`boot`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from rmqkit.cluster.caller import Caller, NoAnswer
from rmqkit.errors import CorruptRecord, RemoteProtocolError
from rmqkit.wire import properties as props
from rmqkit.wire.bodies import KVTable, TopicRoute
from rmqkit.wire.codes import PullSysFlag, RequestCode, ResponseCode
from rmqkit.wire.properties_text import decode as decode_properties
from rmqkit.wire.record import Record, iter_records
from rmqkit.wire.schema import from_ext
from rmqkit.wire.schemas.nameserver import GetRouteInfoRequest
from rmqkit.wire.schemas.offsets import (
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    GetMinOffsetRequest,
    GetMinOffsetResponse,
    QueryConsumerOffsetRequest,
    QueryConsumerOffsetResponse,
)
from rmqkit.wire.schemas.pull import PullMessageRequest, PullMessageResponse

READER_GROUP = "TOOLS_CONSUMER"
PULL_COUNT = 500
#: how often a single record that an answer passed over is asked for
MISSING_TRIES = 3
#: answers of a queue that has nothing more
AT_END = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)

SILENT = (NoAnswer, RemoteProtocolError, CorruptRecord)


class Asked:
    """A connection to one node. Every call raises one of `SILENT` when there is no good answer in time."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._caller = Caller(host, port, time.monotonic() + timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._caller.__exit__(None, None, None)

    def within(self, timeout_s: float) -> Self:
        """Give the calls that follow so long, together."""
        self._caller.allow(timeout_s)
        return self

    def runtime(self) -> dict[str, str]:
        return KVTable.decode(self._caller.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body).table

    def config(self) -> dict[str, str]:
        return decode_properties(self._caller.ask(RequestCode.GET_BROKER_CONFIG).body)

    def route(self, topic: str) -> dict[str, dict[int, str]]:
        """Of a name server: broker name → broker id → address."""
        answer = self._caller.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequest(topic=topic))
        datas = TopicRoute.decode(answer.body).broker_datas
        return {each.broker_name: {int(key): text for key, text in each.broker_addrs.items()} for each in datas}

    def committed(self, group: str, topic: str, queue: int) -> int | None:
        """What the node holds as a group's offset; None when it has none."""
        request = QueryConsumerOffsetRequest(consumer_group=group, topic=topic, queue_id=queue, set_zero_if_not_found=False)
        answer = self._caller.call(RequestCode.QUERY_CONSUMER_OFFSET, request)
        if answer.head.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if answer.head.code != ResponseCode.SUCCESS:
            raise NoAnswer(f"answer {answer.head.code}: {answer.head.remark}")
        return from_ext(QueryConsumerOffsetResponse, answer.head.ext_fields or {}).offset

    def offsets(self, topic: str, queue: int) -> tuple[int, int]:
        """First and end of a queue."""
        first = self._caller.ask(RequestCode.GET_MIN_OFFSET, GetMinOffsetRequest(topic=topic, queue_id=queue))
        end = self._caller.ask(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequest(topic=topic, queue_id=queue))
        offset_min = from_ext(GetMinOffsetResponse, first.head.ext_fields or {}).offset
        return offset_min, from_ext(GetMaxOffsetResponse, end.head.ext_fields or {}).offset

    def pull(self, topic: str, queue: int, offset: int, count: int = PULL_COUNT) -> tuple[Sequence[Record], int]:
        """Records from an offset on, and the offset to go on at."""
        answer = self._caller.call(
            RequestCode.PULL_MESSAGE,
            PullMessageRequest(
                consumer_group=READER_GROUP,
                topic=topic,
                queue_id=queue,
                queue_offset=offset,
                max_msg_nums=count,
                sys_flag=PullSysFlag.SUBSCRIPTION,
                subscription="*",
                expression_type="TAG",
            ),
        )
        if answer.head.code in AT_END:
            return (), offset
        if answer.head.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            return (), from_ext(PullMessageResponse, answer.head.ext_fields or {}).next_begin_offset
        if answer.head.code != ResponseCode.SUCCESS:
            raise NoAnswer(f"answer {answer.head.code}: {answer.head.remark}")
        fields = from_ext(PullMessageResponse, answer.head.ext_fields or {})
        return list(iter_records(answer.body)), fields.next_begin_offset

    def read(self, topic: str, queue: int, offset: int, end: int) -> Iterator[Record]:
        """All records of [offset, end). What an answer passes over is asked for again: only then is it missing."""
        while offset < end:
            records, following = self.pull(topic, queue, offset)
            if following <= offset:
                raise NoAnswer(f"nothing comes at offset {offset}, although the queue's end is {end}")
            yield from records
            there = {record.queue_offset for record in records}
            for missing in (each for each in range(offset, min(following, end)) if each not in there):
                yield from self._again(topic, queue, missing)
            offset = following

    def _again(self, topic: str, queue: int, offset: int) -> Iterator[Record]:
        for _ in range(MISSING_TRIES):
            found = [record for record in self.pull(topic, queue, offset, 1)[0] if record.queue_offset == offset]
            if found:
                yield found[0]
                return


def key_of(record: Record) -> str:
    return (props.find(record.properties, props.PROPERTY_KEYS.encode()) or b"").decode("utf-8", "replace")
