"""BrokerSets: the table of a controller, changed by nothing but the events of its log.

Per broker set: the members by id with their addresses, the next id, the master, the epoch of the
master, the SyncStateSet and its epoch. An id is never given twice. `snapshot` and `restore` carry
the whole table as JSON; the format is private.

Source: `controller/.../impl/manager/{ReplicasInfoManager,BrokerReplicaInfo,SyncStateInfo}.java`.
"""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import field

from rmqkit.controller.contract import ControllerLogFault
from rmqkit.controller.sets.events import AnyEvent, NewAddress, NewMaster, NewReplica, NewSyncStateSet, Removal

FORMAT = 1
FIRST_ID = 1

#: most broker sets; 1013 for a further one is refused
SETS_MAX = 10_000
#: most members of a set; 1013 for a further one is refused
MEMBERS_MAX = 100


class Replica(msgspec.Struct, rename="camel"):
    """A member of a broker set. `check_code` proves to 1013 that a repeated request is the same."""

    address: str
    check_code: str


class BrokerSet(msgspec.Struct, kw_only=True, rename="camel"):
    """The brokers of one name. `master_epoch` 0: it never had a master."""

    cluster: str
    broker_name: str
    next_id: int = FIRST_ID
    replicas: dict[int, Replica] = field(default_factory=dict)
    master_id: int | None = None
    master_epoch: int = 0
    #: sorted ids
    sync_ids: list[int] = field(default_factory=list)
    sync_epoch: int = 0

    @property
    def master_address(self) -> str | None:
        """The address of the master, None without one."""
        replica = None if self.master_id is None else self.replicas.get(self.master_id)
        return None if replica is None else replica.address

    def validate(self) -> None:
        """Raise AssertionError if the fields contradict each other."""
        assert all(FIRST_ID <= each < self.next_id for each in self.replicas), self
        assert self.sync_ids == sorted(set(self.sync_ids) & set(self.replicas)), self
        assert self.master_id is None or self.master_id in self.sync_ids, self
        assert self.master_epoch > 0 or not self.sync_ids, self


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

    def apply(self, events: Iterable[AnyEvent]) -> None:
        """Apply the events of one decision, in order."""
        for event in events:
            self._apply(event)

    def _apply(self, event: AnyEvent) -> None:
        found = self._sets.get(event.broker_name)
        if isinstance(event, NewReplica):
            if found is None:
                found = self._sets[event.broker_name] = BrokerSet(cluster=event.cluster, broker_name=event.broker_name)
            found.replicas[event.broker_id] = Replica(event.address, event.check_code)
            found.next_id = max(found.next_id, event.broker_id) + 1
            return
        assert found is not None, f"an event for an unknown broker set: {event}"
        if isinstance(event, NewAddress):
            found.replicas[event.broker_id].address = event.address
        elif isinstance(event, NewSyncStateSet):
            found.sync_ids = sorted(event.broker_ids)
            found.sync_epoch += 1
        elif isinstance(event, NewMaster):
            _change_master(found, event.broker_id)
        else:
            self._remove(found, event)

    def _remove(self, found: BrokerSet, event: Removal) -> None:
        for broker_id in event.broker_ids or ():
            found.replicas.pop(broker_id, None)
        if event.broker_ids is None or not found.replicas:
            del self._sets[found.broker_name]
            return
        left = [each for each in found.sync_ids if each in found.replicas]
        if left != found.sync_ids:
            found.sync_ids = left
            found.sync_epoch += 1
        if found.master_id not in found.replicas:
            found.master_id = None

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
        self._sets = {each.broker_name: each for each in read.sets}

    def validate(self) -> None:
        """Raise AssertionError if a set contradicts itself. Must hold between events."""
        for name, each in self._sets.items():
            assert name == each.broker_name
            each.validate()


def _change_master(found: BrokerSet, broker_id: int | None) -> None:
    found.master_id = broker_id
    found.master_epoch += 1
    if broker_id is not None:
        found.sync_ids = [broker_id]
        found.sync_epoch += 1
