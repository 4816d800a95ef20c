"""Configuration at run time: 318 updates it, 319 returns it (`rmqkit.runtime.live_config`).

Source: `namesrv/.../processor/DefaultRequestProcessor.java` (`updateConfig`, `getConfig`).
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, UPDATE, on_cluster
from rmqkit.runtime import live_config
from rmqkit.runtime.calls import Call, Handlers, Response
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schema import NoFields

if TYPE_CHECKING:
    from rmqkit.nameserver.view import NameServerView

BLACK_LIST = frozenset(("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"))

rows = Handlers()


@rows.handles(RequestCode.UPDATE_NAMESRV_CONFIG, NoFields, access=on_cluster(UPDATE))
def update_config(ns: "NameServerView", call: Call[NoFields]) -> Response:
    return live_config.update_config(ns, call, BLACK_LIST)


@rows.handles(RequestCode.GET_NAMESRV_CONFIG, NoFields, access=on_cluster(GET))
def get_config(ns: "NameServerView", call: Call[NoFields]) -> Response:
    return call.ok(body=live_config.config_text(ns))
