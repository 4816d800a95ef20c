"""How far the batches of a stream go, with a scripted cluster, a scripted clock and no Spark."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import ConfigError, NoRoute, PeerUnreachable
from rmqkit.spark.options import parse
from rmqkit.spark.source.query_plan import BrokerDown, StreamPlan, messages_for
from rmqkit.spark.source.ranges import DataLoss, OffsetBeyond, OffsetRange, QueueClosed, QueueKey, count, flat
from tests.spark.views import FakeView

A0, A1, B0 = QueueKey("T", "a", 0), QueueKey("T", "a", 1), QueueKey("T", "b", 0)


class Stream:
    """A query: its plan, and what Spark stores.

    `restart` starts a new process from the checkpoint.
    """

    def __init__(self, view, **given):
        self.view = view
        self.now_ms = 0
        self.given = {"startingOffsets": "earliest"} | given
        if not {"subscribePattern", "assign"} & self.given.keys():
            self.given.setdefault("subscribe", "T")
        self.read = []
        self.restart()
        self.at = self.spark(self.plan.begin())

    def restart(self, **given):
        self.given |= given
        self.plan = StreamPlan(
            parse(self.given, "stream"), self.view, clock=lambda: self.now_ms, sleep=lambda s: self.pass_ms(s * 1000)
        )

    def pass_ms(self, ms):
        self.now_ms += int(ms)

    @staticmethod
    def spark(offsets):
        """Return the offsets as they are read back from a checkpoint."""
        return json.loads(json.dumps(offsets))

    def batch(self, *, limited=True):
        """Run the next batch; return its ranges, or None if there is nothing to read."""
        end = self.plan.advance(self.at, limited=limited)
        if json.dumps(end) == json.dumps(self.at):
            return None
        end = self.spark(end)
        found = self.plan.ranges(self.at, end)
        self.read += found
        self.at = end
        return {(each.broker, each.queue): (each.begin, each.end) for each in found}

    def drain(self):
        """Run batches until nothing is left; return their sizes in messages."""
        sizes = []
        while True:
            before = len(self.read)
            if self.batch() is None:
                return sizes
            sizes.append(count(self.read[before:]))
            assert len(sizes) < 1000

    @property
    def offsets(self):
        return flat(self.at)


def test_a_stream_begins_reads_and_rests():
    stream = Stream(FakeView(a0=(3, 10), a1=(0, 0)))
    assert stream.offsets == {A0: 3, A1: 0}
    assert stream.batch() == {("a", 0): (3, 10)}
    assert stream.batch() is None
    stream.view.put(a1=(0, 2))
    assert stream.batch() == {("a", 1): (0, 2)}
    assert stream.plan.latest() == {"@clusters": {"DefaultCluster": {}}, "T": {"a": {"0": 10, "1": 2}}}


def test_a_stream_can_begin_at_the_latest_offsets():
    stream = Stream(FakeView(a0=(3, 10)), startingOffsets="latest")
    assert stream.batch() is None
    stream.view.put(a0=(3, 12))
    assert stream.batch() == {("a", 0): (10, 12)}


def test_a_topic_that_is_not_there_is_an_error_at_the_start():
    view = FakeView(a0=(0, 1))
    view.missing = ("T",)
    with pytest.raises(NoRoute, match="there is no topic T"):
        Stream(view)


def test_name_servers_that_are_away_at_the_start_are_an_error():
    view = FakeView()
    view.down = True
    with pytest.raises(PeerUnreachable):
        Stream(view)


def test_a_pattern_that_means_nothing_yet_waits_for_topics():
    stream = Stream(FakeView(), subscribePattern="order.*")
    assert stream.offsets == {}
    assert stream.batch() is None
    stream.view.put("orders", a0=(5, 9))
    assert stream.batch() == {}
    assert stream.batch() == {("a", 0): (5, 9)}


# --- limits


def test_maxMessagesPerTrigger_is_shared_out():
    stream = Stream(FakeView(a0=(0, 900), a1=(0, 100), b0=(0, 0)), maxMessagesPerTrigger="100")
    assert stream.batch() == {("a", 0): (0, 89), ("a", 1): (0, 11)}
    assert set(stream.drain()) == {100}
    assert count(stream.read) == 1000


def test_a_small_limit_starves_no_queue():
    stream = Stream(FakeView(**{f"a{queue}": (0, 50) for queue in range(8)}), maxMessagesPerTrigger="3")
    for _ in range(3):
        stream.batch()
    assert min(stream.offsets.values()) >= 1


def test_maxBytesPerTrigger_goes_by_what_was_measured():
    stream = Stream(FakeView(a0=(0, 100), a1=(0, 300)), maxBytesPerTrigger="10000")
    assert stream.drain() == [100, 100, 100, 100]
    assert stream.view.measured[0] == [OffsetRange("T", "a", 1, 0, 300), OffsetRange("T", "a", 0, 0, 100)]
    stream.view.size = 10**6
    stream.view.put(a0=(0, 103))
    assert stream.drain() == [1, 1, 1]


def test_of_two_limits_the_smaller_one_counts():
    stream = Stream(FakeView(a0=(0, 100)), maxBytesPerTrigger="1000", maxMessagesPerTrigger="20")
    assert stream.drain()[0] == 10


def test_bytes_to_messages():
    ready = [OffsetRange("T", "a", 0, 0, 10), OffsetRange("T", "a", 1, 0, 90)]
    assert messages_for(1000, ready, {A0: 1000.0, A1: 10.0}) == 9  # (10·1000 + 90·10) / 100 = 109 bytes each
    assert messages_for(10_240, ready, {}) == 10
    assert messages_for(1, ready, {A0: 1000.0}) == 1


def test_minMessagesPerTrigger_holds_a_batch_back_until_maxTriggerDelay():
    stream = Stream(FakeView(a0=(0, 2)), minMessagesPerTrigger="10", maxTriggerDelay="30s")
    assert stream.batch() == {("a", 0): (0, 2)}, "the first batch is not held back"
    stream.view.put(a0=(0, 5))
    assert stream.batch() is None
    stream.pass_ms(29_999)
    assert stream.batch() is None
    stream.pass_ms(1)
    assert stream.batch() == {("a", 0): (2, 5)}
    stream.view.put(a0=(0, 15))
    assert stream.batch() == {("a", 0): (5, 15)}


def test_without_a_limit_of_Sparks_everything_is_read():
    stream = Stream(FakeView(a0=(0, 900)), maxMessagesPerTrigger="100", minMessagesPerTrigger="50")
    assert stream.batch(limited=False) == {("a", 0): (0, 900)}


# --- AvailableNow


def test_AvailableNow_ends_where_the_queues_ended_when_it_began():
    stream = Stream(FakeView(a0=(0, 30), a1=(0, 5)), maxMessagesPerTrigger="10", minMessagesPerTrigger="10")
    stream.plan.freeze()
    assert stream.batch() is not None
    stream.view.put(a0=(0, 1000), b0=(0, 7))
    stream.drain()
    assert stream.offsets == {A0: 30, A1: 5}


def test_AvailableNow_after_a_restart_takes_what_is_new_and_new_queues():
    stream = Stream(FakeView(a0=(0, 30)))
    stream.drain()
    stream.view.put(a0=(0, 40), b0=(4, 9))
    stream.restart()
    stream.plan.freeze()
    assert stream.drain() == [10, 5]
    assert stream.offsets == {A0: 40, B0: 9}


def test_AvailableNow_waits_for_a_group_that_is_away():
    view = FakeView(a0=(0, 30), b0=(0, 3))
    stream = Stream(view)
    view.silent = {("T", "b"): "refused"}
    stream.restart()
    stream.plan.freeze()
    looks = view.looks
    view.on_look = lambda: view.looks < looks + 4 or view.silent.clear()
    assert stream.drain() == [33]
    view.silent = {("T", "b"): "refused"}
    view.on_look = lambda: None
    stream.restart()
    stream.plan.freeze()
    with pytest.raises(BrokerDown, match=r"no answer from broker b \(topic T\): refused"):
        stream.batch()
    assert stream.now_ms >= 120_000


def test_AvailableNow_of_a_group_that_routes_have_forgotten():
    stream = Stream(FakeView(a0=(0, 30), b0=(0, 3)))
    stream.drain()
    del stream.view.queues[B0]
    stream.restart(maxWaitForBroker="1s")
    stream.plan.freeze()
    with pytest.raises(BrokerDown, match=r"broker b .*: the name servers show no such broker for this topic"):
        stream.batch()


# --- changes while a query runs


def test_a_new_queue_enters_with_its_smallest_offset_and_is_read_next():
    stream = Stream(FakeView(a0=(0, 10)), startingOffsets="latest")
    stream.view.put(a1=(4, 8), b0=(0, 2))
    assert stream.batch() == {}
    assert stream.offsets == {A0: 10, A1: 4, B0: 0}
    assert stream.batch() == {("a", 1): (4, 8), ("b", 0): (0, 2)}


def test_a_dead_group_keeps_its_offsets_and_holds_nobody_up():
    view = FakeView(a0=(0, 10), b0=(0, 10))
    stream = Stream(view)
    stream.drain()
    view.put(a0=(0, 20), b0=(0, 20))
    view.silent = {("T", "b"): "connection refused"}
    assert stream.batch() == {("a", 0): (10, 20)}
    assert stream.offsets == {A0: 20, B0: 10}
    assert stream.batch() is None
    view.silent = {}
    assert stream.batch() == {("b", 0): (10, 20)}


def test_a_dead_group_fails_the_query_with_when_down_fail():
    view = FakeView(a0=(0, 10), b0=(0, 10))
    stream = Stream(view, whenDown="fail")
    view.silent = {("T", "b"): "connection refused"}
    with pytest.raises(BrokerDown, match=r"no answer from broker b \(topic T\): connection refused"):
        stream.batch()


def test_a_route_that_is_gone_for_a_while_moves_nothing():
    view = FakeView(a0=(0, 10))
    stream = Stream(view)
    stream.drain()
    view.missing = ("T",)
    assert stream.batch() is None
    assert stream.offsets == {A0: 10}
    view.missing = ()
    view.down = True
    assert stream.batch() is None
    view.down = False
    view.put(a0=(0, 11))
    assert stream.batch() == {("a", 0): (10, 11)}


def test_a_topic_that_was_deleted_holds_a_query_up_unless_loss_is_allowed():
    stream = Stream(FakeView(a0=(0, 10)), subscribePattern="[TU]")
    stream.drain()
    stream.view.queues.clear()
    stream.view.put("U", a0=(0, 5))
    stream.restart(maxWaitForBroker="1s")
    stream.plan.freeze()
    with pytest.raises(BrokerDown, match=r"no name server knows the topic \(if it was deleted, set failOnDataLoss=false"):
        stream.batch()
    stream.restart(failOnDataLoss="false")
    stream.plan.freeze()
    assert stream.drain() == [0, 5]
    assert stream.offsets[A0] == 10


def test_a_stream_that_rests_asks_ten_times_a_second():
    stream = Stream(FakeView(a0=(0, 10)))
    stream.drain()
    before, looks = stream.now_ms, stream.view.looks
    for _ in range(50):
        assert stream.batch() is None
    assert stream.view.looks - looks == 50
    assert stream.now_ms - before >= 4900


def test_a_restart_waits_for_name_servers():
    view = FakeView(a0=(0, 10))
    stream = Stream(view)
    end = stream.spark(stream.plan.advance(stream.at))
    looks = view.looks
    view.on_look = lambda: setattr(view, "down", view.looks < looks + 3)
    stream.restart()
    assert stream.plan.ranges(stream.at, end) == [OffsetRange("T", "a", 0, 0, 10)]
    view.on_look, view.down = lambda: None, True
    stream.restart()
    with pytest.raises(BrokerDown, match="no answer from the name servers"):
        stream.plan.ranges(stream.at, end)


def test_a_restart_while_routes_are_gone_moves_nothing():
    view = FakeView(a0=(0, 10))
    stream = Stream(view)
    stream.drain()
    view.missing = ("T",)
    stream.restart()
    assert stream.batch() is None
    assert stream.offsets == {A0: 10}


def test_a_slave_that_lags_takes_nobody_back():
    view = FakeView(a0=(0, 10))
    stream = Stream(view)
    stream.drain()
    view.by_slave = {("T", "a")}
    view.put(a0=(0, 8))
    assert stream.batch() is None
    assert stream.offsets == {A0: 10}
    view.put(a0=(0, 12))
    assert stream.batch() == {("a", 0): (10, 12)}


def test_a_master_that_ends_before_the_offset_is_loss():
    view = FakeView(a0=(0, 10))
    stream = Stream(view)
    stream.drain()
    view.put(a0=(2, 6))
    with pytest.raises(OffsetBeyond, match="queue 0 of topic T on a ends at offset 6, but the query is at 10"):
        stream.batch()
    stream.restart(failOnDataLoss="false")
    assert stream.batch() == {}
    assert stream.batch() == {("a", 0): (2, 6)}


def test_AvailableNow_sees_a_master_that_ends_before_the_offset():
    stream = Stream(FakeView(a0=(0, 10)))
    stream.drain()
    stream.view.put(a0=(0, 6))
    stream.restart()
    stream.plan.freeze()
    with pytest.raises(OffsetBeyond):
        stream.batch()


def test_retention_that_overtakes_a_query_is_loss():
    view = FakeView(a0=(0, 10))
    stream = Stream(view)
    view.put(a0=(4, 10))
    with pytest.raises(DataLoss, match=r"no longer has the message at offset 0 \(its smallest offset is 4\)"):
        stream.batch()
    stream.restart(failOnDataLoss="false")
    stream.drain()
    assert [each for each in stream.read if each.begin >= 4] == [OffsetRange("T", "a", 0, 4, 10)]
    assert stream.offsets == {A0: 10}


def test_fewer_read_queues_are_loss_unless_they_were_read_to_the_end():
    view = FakeView(a0=(0, 10), a1=(0, 5))
    stream = Stream(view)
    stream.drain()
    del view.queues[A1]
    view.closed = {A1: 5}
    assert stream.batch() is None
    assert stream.offsets == {A0: 10, A1: 5}
    view.closed = {A1: 7}
    with pytest.raises(
        QueueClosed, match="queue 1 of topic T on a has messages from offset 5 to 7 that can no longer be read"
    ):
        stream.batch()
    stream.restart(failOnDataLoss="false")
    assert stream.batch() is None


def test_a_stream_with_an_end():
    stream = Stream(FakeView(a0=(0, 10), a1=(0, 10)), endingOffsets='{"T": {"a": {"0": 4, "1": -1}}}')
    assert stream.batch() == {("a", 0): (0, 4), ("a", 1): (0, 10)}
    stream.view.put(a0=(0, 20), a1=(0, 11))
    assert stream.batch() == {("a", 1): (10, 11)}


def test_a_stream_until_a_time_that_is_still_to_come():
    stream = Stream(FakeView(a0=(0, 10)), endingTimestamp="1150")
    assert stream.drain() == [10]
    stream.view.put(a0=(0, 40))
    assert stream.drain() == [5]
    assert stream.offsets == {A0: 15}
    stream.restart()
    assert stream.batch() is None


def test_an_end_that_cannot_be_looked_up_now_holds_its_queues():
    """A broker may leave between the snapshot and the search by time."""
    stream = Stream(FakeView(a0=(0, 40), b0=(0, 10)), endingTimestamp="1150")
    search = stream.view.at_time

    def away(keys, time_ms):
        raise PeerUnreachable("gone", kind="connect", address="")

    stream.view.at_time = away
    assert stream.batch() == {("b", 0): (0, 10)}
    assert stream.batch() is None
    stream.view.at_time = search
    assert stream.batch() == {("a", 0): (0, 15)}
    stream.restart(whenDown="fail")
    stream.view.at_time = away
    with pytest.raises(BrokerDown, match="endingTimestamp"):
        stream.batch()


def test_partitions_of_a_stream_are_cut_as_in_a_batch():
    stream = Stream(FakeView(a0=(0, 10)), maxMessagesPerPartition="4")
    stream.batch()
    assert [each.size for each in stream.read] == [3, 3, 4]


# --- checkpoints


def test_a_batch_that_was_planned_is_planned_again_after_a_restart():
    stream = Stream(FakeView(a0=(0, 10)))
    end = stream.spark(stream.plan.advance(stream.at))
    stream.view.put(a0=(0, 50))
    stream.restart()
    assert stream.plan.ranges(stream.at, end) == [OffsetRange("T", "a", 0, 0, 10)]


def test_a_checkpoint_of_other_topics_is_refused():
    stream = Stream(FakeView(a0=(0, 10)))
    stream.restart(subscribe="U")
    with pytest.raises(ConfigError, match="the checkpoint has topics T, the query reads U: it leaves out T a:0"):
        stream.batch()
    stream.restart(subscribe="T,U")
    assert stream.batch() == {("a", 0): (0, 10)}


def test_a_checkpoint_of_queues_that_are_not_assigned_is_refused():
    stream = Stream(FakeView(a0=(0, 10), a1=(0, 10)), assign='{"T": {"a": [0, 1]}}')
    stream.restart(assign='{"T": {"a": [0]}}')
    with pytest.raises(ConfigError, match="it leaves out T a:1"):
        stream.plan.ranges(stream.at, stream.at)


def test_a_checkpoint_of_another_cluster_is_refused_by_its_name():
    stream = Stream(FakeView(a0=(0, 10)))
    stream.drain()
    stream.view = FakeView(cluster="Other", a0=(0, 10))
    stream.restart(namesrv="other:9876")
    with pytest.raises(ConfigError, match=r"DefaultCluster, the query reads cluster Other \(name servers other:9876"):
        stream.batch()


def test_a_checkpoint_of_another_cluster_is_refused_by_its_brokers():
    stream = Stream(FakeView(a0=(0, 10)))
    stream.drain()
    stream.view = FakeView(b0=(0, 10))
    stream.restart()
    with pytest.raises(ConfigError, match="the checkpoint is of brokers a, the query reads b "):
        stream.batch()


def test_a_checkpoint_of_a_cluster_of_the_same_names_is_refused_by_its_witness():
    stream = Stream(FakeView(a0=(0, 10), a1=(3, 3)))
    stream.drain()
    assert stream.at["@witness"] == {"topic": "T", "broker": "a", "queue": 0, "offset": 9, "storeTime": 1090}
    stream.view = FakeView(a0=(0, 500))
    stream.view.stored_shift = 7
    stream.restart()
    end = stream.spark({**stream.at, "T": {"a": {"0": 20, "1": 3}}})
    with pytest.raises(
        ConfigError, match=r"offset 9 of queue 0 of topic T on a was stored at 1090 according .* at 1097 in the cluster"
    ):
        stream.plan.ranges(stream.at, end)
    stream.view.put(a0=(100, 500))
    stream.restart(failOnDataLoss="false")
    stream.drain()
    assert stream.offsets[A0] == 500


def test_a_topic_recreated_while_the_query_runs_is_no_batch():
    stream = Stream(FakeView(a0=(0, 10)))
    stream.drain()
    stream.view.stored_shift = 7
    assert stream.batch() is None
    stream.view.put(a0=(0, 30))
    with pytest.raises(ConfigError, match="a topic that was deleted and recreated"):
        stream.batch()


def test_lost_offsets_do_not_count_for_the_limit_of_a_batch():
    stream = Stream(FakeView(a0=(0, 10), a1=(0, 10)), failOnDataLoss="false", maxMessagesPerTrigger="10")
    stream.batch()
    stream.view.put(a0=(90_000, 90_020))
    assert stream.batch() == {("a", 0): (5, 90_000), ("a", 1): (5, 10)}
    assert stream.batch() == {("a", 0): (90_000, 90_010)}


def test_a_recreated_topic_is_logged_where_loss_is_allowed(caplog):
    stream = Stream(FakeView(a0=(0, 10)), failOnDataLoss="false")
    stream.drain()
    stream.view = FakeView(a0=(0, 500))
    stream.view.stored_shift = 7
    stream.restart(failOnDataLoss="false")
    assert not caplog.records
    assert stream.batch() == {("a", 0): (10, 500)}
    assert "without the messages before them: the checkpoint is of another cluster, or of a topic" in caplog.text


def test_a_witness_that_is_gone_says_nothing():
    stream = Stream(FakeView(a0=(0, 10)))
    stream.drain()
    stream.view.put(a0=(10, 12))
    stream.restart()
    assert stream.batch() == {("a", 0): (10, 12)}


# --- groups


def test_commitGroup_gets_the_offsets_read_a_batch_late_and_at_the_start():
    stream = Stream(FakeView(a0=(0, 10), a1=(0, 4)), commitGroup="g")
    stream.batch()
    assert stream.view.commits == [("g", {A0: 0, A1: 0})]
    stream.restart()
    stream.batch()
    assert stream.view.commits[-1] == ("g", {A0: 10, A1: 4})
    stream.view.put(a0=(0, 11))
    stream.batch()
    stream.plan.done(stream.at)
    assert stream.view.commits[-1] == ("g", {A0: 11})
    told = len(stream.view.commits)
    stream.batch()
    assert len(stream.view.commits) == told


def test_a_commit_that_fails_is_tried_again_and_fails_nothing():
    stream = Stream(FakeView(a0=(0, 10)), commitGroup="g")
    stream.view.commit_problems = ["not today"]
    stream.batch()
    stream.view.commit_problems = []
    stream.batch()
    assert [ends for _, ends in stream.view.commits] == [{A0: 0}, {A0: 10}]


def test_patterns_mean_users_topics():
    def chosen(name, pattern):
        return parse({"subscribePattern": pattern}, "stream").selects(name)

    assert chosen("orders", "or.*")
    assert not chosen("orders", "or")
    for name in ("TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "c_REPLY_TOPIC", "%RETRY%g"):
        assert not chosen(name, ".*")
    assert chosen("%DLQ%g", "%DLQ%.*")
    assert chosen("%DLQ%g", "^(%DLQ%|%RETRY%).*")


# --- random events

events = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.sampled_from(["a0", "a1", "b0", "b1"]), st.integers(1, 40)),
        st.tuples(st.just("silence"), st.sampled_from(["a", "b"])),
        st.tuples(st.just("forget"), st.sampled_from(["a", "b"])),
        st.tuples(st.just("lag"), st.sampled_from(["a", "b"]), st.integers(0, 30)),
        st.tuples(st.just("heal")),
        st.tuples(st.just("down")),
        st.tuples(st.just("restart")),
        st.tuples(st.just("batch")),
    ),
    max_size=40,
)


@given(events, st.sampled_from(["", "1", "7"]))
def test_every_offset_is_read_once_and_in_order_whatever_happens(history, limit):
    """Nothing is skipped or repeated.

    Broker groups die, are forgotten and return, slaves lag, and queries restart.
    """
    stored = {"a0": 5}
    view = FakeView(a0=(0, 5))
    stream = Stream(view, **({"maxMessagesPerTrigger": limit} if limit else {}))
    gone, lags = set(), {}

    def show():
        view.queues.clear()
        for name, end in stored.items():
            if name[0] not in gone:
                view.put(**{name: (0, max(0, end - lags.get(name[0], 0)))})
        view.by_slave = {("T", broker) for broker in lags}

    for event, *details in history:
        if event == "grow":
            stored[details[0]] = stored.get(details[0], 0) + details[1]
        elif event == "silence":
            view.silent = {**view.silent, ("T", details[0]): "silent"}
        elif event == "forget":
            gone.add(details[0])
        elif event == "lag":
            lags[details[0]] = details[1]
        elif event == "heal":
            gone.clear(), lags.clear(), view.silent.clear()
            view.down = False
        elif event == "down":
            view.down = True
        elif event == "restart":
            stream.restart()
        else:
            show()
            before = stream.offsets
            try:
                stream.batch()
            except ConfigError as error:
                # Every broker of the checkpoint is gone and only others exist. That looks like
                # another cluster.
                if "is of brokers" not in str(error):
                    raise
                stream.restart()
            assert all(stream.offsets[key] >= offset for key, offset in before.items())
    gone.clear(), lags.clear(), view.silent.clear()
    view.down = False
    show()
    stream.drain()
    for name, end in stored.items():
        mine = [each for each in stream.read if (each.broker, each.queue) == (name[0], int(name[1:]))]
        assert [offset for each in mine for offset in range(each.begin, each.end)] == list(range(end))
