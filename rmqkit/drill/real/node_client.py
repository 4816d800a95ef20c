"""Requests to a single node over one connection, whatever routes say.

The watcher and the last reading use it to ask each replica, lockers and members that pop to ask the
broker that the route names. A connection belongs to one process, so all its answers come from the
same run of the node (`boot`).
"""

import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from rmqkit.client.message import MessageExt
from rmqkit.cluster.health.caller import Caller, NoAnswer, checked
from rmqkit.drill.services.pop_requests import SERVED, popped_messages
from rmqkit.errors import CorruptRecord, RemoteProtocolError
from rmqkit.wire import properties as props
from rmqkit.wire.bodies import KVTable, LockBatchAnswer, LockBatchBody, MemberGroupBody, TopicRoute
from rmqkit.wire.bodies.pop import ReceiptHandle
from rmqkit.wire.codes import PermName, PullSysFlag, RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.properties_text import decode as decode_properties
from rmqkit.wire.record import Record, iter_records
from rmqkit.wire.schema import from_ext
from rmqkit.wire.schemas.nameserver import GetBrokerMemberGroupRequest, GetRouteInfoRequest
from rmqkit.wire.schemas.offsets import (
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    GetMinOffsetRequest,
    GetMinOffsetResponse,
    QueryConsumerOffsetRequest,
    QueryConsumerOffsetResponse,
)
from rmqkit.wire.schemas.pop import AckMessageRequest, PopMessageRequest, PopMessageResponse
from rmqkit.wire.schemas.pull import PullMessageRequest, PullMessageResponse

READER_GROUP = "TOOLS_CONSUMER"
PULL_COUNT = 500
#: how often a single record that an answer skipped is requested
MISSING_TRIES = 3
#: answers of a queue without more messages
AT_END = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)

SILENT = (NoAnswer, RemoteProtocolError, CorruptRecord)


class NodeClient:
    """A connection to one node.

    Every call raises one of `SILENT` if no valid answer arrives in time.
    """

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._caller = Caller(host, port, time.monotonic() + timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._caller.__exit__(None, None, None)

    def within(self, timeout_s: float) -> Self:
        """Allow `timeout_s` for all following calls together."""
        self._caller.allow(timeout_s)
        return self

    def runtime(self) -> dict[str, str]:
        """Return the broker's runtime facts (code 28)."""
        return KVTable.decode(self._caller.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body).table

    def config(self) -> dict[str, str]:
        return decode_properties(self._caller.ask(RequestCode.GET_BROKER_CONFIG).body)

    def route(self, topic: str) -> dict[str, dict[int, str]]:
        """Ask a name server; return broker name → broker id → address."""
        answer = self._caller.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequest(topic=topic))
        datas = TopicRoute.decode(answer.body).broker_datas
        return {each.broker_name: {int(key): text for key, text in each.broker_addrs.items()} for each in datas}

    def shown(self, topic: str, broker: str) -> tuple[str, bool]:
        """Ask a name server for the broker that clients see as id 0 of a group.

        Return its address ("" if there is none), and whether clients may write to the group.
        """
        answer = self._caller.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequest(topic=topic))
        if answer.head.code == ResponseCode.TOPIC_NOT_EXIST:
            return "", False
        route = TopicRoute.decode(checked(answer).body)
        address = next((each.broker_addrs.get(0, "") for each in route.broker_datas if each.broker_name == broker), "")
        writable = any(each.broker_name == broker and each.perm & PermName.PERM_WRITE for each in route.queue_datas)
        return address, writable

    def members(self, cluster: str, broker: str) -> list[int]:
        """Ask a name server which ids of a broker group it lists."""
        request = GetBrokerMemberGroupRequest(cluster_name=cluster, broker_name=broker)
        answer = self._caller.call(RequestCode.GET_BROKER_MEMBER_GROUP, request)
        group = MemberGroupBody.decode(checked(answer).body).broker_member_group
        return sorted(group.broker_addrs) if group is not None else []

    def lock(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> set[int]:
        """Ask for the locks of queues of one topic; return the granted queue ids."""
        body = LockBatchBody(client_id=client_id, consumer_group=group, mq_set=list(queues)).encode()
        answer = self._caller.ask(RequestCode.LOCK_BATCH_MQ, None, body)
        return {queue.queue_id for queue in LockBatchAnswer.decode(answer.body).lock_ok_mq_set}

    def unlock(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> bool:
        """Release locks. Return True once the broker has answered."""
        body = LockBatchBody(client_id=client_id, consumer_group=group, mq_set=list(queues)).encode()
        self._caller.ask(RequestCode.UNLOCK_BATCH_MQ, None, body)
        return True

    def pop(self, request: PopMessageRequest, broker: str) -> list[tuple[MessageExt, ReceiptHandle]]:
        """Pop messages; return them with their receipt handles.

        `broker` is the name of the node's group, which the handles contain.
        """
        answer = self._caller.call(RequestCode.POP_MESSAGE, request)
        if answer.head.code not in SERVED:
            raise NoAnswer(f"answer {answer.head.code}: {answer.head.remark}")
        if answer.head.code != ResponseCode.SUCCESS:
            return []
        return popped_messages(from_ext(PopMessageResponse, answer.head.ext_fields or {}), answer.body, broker)

    def ack(self, request: AckMessageRequest) -> bool:
        """Ack a popped message. Return True once the broker has answered."""
        self._caller.ask(RequestCode.ACK_MESSAGE, request)
        return True

    def committed(self, group: str, topic: str, queue: int) -> int | None:
        """Return the offset that the node holds for a group; None if it has none."""
        request = QueryConsumerOffsetRequest(consumer_group=group, topic=topic, queue_id=queue, set_zero_if_not_found=False)
        answer = self._caller.call(RequestCode.QUERY_CONSUMER_OFFSET, request)
        if answer.head.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if answer.head.code != ResponseCode.SUCCESS:
            raise NoAnswer(f"answer {answer.head.code}: {answer.head.remark}")
        return from_ext(QueryConsumerOffsetResponse, answer.head.ext_fields or {}).offset

    def offsets(self, topic: str, queue: int) -> tuple[int, int]:
        """Return the first offset of a queue, and its end (one past the last)."""
        first = self._caller.ask(RequestCode.GET_MIN_OFFSET, GetMinOffsetRequest(topic=topic, queue_id=queue))
        end = self._caller.ask(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequest(topic=topic, queue_id=queue))
        offset_min = from_ext(GetMinOffsetResponse, first.head.ext_fields or {}).offset
        return offset_min, from_ext(GetMaxOffsetResponse, end.head.ext_fields or {}).offset

    def pull(self, topic: str, queue: int, offset: int, count: int = PULL_COUNT) -> tuple[Sequence[Record], int]:
        """Return records from `offset` on, and the offset at which to continue."""
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
        """Yield all records of [offset, end).

        A record that an answer skips is requested again, up to `MISSING_TRIES` times. Only then is
        it missing.
        """
        while offset < end:
            records, following = self.pull(topic, queue, offset)
            if following <= offset:
                raise NoAnswer(f"the broker returned no message at offset {offset}, although the queue ends at {end}")
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
