"""Election: which member of a broker set becomes master.

The candidates are the live members of the SyncStateSet. With unclean election, if none of them is
alive, they are all live members; messages that only the SyncStateSet had are lost then.

- The old master stays, if it is a candidate, unless the caller wants another one.
- A designated member is elected if it is a candidate, or nobody is.
- Otherwise the one with the highest epoch wins, then the one with the longest log, then the one
  with the lowest priority number, then the one with the lowest id. What the others report is up to
  one heartbeat old; all of the SyncStateSet have every acknowledged message, so this picks the best
  of good ones.

Source: `controller/.../elect/impl/DefaultElectPolicy.java`. (Apache casts the difference of two
offsets to 32 bits, so its order breaks for logs that differ by more than 2 GiB.)
"""

from collections.abc import Iterable

from rmqkit.controller.heartbeats import HeartbeatTable, LiveMember
from rmqkit.controller.sets.table import BrokerSet


def elect(
    brokers: BrokerSet,
    live: HeartbeatTable,
    *,
    unclean: bool,
    keeps_master: bool = True,
    designated: int | None = None,
) -> int | None:
    """Return the id of the master, None if no candidate is left.

    `keeps_master` prefers the present master.
    """
    found = _choose(brokers, live, brokers.sync_ids, keeps_master, designated)
    if found is None and unclean:
        found = _choose(brokers, live, brokers.replicas, keeps_master, designated)
    return found


def _choose(
    brokers: BrokerSet,
    live: HeartbeatTable,
    members: Iterable[int],
    keeps_master: bool,
    designated: int | None,
) -> int | None:
    candidates: dict[int, LiveMember] = {}
    for broker_id in members:
        member = live.get(brokers.broker_name, broker_id)
        if member is not None:
            candidates[broker_id] = member
    if designated is not None:
        return designated if designated in candidates else None
    if keeps_master and brokers.master_id in candidates:
        return brokers.master_id
    return min(candidates, key=lambda broker_id: (*_rank(candidates[broker_id]), broker_id), default=None)


def _rank(member: LiveMember) -> tuple[int, int, int]:
    return -member.epoch, -member.offset_max, member.priority
