"""A slave's copies of topics, groups, consumer offsets and delay offsets.

The tests cover which side has the newer data, and which values never go back. rmqkit deviates from
Apache where Apache 5.5.0 was seen to lose data.

Source: `broker/.../slave/SlaveSynchronize.java`.
"""

import json

import pytest

from rmqkit.broker.metadata import metadata_copy, metadata_server
from rmqkit.wire.bodies import ConsumerOffsetTable, DataVersion, DelayOffsetTable, SubscriptionGroupConfig, TopicConfig
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schemas.offsets import QueryConsumerOffsetRequest, ResetOffsetRequest, UpdateConsumerOffsetRequest
from tests.broker.replica_group import Group
from tests.helpers import flows

WITHIN_A_SECOND = 1000


@pytest.fixture
def group() -> Group:
    made = Group().in_sync()
    made.send(b"one")
    copied(made)
    return made


def copied(group: Group, node: str = "broker-1") -> None:
    """Wait until the slave has the master's topics and groups."""
    master, slave = group.master, group.node(node)
    group.until(lambda: slave.topics.version == master.topics.version and slave.groups.version == master.groups.version)


def commit(
    group: Group, offset: int, *, name: str = "CG", topic: str = "T", node: str = "broker-0", queue_id: int = 0
) -> None:
    group.world.call(node, lambda broker: broker.groups.get(name))  # as a member's heartbeat does
    request = UpdateConsumerOffsetRequest(consumer_group=name, topic=topic, queue_id=queue_id, commit_offset=offset)
    answer = group.ask(node, RequestCode.UPDATE_CONSUMER_OFFSET, request)
    assert answer.is_ok, answer


def offset(group: Group, node: str, name: str = "CG", topic: str = "T") -> int:
    return group.node(node).offsets.query(name, topic, 0)


def reset(group: Group, to: int, node: str = "broker-0"):
    request = ResetOffsetRequest(topic="T", group="CG", timestamp=-1, is_force=True, queue_id=0, offset=to)
    return group.ask(node, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, request)


def pump(group: Group, count: int) -> None:
    for _ in range(count):
        group.send(b"x")


def test_what_changes_at_the_master_is_at_the_slave_within_a_second(group):
    pump(group, 9)
    commit(group, 7)
    group.master.topics.put(TopicConfig(topic_name="New"))
    group.master.groups.put(SubscriptionGroupConfig(group_name="NewGroup", retry_max_times=3))
    group.world.run_for(WITHIN_A_SECOND)
    slave = group.slave
    assert offset(group, "broker-1") == 7
    assert slave.topics.by_name["New"] == group.master.topics.by_name["New"]
    assert slave.groups.by_name["NewGroup"].retry_max_times == 3
    assert slave.topics.version == group.master.topics.version


def writes_of(group: Group, changes: int, each_ms: int) -> int:
    """Return how often the slave saves its offsets during `changes` commits at the master."""
    kept, count = group.slave.offsets.file, 0
    save = kept.save

    def counted(make, then=None) -> None:
        nonlocal count
        count += 1
        save(make, then)

    kept.save = counted
    for number in range(changes):
        group.world.call("broker-0", lambda broker, at=number: broker.offsets.commit("CG", "T", 0, at))
        group.world.run_for(each_ms)
    kept.save = save
    return count


def test_a_slave_that_is_killed_after_a_second_knows_when_it_starts_alone(group):
    """Seed 945 of the family `acting`: the slave starts alone and has no master to ask."""
    pump(group, 9)
    group.world.run_for(5000)  # the next periodic save is far away
    commit(group, 7)
    group.world.run_for(WITHIN_A_SECOND)
    for node in ("broker-1", "broker-0"):
        group.world.kill(node)
    group.world.restart("broker-1")
    group.until(lambda: group.slave.serving)
    assert offset(group, "broker-1") == 7


def test_copies_are_written_a_few_times_a_second_and_large_tables_less_often(group):
    assert 8 <= writes_of(group, 100, 50) <= 21
    for number in range(8000):
        group.master.offsets.commit(f"group-{number}", "T", 0, 1)
    group.until(lambda: len(group.slave.offsets.table) > 8000)
    assert 1 <= writes_of(group, 100, 50) <= 4


def test_versions_agree_afterwards_and_nothing_is_fetched_again(group):
    """Apache's slave increments its version after each copy, so its version never matches."""
    group.world.run_for(1000)
    before = dict(group.master.remoting.counts)
    group.world.run_for(9000)
    after = group.master.remoting.counts
    for code in (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
        assert after.get(code, 0) == before.get(code, 0)
    questions = after[RequestCode.GET_ALL_CONSUMER_OFFSET] - before[RequestCode.GET_ALL_CONSUMER_OFFSET]
    assert 9 <= questions <= 20, "a quiet master is asked about twice a second"


def test_a_master_that_holds_no_question_is_not_asked_without_end(group, monkeypatch):
    monkeypatch.setattr(metadata_server, "WAITING_MAX", 0)
    group.world.run_for(1000)
    before = group.master.remoting.counts[RequestCode.GET_ALL_CONSUMER_OFFSET]
    group.world.run_for(10_000)
    assert 15 <= group.master.remoting.counts[RequestCode.GET_ALL_CONSUMER_OFFSET] - before <= 21


def test_a_commit_during_the_report_of_the_same_pair_is_reported_next(group):
    """A consumer commits at the acting master for the last time while the master returns."""
    pump(group, 9)
    group.world.run_for(1000)
    commit(group, 5, node="broker-1")
    metadata = group.slave.replication.metadata
    group.until(lambda: metadata._question is not None and "T@CG" in metadata._question.giving)
    assert offset(group, "broker-0") == -1
    group.world.call("broker-1", lambda broker: broker.offsets.commit("CG", "T", 0, 9))
    group.world.run_for(WITHIN_A_SECOND)
    assert offset(group, "broker-0") == 9
    assert group.slave.offsets.untold == {}


def test_a_commit_at_a_slave_that_lags_behind_does_not_stay_there(group):
    """A consumer that has not noticed the end of the slave's acting commits there.

    Another consumer has already committed a later offset of that queue at the master.
    """
    pump(group, 9)
    commit(group, 8)
    group.world.run_for(WITHIN_A_SECOND)
    commit(group, 3, node="broker-1")
    group.world.run_for(WITHIN_A_SECOND)
    assert (offset(group, "broker-0"), offset(group, "broker-1")) == (8, 8)
    assert group.slave.offsets.untold == {}


def test_a_deleted_topic_goes_from_the_slave_with_its_queues(group):
    assert group.slave.store.queue_range("T", 0).offset_max == 1
    group.master.view.delete_topic("T")
    group.master.groups.put(SubscriptionGroupConfig(group_name="G"))
    copied(group)
    group.master.groups.delete("G")
    copied(group)
    assert "T" not in group.slave.topics.by_name
    assert "G" not in group.slave.groups.by_name
    assert group.slave.store.queue_range("T", 0).offset_max == 0
    assert set(group.slave.topics.system) <= set(group.slave.topics.by_name)


def test_a_ban_of_a_group_that_does_not_exist_yet_reaches_the_slave(group):
    group.master.groups.allow_read("later", "T", allowed=False)
    copied(group)
    assert not group.slave.groups.may_read("later", "T")


def test_a_slave_that_restarts_keeps_its_copies(group):
    pump(group, 4)
    commit(group, 3)
    group.world.run_for(7000)
    group.world.kill("broker-0")
    group.world.kill("broker-1")
    group.world.restart("broker-1")
    group.until(lambda: group.slave.serving)
    assert offset(group, "broker-1") == 3
    assert "T" in group.slave.topics.by_name


def test_a_table_of_two_thousand_and_one_topics_comes_whole(group):
    """Apache's slave stops at entry total - 1 and so deletes the last topic.

    Source: `BrokerOuterAPI.getAllTopicConfig`.
    """
    group.master.topics.put_all([TopicConfig(topic_name=f"t{number:05}") for number in range(4001)])
    group.master.groups.put_all([SubscriptionGroupConfig(group_name=f"g{number:05}") for number in range(2001)])
    copied(group)
    assert group.slave.topics.by_name == group.master.topics.by_name
    assert group.slave.groups.by_name == group.master.groups.by_name


def test_an_older_table_is_not_taken_and_said_once(group):
    """A master whose topics were restored from an old copy takes none from its slaves."""
    group.master.topics.put(TopicConfig(topic_name="Kept"))
    copied(group)
    del group.master.topics.by_name["Kept"]
    group.master.topics.version = DataVersion(counter=1)
    group.world.run_for(15_000)
    assert "Kept" in group.slave.topics.by_name
    assert "older than this copy" in group.facts("broker-1")["metadataWhy"]
    assert len(group.world.log("broker-1").events("metadata-older")) == 1


# --- offsets


def test_offsets_never_go_back_by_copying(group):
    pump(group, 9)
    commit(group, 8)
    group.world.run_for(WITHIN_A_SECOND)
    commit(group, 5)
    group.world.run_for(WITHIN_A_SECOND)
    assert offset(group, "broker-1") == 8


def test_a_reset_does_take_them_back_everywhere(group):
    pump(group, 9)
    commit(group, 8)
    group.world.run_for(WITHIN_A_SECOND)
    assert reset(group, 2).is_ok
    group.world.run_for(WITHIN_A_SECOND)
    assert offset(group, "broker-1") == 2
    assert reset(group, 1, node="broker-1").code == ResponseCode.SYSTEM_ERROR, "a slave resets nothing"


def test_what_was_committed_at_the_slave_reaches_the_master_that_comes_back(group):
    """With several members each offset is the greatest of all; Apache's last member wins."""
    other = Group(slaves=2)
    other.settings["inSyncReplicas"] = 2
    other.in_sync(3)
    for _ in range(10):
        other.send()
    commit(other, 3)
    copied(other)
    copied(other, "broker-2")
    other.world.run_for(WITHIN_A_SECOND)
    other.world.kill("broker-0")
    other.world.run_for(2000)
    commit(other, 9, node="broker-1")
    commit(other, 6, node="broker-2")
    commit(other, 4, node="broker-2", name="NewThere")
    other.world.restart("broker-0")
    other.until(lambda: other.master.serving)
    other.until(lambda: offset(other, "broker-0") == 9 and offset(other, "broker-2") == 9, 3000)
    other.until(lambda: offset(other, "broker-0", "NewThere") == 4, 1000)
    assert offset(other, "broker-1") == 9


def test_a_master_that_forgot_what_it_had_not_saved_gets_it_back(group):
    """Offsets are saved every 5 s; a kill in between loses the newest ones of the master only."""
    pump(group, 9)
    group.world.run_for(6000)
    commit(group, 9)
    group.world.run_for(WITHIN_A_SECOND)
    group.world.kill("broker-0")
    group.world.restart("broker-0")
    assert offset(group, "broker-0") < 9
    group.until(lambda: group.master.serving)
    group.until(lambda: offset(group, "broker-0") == 9, 3000)


def asked(group: Group) -> list:
    """Query an offset at the restarting master; return a list that will receive the answer."""
    found: list = []
    request = QueryConsumerOffsetRequest(consumer_group="CG", topic="T", queue_id=0)
    group.until(lambda: group.master.serving)
    address = group.master.view.address
    group.world.call(
        "client",
        lambda client: client.remoting.call(
            address, RequestCode.QUERY_CONSUMER_OFFSET, request, timeout_ms=3000, then=found.append
        ),
    )
    return found


def test_a_returning_master_answers_with_the_offset_that_its_slave_has(group):
    """The master died before it saved the commit. A consumer asks before the slave reports it.

    The master then waits for its slave's answer.
    """
    pump(group, 9)
    commit(group, 9)
    group.world.run_for(WITHIN_A_SECOND)
    group.world.kill("broker-0")
    group.world.restart("broker-0")
    found = asked(group)
    group.until(lambda: found, 2500)
    assert found[0].ext["offset"] == "9"
    again = asked(group)
    group.world.run_for(100)
    assert again, "only at the start does anybody wait"


def test_a_master_waits_for_its_slaves_no_longer_than_consumers_do(group):
    commit(group, 1)
    group.world.run_for(7000)
    for node in ("broker-0", "broker-1"):
        group.world.kill(node)
    group.world.restart("broker-0")
    found = asked(group)
    group.world.run_for(1000)
    assert not found
    group.world.run_for(1500)
    assert found[0].ext["offset"] == "1"


def test_a_reset_while_the_slave_is_away_beats_what_it_had(group):
    pump(group, 9)
    commit(group, 8)
    group.world.run_for(7000)
    group.world.kill("broker-1")
    assert reset(group, 2).is_ok
    group.world.restart("broker-1")
    group.until(lambda: group.slave.serving)
    assert offset(group, "broker-1") == 8
    group.until(lambda: offset(group, "broker-1") == 2)
    assert offset(group, "broker-0") == 2


def test_times_of_resets_outlive_both_files(group):
    pump(group, 9)
    commit(group, 8)
    assert reset(group, 2).is_ok
    marks = dict(group.master.offsets.reset_ms)
    group.world.run_for(7000)
    for node in ("broker-0", "broker-1"):
        group.world.kill(node)
        group.world.restart(node)
    group.until(lambda: group.master.serving and group.slave.serving)
    assert group.master.offsets.reset_ms == group.slave.offsets.reset_ms == marks
    saved = group.world.disk("broker-0").read("config/consumerOffset.json", 0, 1 << 20)
    assert ConsumerOffsetTable.decode(saved).reset_table == {"T@CG": {"0": marks["T@CG"][0]}}


def test_a_slave_cannot_move_offsets_beyond_the_log_or_into_unknown_topics(group):
    told = ConsumerOffsetTable(offset_table={"T@CG": {0: 50, 1: 0, -1: 3}, "Nowhere@CG": {0: 1}})
    answer = group.ask("broker-0", RequestCode.GET_ALL_CONSUMER_OFFSET, {"knownChanges": ""}, told.encode())
    assert answer.is_ok
    assert group.master.offsets.table == {"T@CG": {1: 0}}


def test_a_removed_pair_goes_from_the_slave(group):
    commit(group, 1)
    commit(group, 1, name="Other")
    group.world.run_for(WITHIN_A_SECOND)
    group.master.offsets.remove_group("CG")
    group.world.run_for(WITHIN_A_SECOND)
    assert offset(group, "broker-1") == -1
    assert offset(group, "broker-1", "Other") == 1


def test_a_clean_stop_hands_the_last_state_over(group):
    pump(group, 9)
    group.world.run_for(WITHIN_A_SECOND)
    commit(group, 9)
    group.world.stop("broker-0")
    group.until(lambda: offset(group, "broker-1") == 9, 400)


def test_many_offsets_come_in_parts(group, monkeypatch):
    monkeypatch.setattr(metadata_server, "ENTRIES_MAX", 10)
    for number in range(35):
        group.master.offsets.commit(f"G{number}", "T", 0, 1)
    group.world.run_for(WITHIN_A_SECOND)
    assert group.slave.offsets.table == group.master.offsets.table


# --- delay offsets


def test_delay_offsets_are_copied_once_the_log_has_the_deliveries(group):
    group.send(b"later", properties="DELAY\x011\x02")
    group.until(lambda: group.master.view.delay.offsets.by_level.get(1) == 1)
    group.world.run_for(WITHIN_A_SECOND)
    assert group.slave.view.delay.offsets.by_level == {1: 1}
    group.world.run_for(11_000)
    saved = group.world.disk("broker-1").read("config/delayOffset.json", 0, 1 << 20)
    assert DelayOffsetTable.decode(saved).offset_table == {1: 1}


def test_delay_offsets_wait_for_a_log_that_lags(group):
    for _ in range(5):
        group.send(properties="DELAY\x019\x02")
    group.until(group.same_logs)
    progress, offsets = group.slave.replication.metadata.progress, group.slave.view.delay.offsets
    end = group.slave.store.offset_written
    table = offsets.snapshot()
    table.offset_table = {9: 5}
    progress.take(end + 1, {"delays": table})
    assert 9 not in offsets.by_level
    progress.forget()
    progress.take(end, {"delays": table})
    assert offsets.by_level[9] == 5
    table.offset_table = {9: 4}
    progress.take(end, {"delays": table})
    assert offsets.by_level[9] == 5, "never backwards"


# --- answers to Apache's slaves


def test_the_offset_table_has_quoted_keys_and_only_fields_that_fastjson_reads(group):
    """fastjson2 of Apache 5.5.0 cannot skip `pullOffsetTable` with unquoted keys (#10284)."""
    commit(group, 1)
    assert reset(group, 0).is_ok
    answer = group.ask("broker-0", RequestCode.GET_ALL_CONSUMER_OFFSET)
    read = json.loads(answer.body)
    assert read.keys() == {"dataVersion", "offsetTable"}
    assert read["offsetTable"] == {"T@CG": {"0": 0}}
    assert "changes" not in answer.ext


def test_offsets_are_read_in_both_forms():
    for text in (
        b'{"dataVersion":{"counter":1},"offsetTable":{"T@CG":{"0":5}}}',
        b'{"dataVersion":{"counter":1},"offsetTable":{"T@CG":{0:5}},"pullOffsetTable":{"T@CG":{0:6,1:7}}}',
    ):
        assert ConsumerOffsetTable.decode(text).offset_table == {"T@CG": {0: 5}}


def test_timer_and_modes_are_answered_empty(group):
    """Pre-online of an Apache master needs SUCCESS with 56 bytes (`TimerCheckpoint.decode`).

    Only the first field, how far time was read, moves without timers.
    """
    for node in ("broker-0", "broker-1"):
        assert group.ask(node, RequestCode.GET_TIMER_CHECK_POINT).body[8:] == bytes(48)
        metrics = json.loads(group.ask(node, RequestCode.GET_TIMER_METRICS).body)
        assert (metrics["dataVersion"]["counter"], metrics["timingCount"]) == (0, {})
        modes = json.loads(group.ask(node, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE).body)
        assert modes == {"messageRequestModeMap": {}}


# --- what a slave refuses


@pytest.mark.parametrize(
    ("code", "ext", "body"),
    [
        (RequestCode.UPDATE_AND_CREATE_TOPIC, "topic", b""),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"G2"}'),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "CG"}, b""),
    ],
)
def test_tables_are_changed_at_the_master_alone(group, code, ext, body):
    """Source: 4.9's `AdminBrokerProcessor.validateSlave`."""
    if ext == "topic":
        ext = {"topic": "N", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        ext |= {"topicFilterType": "SINGLE_TAG", "order": "false"}
    answer = group.ask("broker-1", code, ext, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "from slave broker" in answer.remark
    assert "T" in group.slave.topics.by_name


def test_a_topic_goes_when_all_brokers_are_asked_whatever_their_order(group):
    """Source: `DefaultMQAdminExtImpl.deleteTopic`, which asks masters and slaves."""
    assert group.ask("broker-1", RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).is_ok
    assert "T" in group.slave.topics.by_name
    assert group.ask("broker-0", RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).is_ok
    group.world.run_for(WITHIN_A_SECOND)
    assert "T" not in group.slave.topics.by_name


def test_nothing_comes_into_being_at_a_slave(group):
    version = group.slave.topics.version, group.slave.groups.version
    heartbeat = {
        "clientID": "c",
        "consumerDataSet": [{"groupName": "Fresh", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}],
        "producerDataSet": [],
    }
    assert group.ask("broker-1", RequestCode.HEART_BEAT, None, json.dumps(heartbeat).encode()).is_ok
    assert group.send(topic="Another", node="broker-1").code != ResponseCode.SUCCESS
    commit(group, 1, node="broker-1", name="Fresh")
    assert (group.slave.topics.version, group.slave.groups.version) == version
    assert "Fresh" not in group.slave.groups.by_name
    assert "%RETRY%Fresh" not in group.slave.topics.by_name
    assert "Another" not in group.slave.topics.by_name


def test_the_age_of_the_copy_is_told(group):
    facts = group.facts("broker-1")
    assert 0 <= int(facts["metadataAge"]) <= 1000
    assert facts["metadataWhy"] == ""
    group.world.kill("broker-0")
    group.world.run_for(5000)
    facts = group.facts("broker-1")
    assert int(facts["metadataAge"]) >= 4000
    assert "gave no answer" in facts["metadataWhy"]


def test_the_states_are_drawn_as_they_are():
    assert flows.is_drawn(metadata_copy.MOVES, metadata_copy)
