"""Configuration at run time: 1009 updates it, 1010 returns it, both as properties text.

- An update may contain only keys that the settings mark as live, and no path. It applies to all
  its keys or to none. It is not replicated: administrators send it to each controller.
- An update from another machine is refused, unless `remoteConfigUpdateEnable` is true.
- As in Apache, the new settings are also written to `configStorePath`. The request is answered
  once they are on disk.

Source: `controller/.../processor/ControllerRequestProcessor.java` (`handleUpdateControllerConfig`,
`initConfigBlackList`).
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import inner, inner_change
from rmqkit.config import parse_properties
from rmqkit.errors import ConfigError
from rmqkit.runtime.calls import LATER, REMOTE_UPDATE_REFUSED, Call, Handlers, Response
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields

if TYPE_CHECKING:
    from rmqkit.controller.view import ControllerView

BLACK_LIST = frozenset(("configBlackList", "configStorePath", "rocketmqHome"))
TEXT_SIZE_MAX = 1024 * 1024

rows = Handlers()


@rows.handles(RequestCode.UPDATE_CONTROLLER_CONFIG, NoFields, access=inner_change)
def update_config(controller: "ControllerView", call: Call[NoFields]) -> Response:
    if call.conn.is_remote and not controller.config.limits.remote_config_update:
        return call.error(ResponseCode.NO_PERMISSION, REMOTE_UPDATE_REFUSED)
    if len(call.body) > TEXT_SIZE_MAX:
        return call.error(ResponseCode.SYSTEM_ERROR, f"a configuration text has at most {TEXT_SIZE_MAX} bytes")
    try:
        changes = parse_properties(call.body.decode())
        if not BLACK_LIST.isdisjoint(changes):
            return call.error(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        config = controller.config.updated(changes)
    except (ConfigError, UnicodeDecodeError) as error:
        return call.error(ResponseCode.SYSTEM_ERROR, str(error))
    if not changes:
        return call.ok()
    call.changing()
    controller.use_config(config)
    controller.ports.log.info("config-updated", peer=str(call.conn.peer), **changes)
    controller.config_file.save(
        lambda: controller.config.properties_text().encode(), lambda: call.finish(_saved(controller, call))
    )
    return LATER


@rows.handles(RequestCode.GET_CONTROLLER_CONFIG, NoFields, access=inner)
def get_config(controller: "ControllerView", call: Call[NoFields]) -> Response:
    return call.ok(body=controller.config.properties_text().encode())


def _saved(controller: "ControllerView", call: Call[NoFields]) -> Response:
    error = controller.config_file.error
    if error is None:
        return call.ok()
    controller.ports.log.error("config-not-written", error=str(error))
    return call.error(ResponseCode.SYSTEM_ERROR, f"changed, but {controller.config_file.path} cannot be written: {error}")
