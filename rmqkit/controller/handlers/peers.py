"""60010: messages of the log between the controllers of a group. The answer only says: arrived."""

from typing import TYPE_CHECKING

from rmqkit.access.rules import inner
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import Call, Handlers, Response
from rmqkit.runtime.names import shown
from rmqkit.wire.codes import OwnRequestCode, ResponseCode
from rmqkit.wire.schemas.controller import ControllerPeerRequest

if TYPE_CHECKING:
    from rmqkit.controller.view import ControllerView

rows = Handlers()


@rows.handles(OwnRequestCode.CONTROLLER_PEER, ControllerPeerRequest, access=inner)
def peer_message(controller: "ControllerView", call: Call[ControllerPeerRequest]) -> Response:
    args, group = call.args, controller.group
    is_peer = args.sender != group.self_id and group.address_of(args.sender) is not None
    if args.group != group.name or args.receiver != group.self_id or not is_peer:
        remark = (
            f"this is {group.self_id} of the controllers {shown(group.name)} with the peers {group.text}, and the message "
            f"is from {shown(args.sender)} to {shown(args.receiver)} of {shown(args.group)}: compare the settings"
        )
        return call.error(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
    call.changing()
    try:
        controller.log.receive(args.sender, call.body)
    except RemoteProtocolError as error:
        controller.ports.log.warning("peer-message-refused", sender=args.sender, peer=str(call.conn.peer), error=str(error))
        raise
    return call.ok()
