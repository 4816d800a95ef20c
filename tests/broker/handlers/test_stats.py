"""Consume statistics and counters.

Source: `AdminBrokerProcessor.{getConsumeStats,queryConsumeTimeSpan}`,
`AdminBrokerProcessor.{ViewBrokerStatsData,fetchAllConsumeStatsInBroker}`, `StatsItem.java`.
"""

import json

from rmqkit.broker.counters import Count, Counters
from rmqkit.wire.bodies import (
    BrokerStatsData,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    MessageQueue,
    TopicStatsTable,
)
from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.requests import create_group, pull, send, with_topic

QUEUE_0 = MessageQueue("T", "broker-a", 0)


def commit(client, offset, topic="T", queue_id=0, group="CG"):
    create_group(client, group)
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    assert client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == 0


def subscribe(client, *topics, group="CG"):
    consumer = {
        "groupName": group,
        "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": 1} for topic in topics],
    }
    body = json.dumps({"clientID": "c1", "consumerDataSet": [consumer]}).encode()
    assert client.ask(RequestCode.HEART_BEAT, {}, body).code == 0


def stats_of(client, **fields):
    answer = client.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CG", **fields})
    assert answer.code == 0
    return ConsumeStats.decode(answer.body)


def counter(client, name, key):
    answer = client.ask(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
    return BrokerStatsData.decode(answer.body) if answer.code == 0 else answer


class TestConsumeStats:
    def test_progress_of_each_queue(self, broker):
        client = with_topic(broker, "T", 2)
        for _ in range(5):
            send(client)
        commit(client, 2)
        pull(client, offset=4)
        stored_ms = broker.node.store.store_time("T", 0, 1)
        table = stats_of(client).offset_table
        assert list(table) == [QUEUE_0, MessageQueue("T", "broker-a", 1)]
        first = table[QUEUE_0]
        assert (first.broker_offset, first.consumer_offset, first.pull_offset) == (5, 2, 4)
        assert first.last_timestamp == stored_ms
        assert not table[MessageQueue("T", "broker-a", 1)].broker_offset

    def test_a_committed_offset_beyond_the_last_pull_is_what_was_pulled(self, broker):
        client = with_topic(broker)
        send(client)
        pull(client, offset=0)
        commit(client, 1)
        assert stats_of(client).offset_table[QUEUE_0].pull_offset == 1

    def test_topics_a_group_has_left_are_shown_by_name_only(self, broker):
        client = with_topic(broker, "T", 1)
        with_topic(broker, "U", 1)
        commit(client, 0, "T")
        commit(client, 0, "U")
        topics = {queue.topic for queue in stats_of(client).offset_table}
        assert topics == {"T", "U"}
        subscribe(broker.connect(), "U")
        assert {queue.topic for queue in stats_of(client).offset_table} == {"U"}
        assert not stats_of(client, topic="T").offset_table
        assert {queue.topic for queue in stats_of(client, topicList="T;U").offset_table} == {"T", "U"}

    def test_unknown_groups_and_topics_are_empty(self, broker):
        client = with_topic(broker)
        assert not stats_of(client).offset_table
        assert not stats_of(client, topic="none").offset_table

    def test_the_rate_is_over_the_last_minute(self, broker):
        client = with_topic(broker)
        for _ in range(30):
            send(client)
        pull(client)
        commit(client, 30)
        broker.advance(30_000)
        assert 0.9 <= stats_of(client, topic="T").consume_tps <= 1.1
        broker.advance(120_000)
        assert stats_of(client, topic="T").consume_tps == 0

    def test_all_groups_of_the_broker(self, broker):
        client = with_topic(broker, "T", 1)
        with_topic(broker, "ORDERED", 1, order="true")
        for topic in ("T", "ORDERED"):
            send(client, topic)
            send(client, topic)
            pull(client, topic, offset=2)
            commit(client, 1, topic)
        answer = client.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
        found = ConsumeStatsList.decode(answer.body)
        by_group = {group: stats for each in found.consume_stats_list for group, stats in each.items()}
        assert set(by_group) == set(broker.node.groups.by_name)
        assert [next(iter(stats.offset_table)).topic for stats in by_group["CG"]] == ["ORDERED", "T"]
        assert (found.total_diff, found.total_inflight_diff) == (2, 2)
        assert found.broker_addr == "127.0.0.1:10911"
        answer = client.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"})
        found = ConsumeStatsList.decode(answer.body)
        by_group = {group: stats for each in found.consume_stats_list for group, stats in each.items()}
        assert [next(iter(stats.offset_table)).topic for stats in by_group["CG"]] == ["ORDERED"]


class TestTimeSpans:
    def spans(self, client, topic="T"):
        answer = client.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": topic, "group": "CG"})
        return ConsumeTimeSpans.decode(answer.body).consume_time_span_set if answer.code == 0 else answer

    def test_times_of_first_last_and_consumed(self, broker):
        client = with_topic(broker, "T", 2)
        times = []
        for _ in range(3):
            send(client)
            times.append(broker.node.store.store_time("T", 0, len(times)))
            broker.advance(1000)
        commit(client, 2)
        first, empty = self.spans(client)
        assert (first.min_time_stamp, first.max_time_stamp) == (times[0], times[2])
        assert first.consume_time_stamp == times[1]
        assert first.delay_time == broker.clock.wall_ms - times[2]
        assert first.message_queue == QUEUE_0
        assert (empty.min_time_stamp, empty.max_time_stamp, empty.delay_time) == (-1, -1, 0)

    def test_nothing_consumed_is_as_old_as_the_first_message(self, broker):
        client = with_topic(broker, "T", 1)
        send(client)
        stored_ms = broker.node.store.store_time("T", 0, 0)
        broker.advance(5000)
        (span,) = self.spans(client)
        assert (span.consume_time_stamp, span.delay_time) == (stored_ms, broker.clock.wall_ms - stored_ms)

    def test_unknown_topic(self, broker):
        assert self.spans(broker.connect(), "none").code == ResponseCode.TOPIC_NOT_EXIST


class TestCounters:
    def test_puts_and_gets_are_counted_by_topic_and_group(self, broker):
        client = with_topic(broker)
        for _ in range(4):
            send(client, body=b"x" * 100)
        pull(client)
        puts = counter(client, "TOPIC_PUT_NUMS", "T")
        assert (puts.stats_minute.sum, puts.stats_hour.sum, puts.stats_day.sum) == (4, 4, 4)
        assert counter(client, "TOPIC_PUT_SIZE", "T").stats_minute.sum > 400
        gets = counter(client, "GROUP_GET_NUMS", "T@CG")
        assert (gets.stats_minute.sum, gets.stats_minute.avgpt) == (4, 4.0)
        assert counter(client, "GROUP_GET_SIZE", "T@CG").stats_minute.sum > 400
        broker.advance(300_000)
        puts = counter(client, "TOPIC_PUT_NUMS", "T")
        assert (puts.stats_minute.sum, puts.stats_hour.sum, puts.stats_day.sum) == (0, 4, 4)
        for _ in range(10):
            send(client)
        stats = TopicStatsTable.decode(client.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}).body)
        assert 0.1 < stats.topic_put_tps < 0.2

    def test_a_counter_without_counts_does_not_exist(self, broker):
        client = broker.connect()
        answer = counter(client, "TOPIC_PUT_NUMS", "T")
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "The stats <TOPIC_PUT_NUMS> <T> not exist")
        assert counter(client, "SOMETHING", "T").code == ResponseCode.SYSTEM_ERROR

    def test_minute_hour_and_day_end(self):
        counters = Counters(Count, 0)
        count = counters.new("T")
        now_ms = 0
        for _ in range(400):  # 400 samples of 10 s are 66 minutes
            count.messages += 1
            count.times += 1
            now_ms += 10_000
            counters.sample(now_ms)
        minute, hour, day = counters.spans("T", now_ms)
        assert (minute.growth.messages, minute.ms) == (6, 60_000)
        assert (hour.growth.messages, hour.ms) == (400, 4_000_000), "six parts of ten minutes and the one begun"
        assert day.growth.messages == 400
        for _ in range(360 * 30):
            now_ms += 10_000
            counters.sample(now_ms)
        assert [span.growth.messages for span in counters.spans("T", now_ms)] == [0, 0, 0]
        assert counters.messages == 400

    def test_forgotten_keys_stay_in_the_totals(self):
        counters = Counters(Count, 0)
        counters.new("T").messages += 3
        counters.forget(lambda key: key == "T")
        assert counters.spans("T", 1) is None
        assert counters.messages == 3


class TestDays:
    def test_totals_of_the_last_two_midnights(self, broker):
        """Messages of system topics do not count (`BrokerStats.record`)."""
        client = with_topic(broker)
        send(client)
        send(client, "BenchmarkTest")
        pull(client)

        def totals():
            table = client.ask(RequestCode.GET_BROKER_RUNTIME_INFO).json["table"]
            names = ("TotalTodayNow", "TotalTodayMorning", "TotalYesterdayMorning")
            return [int(table[f"msgPut{name}"]) for name in names], [int(table[f"msgGet{name}"]) for name in names]

        assert totals() == ([1, 0, 0], [1, 0, 0])
        broker.clock.wall_ms += 86_400_000
        broker.advance(5000)
        client = broker.connect()
        send(client)
        assert totals() == ([2, 1, 0], [1, 1, 0])
        broker.clock.wall_ms += 86_400_000
        broker.advance(5000)
        assert totals() == ([2, 2, 1], [1, 1, 1])
