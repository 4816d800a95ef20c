"""Pulls that a slave answers, and which consumers the master sends to a slave.

Source: `PullMessageProcessor.{rejectRequest,composeResponseHeader,tryCommitOffset}`,
`DefaultPullMessageResultHandler`, `DefaultMessageStore.{nextOffsetCorrection,getMessage}`.
"""

import pytest

from rmqkit.wire.bodies import SubscriptionGroupConfig
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.record import iter_records
from tests.broker.metadata.test_metadata import copied, offset
from tests.broker.replica_group import Group
from tests.broker.requests import pull as pull_of
from tests.broker.requests import pull_fields, send, with_topic

SUSPEND = "6"


@pytest.fixture
def group() -> Group:
    made = Group(slaveReadEnable=True).in_sync()
    for _ in range(5):
        made.send(b"one")
    copied(made)
    return made


def pull(group: Group, node: str = "broker-1", at: int = 0, **changes: str):
    return group.ask(node, RequestCode.PULL_MESSAGE, pull_fields(offset=at, **changes))


def test_a_slave_serves_what_it_has_and_sends_back_to_the_master(group):
    answer = pull(group)
    assert answer.code == ResponseCode.SUCCESS
    assert [each.queue_offset for each in iter_records(answer.body)] == [0, 1, 2, 3, 4]
    assert answer.ext["suggestWhichBrokerId"] == "0"


def test_a_slave_serves_without_its_master_and_groups_that_it_does_not_know(group):
    group.world.kill("broker-0")
    group.world.run_for(3000)
    assert pull(group, at=2, consumerGroup="Fresh").code == ResponseCode.SUCCESS
    assert "Fresh" not in group.slave.groups.by_name


def test_without_slave_read_enable_a_slave_serves_no_pull():
    made = Group().in_sync()
    made.send()
    copied(made)
    answer = pull(made)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "slaveReadEnable" in answer.remark


def test_a_commit_that_comes_with_a_pull_counts(group):
    assert pull(group, sysFlag="5", commitOffset="3").code == ResponseCode.SUCCESS
    assert offset(group, "broker-1") == 3
    group.until(lambda: offset(group, "broker-0") == 3, 2000)


@pytest.mark.parametrize(("topic", "queue_id"), [("T", 0), ("T", 3)])
def test_an_offset_outside_the_queue_is_left_as_it_is(group, topic, queue_id):
    """A slave may lack messages that its master has, or even the whole queue."""
    fields = pull_fields(topic, queue_id, 50)
    answer = group.ask("broker-1", RequestCode.PULL_MESSAGE, fields)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext["nextBeginOffset"] == "50"
    answer = group.ask("broker-0", RequestCode.PULL_MESSAGE, fields)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED


def test_offset_check_in_slave_corrects_as_a_master_does():
    made = Group(slaveReadEnable=True, offsetCheckInSlave=True).in_sync()
    made.send()
    copied(made)
    answer = pull(made, at=50)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.ext["nextBeginOffset"] == "1"


def test_a_consumer_ahead_of_the_slave_waits_there(group):
    """An Apache slave answers at once, so that the consumer polls it in a tight loop."""
    began_ms = group.world.now_ms
    answer = pull(group, at=50, sysFlag=SUSPEND, suspendTimeoutMillis="3000")
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert group.world.now_ms - began_ms >= 3000


def test_a_pull_that_waits_at_the_slave_gets_the_record_that_is_copied(group):
    found = []
    address = pull_fields(offset=5, sysFlag=SUSPEND, suspendTimeoutMillis="15000")
    group.world.call(
        "client",
        lambda client: client.remoting.call(
            group.slave.view.address, RequestCode.PULL_MESSAGE, address, timeout_ms=20_000, then=found.append
        ),
    )
    group.world.run_for(500)
    assert not found
    group.send(b"six")
    group.until(lambda: found, 500)
    assert [each.body for each in iter_records(found[0].body)] == [b"six"]


@pytest.mark.parametrize(
    ("slave_read", "memory_size", "suggested"),
    [("false", 2500, "0"), ("true", 25_000, "5"), ("true", 2500, "2")],
)
def test_a_consumer_of_old_messages_is_sent_to_a_slave(make, slave_read, memory_size, suggested):
    """40 % of the machine's memory (`accessMessageInMemoryMaxRatio`) counts as in memory."""
    script = make(f"slaveReadEnable={slave_read}")
    script.node.view.ports = script.node.ports._replace(memory_size=memory_size)
    client = with_topic(script)
    for _ in range(3):
        send(client, body=b"x" * 1000)
    config = SubscriptionGroupConfig(group_name="CG", broker_id=5, which_broker_when_consume_slowly=2)
    script.node.groups.put(config)
    assert pull_of(client, maxMsgNums="1").ext["suggestWhichBrokerId"] == suggested
