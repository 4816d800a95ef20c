"""Requests about the broker itself: runtime facts, and messages by offset or key.

`rows` also has the other requests that only administrators send.

Source: `broker/.../processor/AdminBrokerProcessor.getBrokerRuntimeInfo`,
`broker/.../processor/QueryMessageProcessor.java`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, SUB, after_read, on_cluster, on_topic
from rmqkit.broker.handlers.admin import config, queues, refusals, stats
from rmqkit.broker.handlers.consumers import group_offsets
from rmqkit.broker.handlers.demands import stored_in
from rmqkit.runtime.calls import Call, Handlers, Response
from rmqkit.runtime.connection import Buffer
from rmqkit.wire.bodies import KVTable
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.messages import QueryMessageRequest, QueryMessageResponse, ViewMessageRequest

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers(config.rows, group_offsets.rows, queues.rows, refusals.rows, stats.rows)

#: bytes of records in an answer to a query; sending more than `outboxMax` at once would close the
#: connection
QUERY_SIZE_MAX = 16 * 1024 * 1024
#: facts in bytes that upstream shows with a unit, which tools expect
IN_UNITS = ("remainHowManyDataToCommit", "remainHowManyDataToFlush")


@rows.handles(RequestCode.GET_BROKER_RUNTIME_INFO, NoFields, access=on_cluster(GET))
def runtime_info(broker: "BrokerView", call: Call[NoFields]) -> Response:
    table = broker.facts()
    table |= {name: readable(int(table[name])) for name in IN_UNITS if name in table}
    return call.ok(body=KVTable(table=table).encode())


def readable(size: int) -> str:
    """Format a number of bytes like `MixAll.humanReadableByteCount`: "17 B", "1.5 KiB"."""
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, 6)
    return f"{size / 1024**power:.1f} {' KMGTPE'[power]}iB"


@rows.handles(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest, access=after_read("T:S/g of the stored message"))
def view(broker: "BrokerView", call: Call[ViewMessageRequest]) -> Response:
    record = broker.store.record(call.args.offset) if call.args.offset >= 0 else None
    if record is None:
        return call.error(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {call.args.offset}")
    if call.caller is not None:
        call.demand(stored_in(record, SUB, GET))
    return call.ok(body=record)


@rows.handles(RequestCode.QUERY_MESSAGE, QueryMessageRequest, access=on_topic(SUB, GET))
def query(broker: "BrokerView", call: Call[QueryMessageRequest]) -> Response:
    """Find messages by key, by unique key or, with `index_type` T, by tag.

    By unique key at most `defaultQueryMaxNum` messages are returned, whatever the request says. If
    the records exceed `QUERY_SIZE_MAX`, only the newest are returned, as many as fit.
    """
    args = call.args
    count_max = broker.config.pull.default_query_max_num if args.unique_key_query else args.max_num
    hits = broker.store.query(
        args.topic,
        f"T#{args.key}" if args.index_type == "T" else args.key,
        count_max=max(1, min(count_max, broker.config.index.max_msgs_num_batch)),
        begin_ms=args.begin_timestamp,
        end_ms=args.end_timestamp,
    )
    ext = QueryMessageResponse(
        index_last_update_timestamp=hits.updated_ms, index_last_update_phyoffset=hits.updated_phy_offset
    )
    if not hits.buffers:
        return Response(ResponseCode.QUERY_NOT_FOUND, ext, b"", "can not find message, maybe time range not correct")
    return call.ok(ext, _newest(hits.buffers))


def _newest(records: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return the last records, as many as fit into one answer; at least one."""
    size = 0
    for at in range(len(records) - 1, -1, -1):
        size += len(records[at])
        if size > QUERY_SIZE_MAX and at < len(records) - 1:
            return records[at + 1 :]
    return records
