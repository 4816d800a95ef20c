"""An acting slave hands over to its returning master: what the master copies last is final.

In most tests another slave is stalled, so that the master waits for it with the handover sealed.

Source: `BrokerPreOnlineService`; Apache's acting slave serves until the route has changed.
"""

from typing import Any

import pytest

from rmqkit.broker.roles import HANDOVER_CODES, Online, Role, handover
from rmqkit.broker.roles.handover import HANDOVER_MS, SEALED_MS
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies import ConsumerOffsetTable, LockBatchAnswer, LockBatchBody
from rmqkit.wire.codes import PullSysFlag, RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.schemas.admin import ExchangeHAInfoRequest
from rmqkit.wire.schemas.offsets import GetAllConsumerOffsetRequest, UpdateConsumerOffsetRequest
from tests.broker.metadata.test_metadata import commit, offset
from tests.broker.replica_group import PORT, Group
from tests.broker.roles.test_pre_online import acting, group_of, messages, online
from tests.broker.roles.test_roles import is_whole, pull_request
from tests.helpers import flows

M, S1, S2 = "broker-0", "broker-1", "broker-2"
QUEUE = MessageQueue("T", "broker-a", 0)
SEALED = "the master returns and has copied"


@pytest.fixture
def group() -> Group:
    """Slave 1 acts, and has offset 5 of the group."""
    made = group_of(slaveReadEnable=True)
    messages(made, 9)
    commit(made, 3)
    made.world.run_for(1000)
    made.world.kill(M)
    acting(made)
    commit(made, 5, node=S1)
    return made


def sealed(group: Group) -> Group:
    """The master has copied everything from slave 1, and waits for slave 2, which is stalled."""
    group.world.pause(S2)
    group.world.restart(M)
    group.until(lambda: group.slave.roles.handover.is_sealed, 2000)
    assert group.slave.roles.is_acting
    return group


def later(group: Group, node: str, code: int, ext: Any = None, body: bytes = b"") -> list:
    """Send a request, and return the list that receives its answer."""
    found: list = []
    address = Address(group.hosts[node], PORT)
    group.world.call(
        "client", lambda client: client.remoting.call(address, int(code), ext, body, timeout_ms=20_000, then=found.append)
    )
    return found


def oneway_commit(group: Group, to: int) -> None:
    request = UpdateConsumerOffsetRequest(consumer_group="CG", topic="T", queue_id=0, commit_offset=to)
    address = Address(group.hosts[S1], PORT)
    group.world.call("client", lambda client: client.remoting.oneway(address, RequestCode.UPDATE_CONSUMER_OFFSET, request))


def lock(group: Group, client: str, node: str, code: int = RequestCode.LOCK_BATCH_MQ) -> list[MessageQueue] | str:
    """Lock (or unlock) the queue. Return what was granted, or the remark of the refusal."""
    body = LockBatchBody(client_id=client, consumer_group="CG", mq_set=[QUEUE]).encode()
    answer = group.ask(node, code, body=body)
    if not answer.is_ok:
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        return answer.remark
    return LockBatchAnswer.decode(answer.body).lock_ok_mq_set if answer.body else []


def test_the_head_has_the_drawing():
    assert flows.is_drawn(handover.MOVES, handover)


# --- what is refused, and what is not


def test_a_sealed_slave_refuses_the_codes_of_the_table_until_the_route_has_changed(group):
    sealed(group)
    for code in sorted(HANDOVER_CODES):
        answer = group.ask(S1, code)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, code
        assert SEALED in answer.remark
    assert SEALED in str(lock(group, "a", S1))
    group.until(lambda: group.slave.roles.role is Role.SLAVE, 5000)
    assert SEALED not in group.ask(S1, RequestCode.POP_MESSAGE).remark
    assert group.slave.role.handover == ""


def test_a_pull_is_held_until_the_master_serves_and_one_that_cannot_wait_is_refused(group):
    sealed(group)
    at_once = group.ask(S1, RequestCode.PULL_MESSAGE, pull_request())
    assert (at_once.code, SEALED in at_once.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
    held = later(group, S1, RequestCode.PULL_MESSAGE, pull_request(sys_flag=PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND))
    group.until(lambda: held, 5000)
    assert group.master.roles.online is Online.ONLINE
    assert held[0].code == ResponseCode.SUCCESS


def test_a_commit_in_flight_reaches_the_master_although_it_is_one_way(group):
    sealed(group)
    oneway_commit(group, 7)
    group.world.run_for(50)
    assert group.master.roles.online is Online.PRE_ONLINE
    assert offset(group, M) == 7
    online(group)
    assert offset(group, M) == 7


def test_a_commit_by_an_old_route_reaches_the_online_master_at_once(group):
    group.world.restart(M)
    online(group)
    group.until(lambda: is_whole(group), 5000)
    for to in (6, 7, 8):
        oneway_commit(group, to)
        group.world.run_for(40)
        assert offset(group, M) == to


# --- the locks


def test_the_master_knows_the_lock_holder_of_a_queue(group):
    assert lock(group, "a", S1) == [QUEUE]
    group.world.restart(M)
    online(group)
    assert lock(group, "b", M) == []
    assert lock(group, "a", M) == [QUEUE]


@pytest.mark.parametrize("end", ["kill", "pause"])
def test_a_lease_of_the_master_outlives_takeover_and_return(end):
    """Its client renews it only every 20 s, so the acting slave may never hear from the client."""
    group = group_of(slaves=2)
    assert lock(group, "a", M) == [QUEUE]
    group.world.run_for(1100)
    assert group.node(S2).view.leases.count == 1
    getattr(group.world, end)(M)
    acting(group)
    assert lock(group, "b", S1) == []
    {"kill": group.world.restart, "pause": group.world.resume}[end](M)
    group.until(lambda: is_whole(group), 10_000)
    assert lock(group, "b", M) == []
    assert lock(group, "a", M, RequestCode.UNLOCK_BATCH_MQ) == []
    assert lock(group, "b", M) == [QUEUE]


def test_leases_from_before_a_stall_do_not_outlive_the_takeover():
    group = group_of(slaves=1)
    assert lock(group, "a", M) == [QUEUE]
    group.world.pause(M)
    acting(group)
    assert lock(group, "b", S1) == [QUEUE]
    assert lock(group, "b", S1, RequestCode.UNLOCK_BATCH_MQ) == []
    group.world.resume(M)
    group.until(lambda: is_whole(group), 10_000)
    assert lock(group, "c", M) == [QUEUE]


def test_a_lock_that_is_released_during_the_handover_is_released_at_the_master(group):
    assert lock(group, "a", S1) == [QUEUE]
    sealed(group)
    assert lock(group, "a", S1, RequestCode.UNLOCK_BATCH_MQ) == []
    online(group)
    assert lock(group, "b", M) == [QUEUE]


# --- the bounds


def test_when_the_master_dies_again_after_the_snapshot_the_slave_serves_on(group):
    sealed(group)
    oneway_commit(group, 7)
    held = later(group, S1, RequestCode.PULL_MESSAGE, pull_request(sys_flag=PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND))
    group.world.kill(M)
    group.until(lambda: held, 500)
    assert held[0].code == ResponseCode.SUCCESS
    assert lock(group, "a", S1) == [QUEUE]
    assert group.slave.special.destination is not None
    assert offset(group, S1) == 7
    group.world.resume(S2)
    group.world.restart(M)
    online(group)
    assert offset(group, M) == 7


def test_a_master_that_falls_silent_after_the_snapshot_holds_clients_for_a_bounded_time(group):
    sealed(group)
    group.world.net.isolate(M)
    group.world.run_for(SEALED_MS + 100)
    assert group.slave.roles.is_acting
    assert lock(group, "a", S1) == [QUEUE]
    assert group.slave.special.destination is not None


def test_an_announcement_without_more_seals_nothing(group):
    announced = ExchangeHAInfoRequest(master_address="10.0.9.9:10911", master_ha_address="10.0.9.9:10912")
    assert group.ask(S1, RequestCode.EXCHANGE_BROKER_HA_INFO, announced).is_ok
    assert group.slave.special.destination is None
    assert lock(group, "a", S1) == [QUEUE]
    group.world.run_for(HANDOVER_MS + 100)
    assert group.slave.special.destination is not None


def test_an_apache_master_seals_the_handover_with_its_plain_request(group):
    announced = ExchangeHAInfoRequest(master_address="10.0.9.9:10911", master_ha_address="10.0.9.9:10912")
    assert group.ask(S1, RequestCode.EXCHANGE_BROKER_HA_INFO, announced).is_ok
    assert lock(group, "a", S1) == [QUEUE]
    table = ConsumerOffsetTable.decode(group.ask(S1, RequestCode.GET_ALL_CONSUMER_OFFSET).body)
    assert (table.offset_table["T@CG"], table.leases) == ({0: 5}, None)
    assert SEALED in str(lock(group, "a", S1))
    group.world.run_for(SEALED_MS)
    assert lock(group, "a", S1) == [QUEUE]


def test_a_request_for_offsets_without_an_announcement_seals_nothing(group):
    answer = group.ask(S1, RequestCode.GET_ALL_CONSUMER_OFFSET, GetAllConsumerOffsetRequest(resets=True))
    assert answer.is_ok
    assert lock(group, "a", S1) == [QUEUE]
