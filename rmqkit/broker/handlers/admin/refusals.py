"""Requests that this broker recognizes but refuses, with the reason in the answer.

A code without a row gets a bare REQUEST_CODE_NOT_SUPPORTED from the handler table; the codes here
get a reason too. When a feature is built, its code moves to a row of its own. The two RocksDB codes
are answered as by an Apache broker that does not use RocksDB.

Source: `broker/.../processor/AdminBrokerProcessor.{updateAndCreateStaticTopic,
doCheckRocksdbCqWriteProgress,exportRocksDBConfigToJson}`.
"""

from typing import TYPE_CHECKING, Any

from rmqkit.access.rules import GET, UPDATE, on_cluster, on_topic
from rmqkit.runtime.calls import Call, Handlers, Response
from rmqkit.wire import fastjson
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.admin import CheckRocksdbCqWriteProgressRequest

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()

#: code -> why it is refused
REFUSED = {
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: (
        "static topics are not built: create the topic with updateTopic, which gives each broker queues of its own"
    ),
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: "this broker's tables are JSON files already, see the store's folder config",
}
ROCKSDB_CHECK = {"checkResult": "It is not CombineConsumeQueueStore, no need check", "checkStatus": 0}


def refuse(broker: "BrokerView", call: Call[Any]) -> Response:
    """Answer REQUEST_CODE_NOT_SUPPORTED with the reason from `REFUSED`."""
    why = REFUSED[RequestCode(call.code)]
    return call.error(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {call.code} not supported: {why}")


for _code in REFUSED:
    rows.handles(_code, NoFields, access=on_cluster(UPDATE))(refuse)


@rows.handles(RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, CheckRocksdbCqWriteProgressRequest, access=on_topic(GET))
def check_rocksdb(broker: "BrokerView", call: Call[CheckRocksdbCqWriteProgressRequest]) -> Response:
    """Answer that there is nothing to check without RocksDB.

    (Apache answers that its check has begun, and logs this text.)
    """
    return call.ok(body=fastjson.dumps(ROCKSDB_CHECK))
