"""Defects of brokers in controller mode; see `table.py`. Drills on real processes find them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rmqkit.drill.defects.defect import Defect, defect, replace
from rmqkit.drill.plan import CONTROLLERS, Mode, ReplicationMode
from rmqkit.runtime.connection import Address

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker

PLAN: Mapping[str, Any] = {
    "fault": "kill",
    "target": "master",
    "mode": Mode(ReplicationMode.ALL_ACK),
    "replicas": 3,
    "controllers": CONTROLLERS,
}
#: how far the confirm offset of an elected master lags, in bytes
BEHIND = 64 * 1024

ELECTIONS: list[Defect] = []
_elected = partial(defect, ELECTIONS, family="elections", plan=PLAN)


@_elected(
    "elects-itself",
    "one-master-per-epoch",
    "a slave that hears of an election takes itself for the elected broker",
    needs="controller mode, three replicas, and the end of the master",
)
def _elects_itself(broker: Broker) -> None:
    election = broker.view.election
    if election is None:
        return
    follow = election._follow

    def heard(master: int, address: Address, epoch: int) -> None:
        if election.epoch < 0 or election.master is None:
            follow(master, address, epoch)
        else:
            own = Address.parse(broker.context.address_text)
            election._lead(own, epoch, frozenset({election.own_id}), 0)

    replace(election, "_follow", heard)


@_elected(
    "confirm-goes-back",
    "confirm-forward",
    "a master of a later epoch confirms less than the log that it was elected with",
    needs="controller mode, and the end of the master",
    issues=("#6665",),
)
def _confirm_goes_back(broker: Broker) -> None:
    election = broker.view.election
    if election is None:
        return
    states = election._sync_states
    update = states.update

    def behind() -> None:
        update()
        if states.is_on and states._master_epoch > 1:
            states._confirmed = max(0, states._confirmed - BEHIND)

    replace(states, "update", behind)
