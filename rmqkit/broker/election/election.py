"""Election: this broker's side of controller mode, as a flow of named states.

    stopped   ->  discover
    discover  ->  identity, register, stopped
    identity  ->  register, stopped
    register  ->  elect, slave, takeover, stopped
    elect     ->  slave, takeover, stopped
    slave     ->  slave, takeover, stopped
    takeover  ->  takeover, master, slave, elect, stopped
    master    ->  master, slave, stopped

    discover  no controller leads yet (1005, `Controllers`)
    identity  this broker has no id of its own: 1012, a file, 1013, a file (`IdentityFiles`)
    register  1003 tells the controllers this broker's address; the answer may name a live master
    elect     the group has no master: a heartbeat, then 1002
    slave     another member is master: follow it
    takeover  this broker is elected, and prepares (`Takeover`)
    master    it serves

Until it is slave or master for the first time, the broker is fenced: not registered at the name
servers, and it refuses clients. Each step is repeated without end, `RETRY_MS` after it has failed.

In `slave`, `takeover` and `master` it asks for the group's master (1004) each
`syncBrokerMetadataPeriod`, and at once after a hint: a push (1008), a lost connection, a refused
proposal. A push can be forged, so the broker ignores its content. Only a larger epoch changes the
master. A group without a master is asked to elect (1002). A smaller epoch than that of this log
means that the controllers have lost their data: then nothing changes, and `why` says which files to
remove.

Two hard cases:

- **A master is isolated from the controllers, not from its slave, and the slave is elected.** The
  slave closes its HA connection when it learns of the election. The old master may not remove the
  slave from the set, because no controller agrees. So, with
  allAckInSyncStateSet, the master acknowledges no put. After its lease it refuses all puts, until a
  leader says who is master.
- **An old master returns with a longer log of an old epoch.** It registers, gets the new epoch and
  the new master, and follows. The handshake shows where the new master's epoch begins. What is
  behind that in the log was never acknowledged under allAckInSyncStateSet: the broker copies it to
  `diverged/`, truncates its log and its epochs, and follows.

Source: `broker/.../controller/ReplicasManager.java`.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.election.controllers import Controllers
from rmqkit.broker.election.identity import BrokerId, IdentityFiles
from rmqkit.broker.election.sync_states import SyncStates
from rmqkit.broker.election.takeover import Takeover, listed_members
from rmqkit.broker.replication.epochs import Epochs
from rmqkit.broker.replication.log_tail import whole_end
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import Reply
from rmqkit.runtime.connection import Address
from rmqkit.runtime.states import Moves, StateMachine
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.bodies import SyncStateSet
from rmqkit.wire.bodies.replication import encode_names
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schema import Ext
from rmqkit.wire.schemas.controller import (
    ApplyBrokerIdRequest,
    ElectMasterRequest,
    ElectMasterResponse,
    GetNextBrokerIdRequest,
    GetNextBrokerIdResponse,
    GetReplicaInfoRequest,
    GetReplicaInfoResponse,
    RegisterBrokerToControllerRequest,
    RegisterBrokerToControllerResponse,
)
from rmqkit.wire.schemas.nameserver import BrokerHeartbeatRequest

DUTY = "election"
RETRY_MS = 1000
#: pause between two questions for the HA address of a new master
LOCATE_MS = 200
#: a takeover that takes longer is given up: without heartbeats, another member is elected
TAKEOVER_MS = 30_000
NEVER_MS = 2**62


class ElectionState(StrEnum):
    """The states; the module head describes them. Code 28 reports it as `electionState`."""

    STOPPED = "stopped"
    DISCOVER = "discover"
    IDENTITY = "identity"
    REGISTER = "register"
    ELECT = "elect"
    SLAVE = "slave"
    TAKEOVER = "takeover"
    MASTER = "master"


STOPPED, DISCOVER, IDENTITY, REGISTER, ELECT, SLAVE, TAKEOVER, MASTER = ElectionState

MOVES = Moves(
    {
        STOPPED: (DISCOVER,),
        DISCOVER: (IDENTITY, REGISTER, STOPPED),
        IDENTITY: (REGISTER, STOPPED),
        REGISTER: (ELECT, SLAVE, TAKEOVER, STOPPED),
        ELECT: (SLAVE, TAKEOVER, STOPPED),
        SLAVE: (SLAVE, TAKEOVER, STOPPED),
        TAKEOVER: (TAKEOVER, MASTER, SLAVE, ELECT, STOPPED),
        MASTER: (MASTER, SLAVE, STOPPED),
    }
)
#: states in which a leader is asked for the group's master
SETTLED = (SLAVE, TAKEOVER, MASTER)


class ElectedParts(Protocol):
    """What an election changes of the broker (`RoleSwitch`)."""

    def named(self, broker_id: int) -> None:
        """The broker has its id."""

    def serve(self, why: str) -> None: ...
    def follow(self, broker_id: int, master: Address, why: str) -> None: ...
    def lead_again(self, epoch: int) -> None: ...
    def locate(self) -> bool:
        """Look for the master's HA address. Return whether it is known."""

    def lease_changed(self, end_ms: int) -> None:
        """A turn that begins at `end_ms` or later comes after the lease; NEVER_MS: no limit."""


class Election(StateMachine[ElectionState]):
    """Registers this broker at the controllers, and takes the role that they give it."""

    def __init__(
        self,
        context: BrokerContext,
        store: StorageEngine,
        epochs: Epochs,
        controllers: Controllers,
        sync_states: SyncStates,
        takeover: Takeover,
        parts: ElectedParts,
    ) -> None:
        super().__init__(MOVES)
        self._context = context
        self._store = store
        self.epochs = epochs
        self._controllers = controllers
        self._sync_states = sync_states
        self._takeover = takeover
        self._parts = parts
        identity, election = context.config.identity, context.config.election
        self._cluster, self._name = identity.broker_cluster_name, identity.broker_name
        self._files = IdentityFiles(context.disk, election.identity_path, self._cluster, self._name)
        #: this broker's id, None before the first step
        self.id: BrokerId | None = None
        #: whether a controller has granted the id and knows this broker's address
        self.is_registered = False
        self.epoch = -1
        #: id and address of the master; None while unknown
        self.master: tuple[int, Address] | None = None
        self.why = ""
        #: whether the lease of this master is over, so that it refuses messages
        self.is_lease_over = False
        #: called when the broker begins or ceases to refuse messages
        self.on_refusal: Callable[[], None] = lambda: None
        self._is_asking = False
        self._poll_ms = 0
        self._began_ms = 0
        #: the epoch that this log had when the broker was started
        self._epoch_loaded = -1
        #: the set and its version with which this broker was elected
        self._elected_with: tuple[frozenset[int], int] = (frozenset(), 0)
        context.duties.add(DUTY, self._run, None)
        controllers.on_leader = self.hint
        controllers.on_answered = self._answered_beat
        controllers.heartbeat = self._heartbeat
        sync_states.on_refused = self.hint
        takeover.on_done = self._took_over
        takeover.on_yield = self._yield_to

    def validate(self) -> None:
        assert self._sync_states.is_on == (self.state is MASTER) or self.state in (TAKEOVER, STOPPED)
        assert self.state not in (SLAVE, MASTER) or self.master is not None
        assert self.state not in SETTLED or (self.id is not None and not self.id.check_code)

    # --- life -------------------------------------------------------------------------------------

    def load(self) -> None:
        """Load id and epochs. Raises RmqkitError for a damaged file or another broker's."""
        self.id = self._files.load()
        self.epochs.load()
        self._epoch_loaded = self.epochs.last
        if self.id is not None and not self.id.check_code:
            self._parts.named(self.id.broker_id)

    def start(self) -> None:
        """Begin: the store is ready."""
        # A slave may lose bytes whose epoch it has noted. A master syncs its log before it notes.
        self.epochs.cut(self._store.offset_written + 1)
        if self._context.config.election.all_ack:
            # All before the last epoch was confirmed when it began. The rest is hidden from readers
            # until a master says how far it is confirmed, or this broker is elected.
            self._store.offset_confirmed = self.epochs.entries[-1].start if self.epochs.entries else 0
        self.move(DISCOVER)
        self._controllers.start()
        self.hint()

    def stop(self) -> None:
        self._controllers.stop()
        self._takeover.cancel()
        self._sync_states.end()
        self._parts.lease_changed(NEVER_MS)
        if self.state is not STOPPED:
            self.move(STOPPED)

    def hint(self) -> None:
        """Ask the leader at once: the master may have changed."""
        self._poll_ms = 0
        self._context.duties.wake(DUTY, self._context.clock.mono_ms)

    def connection_closed(self, peer: Address) -> None:
        """A dialled connection has ended: if it was the leader's, it may have elected another."""
        if peer == self._controllers.leader:
            self._controllers.beat()
            self.hint()

    def is_master(self, address: Address) -> bool:
        """Whether the controllers have named this master; else they are asked at once."""
        if self.state is SLAVE and self.master is not None and self.master[1] == address:
            return True
        self.hint()
        return False

    @property
    def refusal(self) -> str:
        """Why this master takes no messages now; "" if it does."""
        if not self.is_lease_over:
            return ""
        return f"no controller has confirmed this master for {self._controllers.lease_ms} ms: another one may be elected"

    def facts(self) -> dict[str, str]:
        """Return what code 28 reports about the election."""
        states = self._sync_states
        leader = self._controllers.leader
        return {
            "electionState": self.state,
            "electionEpoch": str(self.epoch),
            "electionId": str(self.own_id),
            "electionWhy": self.why or self._takeover.why or self.refusal or self._controllers.text(),
            "controllerLeader": "" if leader is None else str(leader),
            "syncStateSet": ";".join(map(str, sorted(states.ids))),
            "confirmOffset": str(self.confirmed_whole),
        }

    @property
    def confirmed_whole(self) -> int:
        """The end of the last whole record that is confirmed; 0 until the store is ready."""
        store, states = self._store, self._sync_states
        if not store.ready:
            return 0
        confirmed = states.confirmed if states.is_on else store.offset_confirmed
        return whole_end(store, store.offset_written if confirmed is None else min(confirmed, store.offset_written))

    # --- the flow ---------------------------------------------------------------------------------

    def _run(self, now_ms: int) -> int | None:
        if self.state is STOPPED:
            return None
        if self.state is MASTER and not self.is_lease_over:
            self._check_lease(now_ms)
        is_located = self.state is not SLAVE or self._parts.locate()
        due_ms = now_ms + (RETRY_MS if is_located else LOCATE_MS)
        if self._controllers.leader is not None and not self._is_asking:
            if self.state is DISCOVER:
                self.move(REGISTER if self.id is not None and not self.id.check_code else IDENTITY)
            if self.state is IDENTITY:
                self._get_id()
            elif self.state is REGISTER:
                self._register()
            elif self.state is ELECT:
                self._elect()
            elif now_ms >= self._poll_ms:
                self._poll_ms = now_ms + self._context.config.election.poll_ms
                if self.epochs.prune(self._store.offset_min):
                    self.epochs.save()
                self._poll()
        if self.state is TAKEOVER and now_ms - self._began_ms > TAKEOVER_MS:
            self.why = self._takeover.why or f"the takeover has taken more than {TAKEOVER_MS} ms"
        return due_ms

    def _ask(self, code: RequestCode, request: Ext | None, then: Callable[[Reply], None]) -> None:
        """Ask the leader, and pass the answer to `then`; without one, the step is repeated."""
        state = self.state
        self._is_asking = True

        def answered(reply: Reply | None, why: str) -> None:
            self._is_asking = False
            if self.state is STOPPED or self.state is not state:
                return
            if reply is None:
                self._failed(why)
                return
            try:
                then(reply)
            except (RemoteProtocolError, ValueError) as error:
                self._failed(f"the answer to {code.name} cannot be read: {error}")

        self._controllers.call(code, request, answered)

    def _failed(self, why: str) -> None:
        if why != self.why:
            self._context.log.warning("election", state=self.state, why=why)
        self.why = why
        self._context.duties.wake(DUTY, self._context.clock.mono_ms + RETRY_MS)

    def _next(self, state: ElectionState) -> None:
        self.move(state)
        self.why = ""
        self.hint()

    # --- identity ---------------------------------------------------------------------------------

    def _get_id(self) -> None:
        if self.id is None:
            request = GetNextBrokerIdRequest(cluster_name=self._cluster, broker_name=self._name)
            self._ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, request, self._got_next)
            return
        apply = ApplyBrokerIdRequest(
            cluster_name=self._cluster,
            broker_name=self._name,
            applied_broker_id=self.id.broker_id,
            register_check_code=self.id.check_code,
        )
        self._ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, apply, self._applied)

    def _got_next(self, reply: Reply) -> None:
        found = reply.read(GetNextBrokerIdResponse).next_broker_id if reply.is_ok else None
        if found is None:
            self._failed(f"no id was given: code {reply.code}: {reply.remark}")
            return
        code = f"{self._context.address_text};{self._context.clock.wall_ms}"
        self._save(BrokerId(found, code), IDENTITY)

    def _applied(self, reply: Reply) -> None:
        assert self.id is not None
        if reply.is_ok:
            self._save(BrokerId(self.id.broker_id), REGISTER)
            return
        self._failed(f"id {self.id.broker_id} was refused: code {reply.code}: {reply.remark}")
        self._is_asking = True

        def forgotten(error: OSError | None) -> None:
            self._is_asking = False
            self.id = None

        self._files.forget_temporary(forgotten)

    def _save(self, wanted: BrokerId, state: ElectionState) -> None:
        self._is_asking = True

        def saved(error: OSError | None) -> None:
            self._is_asking = False
            if self.state is not IDENTITY:
                return
            if error is not None:
                self._failed(f"the id cannot be written: {error}")
                return
            self.id = wanted
            if state is REGISTER:
                self._context.log.info("broker-id", broker_id=wanted.broker_id)
                self._parts.named(wanted.broker_id)
                self._next(REGISTER)
            else:
                self.hint()

        self._files.save(wanted, saved)

    # --- registration, election, polls ------------------------------------------------------------

    @property
    def own_id(self) -> int:
        return -1 if self.id is None else self.id.broker_id

    def _register(self) -> None:
        request = RegisterBrokerToControllerRequest(
            cluster_name=self._cluster,
            broker_name=self._name,
            broker_id=self.own_id,
            broker_address=self._context.address_text,
            invoke_time=self._context.clock.wall_ms,
        )
        self._ask(RequestCode.CONTROLLER_REGISTER_BROKER, request, self._registered)

    def _registered(self, reply: Reply) -> None:
        if not reply.is_ok:
            self._failed(
                f"the controllers do not register id {self.own_id}: code {reply.code}: {reply.remark}. If they have lost "
                "their data, stop the group and remove its brokerIdentity and epochFileCheckpoint files"
            )
            return
        self.is_registered = True
        self._controllers.beat()
        said = reply.read(RegisterBrokerToControllerResponse)
        if self.state is not REGISTER:
            return
        if said.master_broker_id is None or said.master_broker_id < 0 or not said.master_address:
            self._next(ELECT)
        else:
            self._adopt(said, reply.body)

    def _elect(self, designate: int = -1) -> None:
        request = ElectMasterRequest(
            cluster_name=self._cluster,
            broker_name=self._name,
            broker_id=self.own_id if designate < 0 else designate,
            designate_elect=designate >= 0,
            invoke_time=self._context.clock.wall_ms,
        )
        self._ask(RequestCode.CONTROLLER_ELECT_MASTER, request, self._elected)

    def _elected(self, reply: Reply) -> None:
        if not reply.is_ok and reply.code != ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
            self._failed(f"no master was elected: code {reply.code}: {reply.remark}")
            return
        said = reply.read(ElectMasterResponse)
        # The body has the set without its version, which is in the header.
        ids = SyncStateSet.decode(reply.body or b"{}").sync_state_set
        self._adopt(said, SyncStateSet(sync_state_set=ids, sync_state_set_epoch=said.sync_state_set_epoch or 0).encode())

    def _poll(self) -> None:
        request = GetReplicaInfoRequest(broker_name=self._name)
        self._ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, request, self._polled)

    def _polled(self, reply: Reply) -> None:
        if reply.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
            self.why = "the controllers do not know this group"
            self._register()
            return
        if not reply.is_ok:
            self._failed(f"code {reply.code}: {reply.remark}")
            return
        said = reply.read(GetReplicaInfoResponse)
        if said.master_broker_id is not None and said.master_broker_id > 0 and said.master_address:
            self._adopt(said, reply.body)
        else:
            self._elect()
            self._poll_ms = self._context.clock.mono_ms + RETRY_MS

    # --- a master is known ------------------------------------------------------------------------

    def _adopt(
        self, said: RegisterBrokerToControllerResponse | ElectMasterResponse | GetReplicaInfoResponse, body: bytes
    ) -> None:
        """Take what the leader says about the group's master. Raises ValueError."""
        master, address, epoch = said.master_broker_id, said.master_address, said.master_epoch
        if master is None or not address or epoch is None:
            self._failed("the answer names no master")
            return
        told = SyncStateSet.decode(body) if body else SyncStateSet()
        ids, version = frozenset(told.sync_state_set or ()), told.sync_state_set_epoch
        if epoch < self.epochs.last:
            self._failed(
                f"the controllers report epoch {epoch}, and this log has epoch {self.epochs.last}: if they have lost their "
                "data, stop the group and remove its brokerIdentity and epochFileCheckpoint files"
            )
            return
        if epoch < self.epoch:
            return  # an older answer
        if master == self.own_id and master not in ids:  # it would acknowledge alone
            self._failed("the answer names this broker master, and lacks it in the set of members in sync")
            return
        self.why, where = "", Address.parse(address)
        if master != self.own_id:
            if epoch > self.epoch or self.state not in SETTLED:
                self._follow(master, where, epoch)
            return
        if self.state is MASTER and epoch > self.epoch:
            self._lead_again(epoch, ids, version)
        elif self.state is MASTER:
            self._sync_states.adopt(epoch, ids, version)
            self._check_lease(self._context.clock.mono_ms, is_named=True)
        elif epoch > self.epoch or self.state is not TAKEOVER:
            self._lead(where, epoch, ids, version)

    def _follow(self, master: int, address: Address, epoch: int) -> None:
        self._takeover.cancel()
        self._sync_states.end()
        self._parts.lease_changed(NEVER_MS)
        self.epoch, self.master, self.is_lease_over = epoch, (master, address), False
        self.move(SLAVE)
        self._context.log.info("elected", master=master, address=str(address), epoch=epoch)
        self._parts.follow(self.own_id, address, f"member {master} is master in epoch {epoch}")
        self.on_refusal()
        self._poll_ms = self._context.clock.mono_ms + self._context.config.election.poll_ms
        self._context.duties.wake(DUTY, self._context.clock.mono_ms)

    def _lead(self, address: Address, epoch: int, ids: frozenset[int], version: int) -> None:
        self._takeover.cancel()
        self._sync_states.end()
        self.epoch, self.master = epoch, (self.own_id, address)
        self._began_ms = self._context.clock.mono_ms
        self.move(TAKEOVER)
        self._context.log.info("elected", master=self.own_id, address=str(address), epoch=epoch, ids=sorted(ids))
        self._elected_with = ids, version
        body, code = encode_names([self._name]), RequestCode.CONTROLLER_GET_SYNC_STATE_DATA

        def told(reply: Reply | None, why: str) -> None:
            if self.state is TAKEOVER and self.epoch == epoch and not self._takeover.is_on:
                listed = listed_members(reply, self._name, self.own_id)
                members = {each: address for each, (address, is_alive) in listed.items() if is_alive}
                is_again = epoch == self._epoch_loaded
                rivals = {each: address for each, (address, _) in listed.items() if is_again and each in ids}
                self._takeover.begin(epoch, members, rivals)

        self._controllers.call(code, None, told, body)

    def _took_over(self, how: str) -> None:
        ids, version = self._elected_with
        self._epoch_loaded = -1
        self.move(MASTER)
        self._sync_states.begin(self.own_id, self.epoch, ids, version)
        self._check_lease(self._context.clock.mono_ms, is_named=True)
        self._parts.serve(f"elected in epoch {self.epoch}" + (f"; {how}" if how else ""))
        self.hint()

    def _lead_again(self, epoch: int, ids: frozenset[int], version: int) -> None:
        """This master was elected once more: a new epoch begins, connections stay."""
        self.epochs.begin(epoch, self._store.offset_max)
        self.epochs.save()
        self.epoch = epoch
        self.move(MASTER)
        self._context.log.info("elected-again", epoch=epoch)
        self._sync_states.adopt(epoch, ids, version)
        self._check_lease(self._context.clock.mono_ms, is_named=True)
        self._parts.lead_again(epoch)

    def _yield_to(self, member: int) -> None:
        self._failed(f"member {member} has more of the log: it is asked to be master")
        self.move(ELECT)
        self._elect(designate=member)

    # --- heartbeats and the lease -----------------------------------------------------------------

    def _heartbeat(self) -> BrokerHeartbeatRequest | None:
        """Return the heartbeat; None if this broker cannot be master, so that another one is."""
        now_ms, store = self._context.clock.mono_ms, self._store
        is_stuck = self.state is TAKEOVER and now_ms - self._began_ms > TAKEOVER_MS
        if not self.is_registered or is_stuck or store.is_broken:
            return None
        return BrokerHeartbeatRequest(
            cluster_name=self._cluster,
            broker_addr=self._context.address_text,
            broker_name=self._name,
            broker_id=self.own_id,
            epoch=max(self.epochs.last, 0),
            max_offset=store.offset_written,
            confirm_offset=self.confirmed_whole,
            heartbeat_timeout_mills=self._context.config.election.heartbeat_timeout_ms,
            lease_mills=self._controllers.lease_ms if self.state is MASTER else None,
            election_priority=self._context.config.election.priority,
        )

    def _answered_beat(self) -> None:
        if self.state is MASTER and self.is_lease_over:
            self.hint()  # another one may be master by now: the leader must name this one first
        elif self.state is MASTER:
            self._check_lease(self._context.clock.mono_ms)

    def lease_ended(self) -> None:
        """A turn begins after the end of the lease: a stall, or no controller has answered."""
        self._check_lease(self._context.clock.mono_ms)
        self.hint()

    def _check_lease(self, now_ms: int, *, is_named: bool = False) -> None:
        """`is_named`: the leader has just named this broker master, which renews an ended lease."""
        end_ms = self._controllers.lease_end_ms
        is_over = now_ms >= end_ms or (self.is_lease_over and not is_named)
        self._parts.lease_changed(NEVER_MS if is_over else end_ms)
        if is_over != self.is_lease_over:
            self.is_lease_over = is_over
            if is_over:
                self._context.log.warning("lease-over", why=self.refusal)
            else:
                self._context.log.info("lease-renewed")
            self.on_refusal()
        if not is_over:
            self._context.duties.wake(DUTY, end_ms)
