"""Controllers: which of them leads, calls to the leader, heartbeats to all, and the lease.

The broker asks every controller for the leader (1005) each `syncControllerMetadataPeriod`, and each
`SEEK_MS` while no leader is known. It forgets a leader that does not answer, or that answers that
it does not lead (2007).

Each `brokerHeartbeatInterval` all controllers get a heartbeat (904): each of them keeps its own
table of live brokers. The leader is asked to answer. While the last answered heartbeat was sent
less than `lease_ms` ago, no controller has elected another master because this one was silent: the
*lease*. A master names its lease in its heartbeats. A controller of rmqkit counts it as dead when
five quarters of the lease are over, since the clocks of two machines may run at different speeds.
Apache's controllers wait for `controllerHeartBeatTimeoutMills`, T. So the lease is

- two fifths of T, at least three heartbeats and at most four fifths of T, if the controllers are
  rmqkit's: a silent master is replaced after half of T;
- four fifths of T at Apache's controllers, whose answers to heartbeats have no fields, and before
  the first answer.

A controller also considers a broker dead whose connection closes. That does not end the lease here
(the controller may have died instead), but this broker asks for the group's master at once.

Source: `broker/.../BrokerController.sendHeartbeat`, `BrokerOuterAPI.sendHeartbeatToController`,
`ReplicasManager.updateControllerMetadata`. Apache's brokers have no lease.
"""

from collections.abc import Callable
from functools import partial

from rmqkit.broker.context import BrokerContext
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome, Reply
from rmqkit.runtime.connection import Address
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import Ext
from rmqkit.wire.schemas.controller import BrokerHeartbeatResponse, GetMetaDataResponse
from rmqkit.wire.schemas.nameserver import BrokerHeartbeatRequest

LEADER_DUTY, HEARTBEAT_DUTY = "election-leader", "election-heartbeat"
#: pause between two rounds of questions while no leader is known
SEEK_MS = 250
#: how long a controller may take to answer; it waits for its log to be replicated
TIMEOUT_MS = 3000
#: the lease in fifths of the time-out of heartbeats, at rmqkit's controllers and at Apache's
LEASE_FIFTHS, LEASE_FIFTHS_MOST = 2, 4
LEASE_BEATS_LEAST = 3
LOOPBACK = ("127.", "localhost", "::1")

#: called with the answer of the leader, or with the reason why there is none
Then = Callable[[Reply | None, str], None]


class Controllers:
    """The controllers of this broker's group. `Election` decides what is sent when."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._addresses = [Address.parse(text) for text in context.config.election.controllers]
        #: the controller that leads, None while unknown
        self.leader: Address | None = None
        #: why no leader is known, by controller
        self.failures: dict[Address, str] = {}
        #: called when a leader is known again
        self.on_leader: Callable[[], None] = lambda: None
        #: called when the leader has answered a heartbeat
        self.on_answered: Callable[[], None] = lambda: None
        #: returns this broker's heartbeat, None while it has no id
        self.heartbeat: Callable[[], BrokerHeartbeatRequest | None] = lambda: None
        #: when the last heartbeat was sent that a leader has answered (monotonic ms); -1 for never
        self._leased_ms = -1
        #: whether the leader heeds the lease in a heartbeat: it is a controller of rmqkit
        self._heeds_lease = False
        self._is_running = False
        context.duties.add(LEADER_DUTY, self._seek, None)
        context.duties.add(HEARTBEAT_DUTY, self._beat, None)

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        self._is_running = True
        for duty in (LEADER_DUTY, HEARTBEAT_DUTY):
            self._context.duties.wake(duty, self._context.clock.mono_ms)

    def stop(self) -> None:
        self._is_running = False

    @property
    def lease_ms(self) -> int:
        """How long a lease lasts from the sending of an answered heartbeat."""
        most_ms = self._context.config.election.heartbeat_timeout_ms * LEASE_FIFTHS_MOST // 5
        if not self._heeds_lease:
            return most_ms
        short_ms = self._context.config.election.heartbeat_timeout_ms * LEASE_FIFTHS // 5
        return min(max(short_ms, self._context.config.acting.heartbeat_ms * LEASE_BEATS_LEAST), most_ms)

    @property
    def lease_end_ms(self) -> int:
        """Until when no controller can have elected another master for silence (monotonic ms)."""
        return -1 if self._leased_ms < 0 else self._leased_ms + self.lease_ms

    def text(self) -> str:
        """Return why no leader answers; "" if one is known."""
        if self.leader is not None:
            return ""
        found = "; ".join(f"{address}: {why}" for address, why in self.failures.items())
        return f"no controller leads ({found or 'none has answered yet'})"

    # --- the leader -------------------------------------------------------------------------------

    def _seek(self, now_ms: int) -> int | None:
        if not self._is_running:
            return None
        for address in self._addresses:
            code, then = RequestCode.CONTROLLER_GET_METADATA_INFO, partial(self._metadata_answered, address)
            self._context.remoting.call(address, code, timeout_ms=TIMEOUT_MS, then=then)
        return now_ms + (SEEK_MS if self.leader is None else self._context.config.election.leader_poll_ms)

    def _metadata_answered(self, address: Address, outcome: Outcome) -> None:
        if not self._is_running:
            return
        leader: Address | None = None
        why = ""
        try:
            if isinstance(outcome, CallFailed):
                why = outcome.text
            elif not outcome.is_ok:
                why = f"code {outcome.code}: {outcome.remark}"
            else:
                said = outcome.read(GetMetaDataResponse)
                named = said.controller_leader_address
                leader = address if said.is_leader else Address.parse(named) if named else None
                why = "" if leader else "it knows no leader"
        except (RemoteProtocolError, ValueError) as error:
            why = f"its answer cannot be read: {error}"
        if (
            leader is not None
            and leader != address
            and leader.host.startswith(LOOPBACK) > address.host.startswith(LOOPBACK)
        ):
            leader, why = None, f"it names the leader {leader}, which is an address of that machine alone"
        self.failures.pop(address, None)
        if why:
            self.failures[address] = why
        if leader is not None and (leader == address or self.leader is None):
            self._lead(leader)

    def _lead(self, leader: Address) -> None:
        if leader == self.leader:
            return
        self.leader = leader
        self._context.log.info("controller-leads", address=str(leader))
        self._context.duties.wake(HEARTBEAT_DUTY, self._context.clock.mono_ms)
        self.on_leader()

    def lost(self, leader: Address, why: str) -> None:
        """Look for the leader again: this controller does not answer, or does not lead."""
        if leader == self.leader:
            self.leader = None
            self.failures[leader] = why
            self._context.log.warning("controller-lost", address=str(leader), reason=why)
            self._context.duties.wake(LEADER_DUTY, self._context.clock.mono_ms)

    # --- calls ------------------------------------------------------------------------------------

    def call(self, code: RequestCode, request: Ext | None, then: Then, body: bytes = b"") -> None:
        """Ask the leader. `then` is called once, perhaps before this returns.

        It gets an answer of any code except 2007.
        """
        leader = self.leader
        if leader is None:
            then(None, self.text())
            return

        def answered(outcome: Outcome) -> None:
            why = ""
            if isinstance(outcome, CallFailed):
                why = outcome.text
            elif outcome.code == ResponseCode.CONTROLLER_NOT_LEADER:
                why = "it does not lead"
            if why:
                self.lost(leader, why)
                then(None, f"controller {leader}: {why}")
            else:
                assert not isinstance(outcome, CallFailed)
                then(outcome, "")

        self._context.remoting.call(leader, code, request, body, timeout_ms=TIMEOUT_MS, then=answered)

    # --- heartbeats -------------------------------------------------------------------------------

    def beat(self) -> None:
        """Send a heartbeat now."""
        self._context.duties.wake(HEARTBEAT_DUTY, self._context.clock.mono_ms)

    def _beat(self, now_ms: int) -> int | None:
        if not self._is_running:
            return None
        request, code = self.heartbeat(), RequestCode.BROKER_HEARTBEAT
        if request is not None:
            # A request on a connection that is being opened is sent once it is open.
            for address in self._addresses:
                if address != self.leader:
                    self._context.remoting.oneway(address, code, request)
            if self.leader is not None:
                then = partial(self._beat_answered, self.leader, now_ms)
                self._context.remoting.call(self.leader, code, request, timeout_ms=TIMEOUT_MS, then=then)
        return now_ms + self._context.config.acting.heartbeat_ms

    def _beat_answered(self, leader: Address, sent_ms: int, outcome: Outcome) -> None:
        if not self._is_running:
            return
        if isinstance(outcome, CallFailed):
            self.lost(leader, outcome.text)
            return
        try:
            said = outcome.read(BrokerHeartbeatResponse) if outcome.is_ok else None
        except RemoteProtocolError:
            said = None
        if said is not None and said.is_leader is not False and leader == self.leader:
            self._heeds_lease = said.is_leader is not None
            self._leased_ms = max(self._leased_ms, sent_ms)
            self.on_answered()
