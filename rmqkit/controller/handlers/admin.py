"""Requests of administrators: 1005 who leads, 1006 broker sets, 1011 clean a broker away.

1005 is answered by every controller, the others by the leader. Brokers ask 1005 as well.

Source: `controller/.../processor/ControllerRequestProcessor.java`,
`tools/.../command/controller/*.java`.
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import inner, inner_change
from rmqkit.controller.sets import decisions
from rmqkit.runtime.calls import Call, Handlers, Refused, Response
from rmqkit.runtime.names import shown
from rmqkit.wire.bodies import decode_names
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
from rmqkit.wire.schemas import controller as schemas

if TYPE_CHECKING:
    from rmqkit.controller.view import ControllerView

rows = Handlers()


@rows.handles(RequestCode.CONTROLLER_GET_METADATA_INFO, NoFields, access=inner)
def get_metadata(controller: "ControllerView", call: Call[NoFields]) -> Response:
    leadership, facts = controller.log.leadership, controller.log.facts()
    problem = controller.log.failed or "; ".join(facts[each] for each in ("waits", "refuses") if each in facts)
    return call.ok(
        schemas.GetMetaDataResponse(
            group=controller.group.name,
            controller_leader_id=leadership.id or None,
            controller_leader_address=leadership.address or None,
            is_leader=leadership.is_self,
            peers=controller.group.text,
            problem=problem or None,
            term=leadership.term,
        )
    )


@rows.handles(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, NoFields, access=inner)
def get_sync_state_data(controller: "ControllerView", call: Call[NoFields]) -> Response:
    names = decode_names(call.body)
    return controller.decide(call, lambda: decisions.get_sync_state_data(controller.sets, controller.live, names))


@rows.handles(RequestCode.CLEAN_BROKER_DATA, schemas.CleanControllerBrokerDataRequest, access=inner_change)
def clean_broker_data(controller: "ControllerView", call: Call[schemas.CleanControllerBrokerDataRequest]) -> Response:
    text = call.args.broker_controller_ids_to_clean or ""
    try:
        ids = [int(each) for each in text.split(";") if each.strip()]
    except ValueError:
        remark = f"brokerControllerIdsToClean {shown(text)}: must be ids separated by ;"
        raise Refused(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, remark) from None
    return controller.decide(call, lambda: decisions.clean_broker_data(controller.sets, controller.live, call.args, ids))
