"""Filters on the broker, registered by heartbeat or sent with the pull.

The tests cover pulls, long polling, retry topics, the saved table and its expiry.

Source: `ConsumerFilterManager.java`, `ExpressionMessageFilter.java`,
`ExpressionForRetryMessageFilter.java`, `PullMessageProcessor.java`, `ClientManageProcessor.java`,
`PullRequestHoldService.java`, all in `broker`.
"""

import json
import subprocess
import sys

import pytest

from rmqkit.broker.filters import table
from rmqkit.broker.filters.bloom import Bloom, mask_of, murmur3_64
from rmqkit.broker.filters.contract import FilterError
from rmqkit.broker.filters.filter_cache import COMPILED_MAX, Filters
from rmqkit.broker.filters.records import properties_of
from rmqkit.wire import properties as props
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.record import encode_record
from tests.broker.requests import UNIQ, pull, pull_fields, records, send, with_topic

SPAN_MS = 60_000
BORN, STORED = bytes(8), bytes(8)


@pytest.fixture
def broker(make):
    return make("enablePropertyFilter=true")


def with_property(client, body=b"x", topic="T", **properties):
    text = UNIQ + "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    assert send(client, topic, body, i=text).code == 0


def beat(client, *subscriptions, group="CG", client_id="c1"):
    """Send a heartbeat; each subscription is (topic, expression, type, version)."""
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [
            {"topic": topic, "subString": text, "expressionType": kind, "subVersion": version, "codeSet": [], "tagsSet": []}
            for topic, text, kind, version in subscriptions
        ],
    }
    body = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
    assert client.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode()).code == 0


def by_heartbeat(**changes):
    return {"sysFlag": "0", "subscription": "", "expressionType": "SQL92", **changes}


def by_request(expression, **changes):
    return {"expressionType": "SQL92", "subscription": expression, **changes}


def bodies(answer):
    assert answer.code == 0, answer
    return [each.body for each in records(answer)]


def filled(broker):
    client = with_topic(broker)
    for price in range(10):
        with_property(client, b"%d" % price, price=price, **({"region": "eu"} if price % 2 else {}))
    return client


# --- pulls


def test_a_pull_that_carries_its_expression(broker):
    client = filled(broker)
    answer = pull(client, **by_request("price > 6"))
    assert bodies(answer) == [b"7", b"8", b"9"]
    assert answer.ext["nextBeginOffset"] == "10"
    assert bodies(pull(client, **by_request("price > 6 AND region IS NOT NULL"))) == [b"7", b"9"]
    assert bodies(pull(client, **by_request("price > 2", maxMsgNums="2"))) == [b"3", b"4"]
    answer = pull(client, **by_request("price > 100"))
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "10")


def test_a_pull_by_the_expression_of_the_heartbeat(broker):
    client = filled(broker)
    beat(client, ("T", "region = 'eu' and price < 4", "SQL92", 7))
    assert bodies(pull(client, **by_heartbeat(subVersion="7"))) == [b"1", b"3"]
    answer = pull(client, **by_heartbeat(subVersion="7", expressionType="TAG"))
    assert bodies(answer) == [b"1", b"3"], "the heartbeat decides"


def test_a_pull_by_tag_is_as_it_was(broker):
    client = filled(broker)
    beat(client, ("T", "*", "TAG", 1))
    assert len(bodies(pull(client, sysFlag="0"))) == 10


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        (by_request("price >"), ResponseCode.SUBSCRIPTION_PARSE_FAILED, "too early"),
        (by_request(""), ResponseCode.SUBSCRIPTION_PARSE_FAILED, "too early"),
        (by_request("price LIKE 'x'"), ResponseCode.SUBSCRIPTION_PARSE_FAILED, "no LIKE"),
        (by_request("x", expressionType="SQL"), ResponseCode.SUBSCRIPTION_PARSE_FAILED, "it has TAG, SQL92"),
        (by_heartbeat(subVersion="7"), ResponseCode.SUBSCRIPTION_NOT_EXIST, "group info"),
    ],
)
def test_expressions_that_are_none_never_deliver(broker, changes, code, said):
    """rmqkit answers an error where an Apache broker delivers everything.

    Apache would answer 23 in an assertion, but Java disables assertions by default.
    """
    answer = pull(filled(broker), **changes)
    assert answer.code == code
    assert said in answer.remark
    assert answer.body == b""


def test_versions_of_a_filter(broker):
    client = filled(broker)
    beat(client, ("T", "price > 8", "SQL92", 7))
    answer = pull(client, **by_heartbeat(subVersion="8"))
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    beat(client, ("T", "price > 7", "SQL92", 8))
    assert bodies(pull(client, **by_heartbeat(subVersion="8"))) == [b"8", b"9"]
    # A heartbeat with an older version changes nothing.
    beat(broker.connect(), ("T", "price > 1", "SQL92", 6), client_id="c2")
    assert bodies(pull(client, **by_heartbeat(subVersion="8"))) == [b"8", b"9"]
    # Neither does the same version with a different expression.
    beat(client, ("T", "price > 1", "SQL92", 8))
    assert bodies(pull(client, **by_heartbeat(subVersion="8"))) == [b"8", b"9"]


def test_a_filter_that_is_older_than_the_subscription(broker):
    client = filled(broker)
    beat(client, ("T", "price > 8", "SQL92", 7))
    broker.node.filters.get("T", "CG").data.client_version = 6
    answer = pull(client, **by_heartbeat(subVersion="7"))
    assert answer.code == ResponseCode.FILTER_DATA_NOT_LATEST


def test_a_bad_newer_expression_removes_the_filter(broker):
    client = filled(broker)
    beat(client, ("T", "price > 8", "SQL92", 7))
    beat(client, ("T", "price >", "SQL92", 8))
    answer = pull(client, **by_heartbeat(subVersion="8"))
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "too early" in answer.remark
    assert broker.node.filters.count == 0


def test_without_property_filters_the_broker_says_so(make):
    broker = make()
    client = filled(broker)
    beat(client, ("T", "price > 8", "SQL92", 7))
    for changes in (by_request("price > 8"), by_heartbeat(subVersion="7")):
        answer = pull(client, **changes)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark.startswith("The broker does not support consumer to filter message by SQL92")
    assert check(client, "price > 8").code == ResponseCode.SYSTEM_ERROR
    assert broker.node.filters.count == 0
    assert check(client, "A || B", kind="TAG").code == 0


def check(client, expression, kind="SQL92"):
    """Send CHECK_CLIENT_CONFIG as `MQClientInstance.checkClientInBroker` does."""
    subscription = {"topic": "T", "subString": expression, "expressionType": kind, "subVersion": 1}
    body = {"clientId": "c1", "group": "CG", "subscriptionData": subscription}
    return client.ask(RequestCode.CHECK_CLIENT_CONFIG, {}, json.dumps(body).encode())


def test_a_client_can_check_an_expression_before_it_starts(broker):
    client = with_topic(broker)
    assert check(client, "price > 8").code == 0
    answer = check(client, "price > 'x'")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert answer.remark == "SQL92 expression \"price > 'x'\": 'x' cannot be compared by <, >, <=, >= or BETWEEN"
    assert check(client, "x", kind="JMS").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert check(client, "(" * 5000).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_the_filter_servers_of_old_are_refused(broker):
    """Codes 301 and 302 have no handler in 5.x.

    They are `RequestCode.REGISTER_FILTER_SERVER` and `REGISTER_MESSAGE_FILTER_CLASS`.
    """
    client = broker.connect()
    for code in (301, 302):
        assert client.ask(code, {}).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


# --- long polling


def suspended(client, expression, **changes):
    fields = pull_fields(**by_request(expression, sysFlag="6", suspendTimeoutMillis="15000", **changes))
    return client.tell(RequestCode.PULL_MESSAGE, fields)


def test_only_a_record_that_is_wanted_wakes_a_parked_pull(broker):
    client, sender = with_topic(broker), broker.connect()
    opaque = suspended(client, "price > 5")
    for price in (1, 2, "x"):
        with_property(sender, price=price)
        assert client.answer_to(opaque) is None
    with_property(sender, b"wanted", price=6)
    answer = client.answer_to(opaque)
    assert bodies(answer) == [b"wanted"]
    assert answer.ext["nextBeginOffset"] == "4"


def test_the_scan_moves_a_parked_pull_past_what_it_does_not_want(broker):
    client = with_topic(broker)
    opaque = suspended(client, "price > 5")
    with_property(broker.connect(), price=1)
    broker.advance(5_000)
    answer = client.answer_to(opaque)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "1")


def test_a_record_is_read_once_for_all_waiting_pulls_and_not_at_all_without_them(broker, monkeypatch):
    client, sender = with_topic(broker), broker.connect()
    reads = []
    read = broker.node.store.read
    monkeypatch.setattr(broker.node.store, "read", lambda *args, **more: reads.append(args) or read(*args, **more))
    plain = client.tell(RequestCode.PULL_MESSAGE, pull_fields(sysFlag="6", subscription="A", suspendTimeoutMillis="15000"))
    reads.clear()
    with_property(sender, price=1)
    assert reads == [], "nobody waits by properties"
    for expression in ("price > 5", "price > 6", "price > 7"):
        suspended(client, expression, queueOffset="1")
    reads.clear()
    with_property(sender, price=2)
    assert len(reads) == 1
    assert client.answer_to(plain) is None


def test_a_topic_made_again_is_not_taken_for_the_old_one(broker):
    client, sender = with_topic(broker), broker.connect()
    suspended(client, "price > 5")
    with_property(sender, price=1)
    assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
    client.take()
    with_topic(broker)
    opaque = suspended(client, "price > 5")
    with_property(sender, b"new", price=9)
    assert bodies(client.answer_to(opaque)) == [b"new"]


# --- retry topics


def test_retried_messages_are_not_filtered(make):
    """Clients subscribe to retry topics by tag (`DefaultMQPushConsumerImpl.copySubscription`)."""
    for setting in ("filterSupportRetry=false", "filterSupportRetry=true"):
        broker = make("enablePropertyFilter=true", setting)
        client = with_topic(broker)
        retry = "%RETRY%CG"
        beat(client, ("T", "price > 5", "SQL92", 1), (retry, "*", "TAG", 1))
        with_property(client, b"1", retry, price=1, RETRY_TOPIC="T")
        assert bodies(pull(client, retry, sysFlag="0", subscription="")) == [b"1"]


def test_retry_topics_filtered_by_the_topic_of_the_message(make):
    """The retried message's own topic selects the filter (`ExpressionForRetryMessageFilter`).

    This needs `filterSupportRetry` and an SQL92 subscription to the retry topic.
    """
    retry = "%RETRY%CG"
    found = {}
    for setting in ("false", "true"):
        broker = make("enablePropertyFilter=true", f"filterSupportRetry={setting}")
        client = with_topic(broker)
        beat(client, ("T", "price > 5", "SQL92", 1), (retry, "price IS NOT NULL", "SQL92", 1))
        for price, topic in ((1, "T"), (9, "T"), (1, "Other")):
            with_property(client, b"%d %s" % (price, topic.encode()), retry, price=price, RETRY_TOPIC=topic)
        found[setting] = bodies(pull(client, retry, **by_heartbeat()))
        assert found[setting] == bodies(pull(client, retry, **by_request("price IS NOT NULL")))
    assert found == {"false": [b"1 T", b"9 T", b"1 Other"], "true": [b"9 T", b"1 Other"]}


# --- the saved table


def test_filters_are_kept_in_apaches_form(broker):
    client = with_topic(broker)
    beat(client, ("T", "price > 5", "SQL92", 7))
    broker.advance(table.SAVE_MS)
    data = broker.node.filters.snapshot()
    text = json.loads(data.pretty())
    assert text["filterDataByTopic"]["T"]["topic"] == "T"
    entry = text["filterDataByTopic"]["T"]["groupFilterData"]["CG"]
    assert entry.pop("bornTime") > 0
    assert entry == {
        "bloomFilterData": {"bitNum": 112, "bitPos": [0, 73, 34]},
        "clientVersion": 7,
        "consumerGroup": "CG",
        "dead": False,
        "deadTime": 0,
        "expression": "price > 5",
        "expressionType": "SQL92",
        "topic": "T",
    }


def test_a_filter_outlives_its_group_by_a_while(make):
    broker = make("enablePropertyFilter=true", f"filterDataCleanTimeSpan={SPAN_MS}")
    client = with_topic(broker)
    beat(client, ("T", "price > 5", "SQL92", 7))
    client.close()
    broker.advance(table.SAVE_MS)
    entry = broker.node.filters.get("T", "CG")
    assert entry.is_dead
    broker.advance(SPAN_MS - table.SAVE_MS)
    assert broker.node.filters.count == 1
    broker.advance(2 * table.SAVE_MS)
    assert broker.node.filters.count == 0
    assert broker.node.filters.by_topic == {}


def test_a_filter_comes_alive_again_with_its_bits(broker):
    client = with_topic(broker)
    beat(client, ("T", "price > 5", "SQL92", 7))
    born_ms = broker.node.filters.get("T", "CG").data.born_time
    client.close()
    broker.advance(table.SAVE_MS)
    beat(broker.connect(), ("T", "price > 5", "SQL92", 9))
    entry = broker.node.filters.get("T", "CG")
    assert not entry.is_dead
    assert (entry.data.client_version, entry.data.born_time) == (9, born_ms)


def test_a_topic_no_longer_subscribed_to_makes_its_filter_dead(broker):
    client = with_topic(broker)
    beat(client, ("T", "price > 5", "SQL92", 7), ("U", "price > 5", "SQL92", 7))
    beat(client, ("U", "price > 5", "SQL92", 7))
    assert broker.node.filters.get("T", "CG").is_dead
    assert not broker.node.filters.get("U", "CG").is_dead


def test_the_table_has_room_for_so_many(broker, monkeypatch):
    monkeypatch.setattr(table, "FILTERS_MAX", 1)
    client = with_topic(broker)
    beat(client, ("T", "price > 5", "SQL92", 7), ("U", "price > 5", "SQL92", 7))
    with_topic(broker, "U")
    answer = pull(client, "U", **by_heartbeat())
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "takes no more" in answer.remark


def table_of(disk, clock, *, wall_ms=0, **settings):
    from rmqkit.broker.filters.built_in import FILTERS
    from rmqkit.config import FilterSettings

    return table.FilterTable(disk, clock, "config", Filters(FILTERS), FilterSettings(**settings))


def test_a_restart_finds_the_filters_dead_until_the_next_heartbeat(broker):
    client = with_topic(broker)
    beat(client, ("T", "price > 5", "SQL92", 7))
    broker.advance(table.SAVE_MS)
    broker.finish_disk()
    node = broker.node
    again = table_of(node.ports.disk, node.clock)
    again.load()
    assert again.get("T", "CG").is_dead
    assert again.get("T", "CG").compiled.match_properties({"price": "6"})
    other = table_of(node.ports.disk, node.clock, expect_consumer_num_use_filter=64)
    other.load()
    assert other.count == 0, "bits of another length say nothing"


# --- parts


def test_bloom_filters_are_apaches():
    """The expected positions are from `BloomFilter.createByFn(20, 32).generate` of 5.5.0."""
    bloom = Bloom(error_percent=20, groups=32)
    assert (bloom.hashes, bloom.bits) == (3, 112)
    assert bloom.data("CG", "T").bit_pos == [0, 73, 34]
    assert bloom.data("group", "topic").bit_pos == [79, 21, 21]
    assert bloom.data("%RETRY%g", "some-Topic_1").bit_pos == [106, 48, 102]
    assert murmur3_64(b"abc") == 0xB4963F3F3FAD7867
    assert murmur3_64(b"abcdefghijklmnopqrstuvwxyz") == 0x749C9D7E516F4AA9


def test_bit_maps_tell_which_group_wants_a_message(broker):
    client = with_topic(broker)
    beat(client, ("T", "price > 5", "SQL92", 7))
    filters = broker.node.filters
    entry = filters.get("T", "CG")
    wanted = filters.bit_map("T", props.encode({"price": "6"}))
    unwanted = filters.bit_map("T", props.encode({"price": "5"}))
    assert int.from_bytes(wanted, "little") == mask_of(entry.data.bloom_filter_data)
    assert unwanted == bytes(14)
    assert filters.bit_map("Nobody", b"") == b""
    later_ms = entry.data.born_time + 1
    assert entry.match_bits(later_ms, wanted)
    assert not entry.match_bits(later_ms, unwanted)
    assert entry.match_bits(entry.data.born_time, unwanted), "a message from before the filter"
    assert entry.match_bits(later_ms, b""), "no bit map"
    assert entry.match_bits(later_ms, bytes(8)), "a bit map of another length"


def test_compiled_expressions_are_kept_and_bounded():
    made = []

    class Counting:
        def compile(self, expression):
            made.append(expression)
            if expression.startswith("bad"):
                raise FilterError(f"{expression} is bad")
            return self

    filters = Filters({"X": Counting})
    for text in ("a", "bad", "a", "bad"):
        if text == "bad":
            with pytest.raises(FilterError, match="bad is bad"):
                filters.compile("X", text)
        else:
            filters.compile("X", text)
    assert made == ["a", "bad"]
    for i in range(COMPILED_MAX - 2):
        filters.compile("X", str(i))
    filters.compile("X", "a")
    filters.compile("X", "one more")
    made.clear()
    filters.compile("X", "a")
    assert made == []
    with pytest.raises(FilterError):
        filters.compile("X", "bad")
    assert made == ["bad"], "asked for the longest ago"


@pytest.mark.parametrize("topic", ["T", "t" * 200])
@pytest.mark.parametrize("born", [8, 20])
@pytest.mark.parametrize("stored", [8, 20])
def test_the_properties_of_any_record(topic, born, stored):
    record = encode_record(
        topic=topic,
        queue_id=1,
        flag=0,
        queue_offset=2,
        phy_offset=3,
        sys_flag=0,
        born_ms=4,
        born_host=bytes(born),
        store_ms=5,
        store_host=bytes(stored),
        reconsume_times=0,
        prepared_offset=0,
        body=b"\xa7\x00body",
        properties=props.encode({"a": "1", "b": "größe"}),
    )
    assert properties_of(memoryview(record)) == {"a": "1", "b": "größe"}


def test_lark_is_imported_only_when_an_expression_comes():
    code = (
        "import sys, rmqkit.process, rmqkit.plugins as p\n"
        "from rmqkit.config import load\n"
        "parts = p.load().broker_parts(load([], ['brokerName=b'], 'broker'))\n"
        "import rmqkit.broker.node\n"
        "assert not [name for name in sys.modules if name.startswith('lark')]\n"
        "parts.filters['SQL92']().compile('a > 1')\n"
        "assert 'lark' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_bit_maps_spare_reading_what_nobody_wants(make, monkeypatch):
    """Bit maps let the broker skip messages without reading them.

    Source: `CommitLogDispatcherCalcBitMap`, `ExpressionMessageFilter.isMatchedByConsumeQueue`.
    """
    broker = make("enablePropertyFilter=true", "enableConsumeQueueExt=true", "enableCalcFilterBitMap=true")
    client = with_topic(broker)
    with_property(client, b"before", price=9)
    with_property(client, b"before", price=1)
    beat(client, ("T", "price > 5", "SQL92", 7))
    broker.advance(10)
    for price in range(10):
        with_property(client, b"%d" % price, price=price)
    read = []
    entry = broker.node.filters.get("T", "CG")
    compiled = entry.compiled
    monkeypatch.setattr(
        type(entry),
        "compiled",
        property(lambda _: compiled._replace(match_properties=lambda of: read.append(of) or compiled.match_properties(of))),
    )
    found = bodies(pull(client, **by_heartbeat(subVersion="7")))
    assert found == [b"before", b"6", b"7", b"8", b"9"]
    assert [each["price"] for each in read] == ["9", "1", "6", "7", "8", "9"], "what came before the filter is read"
    # There are no bits for the other group, so its pull reads every message.
    assert bodies(pull(client, consumerGroup="Other", **by_request("price = 3"))) == [b"3"]
    # A filter by tag uses the tags code of the extension unit.
    assert send(client, "T", b"tagged", i=UNIQ + "TAGS\x01red\x02").code == 0
    assert bodies(pull(client, subscription="red")) == [b"tagged"]


def test_a_parked_pull_wakes_by_the_tag_and_not_by_the_address(make):
    broker = make("enablePropertyFilter=true", "enableConsumeQueueExt=true")
    client, sender = with_topic(broker), broker.connect()
    fields = pull_fields(sysFlag="6", subscription="red", suspendTimeoutMillis="15000")
    opaque = client.tell(RequestCode.PULL_MESSAGE, fields)
    assert send(sender, "T", b"blue", i=UNIQ + "TAGS\x01blue\x02").code == 0
    assert client.answer_to(opaque) is None
    assert send(sender, "T", b"red", i=UNIQ + "TAGS\x01red\x02").code == 0
    assert bodies(client.answer_to(opaque)) == [b"red"]
    beat(client, ("T", "price > 5", "SQL92", 7))
    fields = pull_fields(offset=2, **by_heartbeat(subVersion="7", sysFlag="2", suspendTimeoutMillis="15000"))
    opaque = client.tell(RequestCode.PULL_MESSAGE, fields)
    with_property(sender, price=5)
    assert client.answer_to(opaque) is None
    with_property(sender, b"6", price=6)
    assert bodies(client.answer_to(opaque)) == [b"6"]
