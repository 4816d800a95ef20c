"""Configuration at run time: one request updates it, another returns it, as properties text.

Name servers (318, 319) and controllers (1009, 1010) share these rules:

- An update may contain only keys that the settings mark as live, and none of the black list. It
  applies to all its keys or to none.
- An update from another machine is refused, unless `remoteConfigUpdateEnable` is true.
- As in Apache, the new settings are also written to `configStorePath`. The request is answered
  once they are on disk.

Source: `remoting/.../Configuration.java`.
"""

from collections.abc import Set as AbstractSet
from typing import Any, Protocol

from rmqkit.config import NodeConfig, parse_properties
from rmqkit.errors import ConfigError
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.calls import LATER, REMOTE_UPDATE_REFUSED, Call, Response
from rmqkit.runtime.ports import Ports
from rmqkit.wire.codes import ResponseCode

TEXT_SIZE_MAX = 1024 * 1024


class ConfiguredNode(Protocol):
    """A node whose settings can be changed while it runs."""

    config: NodeConfig
    config_file: AtomicFile
    ports: Ports

    def use_config(self, config: NodeConfig) -> None:
        """Continue with new values of live settings."""


def config_text(node: ConfiguredNode) -> bytes:
    """Return the current settings as properties text."""
    return node.config.properties_text().encode()


def update_config(node: ConfiguredNode, call: Call[Any], black_list: AbstractSet[str]) -> Response:
    """Apply the properties in the body of a call, and answer once they are on disk."""
    if call.conn.is_remote and not node.config.limits.remote_config_update:
        return call.error(ResponseCode.NO_PERMISSION, REMOTE_UPDATE_REFUSED)
    if len(call.body) > TEXT_SIZE_MAX:
        return call.error(ResponseCode.SYSTEM_ERROR, f"a configuration text has at most {TEXT_SIZE_MAX} bytes")
    try:
        changes = parse_properties(call.body.decode())
        if not black_list.isdisjoint(changes):
            return call.error(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        config = node.config.updated(changes)
    except (ConfigError, UnicodeDecodeError) as error:
        return call.error(ResponseCode.SYSTEM_ERROR, str(error))
    if not changes:
        return call.ok()
    call.changing()
    node.use_config(config)
    node.ports.log.info("config-updated", peer=str(call.conn.peer), **changes)
    node.config_file.save(lambda: config_text(node), lambda: call.finish(_saved(node, call)))
    return LATER


def _saved(node: ConfiguredNode, call: Call[Any]) -> Response:
    error = node.config_file.error
    if error is None:
        return call.ok()
    node.ports.log.error("config-not-written", error=str(error))
    return call.error(ResponseCode.SYSTEM_ERROR, f"changed, but {node.config_file.path} cannot be written: {error}")
