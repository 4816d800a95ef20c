"""KV configuration: 100 put, 101 get, 102 delete, 219 list of a namespace.

A change is answered once its file is durable. If the write fails, the change stays in memory, and
the answer is an error that says so.

Source: `namesrv/.../processor/DefaultRequestProcessor.java` (`putKVConfig` and its neighbours).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rmqkit.access.rules import GET, UPDATE, on_cluster
from rmqkit.runtime.calls import LATER, Call, Handlers, Response
from rmqkit.wire.bodies import KVTable
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schemas import nameserver as schemas

if TYPE_CHECKING:
    from rmqkit.nameserver.view import NameServerView

rows = Handlers()


@rows.handles(RequestCode.PUT_KV_CONFIG, schemas.PutKVConfigRequest, access=on_cluster(UPDATE))
def put_kv_config(ns: "NameServerView", call: Call[schemas.PutKVConfigRequest]) -> Response:
    args = call.args
    ns.kv.check_put(args.namespace, args.key, args.value)
    call.changing()
    ns.kv.put(args.namespace, args.key, args.value, _when_kept(ns, call))
    return LATER


@rows.handles(RequestCode.GET_KV_CONFIG, schemas.GetKVConfigRequest, access=on_cluster(GET))
def get_kv_config(ns: "NameServerView", call: Call[schemas.GetKVConfigRequest]) -> Response:
    namespace, key = call.args.namespace, call.args.key
    value = ns.kv.get(namespace, key)
    if value is None:
        return call.error(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace} Key: {key}")
    return call.ok(schemas.GetKVConfigResponse(value=value))


@rows.handles(RequestCode.DELETE_KV_CONFIG, schemas.DeleteKVConfigRequest, access=on_cluster(UPDATE))
def delete_kv_config(ns: "NameServerView", call: Call[schemas.DeleteKVConfigRequest]) -> Response:
    call.changing()
    ns.kv.delete(call.args.namespace, call.args.key, _when_kept(ns, call))
    return LATER


@rows.handles(RequestCode.GET_KVLIST_BY_NAMESPACE, schemas.GetKVListByNamespaceRequest, access=on_cluster(GET))
def get_kv_list_by_namespace(ns: "NameServerView", call: Call[schemas.GetKVListByNamespaceRequest]) -> Response:
    table = ns.kv.namespace(call.args.namespace)
    if table is None:
        return call.error(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {call.args.namespace}")
    return call.ok(body=KVTable(table=dict(table)).encode())


def _when_kept(ns: "NameServerView", call: Call[Any]) -> Callable[[], None]:
    def finish() -> None:
        error = ns.kv.error
        if error is None:
            call.finish(call.ok())
        else:
            ns.ports.log.error("kv-config-not-written", error=str(error))
            remark = f"changed in memory, but {ns.config.nameserver.kv_config_path} cannot be written: {error}"
            call.finish(call.error(ResponseCode.SYSTEM_ERROR, remark))

    return finish
