"""The table of options: accepted values, refused values, and the documentation's text."""

import re
from pathlib import Path

import pytest

from rmqkit.errors import ConfigError
from rmqkit.spark.columns import COLUMNS
from rmqkit.spark.options import OPTIONS, PLACES, parse
from rmqkit.spark.source.ranges import QueueKey

HERE = Path(__file__).parent


def stream(**options):
    return parse({"subscribe": "T"} | options, "stream")


def batch(**options):
    return parse({"subscribe": "T"} | options, "batch")


def refused(where="stream", **options):
    with pytest.raises(ConfigError) as raised:
        parse({"subscribe": "T"} | options, where)
    return str(raised.value)


def test_defaults_are_those_of_kafkas_source():
    assert stream().starting_offsets == "latest"
    assert batch().starting_offsets == "earliest"
    assert batch().ending_offsets == "latest"
    assert stream().fail_on_data_loss is True
    assert stream().columns == tuple(COLUMNS)
    assert stream().max_messages_per_trigger == 0


def test_every_option_has_a_place_and_a_default_that_can_be_read():
    for option in OPTIONS.values():
        assert option.where, option.name
        assert option.where <= set(PLACES), option.name
        for where in option.where:
            option.parse(option.default_in(where))
        assert option.doc.endswith("."), option.name


def test_every_option_has_a_test():
    said = "\n".join(path.read_text() for path in HERE.rglob("test_*.py"))
    for name in OPTIONS:
        assert re.search(rf"\b{name}\b", said), f"no test in {HERE} speaks of {name}"


def test_names_are_taken_in_any_case():
    assert parse({"SUBSCRIBE": "T", "maxmessagespertrigger": "5"}, "stream").max_messages_per_trigger == 5


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("subscrib", "did you mean subscribe?"),
        ("maxMessagePerTrigger", "did you mean maxMessagesPerTrigger?"),
        ("maxOffsetsPerTrigger", "is called maxMessagesPerTrigger here"),
        ("minOffsetsPerTrigger", "is called minMessagesPerTrigger here"),
        ("maxRecordsPerPartition", "is called maxMessagesPerPartition here"),
        ("kafka.bootstrap.servers", "is called namesrv here"),
        ("kafka.security.protocol", "belongs to Kafka's source"),
        ("nameServer", "is called namesrv here"),
        ("topic", "the topics of subscribe"),
        ("xyzzy", "options of the stream: namesrv, subscribe"),
    ],
)
def test_a_wrong_name_gets_the_right_one(name, said):
    assert said in refused(**{name: "1"})


def test_an_option_of_another_place_is_refused_and_of_the_other_kind_of_read_is_taken():
    assert refused(requiredStatus="any") == "option requiredStatus applies to sink, not to stream"
    with pytest.raises(ConfigError, match="option columns applies to batch and stream and store, not to sink"):
        parse({"columns": "topic"}, "sink")
    assert batch(maxMessagesPerTrigger="5").max_messages_per_trigger == 5
    of_a_table = {"provider": "rocketmq", "path": "/x", "option.subscribe": "T", "subscribe": "T"}
    assert parse(of_a_table, "batch").subscribe == ("T",)


def test_topics_are_chosen_in_one_way():
    assert stream(subscribe=" A, B,A ").subscribe == ("A", "B")
    assert refused(subscribePattern="T.*") == "options subscribe and subscribePattern exclude each other: choose one"
    assert refused(assign='{"T": {"a": [0]}}').startswith("options subscribe and assign exclude each other")
    with pytest.raises(ConfigError, match="option subscribe is missing"):
        parse({"columns": "queue"}, "batch")
    with pytest.raises(ConfigError, match=r"option subscribe is missing.* make a temporary view"):
        parse({}, "batch")
    assigned = parse({"assign": '{"T": {"a": [1, 0]}}'}, "batch").assign
    assert assigned == {QueueKey("T", "a", 0), QueueKey("T", "a", 1)}
    for wrong in ("[]", "{", '{"T": [0]}', '{"T": {"a": []}}', '{"T": {"a": ["0"]}}', "{}"):
        with pytest.raises(ConfigError, match="option assign: "):
            parse({"assign": wrong}, "batch")
    with pytest.raises(ConfigError, match=r"option subscribePattern: .* is not a valid regular expression"):
        parse({"subscribePattern": "a("}, "batch")


def test_name_servers(monkeypatch):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert stream().namesrv == ("127.0.0.1:9876",)
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:1;10.0.0.2:2")
    assert stream().namesrv == ("10.0.0.1:1", "10.0.0.2:2")
    assert stream(namesrv="h:5").namesrv == ("h:5",)
    assert "option namesrv: " in refused(namesrv="no-port")


def test_offsets_are_earliest_latest_or_json():
    json = '{"T": {"a": {"0": 23, "1": -2, "2": -1}}}'
    expected = {QueueKey("T", "a", 0): 23, QueueKey("T", "a", 1): -2, QueueKey("T", "a", 2): -1}
    assert stream(startingOffsets=json).starting_offsets == expected
    assert stream(startingOffsets="Earliest").starting_offsets == "earliest"
    assert stream(startingOffsets="group", group="g").group == "g"
    assert stream(startingOffsets="group", commitGroup="g").commit_group == "g"
    assert "needs the name of a group" in refused(startingOffsets="group")
    assert "not one of earliest, latest, group, and not JSON" in refused(startingOffsets="newest")
    assert "queue '0' with offset -2 is not valid" in refused(endingOffsets='{"T": {"a": {"0": -2}}}')
    assert "queue 'x' with offset 1 is not valid" in refused(startingOffsets='{"T": {"a": {"x": 1}}}')
    assert "is not valid" in refused(startingOffsets='{"T": {"a": {"0": 1.5}}}')
    assert "not valid JSON" in refused(startingOffsets="{")
    assert "not one of latest" in refused(endingOffsets="earliest")


def test_times_are_milliseconds_or_iso():
    assert stream(startingTimestamp="1700000000123").starting_timestamp == 1_700_000_000_123
    assert stream(endingTimestamp="2026-01-31T12:00:00.5Z").ending_timestamp == 1_769_860_800_500
    assert "has no time zone" in refused(startingTimestamp="2026-01-31T12:00:00")
    assert "neither Unix ms nor ISO 8601" in refused(startingTimestamp="yesterday")
    assert "is later than endingTimestamp" in refused(startingTimestamp="5", endingTimestamp="4")
    assert stream(startingOffsetsByTimestampStrategy="latest").starting_offsets_by_timestamp_strategy == "latest"
    assert "not one of error, latest" in refused(startingOffsetsByTimestampStrategy="earliest")


def test_counts_sizes_and_durations():
    assert stream(maxBytesPerTrigger="64m").max_bytes_per_trigger == 64 << 20
    assert stream(maxBytesPerTrigger="500000").max_bytes_per_trigger == 500_000
    assert stream(minMessagesPerTrigger="7", maxTriggerDelay="1h").max_trigger_delay == 3_600_000
    assert stream(maxWaitForBroker="30s").max_wait_for_broker == 30_000
    assert stream(requestTimeout="700ms").request_timeout == 700
    assert batch(minPartitions="3", maxMessagesPerPartition="9").min_partitions == 3
    for name in ("maxMessagesPerTrigger", "minPartitions", "maxMessagesPerPartition", "minMessagesPerTrigger"):
        for wrong in ("0", "-1", "1.5", "many", str(2**63)):
            assert f"option {name}: {wrong!r} is not a whole number above 0" in refused(**{name: wrong})
    assert "bytes, as in" in refused(maxBytesPerTrigger="64 parsecs")
    assert "a time, as in" in refused(maxTriggerDelay="soon")
    assert "is above maxMessagesPerTrigger" in refused(minMessagesPerTrigger="5", maxMessagesPerTrigger="4")


def test_truths_and_choices():
    assert stream(failOnDataLoss="FALSE").fail_on_data_loss is False
    assert batch(pushdown="true").pushdown is True
    assert "neither true nor false" in refused(failOnDataLoss="no")
    assert stream(whenDown="fail").when_down == "fail"
    assert "not one of wait, fail" in refused(whenDown="skip")


def test_columns_come_in_the_order_of_the_table():
    assert stream(columns="offset, topic").columns == ("topic", "offset")
    assert "body" not in stream(includeBody="false").columns
    assert len(stream(includeBody="false").columns) == len(COLUMNS) - 1
    assert refused(columns="ofset") == "option columns: 'ofset' is not a column of a message; did you mean offset?"
    assert "choose from topic, broker" in refused(columns="zzz")
    assert stream(columns="offset,offset").columns == ("offset",)
    assert "names body, but includeBody is false" in refused(columns="body", includeBody="false")
    assert "physical_offset" in parse({"columns": "physical_offset"}, "store").columns


def test_decoding_wants_to_be_asked_for():
    assert stream(decode="json", decodeSchema="id bigint").decode_schema == "id bigint"
    assert "decodeSchema needs decode=json" in refused(decodeSchema="id bigint")
    assert "not one of none, json" in refused(decode="avro")


def test_groups_are_checked():
    assert "option commitGroup: " in refused(commitGroup="a b")
    assert "option group: " in refused(group="x" * 300)


def test_tags_default_to_all():
    assert stream().tags == stream(tags="*").tags == ()
    assert stream(tags="A || B").tags == ("A", "B")
    assert refused(tags="||") == "option tags: subscription '||' names no tag"
