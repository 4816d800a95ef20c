"""The broker itself: its configuration (read, change live), runtime facts, single messages by offset or key.

A configuration change is checked whole before any of it takes effect; keys that are not on the live list, paths above
all, are refused and nothing changes.

Source: `broker/.../processor/AdminBrokerProcessor.{updateBrokerConfig,getBrokerConfig,getBrokerRuntimeInfo}`,
`broker/.../processor/QueryMessageProcessor.java`.
"""

from typing import TYPE_CHECKING

from rmqkit.errors import ConfigError
from rmqkit.runtime.calls import Call, Handlers, Refused, Response
from rmqkit.wire import properties_text
from rmqkit.wire.bodies import KVTable
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.admin import GetBrokerConfigResponse
from rmqkit.wire.schemas.messages import QueryMessageRequest, QueryMessageResponse, ViewMessageRequest

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker

rows = Handlers()


@rows.handles(RequestCode.GET_BROKER_CONFIG, NoFields)
def get_config(broker: "Broker", call: Call[NoFields]) -> Response:
    version = broker.topics.version.encode().decode()
    return call.ok(GetBrokerConfigResponse(version=version), broker.config.properties_text().encode())


@rows.handles(RequestCode.UPDATE_BROKER_CONFIG, NoFields)
def update_config(broker: "Broker", call: Call[NoFields]) -> Response:
    changes = properties_text.decode(call.body)
    try:
        config = broker.config.updated(changes)
    except ConfigError as error:
        raise Refused(ResponseCode.NO_PERMISSION, str(error)) from None
    call.changing()
    broker.apply_config(config)
    broker.log.info("config-updated", keys=",".join(sorted(changes)), by=str(call.conn.peer))
    return call.ok()


@rows.handles(RequestCode.GET_BROKER_RUNTIME_INFO, NoFields)
def runtime_info(broker: "Broker", call: Call[NoFields]) -> Response:
    return call.ok(body=KVTable(table=broker.facts()).encode())


@rows.handles(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest)
def view(broker: "Broker", call: Call[ViewMessageRequest]) -> Response:
    record = broker.store.record(call.args.offset) if call.args.offset >= 0 else None
    if record is None:
        return call.error(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {call.args.offset}")
    return call.ok(body=record)


@rows.handles(RequestCode.QUERY_MESSAGE, QueryMessageRequest)
def query(broker: "Broker", call: Call[QueryMessageRequest]) -> Response:
    args = call.args
    count_max = broker.config.pull.default_query_max_num if args.unique_key_query else args.max_num
    hits = broker.store.query(
        args.topic,
        args.key,
        count_max=max(1, min(count_max, broker.config.index.max_msgs_num_batch)),
        begin_ms=args.begin_timestamp,
        end_ms=args.end_timestamp,
    )
    ext = QueryMessageResponse(
        index_last_update_timestamp=hits.updated_ms, index_last_update_phyoffset=hits.updated_phy_offset
    )
    if not hits.buffers:
        return Response(ResponseCode.QUERY_NOT_FOUND, ext, b"", "can not find message, maybe time range not correct")
    return call.ok(ext, hits.buffers)
