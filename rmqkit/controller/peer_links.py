"""PeerLinks: carries messages of the log to the other controllers (60010).

A message is a request with an answer, so that a peer that went away without closing its connection
is noticed: without any answer the connection is closed, and dialled again by the next message. No
message is repeated; the log repeats what matters.
"""

from rmqkit.controller.contract import MESSAGE_SIZE_MAX
from rmqkit.controller.group import ControllerGroup
from rmqkit.runtime.calls import Outcome, Reply
from rmqkit.runtime.ports import Log
from rmqkit.runtime.remoting import Remoting
from rmqkit.wire.codes import OwnRequestCode
from rmqkit.wire.schemas.controller import ControllerPeerRequest

ANSWER_TIMEOUT_MS = 3000
#: unsent bytes to a peer above which further messages are dropped
UNSENT_MAX = 2 * MESSAGE_SIZE_MAX


class PeerLinks:
    """The connections to the other controllers. `dropped` counts messages that were not sent."""

    def __init__(self, remoting: Remoting, group: ControllerGroup, log: Log) -> None:
        self.dropped = 0
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
            self.dropped += 1
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
