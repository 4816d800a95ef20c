"""Decisions: what a controller answers to a request, and the events that make the answer true.

Pure functions of the table of broker sets, the live members and the request. They change nothing:
`DecisionQueue` writes the events of a decision to the log and sends its answer once they are
committed. The order of the checks, the codes and the meaning of the texts are Apache's.

These rules are ours; each keeps messages or masters that Apache's loses:

- The master itself registers (1003) or asks for an election (1002): it has restarted. 1003 names no
  master, and 1002 elects by policy, without preference for it, with a new epoch. So each start of a
  master has its own epoch, and a member with a longer log wins.
- The first election of a set demands that the caller is registered.
- 1013 gives no id a second time, and none that is more than MEMBERS_MAX above the next one: one
  request could otherwise use up all ids of a set.
- 1011 with ids removes these only, also with `isCleanLivingBroker`. The present master is removed
  only if it is dead or with `isCleanLivingBroker`; the set then has no master.

Source: `controller/.../impl/manager/ReplicasInfoManager.java`, the methods of the same names.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rmqkit.controller.heartbeats import HeartbeatTable
from rmqkit.controller.sets.election import elect
from rmqkit.controller.sets.events import AnyEvent, NewAddress, NewMaster, NewReplica, NewSyncStateSet, Removal
from rmqkit.controller.sets.table import FIRST_ID, MEMBERS_MAX, SETS_MAX, BrokerSet, BrokerSets
from rmqkit.runtime.names import shown
from rmqkit.wire.bodies import (
    BrokerReplicasInfo,
    ElectMasterBody,
    MemberGroup,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
)
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.schema import Ext
from rmqkit.wire.schemas import controller as schemas

#: the caller of 1002 is an administrator or a controller, not a broker
NO_BROKER = -1


class Resolution(NamedTuple):
    """An answer, and what has to be committed before it is sent."""

    code: int = ResponseCode.SUCCESS
    ext: Ext | None = None
    body: bytes = b""
    remark: str | None = None
    events: Sequence[AnyEvent] = ()


def refuse(code: int, remark: str, ext: Ext | None = None) -> Resolution:
    return Resolution(code, ext, b"", remark)


def alter_sync_state_set(
    sets: BrokerSets, live: HeartbeatTable, args: schemas.AlterSyncStateSetRequest, body: SyncStateSet
) -> Resolution:
    """1001: the master reports the members that have every acknowledged message."""
    name = args.broker_name or ""
    brokers = sets.get(name)
    if brokers is None:
        return refuse(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, f"Broker metadata of {shown(name)} is not existed"
        )
    new = sorted(set(body.sync_state_set))
    if new == brokers.sync_ids:
        return refuse(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "The new SyncStateSet is equal with the old one")
    if args.master_broker_id != brokers.master_id:
        remark = f"The master of {shown(name)} is {brokers.master_id}, not {args.master_broker_id}"
        return refuse(ResponseCode.CONTROLLER_INVALID_MASTER, remark)
    if args.master_epoch != brokers.master_epoch:
        remark = f"The master's epoch of {shown(name)} is {brokers.master_epoch}, not {args.master_epoch}"
        return refuse(ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, remark)
    if body.sync_state_set_epoch != brokers.sync_epoch:
        remark = f"The SyncStateSet's epoch of {shown(name)} is {brokers.sync_epoch}, not {body.sync_state_set_epoch}"
        return refuse(ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, remark)
    for broker_id in new:
        if broker_id not in brokers.replicas:
            return refuse(ResponseCode.CONTROLLER_INVALID_REPLICAS, f"The replica {broker_id} is not registered")
        if not live.is_alive(name, broker_id):
            return refuse(ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, f"The replica {broker_id} is not alive")
    if brokers.master_id not in new:
        remark = f"The new SyncStateSet lacks the master {brokers.master_id}"
        return refuse(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, remark)
    epoch = brokers.sync_epoch + 1
    return Resolution(
        ext=schemas.AlterSyncStateSetResponse(new_sync_state_set_epoch=epoch),
        body=SyncStateSet(sync_state_set=new, sync_state_set_epoch=epoch).encode(),
        events=(NewSyncStateSet(broker_name=name, broker_ids=tuple(new)),),
    )


def elect_master(sets: BrokerSets, live: HeartbeatTable, args: schemas.ElectMasterRequest, *, unclean: bool) -> Resolution:
    """1002: a broker without a master asks, or an administrator designates one."""
    brokers = sets.get(args.broker_name)
    caller = args.broker_id
    if brokers is None or (caller != NO_BROKER and caller not in brokers.replicas):
        remark = f"Broker {caller} of {shown(args.broker_name)} hasn't been registered"
        return refuse(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, remark)
    if brokers.master_epoch == 0 and caller != NO_BROKER:
        return _elected(brokers, caller)
    restarted = caller == brokers.master_id and not args.designate_elect
    found = elect(
        brokers,
        live,
        unclean=unclean,
        keeps_master=not restarted,
        designated=caller if args.designate_elect else None,
    )
    if found is None:
        return refuse(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "Failed to elect a new master")
    if found == brokers.master_id and not restarted:
        remark = f"The old master {found} is still alive, no need to elect a new master for {shown(args.broker_name)}"
        # An Apache broker takes this answer like the one about a new master, and needs the set.
        body = ElectMasterBody(sync_state_set=brokers.sync_ids).encode()
        return Resolution(ResponseCode.CONTROLLER_MASTER_STILL_EXIST, _master_fields(brokers), body, remark)
    return _elected(brokers, found)


def replace_master(sets: BrokerSets, live: HeartbeatTable, broker_name: str, now_ms: int, *, unclean: bool) -> Resolution:
    """Decide for a set whose master is dead, or that has none. No events: nothing to do.

    The controller itself asks, so that nobody waits for the answer.
    """
    brokers = sets.get(broker_name)
    if brokers is None or brokers.master_epoch == 0:
        return Resolution()
    master = brokers.master_id
    if master is not None and not live.is_dead(broker_name, master, now_ms):
        return Resolution()
    found = elect(brokers, live, unclean=unclean)
    if found is not None:
        return _elected(brokers, found)
    remark = f"The master {master} of {shown(broker_name)} is dead, and no member could take over"
    events = () if master is None else (NewMaster(broker_name=broker_name, broker_id=None),)
    return Resolution(ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, remark=remark, events=events)


def register_broker(sets: BrokerSets, live: HeartbeatTable, args: schemas.RegisterBrokerToControllerRequest) -> Resolution:
    """1003: a broker that has an id says where it is, and learns who is master."""
    name, broker_id = args.broker_name or "", args.broker_id
    brokers = sets.get(name)
    known = None if brokers is None or broker_id is None else brokers.replicas.get(broker_id)
    if brokers is None or known is None or broker_id is None:
        remark = f"Broker {broker_id} of {shown(name)} hasn't been registered"
        return refuse(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, remark)
    ext = schemas.RegisterBrokerToControllerResponse(cluster_name=args.cluster_name, broker_name=name)
    master = brokers.master_id
    if master is not None and master != broker_id and live.is_alive(name, master):
        ext.master_broker_id, ext.master_address = master, brokers.master_address
        ext.master_epoch, ext.sync_state_set_epoch = brokers.master_epoch, brokers.sync_epoch
    events: tuple[AnyEvent, ...] = ()
    if args.broker_address and args.broker_address != known.address:
        events = (NewAddress(broker_name=name, broker_id=broker_id, address=args.broker_address),)
    return Resolution(ext=ext, body=sync_state_set_of(brokers), events=events)


def get_replica_info(sets: BrokerSets, args: schemas.GetReplicaInfoRequest) -> Resolution:
    """1004: who is master, by which epoch."""
    brokers = sets.get(args.broker_name or "")
    if brokers is None:
        remark = f"Broker metadata of {shown(args.broker_name or '')} is not existed"
        return refuse(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, remark)
    ext = schemas.GetReplicaInfoResponse(
        master_broker_id=brokers.master_id, master_address=brokers.master_address, master_epoch=brokers.master_epoch
    )
    return Resolution(ext=ext, body=sync_state_set_of(brokers))


def get_sync_state_data(sets: BrokerSets, live: HeartbeatTable, names: Sequence[str]) -> Resolution:
    """1006: the members of broker sets. Unknown names are left out."""
    found = {name: _replicas_info(each, live) for name in names if (each := sets.get(name)) is not None}
    return Resolution(body=BrokerReplicasInfo(replicas_info_table=found).encode())


def get_next_broker_id(sets: BrokerSets, args: schemas.GetNextBrokerIdRequest) -> Resolution:
    """1012: the id that a new broker may apply for."""
    brokers = sets.get(args.broker_name or "")
    next_id = FIRST_ID if brokers is None else brokers.next_id
    return Resolution(
        ext=schemas.GetNextBrokerIdResponse(
            cluster_name=args.cluster_name, broker_name=args.broker_name, next_broker_id=next_id
        )
    )


def apply_broker_id(sets: BrokerSets, args: schemas.ApplyBrokerIdRequest) -> Resolution:
    """1013: a new broker takes an id. Repeating the request, with its check code, is no error."""
    name, broker_id, check_code = args.broker_name or "", args.applied_broker_id, args.register_check_code or ""
    brokers = sets.get(name)
    ext = schemas.ApplyBrokerIdResponse(cluster_name=args.cluster_name, broker_name=name)
    known = None if brokers is None or broker_id is None else brokers.replicas.get(broker_id)
    if known is not None and known.check_code == check_code:
        return Resolution(ext=ext)
    free = FIRST_ID if brokers is None else brokers.next_id
    highest = free if brokers is None else free + MEMBERS_MAX
    if broker_id is None or not free <= broker_id <= highest:
        remark = f"Fail to apply brokerId {broker_id} of {shown(name)}: it is taken or invalid, the next free one is {free}"
        return refuse(ResponseCode.CONTROLLER_BROKER_ID_INVALID, remark, ext)
    if (brokers is None and len(sets) >= SETS_MAX) or (brokers is not None and len(brokers.replicas) >= MEMBERS_MAX):
        remark = f"a controller keeps at most {SETS_MAX} broker sets of at most {MEMBERS_MAX} members"
        return refuse(ResponseCode.CONTROLLER_BROKER_ID_INVALID, remark, ext)
    event = NewReplica(
        broker_name=name,
        cluster=args.cluster_name or "",
        broker_id=broker_id,
        address=check_code.partition(";")[0],
        check_code=check_code,
    )
    return Resolution(ext=ext, events=(event,))


def clean_broker_data(
    sets: BrokerSets, live: HeartbeatTable, args: schemas.CleanControllerBrokerDataRequest, ids: Sequence[int]
) -> Resolution:
    """1011: an administrator removes brokers for good; `ids` empty: the whole set."""
    name = args.broker_name
    brokers = sets.get(name)
    if brokers is None:
        remark = f"Broker set {shown(name)} is not existed"
        return refuse(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, remark)
    if not args.is_clean_living_broker:
        alive = [each for each in ids or brokers.replicas if live.is_alive(name, each)]
        if alive or (not ids and brokers.master_id is not None):
            who = f"broker {alive[0]} is alive" if alive else f"it has the master {brokers.master_id}"
            remark = f"Broker set {shown(name)} can't be cleaned: {who}"
            return refuse(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, remark)
    if not ids:
        return Resolution(events=(Removal(broker_name=name, broker_ids=None),))
    known = tuple(each for each in dict.fromkeys(ids) if each in brokers.replicas)
    return Resolution(events=(Removal(broker_name=name, broker_ids=known),) if known else ())


def sync_state_set_of(brokers: BrokerSet) -> bytes:
    """Return the body of 1003, 1004 and 1008."""
    return SyncStateSet(sync_state_set=brokers.sync_ids, sync_state_set_epoch=brokers.sync_epoch).encode()


def _elected(brokers: BrokerSet, broker_id: int) -> Resolution:
    group = MemberGroup(
        broker_addrs={each: replica.address for each, replica in brokers.replicas.items()},
        broker_name=brokers.broker_name,
        cluster=brokers.cluster,
    )
    return Resolution(
        ext=schemas.ElectMasterResponse(
            master_broker_id=broker_id,
            master_address=brokers.replicas[broker_id].address,
            master_epoch=brokers.master_epoch + 1,
            sync_state_set_epoch=brokers.sync_epoch + 1,
        ),
        body=ElectMasterBody(broker_member_group=group, sync_state_set=[broker_id]).encode(),
        events=(NewMaster(broker_name=brokers.broker_name, broker_id=broker_id),),
    )


def _master_fields(brokers: BrokerSet) -> schemas.ElectMasterResponse:
    return schemas.ElectMasterResponse(
        master_broker_id=brokers.master_id,
        master_address=brokers.master_address,
        master_epoch=brokers.master_epoch,
        sync_state_set_epoch=brokers.sync_epoch,
    )


def _replicas_info(brokers: BrokerSet, live: HeartbeatTable) -> ReplicasInfo:
    inside: list[ReplicaIdentity] = []
    outside: list[ReplicaIdentity] = []
    for broker_id, replica in sorted(brokers.replicas.items()):
        identity = ReplicaIdentity(
            alive=live.is_alive(brokers.broker_name, broker_id),
            broker_address=replica.address,
            broker_id=broker_id,
            broker_name=brokers.broker_name,
        )
        (inside if broker_id in brokers.sync_ids else outside).append(identity)
    return ReplicasInfo(
        in_sync_replicas=inside,
        master_address=brokers.master_address,
        master_broker_id=brokers.master_id,
        master_epoch=brokers.master_epoch,
        not_in_sync_replicas=outside,
        sync_state_set_epoch=brokers.sync_epoch,
    )
