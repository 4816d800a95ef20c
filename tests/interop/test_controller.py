"""Our controller with brokers of Apache in controller mode, and with mqadmin's commands for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqkit import Admin, Message, Producer
from rmqkit.errors import ClientError
from tests.interop.controllers import CLUSTER, ControlledGroup
from tests.interop.groups import BROKER, Member
from tests.interop.mqadmin import Mqadmin
from tests.interop.until import until

TOPIC = "controlled"
#: an election after a silent death waits for the heartbeat's timeout of 10 s
SLOW_S = 120.0


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ControlledGroup]:
    made = ControlledGroup(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def mqadmin(group: ControlledGroup, tmp_path: Path) -> Iterator[Mqadmin]:
    jvm = Mqadmin(group.namesrv, tmp_path)
    yield jvm
    jvm.close()


def start_both(group: ControlledGroup) -> tuple[Member, Member]:
    """Start both brokers, one after the other; return master and slave."""
    first, second = group.brokers
    first.start()
    until("the first broker is master", lambda: group.master() is first)
    second.begin()
    until("the SyncStateSet has both", lambda: group.sync_ids() == [1, 2], deadline_s=SLOW_S)
    return first, second


def send(group: ControlledGroup, text: str) -> bool:
    """Send one message; return whether a broker acknowledged it."""
    try:
        with Producer("controlled", namesrv=group.namesrv, send_msg_timeout_ms=5000, retry_times_when_send_failed=0) as it:
            it.send(Message(TOPIC, text))
    except ClientError:
        return False
    return True


def test_a_master_is_elected_and_replaced(group: ControlledGroup) -> None:
    """Ids, the first election, the set grows, SIGKILL, the old master returns as a slave.

    At the end a restarted controller knows the same.
    """
    first, second = start_both(group)
    found = group.replicas()
    assert (found.master_broker_id, found.master_epoch) == (1, 1)
    assert {each.broker_id: each.broker_address for each in found.in_sync_replicas} == {
        1: first.address,
        2: second.address,
    }
    until("the name server lists both", lambda: group.listed() == {0: first.address, 2: second.address})
    with Admin(group.namesrv) as admin:
        admin.create_topic(TOPIC, queue_nums=1)
    until("a message is acknowledged", lambda: send(group, "one"))
    until("it is replicated", lambda: first.log_end() == second.log_end() > 0)
    first.kill()
    until("the slave is elected", lambda: group.master() is second)
    found = group.replicas()
    assert (found.master_epoch, group.sync_ids()) == (2, [2])
    until("the name server follows", lambda: group.listed().get(0) == second.address, deadline_s=SLOW_S)
    until("sends go on", lambda: send(group, "two"), deadline_s=SLOW_S)
    first.begin()
    until("the old master follows", lambda: group.sync_ids() == [1, 2], deadline_s=SLOW_S)
    assert group.master() is second
    until("the logs are equal", lambda: first.log_end() == second.log_end(), deadline_s=SLOW_S)
    before = group.replicas()
    group.kill_controller(group.addresses[0])
    group.start_controller(group.addresses[0])
    until("the brokers are back", lambda: group.replicas() == before, deadline_s=SLOW_S)
    assert group.replicas().master_epoch == 2


def test_leader_and_master_die_together(tmp_path: Path) -> None:
    """Three controllers: another one leads, knows the set, and elects the slave."""
    group = ControlledGroup(tmp_path, controllers=3)
    try:
        first, second = start_both(group)
        leader = group.leader()
        group.kill_controller(leader)
        first.kill()
        until("another controller leads", lambda: group.leader() not in ("", leader))
        until("the slave is elected", lambda: group.master() is second)
        assert group.replicas().master_epoch == 2
        group.start_controller(leader)
        first.begin()
        until("the old master follows", lambda: group.sync_ids() == [1, 2], deadline_s=SLOW_S)
        assert group.master() is second
    finally:
        group.close()


@pytest.mark.interop_full
def test_a_silent_master_is_replaced(group: ControlledGroup) -> None:
    first, second = start_both(group)
    first.pause()
    try:
        until("the slave is elected", lambda: group.master() is second, deadline_s=SLOW_S)
    finally:
        first.resume()
    until("the old master follows", lambda: group.sync_ids() == [1, 2], deadline_s=SLOW_S)
    assert group.master() is second


def test_mqadmin_commands(group: ControlledGroup, mqadmin: Mqadmin) -> None:
    first, second = start_both(group)
    shown = mqadmin("getControllerMetaData", "-a", group.addresses[0]).out
    assert "ControllerGroup\tcontrollers" in shown, shown
    assert "ControllerLeaderId\tn0" in shown
    assert f"ControllerLeaderAddress\t{group.addresses[0]}" in shown
    shown = mqadmin("getSyncStateSet", "-a", group.addresses[0], "-b", BROKER).out
    assert f"brokerName='{BROKER}', brokerId=2, brokerAddress='{second.address}', alive=true" in shown, shown
    assert mqadmin("getSyncStateSet", "-a", group.addresses[0], "-c", CLUSTER).out.count("brokerAddress=") >= 2
    shown = mqadmin("electMaster", "-a", group.addresses[0], "-b", "2", "-bn", BROKER, "-c", CLUSTER).out
    assert "brokerMasterAddr" in shown or second.address in shown, shown
    until("the designated broker is master", lambda: group.master() is second)
    until("the other one follows", lambda: group.sync_ids() == [1, 2], deadline_s=SLOW_S)
    assert "enableElectUncleanMaster" in mqadmin("getControllerConfig", "-a", group.addresses[0]).out
    mqadmin("updateControllerConfig", "-a", group.addresses[0], "-k", "enableElectUncleanMaster", "-v", "true")
    shown = mqadmin("getControllerConfig", "-a", group.addresses[0]).out
    row = next(line for line in shown.splitlines() if "enableElectUncleanMaster" in line)
    assert "true" in row, row
    first.kill()
    until("the dead broker left the set", lambda: group.sync_ids() == [2], deadline_s=SLOW_S)
    mqadmin("cleanBrokerMetadata", "-a", group.addresses[0], "-bn", BROKER, "-c", CLUSTER, "-b", "1")
    until("the broker is gone", lambda: not group.replicas().not_in_sync_replicas)
