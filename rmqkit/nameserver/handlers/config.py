"""Configuration at run time: 318 updates it, 319 returns it, both as properties text.

- An update may contain only keys that the settings mark as live, and no path. It applies to all
  its keys or to none.
- An update from another machine is refused, unless `remoteConfigUpdateEnable` is true.
- As in Apache, the new settings are also written to `configStorePath`. The request is answered
  once they are on disk.

Source: `namesrv/.../processor/DefaultRequestProcessor.java` (`updateConfig`, `getConfig`),
`remoting/.../Configuration.java`.
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, UPDATE, on_cluster
from rmqkit.config import parse_properties
from rmqkit.errors import ConfigError
from rmqkit.runtime.calls import LATER, REMOTE_UPDATE_REFUSED, Call, Handlers, Response
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields

if TYPE_CHECKING:
    from rmqkit.nameserver.view import NameServerView

BLACK_LIST = frozenset(("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"))
TEXT_SIZE_MAX = 1024 * 1024

rows = Handlers()


@rows.handles(RequestCode.UPDATE_NAMESRV_CONFIG, NoFields, access=on_cluster(UPDATE))
def update_config(ns: "NameServerView", call: Call[NoFields]) -> Response:
    if call.conn.is_remote and not ns.config.limits.remote_config_update:
        return call.error(ResponseCode.NO_PERMISSION, REMOTE_UPDATE_REFUSED)
    if len(call.body) > TEXT_SIZE_MAX:
        return call.error(ResponseCode.SYSTEM_ERROR, f"a configuration text has at most {TEXT_SIZE_MAX} bytes")
    try:
        changes = parse_properties(call.body.decode())
        if not BLACK_LIST.isdisjoint(changes):
            return call.error(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        config = ns.config.updated(changes)
    except (ConfigError, UnicodeDecodeError) as error:
        return call.error(ResponseCode.SYSTEM_ERROR, str(error))
    if not changes:
        return call.ok()
    call.changing()
    ns.use_config(config)
    ns.ports.log.info("config-updated", peer=str(call.conn.peer), **changes)
    ns.config_file.save(lambda: config_text(ns), lambda: call.finish(_saved(ns, call)))
    return LATER


@rows.handles(RequestCode.GET_NAMESRV_CONFIG, NoFields, access=on_cluster(GET))
def get_config(ns: "NameServerView", call: Call[NoFields]) -> Response:
    return call.ok(body=config_text(ns))


def config_text(ns: "NameServerView") -> bytes:
    """Return the current settings as properties text."""
    return ns.config.properties_text().encode()


def _saved(ns: "NameServerView", call: Call[NoFields]) -> Response:
    error = ns.config_file.error
    if error is None:
        return call.ok()
    ns.ports.log.error("config-not-written", error=str(error))
    return call.error(ResponseCode.SYSTEM_ERROR, f"changed, but {ns.config_file.path} cannot be written: {error}")
