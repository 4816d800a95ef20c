"""The group of controllers that this one belongs to, and the name of their log.

`controllerDLegerPeers` names all of them; it never changes while they run. Without it, this
controller is alone and serves this machine.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rmqkit.controller.contract import ControllerPeer
from rmqkit.runtime.connection import Address
from rmqkit.settings.controller_sections import ControllerSettings

#: Apache's names for a replicated log
DLEDGER = "DLedger"
SINGLE = "single"
RAFT = "raft"


class ControllerGroup(NamedTuple):
    """The controllers of a group, in the order of the settings."""

    name: str
    self_id: str
    peers: Sequence[ControllerPeer]

    def address_of(self, peer_id: str) -> Address | None:
        """Return where a peer serves requests, None for an unknown id."""
        return next((Address.parse(each.address) for each in self.peers if each.id == peer_id), None)

    @property
    def text(self) -> str:
        """The peers as 1005 names them: `n0:host:port;n1:host:port;`."""
        return "".join(f"{each.id}:{each.address};" for each in self.peers)


def group_of(settings: ControllerSettings, port: int) -> ControllerGroup:
    """Return the group. `port` is where this controller listens."""
    peers = [ControllerPeer(each.id, str(Address(each.host, each.port))) for each in settings.peers]
    if not peers:
        peers = [ControllerPeer(settings.self_id, str(Address("127.0.0.1", port)))]
    return ControllerGroup(settings.group, settings.self_id, peers)


def log_type_of(settings: ControllerSettings) -> str:
    """Return the name of the log in the hook `rmqkit_controller_logs`."""
    if settings.log_type != DLEDGER:
        return settings.log_type
    return RAFT if len(settings.peers) > 1 else SINGLE
