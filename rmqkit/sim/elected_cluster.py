"""`ElectedCluster`: a cluster with controllers, slow disks, and Apache's answers to a restart.

With `keeps_epochs` the controllers name a restarted master again in the epoch that it had, as
Apache's do if nobody has noticed the restart. rmqkit's begin a new epoch with each start of a
master, so nothing else would show whether a broker can return in its epoch, without the end of its
log.
"""

from collections.abc import Callable, Mapping
from typing import Any

from rmqkit.controller.node import Controller
from rmqkit.controller.sets import decisions
from rmqkit.controller.view import ControllerView
from rmqkit.runtime.calls import Call, Handler, Response
from rmqkit.runtime.ports import Ports
from rmqkit.sim.cluster import SimCluster
from rmqkit.sim.process import NodeMaker
from rmqkit.sim.world import World
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.controller import (
    ElectMasterRequest,
    RegisterBrokerToControllerRequest,
    RegisterBrokerToControllerResponse,
)


class ElectedCluster(SimCluster):
    """As `SimCluster`. A sync of every disk takes `sync_us` (minimum, maximum)."""

    def __init__(self, world: World, *, sync_us: tuple[int, int], keeps_epochs: bool, **named: Any) -> None:
        self._sync_us = sync_us
        self._keeps_epochs = keeps_epochs
        super().__init__(world, **named)

    def add_node(self, name: str, make: NodeMaker, host: str) -> None:
        def made(ports: Ports) -> Any:
            self.world.process(name).disk.sync_us = self._sync_us
            return make(ports)

        super().add_node(name, made, host)

    def _controller(self, name: str) -> Callable[[Ports], Controller]:
        make = super()._controller(name)

        def made(ports: Ports) -> Controller:
            controller = make(ports)
            if self._keeps_epochs:
                keep_epochs(controller)
            return controller

        return made


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
