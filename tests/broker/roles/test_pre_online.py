"""A broker that returns to its group: what it copies, how long it waits, and deaths on the way.

Source: `broker/.../BrokerPreOnlineService.java`. Where rmqkit differs, Apache 5.5.0 was seen to
lose progress (the last member's tables replaced those of all other members).
"""

import pytest

from rmqkit.broker.metadata.metadata_server import MetadataServer
from rmqkit.broker.roles import Online, Role
from rmqkit.broker.roles.pre_online import IN_STEP_MS, SLAVE_MS
from rmqkit.broker.roles.reverse_sync import MEMBER_MS
from rmqkit.broker.special.delay.rewrite import due
from rmqkit.store.contract import PutStatus
from rmqkit.wire.bodies import ConsumerOffsetTable, DelayOffsetTable, TopicConfig
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.properties import remove
from rmqkit.wire.record import decode_record
from rmqkit.wire.schemas.offsets import (
    GetAllConsumerOffsetRequest,
    QueryConsumerOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from rmqkit.wire.topic_names import SCHEDULE_TOPIC
from tests.broker.metadata.test_metadata import commit, offset, reset
from tests.broker.replica_group import Group

M, S1, S2 = "broker-0", "broker-1", "broker-2"
DELAY_1S = "DELAY\x011\x02"


def group_of(slaves: int = 2, **settings) -> Group:
    made = Group(
        slaves=slaves,
        **{
            "enableSlaveActingMaster": True,
            "totalReplicas": slaves + 1,
            "enableAutoInSyncReplicas": True,
            "brokerNotActiveTimeoutMillis": 2000,
            "brokerHeartbeatInterval": 300,
            "syncBrokerMemberGroupPeriod": 300,
            **settings,
        },
    )
    return made.in_sync(slaves + 1)


def messages(group: Group, count: int, **kind) -> None:
    for _ in range(count):
        assert group.send(**kind).is_ok


def acting(group: Group, node: str = S1) -> None:
    group.until(lambda: group.node(node).roles.is_acting)


def online(group: Group, node: str = M, limit_ms: int = 20_000) -> int:
    """Run until the broker is online. Return the ms that took."""
    began_ms = group.world.now_ms
    group.until(lambda: group.node(node).serving and group.node(node).roles.online is Online.ONLINE, limit_ms)
    return group.world.now_ms - began_ms


@pytest.fixture
def group() -> Group:
    made = group_of()
    messages(made, 9)
    commit(made, 3)
    made.world.run_for(1000)
    return made


def taken_over(group: Group) -> Group:
    """The master is gone, and consumers have made progress at its slaves."""
    group.world.kill(M)
    acting(group)
    commit(group, 9, node=S1)
    commit(group, 6, node=S2)
    commit(group, 4, node=S2, name="NewThere")
    return group


# --- a master


def test_a_master_has_the_greatest_of_all_members_when_it_goes_online(group):
    taken_over(group).world.restart(M)
    assert online(group) < 200
    assert (offset(group, M), offset(group, M, "NewThere")) == (9, 4)
    assert "copied the newer metadata" in group.facts(M)["roleWhy"]
    assert group.master.replication.in_sync_count() == 3, "all follow before the first client comes"
    group.until(lambda: group.node(S1).roles.role is Role.SLAVE)
    messages(group, 3)
    group.world.run_for(1000)
    assert [offset(group, node) for node in (S1, S2)] == [9, 9]
    assert group.same_logs(M, S1, S2)


def test_no_client_is_served_before_the_return_is_complete(group):
    taken_over(group).world.restart(M)
    group.until(lambda: group.master.serving)
    assert group.master.roles.online is not Online.ONLINE
    assert group.send().code == ResponseCode.SERVICE_NOT_AVAILABLE
    request = UpdateConsumerOffsetRequest(consumer_group="CG", topic="T", queue_id=0, commit_offset=5)
    answer = group.ask(M, RequestCode.UPDATE_CONSUMER_OFFSET, request)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    online(group)
    assert offset(group, M) == 9


def test_a_reset_that_only_the_slaves_remember_counts(group):
    """The master died before it had saved the reset."""
    commit(group, 8)
    group.world.run_for(6000)
    assert reset(group, 2).is_ok
    group.world.run_for(1000)
    group.world.kill(M)
    acting(group)
    commit(group, 4, node=S1)
    group.world.restart(M)
    group.until(lambda: group.master.offsets.query("CG", "T", 0) == 8, 2000)
    online(group)
    assert offset(group, M) == 4


def test_a_consumer_that_resets_its_offset_after_the_return_is_not_moved_forward_again(group):
    """The acting master sends its offsets before the master is online, and not again after it."""
    taken_over(group).world.restart(M)
    online(group)
    commit(group, 2)
    group.world.run_for(3000)
    assert offset(group, M) == 2


def test_the_wait_for_a_slaves_newer_metadata_is_bounded(group, monkeypatch):
    monkeypatch.setattr(MetadataServer, "waited_for", frozenset((1, 7)))
    taken_over(group).world.restart(M)
    assert IN_STEP_MS <= online(group) < IN_STEP_MS + 500
    assert f"member 1 has not sent all its newer metadata within {IN_STEP_MS} ms" in group.facts(M)["roleWhy"]
    assert "member 7" not in group.facts(M)["roleWhy"], "the dead member 7 is not waited for"


def test_commits_at_the_acting_master_during_the_return_are_not_lost(group):
    """Clients learn the new route only after the return."""
    taken_over(group).world.restart(M)
    online(group)
    commit(group, 9, node=S1, name="Late")
    group.world.run_for(1000)
    assert offset(group, M, "Late") == 9


def test_a_stalled_member_is_skipped_and_sends_its_offsets_later(group):
    taken_over(group)
    group.world.pause(S1)
    group.world.restart(M)
    assert online(group) < MEMBER_MS + 500
    assert "member 1" in group.facts(M)["roleWhy"]
    assert "skipped" in group.facts(M)["roleWhy"]
    assert (offset(group, M), offset(group, M, "NewThere")) == (6, 4)
    group.world.resume(S1)
    group.until(lambda: offset(group, M) == 9, 5000)


@pytest.mark.parametrize("after_ms", [3, 6, 9, 12, 16, 20, 30])
def test_a_member_that_dies_during_the_return_delays_nothing(group, after_ms):
    taken_over(group).world.restart(M)
    group.world.run_for(after_ms)
    group.world.kill(S1)
    online(group, limit_ms=MEMBER_MS + 500)
    assert offset(group, M) in (6, 9)
    group.world.restart(S1)
    online(group, S1)
    group.until(lambda: [offset(group, node) for node in (M, S2)] == [offset(group, S1)] * 2, 5000)


@pytest.mark.parametrize("after_ms", [3, 6, 9, 12, 16, 20, 30, 45])
def test_a_master_that_dies_during_its_return_begins_again(group, after_ms):
    taken_over(group).world.restart(M)
    group.world.run_for(after_ms)
    group.world.crash(M)
    group.world.run_for(500)
    assert offset(group, S1) == 9
    group.world.restart(M)
    online(group)
    # The power loss may have taken the end of the master's log: offsets go no further than its end.
    end = group.master.store.queue_range("T", 0).offset_max
    assert offset(group, M) == min(9, end)
    assert offset(group, M, "NewThere") == min(4, end)


def test_a_stalled_master_copies_progress_as_well(group):
    """Apache's master is back at once, with the offsets from before the stall (seen on 5.5.0)."""
    group.world.pause(M)
    acting(group)
    commit(group, 9, node=S1)
    group.world.resume(M)
    group.until(lambda: group.master.roles.online is not Online.ONLINE, 100)
    online(group)
    assert offset(group, M) == 9
    group.until(lambda: group.node(S1).roles.role is Role.SLAVE)
    assert group.master.replication.in_sync_count() == 3


def test_a_query_that_waited_during_a_stall_gets_no_stale_offset(group):
    told = group.master.replication.metadata_server
    told._missing = 3
    answers: list = []
    request = QueryConsumerOffsetRequest(consumer_group="CG", topic="T", queue_id=0)
    group.world.call(
        "client",
        lambda client: client.remoting.call(
            group.master.view.address, RequestCode.QUERY_CONSUMER_OFFSET, request, timeout_ms=9000, then=answers.append
        ),
    )
    group.until(lambda: told._asking)
    group.world.pause(M)
    acting(group)
    commit(group, 9, node=S1)
    group.world.resume(M)
    group.until(lambda: group.master.roles.online is not Online.ONLINE, 1000)
    group.world.call(M, lambda broker: told._start_over(0))
    group.until(lambda: answers, 1000)
    assert answers[0].code == ResponseCode.SERVICE_NOT_AVAILABLE


def stood_still_with_a_new_name_server(group):
    group.world.pause(M)
    acting(group)
    commit(group, 9, node=S1)
    commit(group, 6, node=S2)
    group.world.run_for(4000)
    group.world.kill("ns")
    group.world.run_for(300)
    group.world.restart("ns")
    group.world.run_for(5)


def test_a_stalled_master_asks_its_known_members_if_a_new_name_server_lists_nobody(group):
    """Its members register again within a second. Until then it must not serve stale offsets."""
    stood_still_with_a_new_name_server(group)
    group.world.resume(M)
    group.until(lambda: group.master.roles.online is not Online.ONLINE, 1000)
    assert online(group) < 1000
    assert offset(group, M) == 9
    group.in_sync(3)


def test_the_wait_for_known_members_that_nobody_lists_is_bounded(group):
    stood_still_with_a_new_name_server(group)
    for node in (S1, S2):
        group.world.kill(node)
    group.world.resume(M)
    group.until(lambda: group.master.roles.online is not Online.ONLINE, 1000)
    assert online(group) < MEMBER_MS + 500
    assert "member 1 gives no answer; member 2 gives no answer" in group.facts(M)["roleWhy"]
    assert not group.master.roles.known_before


def test_a_master_whose_group_lost_its_disks_keeps_its_own_progress(group):
    commit(group, 8)
    group.world.run_for(6000)
    group.world.kill(M)
    for node in (S1, S2):
        group.world.kill(node)
        group.world.lose_disk(node)
    for node in (S1, S2):
        group.world.restart(node)
        group.world.run_for(5000)
    group.world.restart(M)
    online(group)
    assert offset(group, M) == 8
    group.in_sync(3)
    group.until(lambda: group.same_logs(M, S1, S2))
    assert "T" in group.master.topics.by_name


# --- delay levels


class Escaped:
    """The messages that an acting master puts elsewhere; each put is answered after `wait_ms`."""

    def __init__(self, group: Group, node: str = S1, wait_ms: int = 0) -> None:
        self.origins: list[str] = []
        world = group.world

        def put(put, origin, then) -> None:
            self.origins.append(origin)
            if wait_ms:
                world.after_ms(wait_ms, lambda: world.call(node, lambda broker: then(PutStatus.PUT_OK)))
            else:
                then(PutStatus.PUT_OK)

        group.node(node).roles.destinations[Role.ACTING].put = put


def delivered(group: Group) -> int:
    return group.master.store.queue_range("Later", 0).offset_max


def test_the_master_does_not_release_what_the_acting_master_released(group):
    messages(group, 3, topic="Later", properties="DELAY\x012\x02")
    group.world.run_for(500)
    group.world.kill(M)
    acting(group)
    escaped = Escaped(group)
    group.until(lambda: len(escaped.origins) == 3)
    group.world.run_for(600)
    assert group.node(S2).view.delay.offsets.by_level[2] == 3, "the other slave has the progress, too"
    group.world.restart(M)
    online(group)
    assert group.master.view.delay.offsets.by_level[2] == 3
    group.world.run_for(6000)
    assert delivered(group) == 0


def test_a_late_answer_does_not_undo_the_masters_progress(group):
    messages(group, 7, topic="Later", properties="DELAY\x012\x02")
    group.world.kill(M)
    acting(group)
    escaped = Escaped(group, wait_ms=3000)
    group.until(lambda: len(escaped.origins) == 1)

    def told(broker) -> None:
        broker.view.delay.stop()
        broker.view.delay.offsets.merge(DelayOffsetTable(offset_table={2: 7}))

    group.world.call(S1, told)
    group.world.run_for(4000)
    assert group.node(S1).view.delay.offsets.by_level[2] == 7


def test_a_message_delivered_just_before_a_kill_is_not_redelivered(group):
    """Its slaves do not have the progress yet, but their logs have the delivered message."""
    for body in (b"one", b"and", b"more"):
        messages(group, 1, topic="Later", properties=DELAY_1S, body=body)
        group.world.run_for(100)
    messages(group, 1, topic="Later", properties="DELAY\x012\x02", body=b"two")
    group.until(lambda: delivered(group) == 3)
    group.until(lambda: group.node(S1).store.queue_range("Later", 0).offset_max == 3)
    group.world.kill(M)
    assert group.node(S1).view.delay.offsets.by_level.get(1, 0) < 3
    acting(group)
    escaped = Escaped(group)
    group.until(lambda: group.node(S1).view.delay.offsets.by_level.get(2) == 1)
    assert escaped.origins == ["SCHEDULE:2:0"]
    assert group.node(S1).view.delay.offsets.by_level[1] == 3
    group.world.restart(M)
    online(group)
    group.world.run_for(3000)
    assert delivered(group) == 3


def test_a_message_counts_as_delivered_only_if_all_its_fields_match(group):
    messages(group, 1, topic="Later", properties=DELAY_1S)
    group.until(lambda: delivered(group) == 1)
    group.world.kill(M)
    acting(group)
    delay = group.node(S1).view.delay
    (entry,) = group.node(S1).store.entries(SCHEDULE_TOPIC, 0, 0, 1)
    group.world.run_for(100)
    looks = delay._dedup
    put = due(decode_record(group.node(S1).store.read_log(entry.phy_offset, entry.size), check_crc=True))
    assert looks.has(put, entry.tags_code)
    for other in (
        put._replace(reconsume_times=1),  # sent back by a consumer, with the same key
        put._replace(body=b"other"),
        put._replace(born_ms=put.born_ms + 1),
        put._replace(topic="T"),
        put._replace(properties=put.properties + b"a\x01b\x02"),
        put._replace(properties=remove(put.properties, b"UNIQ_KEY")),
    ):
        assert not looks.has(other, entry.tags_code)
    assert not looks.has(put, entry.tags_code + 60_000), "no broker can have delivered it"


def test_a_put_in_flight_at_the_return_is_counted(group):
    """The answer of an escape in flight is waited for; no other escape begins."""
    messages(group, 3, topic="Later", properties="DELAY\x012\x02")
    group.world.run_for(500)
    group.world.kill(M)
    acting(group)
    escaped = Escaped(group, wait_ms=400)
    group.until(lambda: len(escaped.origins) == 1)
    group.world.restart(M)
    online(group)
    group.until(lambda: delivered(group) == 2)
    group.world.run_for(6000)
    assert (len(escaped.origins), delivered(group)) == (1, 2)


def test_a_master_that_dies_during_its_return_does_not_suspend_delivery_for_ever(group):
    messages(group, 3, topic="Later", properties="DELAY\x013\x02")
    group.world.run_for(500)
    group.world.kill(M)
    acting(group)
    escaped = Escaped(group)
    group.world.restart(M)
    group.until(lambda: group.node(S1).roles.handover.is_on, 1000)
    group.world.kill(M)
    group.until(lambda: len(escaped.origins) == 3, 15_000)
    assert not group.node(S1).roles.handover.is_on


def test_a_broker_that_is_stopped_while_suspended_does_not_deliver_again(group):
    """Its special duties may be due to resume while its store still writes."""
    group.world.kill(M)
    acting(group)
    slave = group.node(S1)
    group.world.restart(M)
    group.until(lambda: slave.roles.handover.is_on, 1000)
    slave.store.stop = lambda then: None
    group.world.kill(M)
    group.world.call(S1, lambda broker: broker.stop())
    group.until(lambda: not slave.roles.handover.is_on, 15_000)
    group.world.run_for(2000)
    assert not slave.view.delay.is_on
    assert not slave.registration.registered


def test_a_log_that_lost_its_end_takes_no_delay_progress_and_no_offset_beyond_it(group):
    """A message that the slave counts as delivered may lie in the part that the master has lost."""
    group.world.run_for(2000)
    messages(group, 2, topic="Later", properties=DELAY_1S)
    group.world.run_for(3000)
    assert delivered(group) == 2
    group.world.kill(M)
    acting(group)
    end = group.node(S1).store.offset_written
    (file,) = [file for path, file in group.world.folder(M).files.items() if "commitlog/0" in path]
    # The master has lost its last message: a delivered copy.
    file.write(end - 300, bytes(300))
    group.world.restart(M)
    online(group)
    assert group.master.store.queue_range("Later", 0).offset_max < 2
    assert "longer than this one" in group.facts(M)["roleWhy"]
    group.until(lambda: delivered(group) == 2, 2000)
    for key, queues in group.master.offsets.table.items():
        for queue_id, committed in queues.items():
            assert committed <= group.master.store.queue_range(key.partition("@")[0], queue_id).offset_max


@pytest.mark.parametrize("after_ms", [0, 1, 2])
def test_a_truncated_slave_does_not_count_lost_messages_as_delivered(after_ms):
    """The master dies again during its return, before it redelivers messages of the lost end."""
    group = group_of(1, haTruncateAhead=True, inSyncReplicas=1)
    group.world.run_for(2000)
    messages(group, 2, topic="Later", properties=DELAY_1S)
    group.world.run_for(3000)
    assert delivered(group) == 2
    group.world.kill(M)
    acting(group)
    slave = group.node(S1)
    end = slave.store.offset_written
    (file,) = [file for path, file in group.world.folder(M).files.items() if "commitlog/0" in path]
    file.write(end - 300, bytes(300))
    group.world.restart(M)
    group.until(lambda: slave.store.offset_written < end, 5000)
    group.world.run_for(after_ms)
    assert group.master.roles.online is not Online.ONLINE
    group.world.kill(M)
    group.world.restart(M)
    online(group)
    group.until(lambda: delivered(group) == 2, 5000)


# --- a slave


def test_a_slave_that_joins_follows_and_copies_before_it_is_online(group):
    group.world.kill(S2)
    commit(group, 7)
    group.master.topics.put(TopicConfig(topic_name="New"))
    group.world.restart(S2)
    online(group, S2)
    assert group.node(S2).replication.state == "following"
    assert (offset(group, S2), "New" in group.node(S2).topics.by_name) == (7, True)


def test_a_slave_that_joins_without_a_master_copies_from_the_head(group):
    """It has the smallest id when it is back, so clients and slaves would get its stale tables."""
    group.world.kill(S1)
    commit(group, 5)
    group.master.topics.put(TopicConfig(topic_name="New"))
    group.world.run_for(1000)
    group.world.kill(M)
    acting(group, S2)
    commit(group, 8, node=S2)
    group.world.restart(S1)
    online(group, S1)
    assert (offset(group, S1), "New" in group.node(S1).topics.by_name) == (8, True)
    acting(group, S1)
    group.until(lambda: not group.node(S2).roles.is_acting)


def test_a_slave_whose_master_is_stalled_goes_online_in_time(group):
    group.world.kill(S2)
    group.world.pause(M)
    group.world.restart(S2)
    assert online(group, S2, SLAVE_MS + 1000) <= SLAVE_MS + 500


# --- while the master is away


def test_the_other_slaves_copy_from_the_acting_master(group):
    taken_over(group)
    group.until(lambda: group.facts(S2)["metadataFrom"] == str(group.node(S1).view.address), 5000)
    commit(group, 9, node=S1, name="AtTheHead")
    commit(group, 9, node=S2, name="AtTheOther")
    group.world.run_for(1000)
    for node in (S1, S2):
        assert [offset(group, node, name) for name in ("CG", "AtTheHead", "AtTheOther")] == [9, 9, 9]
    assert group.facts(S1)["metadataWhy"] == group.facts(S2)["metadataWhy"] == ""
    group.world.kill(S1)
    acting(group, S2)
    group.world.restart(M)
    online(group)
    assert [offset(group, M, name) for name in ("CG", "AtTheHead", "AtTheOther")] == [9, 9, 9]


def test_nothing_goes_backwards_through_down_acting_and_back():
    group = group_of(1, inSyncReplicas=2)
    messages(group, 60)
    highest = 0
    for turn in range(3):
        for number in range(1, 6):
            highest = turn * 15 + number
            commit(group, highest)
        group.world.run_for(1000)
        group.world.pause(M) if turn % 2 else group.world.kill(M)
        acting(group)
        assert offset(group, S1) == highest
        for number in range(6, 11):
            highest = turn * 15 + number
            commit(group, highest, node=S1)
        group.world.restart(M)
        online(group)
        assert offset(group, M) == highest
        group.in_sync(2)


def test_the_whole_table_comes_with_resets_for_a_master_of_ours(group):
    assert reset(group, 2).is_ok
    group.world.run_for(1000)
    plain = group.ask(S1, RequestCode.GET_ALL_CONSUMER_OFFSET)
    ours = group.ask(S1, RequestCode.GET_ALL_CONSUMER_OFFSET, GetAllConsumerOffsetRequest(resets=True))
    assert ConsumerOffsetTable.decode(plain.body).reset_table is None
    assert ConsumerOffsetTable.decode(ours.body).reset_table is not None


def test_a_slave_that_lost_its_disk_waits_for_the_master_while_members_have_messages(group):
    group.world.kill(M)
    acting(group)
    group.world.lose_disk(S1)
    group.world.restart(S1)
    group.until(lambda: group.node(S2).roles.is_acting)
    group.until(lambda: "its log is empty" in group.facts(S1)["roleStage"])
    group.world.run_for(2 * SLAVE_MS)
    assert (group.node(S1).roles.online, group.node(S2).roles.role) == (Online.PRE_ONLINE, Role.ACTING)
    group.world.restart(M)
    online(group)
    online(group, S1)
    group.until(lambda: group.same_logs(M, S1))
    assert group.node(S1).roles.role is Role.SLAVE


def test_a_slave_whose_master_refuses_it_is_shown_to_no_client(group):
    twin = group.add(1, name="twin", host="10.0.1.9")
    group.until(lambda: group.node(twin).serving and group.node(twin).replication.state == "refused")
    group.world.run_for(2 * SLAVE_MS)
    assert group.node(twin).roles.online is Online.PRE_ONLINE
    assert "kept away from clients" in group.facts(twin)["roleStage"]
    group.world.kill(M)
    acting(group)
    group.world.run_for(5000)
    assert not group.node(twin).roles.is_acting
    group.world.restart(M)
    online(group)
