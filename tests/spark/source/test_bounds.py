"""Where queries begin and end, with scripted clusters, and how batches are planned."""

import pytest

from rmqkit.errors import ConfigError, NoRoute
from rmqkit.spark.options import parse
from rmqkit.spark.source import query_plan
from rmqkit.spark.source.bounds import begins_of, ends_of
from rmqkit.spark.source.query_plan import BrokerDown
from rmqkit.spark.source.ranges import DataLoss, OffsetBeyond, OffsetRange, QueueKey
from rmqkit.spark.source.readers import plan
from tests.spark.views import FakeView

A0, A1, B0 = QueueKey("T", "a", 0), QueueKey("T", "a", 1), QueueKey("T", "b", 0)


def view():
    return FakeView(a0=(10, 110), a1=(0, 40), b0=(5, 5))


def options(where="batch", **given):
    return parse({"subscribe": "T"} | given, where)


def begins(where="batch", cluster=None, **given):
    cluster = cluster or view()
    return begins_of(options(where, **given), cluster, cluster.look())


def ends(**given):
    cluster, parsed = view(), options(**given)
    seen = cluster.look()
    return ends_of(parsed, cluster, seen, begins_of(parsed, cluster, seen))


def planned(cluster=None, **given):
    return [tuple(each)[1:] for each in plan(options(**given), cluster or view())]


def test_words():
    assert begins(startingOffsets="earliest") == {A0: 10, A1: 0, B0: 5}
    assert begins(startingOffsets="latest") == {A0: 110, A1: 40, B0: 5}
    assert ends() == {A0: 110, A1: 40, B0: 5}


def test_json_names_some_queues_and_the_others_begin_at_their_earliest():
    assert begins(startingOffsets='{"T": {"a": {"0": 50}, "b": {"0": -1}}}') == {A0: 50, A1: 0, B0: 5}
    assert begins("stream", startingOffsets='{"T": {"a": {"0": -2, "1": -1}}}') == {A0: 10, A1: 40, B0: 5}
    assert ends(endingOffsets='{"T": {"a": {"0": 60, "1": -1}}}') == {A0: 60, A1: 40, B0: 5}


def test_json_that_names_what_is_not_there():
    with pytest.raises(ConfigError, match=r"names queue 7 of topic T on a, which .* it reads: T a:0, T a:1, T b:0"):
        begins(startingOffsets='{"T": {"a": {"7": 1}}}')
    with pytest.raises(ConfigError, match="endingOffsets names queue 0 of topic U on a"):
        ends(endingOffsets='{"U": {"a": {"0": 1}}}')


def test_offsets_beyond_the_end_and_ends_before_the_begin():
    with pytest.raises(ConfigError, match="startingOffsets: queue 1 of topic T on a ends at offset 40, before 41"):
        begins(startingOffsets='{"T": {"a": {"1": 41}}}')
    with pytest.raises(ConfigError, match="endingOffsets: queue 1 of topic T on a ends at offset 40, before 41"):
        ends(endingOffsets='{"T": {"a": {"1": 41}}}')
    with pytest.raises(ConfigError, match="would end at offset 20, but begins at 50"):
        ends(startingOffsets='{"T": {"a": {"0": 50}}}', endingOffsets='{"T": {"a": {"0": 20}}}')


def test_an_offset_below_the_smallest_is_loss():
    asked = '{"T": {"a": {"0": 3}}}'
    with pytest.raises(DataLoss, match=r"queue 0 of topic T on a no longer has the message at offset 3 .*smallest .* 10"):
        begins(startingOffsets=asked)
    assert begins(startingOffsets=asked, failOnDataLoss="false")[A0] == 10


def test_times():
    assert begins(startingTimestamp="1205") == {A0: 21, A1: 21, B0: 5}
    assert ends(endingTimestamp="1205") == {A0: 21, A1: 21, B0: 5}
    # one queue has no message that is new enough: it begins at its end
    assert begins(startingTimestamp="1500") == {A0: 50, A1: 40, B0: 5}
    # a time in the future does not limit the end yet
    assert ends(endingTimestamp="999999") == {A0: 110, A1: 40, B0: 5}


def test_a_start_that_no_queue_has_a_message_for():
    with pytest.raises(ConfigError, match="no queue has a message stored at 5000 or later, the newest was stored at 2090"):
        begins(startingTimestamp="5000")
    late = begins(startingTimestamp="5000", startingOffsetsByTimestampStrategy="latest")
    assert late == {A0: 110, A1: 40, B0: 5}
    assert begins(cluster=FakeView(a0=(0, 0)), startingTimestamp="5000") == {A0: 0}


def test_a_group():
    cluster = view()
    cluster.groups["g"] = {A0: 70}
    assert begins(cluster=cluster, startingOffsets="group", group="g") == {A0: 70, A1: 0, B0: 5}
    cluster.groups["g"] = {A0: 500}
    with pytest.raises(OffsetBeyond, match="ends at offset 110, but the query is at 500"):
        begins(cluster=cluster, startingOffsets="group", group="g")
    assert begins(cluster=cluster, startingOffsets="group", group="g", failOnDataLoss="false")[A0] == 110


@pytest.mark.parametrize("may_lose", ["true", "false"])
def test_what_a_slave_lacks_is_no_loss(may_lose):
    """A slave may lag, and has its own retention, so the query keeps its start offsets."""
    cluster = view()
    cluster.by_slave = {("T", "a")}
    cluster.groups["g"] = {A0: 115, A1: 39}
    found = begins(cluster=cluster, startingOffsets="group", group="g", failOnDataLoss=may_lose)
    assert found == {A0: 115, A1: 39, B0: 5}
    asked = '{"T": {"a": {"0": 3, "1": 41}}}'
    assert begins(cluster=cluster, startingOffsets=asked, failOnDataLoss=may_lose) == {A0: 3, A1: 41, B0: 5}
    assert planned(cluster, startingOffsets=asked, failOnDataLoss=may_lose) == [("a", 0, 3, 110)]


def test_a_batch_that_ends_where_slaves_do_says_so(caplog):
    cluster = view()
    planned(cluster)
    assert not caplog.records
    cluster.by_slave = {("T", "a")}
    planned(cluster)
    assert "ends where a slave of broker a (topic T) ends; it may be behind" in caplog.text


def test_a_batch_read_has_the_offsets_between_start_and_end():
    assert planned() == [("a", 0, 10, 110), ("a", 1, 0, 40)]
    assert planned(startingTimestamp="1205", endingTimestamp="1300") == [("a", 0, 21, 30), ("a", 1, 21, 30)]
    assert planned(startingTimestamp="1500", endingTimestamp="1600") == [("a", 0, 50, 60)]
    assert planned(startingOffsets="latest") == []


def test_partitions():
    assert planned(minPartitions="4") == [("a", 0, 10, 43), ("a", 0, 43, 76), ("a", 0, 76, 110), ("a", 1, 0, 40)]
    assert planned(maxMessagesPerPartition="50") == [("a", 0, 10, 60), ("a", 0, 60, 110), ("a", 1, 0, 40)]


def test_topics_that_are_missing():
    cluster = view()
    cluster.missing = ("order",)
    with pytest.raises(NoRoute, match=r"there is no topic order \(name servers h:1\); did you mean orders\?"):
        plan(parse({"subscribe": "order", "namesrv": "h:1"}, "batch"), cluster)
    with pytest.raises(NoRoute, match=r"no topic matches subscribePattern 'X\.\*'"):
        plan(parse({"subscribePattern": "X.*"}, "batch"), FakeView())
    with pytest.raises(
        NoRoute, match="assign: queue 9 of topic T on a does not exist or is not readable; readable queues: a:0"
    ):
        plan(parse({"assign": '{"T": {"a": [9]}}'}, "batch"), FakeView(a0=(0, 1)))


def test_a_batch_waits_for_a_group_that_is_down_or_fails(monkeypatch):
    monkeypatch.setattr(query_plan, "LOOK_PAUSE_S", 0)
    cluster = view()
    cluster.silent = {("T", "b"): "refused"}
    with pytest.raises(BrokerDown, match=r"no answer from broker b \(topic T\): refused \(whenDown=fail"):
        plan(options(whenDown="fail"), cluster)
    assert cluster.looks == 1
    with pytest.raises(BrokerDown, match="maxWaitForBroker=1 ms"):
        plan(options(maxWaitForBroker="1ms"), cluster)
    cluster.on_look = lambda: cluster.looks < 6 or cluster.silent.clear()
    assert len(plan(options(), cluster)) == 2


def test_ranges_are_named_tuples_for_the_workers():
    assert plan(options(), FakeView(a0=(1, 2))) == [OffsetRange("T", "a", 0, 1, 2)]
