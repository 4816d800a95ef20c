"""Requests that read the broker's settings, or change them at run time.

A change is checked as a whole before any of it takes effect. If it contains a key that cannot be
changed live (such as a path), it is refused and nothing changes. Changes from another machine are
refused unless `remoteConfigUpdateEnable` is set. A change is answered when it is saved
(`live_settings`).

Source: `broker/.../processor/AdminBrokerProcessor.{updateBrokerConfig,getBrokerConfig}`.
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, UPDATE, on_cluster
from rmqkit.broker.handlers.admin.table_saves import answer_when_kept
from rmqkit.config import parse_properties
from rmqkit.errors import ConfigError
from rmqkit.runtime.calls import REMOTE_UPDATE_REFUSED, Call, Handlers, Refused, Response
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas.admin import GetBrokerConfigResponse

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()


@rows.handles(RequestCode.GET_BROKER_CONFIG, NoFields, access=on_cluster(GET))
def get_config(broker: "BrokerView", call: Call[NoFields]) -> Response:
    version = broker.live_settings.version.encode().decode()
    return call.ok(GetBrokerConfigResponse(version=version), broker.config.properties_text().encode())


@rows.handles(RequestCode.UPDATE_BROKER_CONFIG, NoFields, access=on_cluster(UPDATE))
def update_config(broker: "BrokerView", call: Call[NoFields]) -> Response:
    """Apply changed settings and save them. Raises Refused, and then changes nothing."""
    if call.conn.is_remote and not broker.config.limits.remote_config_update:
        raise Refused(ResponseCode.NO_PERMISSION, REMOTE_UPDATE_REFUSED)
    try:
        changes = parse_properties(call.body.decode())
        config = broker.config.updated(changes)
    except (ConfigError, UnicodeDecodeError) as error:
        raise Refused(ResponseCode.NO_PERMISSION, str(error)) from None
    if not changes:
        return call.ok()
    call.changing()
    broker.live_settings.note(broker.config, config, changes)
    broker.apply_config(config)
    broker.log.info("config-updated", keys=",".join(sorted(changes)), by=str(call.conn.peer))
    return answer_when_kept(call, broker.live_settings, broker.live_settings.save, broker.live_settings.path)
