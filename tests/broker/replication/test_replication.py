"""A master and its slaves in virtual time: copies, waiting puts, and which slaves are in sync."""

import json

import pytest

from rmqkit.sim.cluster import SMALL_FILES
from rmqkit.wire.batch import BatchMessage, encode_batch
from rmqkit.wire.codes import RequestCode
from tests.broker.replica_group import Group


def test_a_send_is_answered_when_the_slave_has_it():
    group = Group().in_sync()
    for number in range(50):
        assert group.send(b"%d" % number).code == 0
        assert group.slave.store.offset_written == group.master.store.offset_written
    assert group.same_logs()
    assert group.slave.store.queue_range("T", 0).offset_max == 50
    assert group.facts("broker-0")["replicationInSync"] == "2"
    assert group.facts("broker-1")["replicationState"] == "following"


def test_a_slave_takes_no_messages():
    group = Group().in_sync()
    answer = group.send(node="broker-1")
    assert answer.code == 14
    assert "is a slave" in answer.remark


def test_a_new_slave_gets_all_history():
    group = Group(slaves=0, inSyncReplicas=1)
    group.until(lambda: group.master.serving)
    for number in range(30):
        assert group.send(bytes(100_000) + b"%d" % number).code == 0
    assert group.master.store.offset_written > 2 * SMALL_FILES["mappedFileSizeCommitLog"]
    group.add(1)
    group.in_sync()
    group.until(group.same_logs)
    assert group.slave.store.offset_min == 0
    assert group.slave.store.queue_range("T", 0).offset_max == 30


def test_the_old_rule_gives_the_last_file_only():
    group = Group(slaves=0, inSyncReplicas=1)
    group.until(lambda: group.master.serving)
    for number in range(30):
        assert group.send(bytes(100_000) + b"%d" % number).code == 0
    group.add(1, syncFromLastFile=True)
    group.until(lambda: group.slave.serving and group.slave.store.offset_written == group.master.store.offset_written)
    assert group.slave.store.offset_min == 2 * SMALL_FILES["mappedFileSizeCommitLog"]


def test_without_a_slave_a_plain_sync_master_answers_slave_not_available_at_once():
    group = Group(slaves=0)
    group.until(lambda: group.master.serving)
    began_ms = group.world.now_ms
    assert group.send().code == 11
    assert group.world.now_ms - began_ms < 500
    assert group.master.store.queue_range("T", 0).offset_max == 1
    assert "SLAVE_NOT_AVAILABLE" in group.facts("broker-0")["replicationWhy"]


def test_a_quorum_without_enough_slaves_stores_nothing():
    group = Group(slaves=1, totalReplicas=2).in_sync()
    assert group.send().code == 0
    group.world.kill("broker-1")
    group.in_sync(1)
    end = group.master.store.offset_written
    answer = group.send()
    assert (answer.code, answer.remark[:29]) == (1, "in-sync replicas not enough: ")
    assert group.master.store.offset_written == end
    group.world.restart("broker-1")
    group.in_sync()
    assert group.send().code == 0


def test_a_quorum_may_shrink_and_grows_again():
    group = Group(slaves=1, totalReplicas=2, enableAutoInSyncReplicas=True).in_sync()
    group.world.kill("broker-1")
    group.in_sync(1)
    assert group.send().code == 0
    assert group.facts("broker-0")["replicationWanted"] == "1"
    group.world.restart("broker-1")
    group.in_sync()
    assert group.send().code == 0
    assert group.same_logs()


def test_a_slave_that_does_not_answer_ends_in_a_timeout_and_the_message_is_stored():
    group = Group(slaveTimeout=2000).in_sync()
    group.world.pause("broker-1")
    began_ms = group.world.now_ms
    assert group.send().code == 12
    assert 2000 <= group.world.now_ms - began_ms < 2500
    assert group.master.store.queue_range("T", 0).offset_max == 1
    group.world.resume("broker-1")
    assert group.send().code == 0
    assert group.same_logs()


def test_one_slow_slave_delays_nobody():
    group = Group(slaves=2, slaveTimeout=2000).in_sync(3)
    group.world.pause("broker-2")
    began_ms = group.world.now_ms
    for _ in range(20):
        assert group.send().code == 0
    assert group.world.now_ms - began_ms < 1000


def test_wait_false_waits_for_nobody():
    group = Group(slaveTimeout=2000).in_sync()
    group.world.pause("broker-1")
    began_ms = group.world.now_ms
    assert group.send(properties="WAIT\x01false\x02").code == 0
    assert group.world.now_ms - began_ms < 500


def test_a_missing_quorum_refuses_only_messages_that_wait_for_copies():
    """`CommitLog.asyncPutMessage` counts replicas only if `needHandleHA`: not with WAIT=false."""
    group = Group(slaves=1, totalReplicas=2).in_sync()
    group.world.kill("broker-1")
    group.in_sync(1)
    assert group.send(topic="New", properties="WAIT\x01false\x02").code == 0
    assert group.send(topic="New", properties="WAIT\x01FALSE\x02DELAY\x011\x02").code == 0
    batch = encode_batch([BatchMessage(0, b"a", b""), BatchMessage(0, b"b", b"")])
    assert group.send(batch, topic="New", properties="WAIT\x01false\x02", is_batch=True).code == 0
    for properties in ("", "WAIT\x01true\x02", "WAIT\x01TRUE\x02"):
        answer = group.send(topic="New", properties=properties)
        assert (answer.code, answer.remark[:29]) == (1, "in-sync replicas not enough: ")
    assert group.master.store.queue_range("New", 0).offset_max == 3


def test_an_async_master_waits_for_nobody_and_is_copied():
    group = Group(brokerRole="ASYNC_MASTER").in_sync()
    group.world.pause("broker-1")
    assert group.send().code == 0
    group.world.resume("broker-1")
    group.until(group.same_logs)


def test_a_slave_that_got_only_the_last_file_reports_it_permanently():
    group = Group(slaves=0, inSyncReplicas=1)
    group.until(lambda: group.master.serving)
    for number in range(30):
        assert group.send(bytes(100_000) + b"%d" % number).code == 0
    group.add(1, syncFromLastFile=True)
    group.until(lambda: group.slave.store.offset_max == group.master.store.offset_max)
    assert group.slave.store.offset_min > 0
    assert "older messages are missing here" in group.facts("broker-1")["replicationWhy"]
    group.world.kill("broker-1")
    group.until(lambda: not group.world.is_alive("broker-1"))
    group.world.restart("broker-1")
    group.until(lambda: group.slave.replication.state == "following")
    assert "older messages are missing here" in group.slave.replication.why


def test_nothing_is_missing_if_the_last_file_is_the_first():
    group = Group(syncFromLastFile=True).in_sync()
    assert group.send().code == 0
    assert group.facts("broker-1")["replicationWhy"] == ""


@pytest.mark.parametrize("end", ["kill", "crash", "stop"])
def test_a_restarted_slave_continues_at_its_offset(end: str):
    group = Group(inSyncReplicas=1).in_sync()
    for number in range(20):
        group.send(b"%d" % number * 200)
    getattr(group.world, end)("broker-1")
    for number in range(20):
        group.send(b"%d" % number * 200)
    group.until(lambda: not group.world.is_alive("broker-1"))
    group.world.restart("broker-1")
    group.in_sync()
    group.until(group.same_logs)
    assert group.slave.store.queue_range("T", 0).offset_max == 40


def test_a_slave_finds_its_master_again():
    group = Group(inSyncReplicas=1).in_sync()
    group.send()
    group.world.kill("broker-0")
    group.until(lambda: group.slave.replication.state == "connecting")
    assert "no HA connection" in group.facts("broker-1")["replicationWhy"]
    group.world.restart("broker-0")
    group.in_sync()
    group.send()
    group.until(group.same_logs)


def test_status_says_why_a_slave_is_not_in_sync():
    group = Group(slaves=1, totalReplicas=2, enableAutoInSyncReplicas=True).in_sync()
    group.world.pause("broker-1")
    group.world.run_for(25_000)  # housekeeping has closed the connection; the name server still lists the slave
    (member,) = json.loads(group.facts("broker-0")["replicationMembers"])
    assert (member["broker_id"], member["in_sync"], member["why"]) == (1, False, "no HA connection")


def test_a_put_waits_for_the_disk_and_for_copies_at_the_same_time():
    group = Group(flushDiskType="SYNC_FLUSH", slaveTimeout=1000, syncFlushTimeout=3000).in_sync()
    assert group.send().code == 0
    group.world.pause("broker-1")
    began_ms = group.world.now_ms
    assert group.send().code == 12
    assert group.world.now_ms - began_ms < 1500


def test_flow_control_bounds_what_a_slave_is_sent():
    group = Group(slaves=0, inSyncReplicas=1, haFlowControlEnable=True, maxHaTransferByteInSecond=500_000)
    group.until(lambda: group.master.serving)
    for _ in range(30):
        group.send(bytes(100_000))
    group.add(1)
    group.until(lambda: group.slave.serving and group.slave.replication.state == "following")
    began_ms = group.world.now_ms
    group.until(group.same_logs)
    assert group.world.now_ms - began_ms >= 4000


def test_a_slave_too_far_behind_is_not_in_sync():
    group = Group(
        haMaxGapNotInSync=100_000, slaves=1, totalReplicas=2, enableAutoInSyncReplicas=True, slaveTimeout=300
    ).in_sync()
    group.world.pause("broker-1")
    assert group.send(bytes(60_000)).code == 12
    assert group.send(bytes(60_000)).code == 0
    (member,) = json.loads(group.facts("broker-0")["replicationMembers"])
    assert "behind, the limit (haMaxGapNotInSync) is 0.1 MiB" in member["why"]
    group.world.resume("broker-1")
    group.in_sync()


def test_a_message_sent_back_is_copied_like_any_put():
    group = Group(slaveTimeout=500).in_sync()
    group.send(b"again")
    group.ask(
        "broker-0",
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        body=b'{"groupName":"g","consumeEnable":true,"retryMaxTimes":16,"retryQueueNums":1,"brokerId":0}',
    )
    group.world.pause("broker-1")
    fields = {"offset": "0", "group": "g", "delayLevel": "3", "originMsgId": "m", "originTopic": "T", "unitMode": "false"}
    answer = group.ask("broker-0", RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    assert (answer.code, answer.remark) == (1, "FLUSH_SLAVE_TIMEOUT")
    group.world.resume("broker-1")
    group.in_sync()
    assert group.ask("broker-0", RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == 0


def test_a_new_connection_gets_its_first_heartbeat_after_the_interval():
    """An idle slave must hear from its master within `haHousekeepingInterval`."""
    group = Group(haSendHeartbeatInterval=250, haHousekeepingInterval=700).in_sync()
    assert len(group.world.log("broker-0").events("replica-connected")) == 1
    group.world.run_for(5_000)
    assert len(group.world.log("broker-0").events("replica-connected")) == 1
