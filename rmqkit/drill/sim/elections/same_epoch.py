"""Controllers that name a restarted master again, in the epoch that it had.

Apache's controllers do so if nobody has noticed the restart; rmqkit's begin a new epoch with each
start of a master. In some seeds `keep_epochs` gives our controllers Apache's answers to 1002 and
1003, so a master may return in its epoch without the end of its log.
"""

from collections.abc import Mapping

from rmqkit.controller.node import Controller
from rmqkit.controller.sets import decisions
from rmqkit.controller.view import ControllerView
from rmqkit.runtime.calls import Call, Handler, Response
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.controller import (
    ElectMasterRequest,
    RegisterBrokerToControllerRequest,
    RegisterBrokerToControllerResponse,
)


def keep_epochs(controller: Controller) -> None:
    """Change the answers of a controller that has not started yet."""
    changed: Mapping[RequestCode, Handler] = {
        RequestCode.CONTROLLER_ELECT_MASTER: _elect,
        RequestCode.CONTROLLER_REGISTER_BROKER: _register,
    }
    for tag, rows in controller.remoting.tables.items():
        again = {int(code): rows[code]._replace(handler=handler) for code, handler in changed.items() if code in rows}
        controller.remoting.tables[tag] = {**rows, **again}


def _elect(view: ControllerView, call: Call[ElectMasterRequest]) -> Response:
    args = call.args

    def decide() -> decisions.Resolution:
        brokers = view.sets.get(args.broker_name)
        if brokers is not None and args.broker_id == brokers.master_id and not args.designate_elect:
            args.broker_id = decisions.NO_BROKER  # prefers a live master, also if it is the caller
        return decisions.elect_master(view.sets, view.live, args, unclean=view.config.controller.elect_unclean)

    return view.decide(call, decide)


def _register(view: ControllerView, call: Call[RegisterBrokerToControllerRequest]) -> Response:
    def decide() -> decisions.Resolution:
        found = decisions.register_broker(view.sets, view.live, call.args)
        name, broker_id = call.args.broker_name or "", call.args.broker_id
        brokers = view.sets.get(name)
        if (
            brokers is not None
            and brokers.master_id == broker_id is not None
            and view.live.is_alive(name, broker_id)
            and isinstance(found.ext, RegisterBrokerToControllerResponse)
        ):
            found.ext.master_broker_id, found.ext.master_address = broker_id, brokers.master_address
            found.ext.master_epoch, found.ext.sync_state_set_epoch = brokers.master_epoch, brokers.sync_epoch
        return found

    return view.decide(call, decide)
