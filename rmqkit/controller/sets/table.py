"""BrokerSets: the table of a controller, changed by nothing but the events of its log.

Per broker set: the members by id with their addresses, the next id, the master, the epoch of the
master, the SyncStateSet and its epoch. An id is never given twice. `snapshot` and `restore` carry
the whole table as JSON; the format is private.

No decision makes an event that contradicts the table. One that does comes from a forged message or
a damaged file, so it is refused with RemoteProtocolError. A set is never changed in place: a
`preview` shares all sets with its table, and takes events that the table has not got yet.

Source: `controller/.../impl/manager/{ReplicasInfoManager,BrokerReplicaInfo,SyncStateInfo}.java`.
"""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import field
from msgspec.structs import replace

from rmqkit.controller.contract import ControllerLogFault
from rmqkit.controller.sets.events import (
    NUMBER_MAX,
    AnyEvent,
    NewAddress,
    NewMaster,
    NewReplica,
    NewSyncStateSet,
    Number,
)
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import Refused
from rmqkit.runtime.names import check_address, check_name, shown

FORMAT = 1
FIRST_ID = 1

#: most broker sets; 1013 for a further one is refused
SETS_MAX = 10_000
#: most members of a set; 1013 for a further one is refused
MEMBERS_MAX = 100


class Replica(msgspec.Struct, rename="camel", frozen=True):
    """A member of a broker set. `check_code` proves to 1013 that a repeated request is the same."""

    address: str
    check_code: str


class BrokerSet(msgspec.Struct, kw_only=True, rename="camel"):
    """The brokers of one name. `master_epoch` 0: it never had a master."""

    cluster: str
    broker_name: str
    next_id: Number = FIRST_ID
    replicas: dict[Number, Replica] = field(default_factory=dict)
    master_id: Number | None = None
    master_epoch: Number = 0
    #: sorted ids
    sync_ids: list[Number] = field(default_factory=list)
    sync_epoch: Number = 0

    @property
    def master_address(self) -> str | None:
        """The address of the master, None without one."""
        replica = None if self.master_id is None else self.replicas.get(self.master_id)
        return None if replica is None else replica.address

    def check(self) -> None:
        """Raise RemoteProtocolError if the fields contradict each other.

        Or if a name or an address is one that no request may bring.
        """
        try:
            check_name("cluster", self.cluster)
            check_name("broker name", self.broker_name)
            for replica in self.replicas.values():
                check_address("address", replica.address)
                check_name("check code", replica.check_code)
        except Refused as refused:
            raise RemoteProtocolError(str(refused)) from None
        sync_ids = set(self.sync_ids)
        fault = ""
        if max(self.next_id, self.master_epoch, self.sync_epoch) > NUMBER_MAX:
            fault = f"an id or epoch is above {NUMBER_MAX}"
        elif not all(FIRST_ID <= each < self.next_id for each in self.replicas):
            fault = f"it has the members {sorted(self.replicas)}, and the next id is {self.next_id}"
        elif self.sync_ids != sorted(sync_ids & self.replicas.keys()):
            fault = f"in sync are {self.sync_ids}, and its members are {sorted(self.replicas)}"
        elif self.master_id is not None and self.master_id not in sync_ids:
            fault = f"its master {self.master_id} is not in sync; in sync are {self.sync_ids}"
        elif sync_ids and not self.master_epoch:
            fault = f"in sync are {self.sync_ids}, and it never had a master"
        if fault:
            raise RemoteProtocolError(f"broker set {shown(self.broker_name)}: {fault}")


class _Snapshot(msgspec.Struct, rename="camel"):
    format: int
    sets: list[BrokerSet]


class BrokerSets:
    """All broker sets by broker name."""

    def __init__(self) -> None:
        self._sets: dict[str, BrokerSet] = {}

    def __len__(self) -> int:
        return len(self._sets)

    @property
    def sets(self) -> Mapping[str, BrokerSet]:
        return self._sets

    def get(self, broker_name: str) -> BrokerSet | None:
        return self._sets.get(broker_name)

    def preview(self) -> "BrokerSets":
        """Return a table that begins as this one is now."""
        copy = BrokerSets()
        copy._sets = dict(self._sets)
        return copy

    def apply(self, events: Iterable[AnyEvent]) -> None:
        """Apply the events of one decision, in order.

        Raises RemoteProtocolError at the first one that contradicts the table.
        """
        for event in events:
            changed = _changed(self._sets.get(event.broker_name), event)
            if changed is None:
                del self._sets[event.broker_name]
            else:
                changed.check()
                self._sets[event.broker_name] = changed

    def snapshot(self) -> bytes:
        """Return the whole table."""
        return msgspec.json.encode(_Snapshot(FORMAT, list(self._sets.values())))

    def restore(self, snapshot: bytes) -> None:
        """Replace the table. Raises ControllerLogFault."""
        try:
            read = msgspec.json.decode(snapshot, type=_Snapshot)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ControllerLogFault(f"the snapshot of the controller's log cannot be read: {error}") from None
        if read.format != FORMAT:
            raise ControllerLogFault(
                f"the snapshot of the controller's log has format {read.format}, this release reads {FORMAT}: start the "
                "release that wrote it"
            )
        try:
            for each in read.sets:
                each.check()
        except RemoteProtocolError as error:
            raise ControllerLogFault(f"the snapshot of the controller's log contradicts itself: {error}") from None
        self._sets = {each.broker_name: each for each in read.sets}

    def validate(self) -> None:
        """Raise AssertionError or RemoteProtocolError if a set contradicts itself."""
        for name, each in self._sets.items():
            assert name == each.broker_name
            each.check()


def _changed(known: BrokerSet | None, event: AnyEvent) -> BrokerSet | None:
    """Return a broker set after an event, None if it is gone. `known` is None for an unknown set.

    Raises RemoteProtocolError if the event cannot follow.
    """
    name = event.broker_name
    if isinstance(event, NewReplica):
        found = BrokerSet(cluster=event.cluster, broker_name=name) if known is None else _copy(known)
        if event.broker_id < found.next_id:
            raise RemoteProtocolError(f"broker set {shown(name)}: the id {event.broker_id} was given before")
        found.replicas[event.broker_id] = Replica(event.address, event.check_code)
        found.next_id = event.broker_id + 1
        return found
    if known is None:
        raise RemoteProtocolError(f"broker set {shown(name)} is unknown, and was changed")
    found = _copy(known)
    if isinstance(event, NewAddress):
        if event.broker_id not in found.replicas:
            raise RemoteProtocolError(f"broker set {shown(name)}: the unknown member {event.broker_id} has a new address")
        found.replicas[event.broker_id] = replace(found.replicas[event.broker_id], address=event.address)
    elif isinstance(event, NewSyncStateSet):
        found.sync_ids = sorted(event.broker_ids)
        found.sync_epoch += 1
    elif isinstance(event, NewMaster):
        found.master_id = event.broker_id
        found.master_epoch += 1
        if event.broker_id is not None:
            found.sync_ids = [event.broker_id]
            found.sync_epoch += 1
    else:
        return _without(found, event.broker_ids)
    return found


def _without(found: BrokerSet, broker_ids: Iterable[int] | None) -> BrokerSet | None:
    """Remove members; None: the whole set. A set without members is gone."""
    for broker_id in broker_ids or ():
        found.replicas.pop(broker_id, None)
    if broker_ids is None or not found.replicas:
        return None
    left = [each for each in found.sync_ids if each in found.replicas]
    if left != found.sync_ids:
        found.sync_ids = left
        found.sync_epoch += 1
    if found.master_id not in found.replicas:
        found.master_id = None
    return found


def _copy(known: BrokerSet) -> BrokerSet:
    return replace(known, replicas=dict(known.replicas))
