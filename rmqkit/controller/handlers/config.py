"""Configuration at run time: 1009 updates it, 1010 returns it (`rmqkit.runtime.live_config`).

It is not replicated: administrators send an update to each controller.

Source: `controller/.../processor/ControllerRequestProcessor.java` (`handleUpdateControllerConfig`,
`initConfigBlackList`).
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import inner, inner_change
from rmqkit.runtime import live_config
from rmqkit.runtime.calls import Call, Handlers, Response
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schema import NoFields

if TYPE_CHECKING:
    from rmqkit.controller.view import ControllerView

BLACK_LIST = frozenset(("configBlackList", "configStorePath", "rocketmqHome"))

rows = Handlers()


@rows.handles(RequestCode.UPDATE_CONTROLLER_CONFIG, NoFields, access=inner_change)
def update_config(controller: "ControllerView", call: Call[NoFields]) -> Response:
    return live_config.update_config(controller, call, BLACK_LIST)


@rows.handles(RequestCode.GET_CONTROLLER_CONFIG, NoFields, access=inner)
def get_config(controller: "ControllerView", call: Call[NoFields]) -> Response:
    return call.ok(body=live_config.config_text(controller))
