"""A broker's metrics: Apache's names and labels, and the values.

`apache_scrape.txt` is a scrape of Apache's broker 5.5.0.
"""

import re
from itertools import count
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rmqkit.broker.special.metrics import TIMER_BOUNDS_S
from rmqkit.metrics.families import PIECE, Family, text_pieces
from rmqkit.metrics.latency import Latency
from rmqkit.wire.codes import RequestCode
from tests.broker.conftest import MakeScript, make  # noqa: F401
from tests.helpers.script import Script
from tests.metrics.browser import Browser, Driver, parsed

APACHE = (Path(__file__).parent / "apache_scrape.txt").read_text()
SEND = {"producerGroup": "p", "topic": "T1", "defaultTopic": "TBW102", "defaultTopicQueueNums": "2", "queueId": "0"}
SEND |= {"sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "", "reconsumeTimes": "0", "unitMode": "false"}
#: Apache's metrics that rmqkit lacks: no buffer of pop is scanned
NOT_TOLD = re.compile(r"rocketmq_pop_buffer_|target_info")

CONN_IDS = count(999_000)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(script: Script) -> str:
    """Return the answer to GET /metrics of a scripted broker."""
    from rmqkit.runtime.connection import Address, Connection

    conn = Connection(next(CONN_IDS), "metrics", Address("10.0.0.9", 1))
    node, text = script.node, b""
    node.opened(conn)
    node.received(conn, b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    for _ in range(500):
        node.run_due()
        text += b"".join(bytes(each) for each in conn.out)
        conn.out.clear()
        node.outbox.dirty = [each for each in node.outbox.dirty if each is not conn]
        if conn.closing:
            break
    node.outbox.closes.clear()
    node.closed(conn, "done")
    code, _, body = parsed(text)
    assert code == 200
    return body.decode()


def samples(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    hits = [number for (each, own), number in found.items() if each == name and own >= set(labels.items())]
    assert len(hits) == 1, (name, labels, hits)
    return hits[0]


def labels_by_name(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, labels in samples(text):
        found.setdefault(name, set()).update(key for key, _ in labels)
    return found


@pytest.fixture
def busy(make: MakeScript) -> Script:  # noqa: F811
    """A broker with five messages stored, three pulled, two committed; both clients are online."""
    script = make("metricsExporterType=PROM", "rpcLatencyMetrics=true", "metricsLabel=dc:eu")
    client = script.connect()
    for _ in range(5):
        assert client.ask(RequestCode.SEND_MESSAGE, SEND, b"hello").code == 0
    beat = (
        b'{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[{"groupName":"g",'
        b'"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
        b'"subscriptionDataSet":[{"topic":"T1","subString":"*","subVersion":1}]}]}'
    )
    assert client.ask(RequestCode.HEART_BEAT, {}, beat).code == 0
    pull = {"consumerGroup": "g", "topic": "T1", "queueId": "0", "queueOffset": "0", "maxMsgNums": "3", "sysFlag": "0"}
    pull |= {"commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "1"}
    assert client.ask(RequestCode.PULL_MESSAGE, pull).code == 0
    client.ask(RequestCode.PULL_MESSAGE, {**pull, "queueOffset": "3", "maxMsgNums": "1"})
    commit = {"consumerGroup": "g", "topic": "T1", "queueId": "0", "commitOffset": "2"}
    assert client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0
    return script


def test_every_metric_of_upstream_has_its_name_and_labels(busy: Script):
    ours, theirs = labels_by_name(scrape(busy)), labels_by_name(APACHE)
    wanted = {name: labels - {"otel_scope_name"} for name, labels in theirs.items() if not NOT_TOLD.match(name)}
    wanted = {name: labels for name, labels in wanted.items() if not name.endswith(("_bucket", "_created"))}
    assert {name: labels for name, labels in wanted.items() if not labels <= ours.get(name, set())} == {}


def test_messages_and_bytes(busy: Script):
    found = samples(scrape(busy))
    own = {"topic": "T1", "cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a", "dc": "eu"}
    assert value(found, "rocketmq_messages_in_total", message_type="normal", is_system="false", **own) == 5
    assert value(found, "rocketmq_messages_out_total", consumer_group="g", is_system="false", **own) == 4
    put = value(found, "rocketmq_throughput_in_total", **own)
    assert put == busy.node.store.offset_max
    assert value(found, "rocketmq_throughput_out_total", **own) == put * 4 / 5


def test_sizes_of_messages(busy: Script):
    """Apache measures the record in the log, not the body."""
    text = busy.connect()
    assert text.ask(RequestCode.SEND_MESSAGE, SEND, bytes(2_000)).code == 0
    found, own = samples(scrape(busy)), {"topic": "T1", "message_type": "normal", "is_system": "false"}
    assert value(found, "rocketmq_message_size_bucket", le="1024.0", **own) == 5
    assert value(found, "rocketmq_message_size_bucket", le="4096.0", **own) == 6
    assert value(found, "rocketmq_message_size_sum", **own) == pytest.approx(busy.node.store.offset_max, abs=6)


def test_timers(busy: Script):
    client = busy.connect()
    for delay_s in (3, 3, 90, 7200):
        sent = {**SEND, "properties": f"TIMER_DELAY_SEC\x01{delay_s}\x02", "bornTimestamp": str(busy.clock.wall_ms)}
        assert client.ask(RequestCode.SEND_MESSAGE, sent, b"later").code == 0
    busy.advance(1_500)
    found, own = samples(scrape(busy)), {"topic": "T1", "storage_type": "local", "storage_medium": "disk"}
    assert value(found, "rocketmq_timer_enqueue_total", **own) == 4
    assert value(found, "rocketmq_timing_messages", **own) == 4
    assert value(found, "rocketmq_delay_message_latency_seconds_bucket", le="60.0", **own) == 2
    assert value(found, "rocketmq_delay_message_latency_seconds_bucket", le="600.0", **own) == 3
    by_bound = {
        bound: value(found, "rocketmq_timer_message_snapshot", timer_bound_s=str(bound)) for bound in TIMER_BOUNDS_S
    }
    assert {bound: count for bound, count in by_bound.items() if count} == {5: 2, 300: 1, 14_400: 1}
    busy.advance(5_000)
    found = samples(scrape(busy))
    assert value(found, "rocketmq_timer_dequeue_total", **own) == 2
    assert value(found, "rocketmq_timing_messages", **own) == 2
    assert value(found, "rocketmq_timer_enqueue_latency_milliseconds") == 0


def test_transactions(busy: Script):
    client = busy.connect()
    born_ms = busy.clock.wall_ms
    sent = {**SEND, "properties": "TRAN_MSG\x01true\x02PGROUP\x01p\x02", "sysFlag": "4", "bornTimestamp": str(born_ms)}
    halves = [client.ask(RequestCode.SEND_MESSAGE, sent, b"half").ext for _ in range(5)]
    busy.advance(7_000)
    assert value(samples(scrape(busy)), "rocketmq_half_messages", topic="T1") == 5
    for half, outcome in zip(halves, (8, 8, 12), strict=False):
        where = {"tranStateTableOffset": half["queueOffset"], "commitLogOffset": str(int(half["msgId"][-16:], 16))}
        end = {"producerGroup": "p", "msgId": "", "commitOrRollback": str(outcome), **where}
        assert client.ask(RequestCode.END_TRANSACTION, end).code == 0
    found = samples(scrape(busy))
    assert value(found, "rocketmq_half_messages", topic="T1") == 2
    assert value(found, "rocketmq_commit_messages_total", topic="T1") == 2
    assert value(found, "rocketmq_rollback_messages_total", topic="T1") == 1
    assert value(found, "rocketmq_finish_message_latency_milliseconds_bucket", topic="T1", le="5.0") == 0
    assert value(found, "rocketmq_finish_message_latency_milliseconds_bucket", topic="T1", le="60.0") == 2
    assert value(found, "rocketmq_finish_message_latency_milliseconds_sum", topic="T1") == 14
    busy.advance(60_000)
    assert value(samples(scrape(busy)), "rocketmq_half_messages", topic="T1") == 2, "they were put again, and still wait"


def test_halves_are_looked_up_bit_by_bit(busy: Script, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rmqkit.broker.special.transactions.counts.READ_PER_LOOK", 3)
    client = busy.connect()
    sent = {**SEND, "properties": "TRAN_MSG\x01true\x02PGROUP\x01p\x02", "sysFlag": "4"}
    sent["bornTimestamp"] = str(busy.clock.wall_ms)
    for _ in range(5):
        assert client.ask(RequestCode.SEND_MESSAGE, sent, b"half").code == 0
    found = samples(scrape(busy))
    assert value(found, "rocketmq_half_messages", topic="T1") == 3
    assert value(found, "rocketmq_half_messages", topic="unknown") == 2
    found = samples(scrape(busy))
    assert value(found, "rocketmq_half_messages", topic="T1") == 5


def test_how_far_a_group_is_behind(busy: Script):
    """Source: ConsumerLagCalculator. Lag counts messages after the committed offset.

    Those that were already pulled are in flight, the rest are ready.
    """
    busy.advance(1000)
    found = samples(scrape(busy))
    own = {"topic": "T1", "consumer_group": "g", "is_retry": "false", "is_system": "false"}
    assert value(found, "rocketmq_consumer_lag_messages", **own) == 3
    inflight = value(found, "rocketmq_consumer_inflight_messages", **own)
    assert inflight + value(found, "rocketmq_consumer_ready_messages", **own) == 3
    assert inflight >= 1
    assert value(found, "rocketmq_consumer_lag_latency_milliseconds", **own) >= 1000


def test_a_group_that_left_is_still_behind(busy: Script):
    busy.close(busy.clients[0], "gone")
    found = samples(scrape(busy))
    assert value(found, "rocketmq_consumer_lag_messages", topic="T1", consumer_group="g") == 3
    assert not [name for name, _ in found if name == "rocketmq_consumer_connections"]


def test_connections_and_the_node(busy: Script):
    found = samples(scrape(busy))
    assert value(found, "rocketmq_producer_connections", language="java", protocol_type="remoting") == 1
    assert value(found, "rocketmq_consumer_connections", consumer_group="g", consume_mode="push") == 1
    assert value(found, "rocketmq_broker_permission") == 6
    assert value(found, "rocketmq_topic_number") == len(busy.node.topics.by_name)
    assert value(found, "rocketmq_processor_watermark", processor="pull") == 0
    assert value(found, "rmqkit_requests_total", request_code="send_message") == 5
    assert value(found, "rocketmq_storage_size_bytes", storage_type="local", storage_medium="disk") > 0


def test_how_long_requests_take(make: MakeScript):  # noqa: F811
    """A held pull counts from the turn of its arrival; a send answered in its turn counts 0 ms."""
    script = make("metricsExporterType=PROM", "rpcLatencyMetrics=true")
    client = script.connect()
    client.ask(RequestCode.SEND_MESSAGE, SEND, b"hello")
    pull = {"consumerGroup": "g", "topic": "T1", "queueId": "0", "queueOffset": "1", "maxMsgNums": "3", "sysFlag": "6"}
    pull |= {"commitOffset": "0", "suspendTimeoutMillis": "600", "subVersion": "1", "subscription": "*"}
    client.tell(RequestCode.PULL_MESSAGE, pull)
    script.advance(700)
    found = samples(scrape(script))
    name = "rocketmq_rpc_latency_milliseconds"
    send = {"request_code": "send_message", "response_code": "success", "is_long_polling": "false", "result": "success"}
    assert value(found, f"{name}_count", **send) == 1
    assert value(found, f"{name}_bucket", le="1.0", **send) == 1
    held = {"request_code": "pull_message", "response_code": "pull_not_found", "is_long_polling": "true"}
    assert value(found, f"{name}_bucket", le="100.0", **held) == 0
    assert value(found, f"{name}_bucket", le="1000.0", **held) == 1
    assert value(found, f"{name}_sum", **held) == 600


def test_answers_to_sends_are_counted_in_both_forms_of_header(make: MakeScript):  # noqa: F811
    script = make("metricsExporterType=PROM", "rpcLatencyMetrics=true", "flushDiskType=SYNC_FLUSH", "syncFlushTimeout=50")
    client = script.connect()
    for codec in (0, 1, 1):
        client.ask(RequestCode.SEND_MESSAGE, SEND, b"hello", codec=codec)
    script.disk.held = True
    for codec in (0, 1, 1):
        client.tell(RequestCode.SEND_MESSAGE, SEND, b"hello", codec=codec)
    script.advance(60)
    script.disk.held = False
    found = samples(scrape(script))
    name = "rocketmq_rpc_latency_milliseconds_count"
    assert value(found, name, request_code="send_message", response_code="success") == 3
    assert value(found, name, request_code="send_message", response_code="flush_disk_timeout") == 3


def test_one_way_sends_are_counted(make: MakeScript):  # noqa: F811
    """`NettyRemotingAbstract.writeResponse` records them although it sends nothing."""
    script = make("metricsExporterType=PROM", "rpcLatencyMetrics=true", "flushDiskType=SYNC_FLUSH", "syncFlushTimeout=50")
    client = script.connect()
    client.tell(RequestCode.SEND_MESSAGE, SEND, b"hello", flag=2)
    script.advance(10)
    script.disk.held = True
    for codec in (0, 1):
        client.tell(RequestCode.SEND_MESSAGE, SEND, b"hello", flag=2, codec=codec)
    script.advance(60)
    script.disk.held = False
    assert client.take() == []
    found = samples(scrape(script))
    name = "rocketmq_rpc_latency_milliseconds_count"
    oneway = {"request_code": "send_message", "result": "oneway"}
    assert value(found, name, response_code="success", **oneway) == 1
    assert value(found, name, response_code="flush_disk_timeout", **oneway) == 2


def test_switches(make: MakeScript):  # noqa: F811
    off = ("Remoting", "MessageStore", "Connection", "Stats", "Request", "LagAndDlq", "Transaction", "Pop")
    script = make("metricsExporterType=PROM", *(f"enable{name}Metrics=false" for name in off))
    assert scrape(script) == ""


def test_more_series_than_allowed_come_as_one(make: MakeScript):  # noqa: F811
    script = make("metricsExporterType=PROM", "metricsOtelCardinalityLimit=3")
    for number in range(10):
        script.node.statistics.put(f"T{number}", 2, 10)
    text = scrape(script)
    assert text.count("# TYPE rocketmq_messages_in_total") == 1
    found = samples(text)
    assert len([name for name, _ in found if name == "rocketmq_messages_in_total"]) == 4
    assert value(found, "rocketmq_messages_in_total", otel_metric_overflow="true") == 14


def test_many_series_are_spread_over_turns(make: MakeScript):  # noqa: F811
    script = make("metricsExporterType=PROM")
    for number in range(1000):
        script.node.statistics.put(f"T{number}", 1, 10)
    text = scrape(script)
    assert len(re.findall(r"^rocketmq_messages_in_total\{", text, re.M)) == 1000
    assert text.count("# HELP rocketmq_messages_in_total") == 1


def test_off_by_default(make: MakeScript):  # noqa: F811
    assert make().node.metrics is None


def test_names_that_peers_choose_are_escaped(make: MakeScript):  # noqa: F811
    script = make("metricsExporterType=PROM")
    evil = 'a"} 1\nrocketmq_fake{x="'
    script.node.statistics.put(evil, 1, 10)
    found = samples(scrape(script))
    assert value(found, "rocketmq_messages_in_total", topic=evil) == 1
    assert not [name for name, _ in found if name == "rocketmq_fake"]


def test_the_metrics_of_a_name_server_have_its_tables():
    from tests.metrics.test_http import served

    driver: Driver = served()
    peer: Browser = driver.connect()
    found = samples(peer.get()[2].decode())
    assert value(found, "rmqkit_topics", node_type="nameserver", node_id="ns-0") == 0
    assert value(found, "rmqkit_kv_entries") == 0


def test_response_codes_that_clients_make_up_are_one_series(make: MakeScript):  # noqa: F811
    script = make("metricsExporterType=PROM", "rpcLatencyMetrics=true")
    latency = Latency()
    call = latency.call(script.node.remoting, script.connect().conn, 307, None, b"", 1, 0, 0, None)
    for code in range(100_000, 100_050):
        latency.record(call, code, call.began_ms)
    latency.record(call, 0, call.began_ms)
    assert [(labels[2], counts[0]) for labels, (counts, _) in latency.samples()] == [("other", 50), ("success", 1)]


def test_series_beyond_the_limit_are_summed_up_piece_by_piece():
    seen = []

    def samples_of(node):
        for number in range(1000):
            seen.append(number)
            yield (str(number),), 1

    family = Family("rmqkit_t", "gauge", "t", ("n",), samples_of)
    pieces = []
    for piece in text_pieces([family], None, {}, 100):
        assert len(seen) <= (len(pieces) + 1) * PIECE + 1
        pieces.append(piece)
    assert pieces[-1] == b'rmqkit_t{otel_metric_overflow="true"} 900.0\n'
