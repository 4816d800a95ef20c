"""The group of controllers that this one belongs to, the name of their log, and links to peers.

`controllerDLegerPeers` names all of them; it never changes while they run. Without it, this
controller is alone and serves this machine.

A message of the log to a peer (60010) is a request with an answer, so that a peer that went away
without closing its connection is noticed: without any answer the connection is closed, and dialled
again by the next message. No message is repeated; the log repeats what matters.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rmqkit.controller.contract import MESSAGE_SIZE_MAX, ControllerPeer
from rmqkit.runtime.calls import Outcome, Reply
from rmqkit.runtime.connection import Address
from rmqkit.runtime.ports import Log
from rmqkit.runtime.remoting import Remoting
from rmqkit.settings.node_sections import ControllerSettings
from rmqkit.wire.codes import OwnRequestCode
from rmqkit.wire.schemas.controller import ControllerPeerRequest

#: Apache's names for a replicated log
DLEDGER = "DLedger"
SINGLE = "single"
RAFT = "raft"
ANSWER_TIMEOUT_MS = 3000
#: unsent bytes to a peer above which further messages are dropped
UNSENT_MAX = 2 * MESSAGE_SIZE_MAX


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


class PeerLinks:
    """The connections to the other controllers."""

    def __init__(self, remoting: Remoting, group: ControllerGroup, log: Log) -> None:
        self._remoting = remoting
        self._group = group
        self._log = log
        #: the last complaint of each peer, so that it is logged once
        self._refusals: dict[str, str] = {}

    def send(self, peer_id: str, message: bytes) -> None:
        """Send a message to a peer, or drop it."""
        address = self._group.address_of(peer_id)
        assert address is not None, f"no such peer: {peer_id}"
        conn = self._remoting.link(address)
        if len(message) > MESSAGE_SIZE_MAX or conn.out_size > UNSENT_MAX:
            return
        fields = ControllerPeerRequest(group=self._group.name, sender=self._group.self_id, receiver=peer_id)
        self._remoting.call(
            conn,
            OwnRequestCode.CONTROLLER_PEER,
            fields,
            message,
            timeout_ms=ANSWER_TIMEOUT_MS,
            then=lambda outcome: self._answered(peer_id, outcome),
        )

    def _answered(self, peer_id: str, outcome: Outcome) -> None:
        refusal = outcome.remark if isinstance(outcome, Reply) and not outcome.is_ok else ""
        if refusal and self._refusals.get(peer_id) != refusal:
            self._log.warning("controller-peer-refuses", peer=peer_id, reason=refusal)
        self._refusals[peer_id] = refusal
