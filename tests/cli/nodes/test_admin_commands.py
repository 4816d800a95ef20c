"""Messages, progress, permissions, statistics and settings on the command line."""

import contextlib
import json
import time
from datetime import datetime
from importlib.util import find_spec
from itertools import pairwise

import pytest

from rmqkit import Message, Producer, PushConsumer
from rmqkit.cli import main
from rmqkit.cli.admin_session import name_servers_named, node_named
from rmqkit.cli.data.bench_runs import BenchPace, percentiles
from rmqkit.cli.data.delays import choose_level, parse_delay
from rmqkit.cli.errors import UsageError
from rmqkit.settings.broker_sections import DEFAULT_DELAY_LEVELS
from rmqkit.wire.msgid import RecallHandle
from tests.api.until import until
from tests.cli.conftest import free_base

_numbers = iter(range(1_000_000))


@pytest.fixture
def topic(up):
    """A topic with one queue that only this test uses."""
    name = f"admin-{next(_numbers)}"
    up.run("topic", "create", name, "--queues", "1")
    return name


@contextlib.contextmanager
def member(up, group, topic, listener):
    namesrv = up.json("cluster", "env")["NAMESRV_ADDR"]
    consumer = PushConsumer(group, namesrv=namesrv, consume_from="first")
    consumer.subscribe(topic)
    consumer.listener(listener)
    with consumer:
        until(lambda: consumer.assignment)
        yield consumer


# --- message


def test_a_message_is_found_by_either_id_by_key_and_by_place(up, topic):
    (sent,) = up.lines("send", topic, "hello", "--key", "k1", "--key", "k2", "--tag", "red")
    up.run("send", topic, "other", "--key", "k9")
    for msg_id in (sent["msg_id"], sent["offset_msg_id"], sent["msg_id"].lower()[:0] + sent["msg_id"]):
        assert up.json("message", "show", msg_id)["body"] == "hello"
    shown = up.run("message", "show", sent["msg_id"], "--topic", topic).stdout
    assert "keys      k1 k2" in shown
    assert f"{topic}\n" in shown
    assert up.run("message", "show", sent["msg_id"], "--body").stdout == "hello"
    for words in (("--key", "k2"), ("--id", sent["msg_id"]), ("--offset", "0:0"), ("--offset", "broker-a:0:0")):
        (found,) = up.json("message", "query", topic, *words)
        assert (found["msg_id"], found["body"]) == (sent["msg_id"], "hello")
    assert up.json("message", "query", topic, "--key", "k1", "--end", "1h") == []
    assert len(up.json("message", "query", topic, "--key", "k1", "--begin", "1h")) == 1
    assert "no message with key nope" in up.run("message", "query", topic, "--key", "nope").stderr


def test_invalid_and_unknown_messages_are_errors(up, topic):
    assert "32 or 56 hex" in up.error("message", "show", "k1", code=2)
    assert "no message" in up.error("message", "show", "0" * 32, code=1)
    assert "there is no topic" in up.error("message", "query", "nowhere", "--key", "k", code=1)
    assert "a key has no blanks" in up.error("message", "query", topic, "--key", "k1 k2", code=2)
    up.error("message", "query", topic, code=2)
    up.error("message", "query", topic, "--key", "k", "--id", "0" * 32, code=2)
    up.error("message", "query", topic, "--offset", "first", code=2)
    up.error("message", "query", topic, "--key", "k", "--begin", "nowhen", code=2)


def test_the_track_of_a_message_shows_which_groups_have_consumed_it(up, topic):
    first, second = up.lines("send", topic, "x", "--count", "2")
    up.run("consume", topic, "--group", f"g-{topic}", "--max", "1")
    (track,) = up.json("message", "show", first["msg_id"], "--track")["tracks"]
    assert track == {"group": f"g-{topic}", "state": "CONSUMED", "online": False}
    (track,) = up.json("message", "show", second["msg_id"], "--track")["tracks"]
    assert track["state"] == "NOT_CONSUME_YET"
    assert "NOT_CONSUME_YET" in up.run("message", "show", second["msg_id"], "--track").stdout


def test_a_message_is_given_to_a_member_again(up, topic):
    group, heard = f"g-{topic}", []

    def listener(message):
        heard.append(message.body)
        return len(heard) < 3

    (sent,) = up.lines("send", topic, "again")
    with member(up, group, topic, listener) as consumer:
        until(lambda: heard == [b"again"])
        said = up.json("message", "direct", sent["msg_id"], group)
        assert (said["result"], said["client_id"]) == (
            "CR_SUCCESS",
            up.json("group", "members", group)["members"][0]["client_id"],
        )
        assert "CR_LATER" in up.run("message", "direct", sent["msg_id"], group, "--topic", topic, code=1).stdout
        assert heard == [b"again"] * 3
        running = up.json("group", "running", group)["members"][0]
        assert running["subscriptions"][topic] == "*"
        assert [queue["queue_id"] for queue in running["queues"] if queue["topic"] == topic] == [0]
        assert consumer.assignment
    assert "no member of group" in up.error("message", "direct", sent["msg_id"], group, code=1)
    assert "no member of group" in up.error("group", "running", group, code=1)


def test_the_trace_of_a_message(up, topic):
    group, heard = f"g-{topic}", []

    def listener(message):
        heard.append(message)
        return len(heard) > 1

    namesrv = up.json("cluster", "env")["NAMESRV_ADDR"]
    with Producer(f"p-{topic}", namesrv=namesrv, trace=True) as producer:
        sent = producer.send(Message(topic, b"traced", keys="k1", tags="red"))
    consumer = PushConsumer(group, namesrv=namesrv, consume_from="first", trace=True, max_reconsume_times=0)
    consumer.subscribe(topic)
    consumer.listener(listener)
    with consumer:
        until(lambda: heard)
    rows = up.json("message", "trace", sent.msg_id)
    assert [(row["what"], row["group"], row["outcome"]) for row in rows] == [
        ("sent", f"p-{topic}", "SUCCESS"),
        ("consumed", group, "FAILED"),
    ]
    assert rows[0]["topic"] == topic
    assert up.json("message", "trace", "k1")[0]["msg_id"] == sent.msg_id
    assert f"p-{topic}" in up.run("message", "trace", sent.msg_id).stdout
    (untraced,) = up.lines("send", topic, "x")
    assert "do not trace" in up.error("message", "trace", untraced["msg_id"], code=1)


# --- groups


def test_how_far_groups_are(up, topic):
    group = f"g-{topic}"
    up.run("send", topic, "--count", "5")
    up.run("consume", topic, "--group", group, "--max", "2")
    said = up.json("group", "progress", group)
    assert said["lag"] == 3
    (queue,) = [row for row in said["queues"] if row["topic"] == topic]
    assert (queue["broker_offset"], queue["consumer_offset"], queue["lag"]) == (5, 2, 3)
    assert queue["last_ms"] > 0
    assert "behind 3" in up.run("group", "progress", group).stdout
    (line,) = [each for each in up.json("group", "progress") if each["group"] == group]
    assert (line["lag"], line["members"]) == (3, 0)
    assert group in up.run("group", "progress", "--topic", topic).stdout
    assert f"did you mean {group}?" in up.error("group", "progress", f"{group}x", code=1)
    assert up.json("group", "progress", group, "--topic", topic)["queues"][0]["lag"] == 3


def test_a_group_is_moved_and_it_is_said_how(up, topic):
    group = f"g-{topic}"
    up.run("send", topic, "--count", "4")
    up.run("consume", topic, "--group", group)
    for to, offset in (("earliest", 0), ("latest", 4), ("2", 2), ("99", 4), ("1h", 0)):
        done = up.json("group", "reset", group, topic, "--to", to)
        assert [(row["offset"], row["way"]) for row in done["queues"]] == [(offset, "reset")]
        assert done["members"] == 0
    told = up.run("group", "reset", group, topic, "--to", "latest").stderr
    assert "have reset the offsets (request 222); no member is online, the next one starts there" in told
    assert "there is no group" in up.error("group", "reset", f"{group}-none", topic, "--to", "latest", code=1)
    heard = []
    with member(up, group, topic, lambda message: heard.append(message.queue_offset)):
        told = up.run("group", "reset", group, topic, "--to", "1").stderr
        assert "each member continues there with its next pull" in told
        until(lambda: heard == [1, 2, 3])
        assert up.json("group", "progress", group, "--clients")["queues"]


def test_a_group_is_put_where_another_one_is(up, topic):
    group = f"g-{topic}"
    up.run("send", topic, "--count", "4")
    up.run("consume", topic, "--group", group, "--max", "3")
    (row,) = up.json("group", "clone", group, f"{group}-2", topic)["queues"]
    assert (row["topic"], row["offset"]) == (topic, 3)
    up.run("group", "clone", group, f"{group}-3")
    # The clone has offsets although it was never created and has no members.
    assert up.json("group", "progress", f"{group}-3")["lag"] == 1
    assert f"{topic}  broker-a  0      3" in up.run("offset", "show", f"{group}-3", topic).stdout
    assert len(up.lines("consume", topic, "--group", f"{group}-3")) == 1
    up.run("group", "create", f"{group}-4")
    assert "nothing" in up.error("group", "clone", f"{group}-4", group, code=1)


def test_settings_of_a_group(up):
    said = up.json("group", "create", "made", "--retries", "3", "--no-broadcast")
    assert (said["retry_max_times"], said["consume_broadcast_enable"]) == (3, False)
    up.run("group", "update", "made", "--disable")
    (row,) = up.json("group", "show", "made")["brokers"]
    assert (row["retry_max_times"], row["consume_enable"], row["consume_broadcast_enable"]) == (3, False, False)
    assert "yes" in up.run("group", "show", "made").stdout


# --- topics, brokers, figures


def test_a_topic_that_may_not_be_read_is_no_empty_topic(up, topic):
    up.run("topic", "perm", topic, "w")
    for words in ((), ("--group", f"group-of-{topic}"), ("--group", f"group-of-{topic}", "--pop")):
        told = up.error("consume", topic, *words, code=1)
        assert f"topic {topic} has no queue to read from: reading is not permitted" in told


def test_permissions_of_a_topic(up, topic):
    assert up.json("topic", "perm", topic)["brokers"] == [{"broker_name": "broker-a", "perm": "rw"}]
    changed = up.json("topic", "perm", topic, "r")["brokers"]
    assert changed == [{"broker_name": "broker-a", "perm": "r", "before": "rw"}]
    up.error("send", topic, "x", code=1)
    assert up.json("topic", "info", topic)["queues"]
    assert "was r" in up.run("topic", "perm", topic, "rw", "--broker", "broker-a").stdout
    up.run("send", topic, "x")
    up.error("topic", "perm", topic, "rwx", code=2)
    assert "there is no topic" in up.error("topic", "perm", "nowhere", "r", code=1)


def test_topic_stats_show_messages_in_and_out(up, topic):
    up.run("send", topic, "--count", "6")
    up.run("consume", topic, "--group", f"g-{topic}", "--max", "2")
    said = up.json("topic", "stats", topic)
    assert said["messages"] == 6
    assert (said["rates"][0]["group"], said["rates"][0]["behind"]) == (f"g-{topic}", 4)
    assert [row["topic"] for row in up.json("stats", "all", "--topic", topic)] == [topic]
    assert topic in up.run("stats", "all").stdout
    assert f"6 messages in 1 queues; `rmqkit topic info {topic}`" in up.run("topic", "stats", topic).stdout
    assert up.json("topic", "status", topic)["messages"] == 6


def test_brokers_say_what_they_do(up):
    facts = up.json("broker", "status", "broker-a")["broker-a"]
    assert int(facts["commitLogMaxOffset"]) > 0
    said = up.run("broker", "status").stdout
    assert "# broker-a" in said
    assert "running since" in said
    assert "commitLogMaxOffset" in up.run("broker", "status", "--all").stdout
    assert "there are: broker-a" in up.error("broker", "status", "broker-x", code=1)


def test_a_broker_is_taken_out_of_writing_and_back(up, topic):
    assert up.json("broker", "wipe-write-perm", "broker-a")["topics"] > 0
    assert {row["perm"] for row in up.json("topic", "route", topic)["brokers"]} == {4}
    up.run("broker", "add-write-perm", "broker-a")
    assert {row["perm"] for row in up.json("topic", "route", topic)["brokers"]} == {6}
    up.error("broker", "wipe-write-perm", "broker-x", code=1)


def test_unused_topics_and_expired_queues_are_removed(up):
    assert up.json("topic", "clean") == {"unused_topics": ["broker-a"], "expired_queues": ["broker-a"]}
    assert list(up.json("topic", "clean", "--expired-queues")) == ["expired_queues"]


def test_names_of_name_servers(tmp_path, monkeypatch):
    namesrv = "127.0.0.1:1;127.0.0.1:2"
    for number, port in enumerate((1, 2)):
        folder = tmp_path / "default" / "nodes" / f"ns-{number}"
        folder.mkdir(parents=True)
        (folder / "node.toml").write_text(f"listenPort = {port}\n")
    (tmp_path / "default" / "cluster.toml").write_text("nameservers = 2\n")
    monkeypatch.setenv("RMQKIT_HOME", str(tmp_path))
    for name, addresses in (
        ("nameserver", ["127.0.0.1:1", "127.0.0.1:2"]),
        ("ns", ["127.0.0.1:1", "127.0.0.1:2"]),
        ("ns-1", ["127.0.0.1:2"]),
        ("127.0.0.1:2", ["127.0.0.1:2"]),
        ("broker-a", []),
        (None, []),
    ):
        assert name_servers_named(name, namesrv) == addresses
    assert node_named("broker-a-1", namesrv) == "broker-a:1"
    with pytest.raises(UsageError, match="the name servers of cluster default are ns-0, ns-1"):
        node_named("ns-2", namesrv)


def test_settings_of_one_name_server_and_of_all(shell):
    shell.run("cluster", "up", "--any-port", "--base-port", free_base(), "--nameservers", "2", "--replicas", "1")
    first, second = shell.json("cluster", "status")["namesrv"].split(";")
    key = "scanNotActiveBrokerInterval"
    assert shell.run("config", "set", "ns-1", f"{key}=4000").stdout == f"{second}: changed {key}\n"
    assert shell.json("config", "get", "ns", key)["nodes"] == {first: "5000", second: "4000"}
    assert {"listenPort", key} <= {row["key"] for row in shell.json("config", "diff", "ns-0", "ns-1")}
    shell.run("cluster", "stop", "ns-0")
    assert shell.run("config", "get", "ns-1", key).stdout == "4000\n"
    assert shell.json("explain", "ns-1")["node"]["address"] == second
    for words in (("get", "ns", key), ("list", "ns"), ("set", "ns", f"{key}=4500")):
        done = shell.run("config", *words, code=1)
        assert second in done.stdout or "4000" in done.stdout
        assert done.stderr.splitlines()[-1].endswith(f" at {first}")
    shell.error("config", "get", "ns-0", key, code=3)


def test_settings_by_node_and_their_differences(up):
    assert up.run("config", "get", "broker-a", "brokerName").stdout == "broker-a\n"
    assert "brokerName=broker-a" in up.run("config", "get", "broker-a").stdout.splitlines()
    assert "listenPort" in up.run("config", "get", "nameserver").stdout
    # Names of nodes as in `cluster status` work too.
    assert up.run("config", "get", "broker-a-0", "brokerName").stdout == "broker-a\n"
    assert up.run("config", "list", "ns-0").stdout == up.run("config", "list", "nameserver").stdout
    assert up.run("config", "get", "broker-a-1", "brokerRole").stdout == "SLAVE\n"
    assert "broker-a-2" in up.error("config", "get", "broker-a-2", "brokerName", code=1)
    assert list(up.json("broker", "status", "broker-a-0")) == ["broker-a"]
    up.run("config", "set", "broker-a", "traceOn=false")
    assert "traceOn" in [row["key"] for row in up.json("config", "diff", "broker-a")]
    up.run("config", "set", "broker-a", "traceOn=true")
    rows = {row["key"]: row for row in up.json("config", "diff") if row["node"] == "broker-a"}
    assert "traceOn" not in rows
    assert (rows["brokerRole"]["value"], rows["brokerRole"]["default"]) == ("SYNC_MASTER", "ASYNC_MASTER")
    assert up.json("config", "diff", "broker-a", "broker-a") == []
    assert "no difference" in up.run("config", "diff", "broker-a", "broker-a").stderr
    assert "brokerRole" in up.run("config", "diff").stdout
    roles = [
        line for line in up.run("config", "diff", "broker-a-0", "broker-a-1").stdout.splitlines() if "brokerRole" in line
    ]
    assert [line.split() for line in roles] == [["brokerRole", "SYNC_MASTER", "SLAVE"]]
    up.error("config", "diff", "broker-a", "nameserver", code=2)
    up.error("config", "get", "a-b", "c", "d", code=2)


def test_settings_without_a_node_are_those_of_every_broker(up):
    said = up.json("config", "set", "traceOn=false")
    assert said == {"changed": {"traceOn": "false"}, "nodes": ["broker-a", "broker-a:1"], "failed": {}}
    both = {"broker-a": "false", "broker-a:1": "false"}
    assert up.json("config", "get", "traceOn") == {"key": "traceOn", "nodes": both}
    assert up.run("config", "get", "traceOn").stdout == "false\n"
    done = up.run("config", "set", "traceOn=true")
    assert done.stdout == "broker-a: changed traceOn\nbroker-a:1: changed traceOn\n"
    assert list(up.json("config", "list")) == ["broker-a", "broker-a:1"]
    assert {row["node"] for row in up.json("config", "diff")} == {"broker-a", "broker-a:1"}
    refused = up.run("config", "set", "storePathRootDir=/x", "--json", code=1)
    assert json.loads(refused.stdout)["nodes"] == []
    assert list(json.loads(refused.stdout)["failed"]) == ["broker-a", "broker-a:1"]
    assert refused.stderr.endswith("error: not changed at broker-a, broker-a:1\n")


# --- send --delay


def test_a_delayed_message_comes_later(up, topic):
    (sent,) = up.lines("send", topic, "later", "--delay", "1s")
    assert sent["status"] == "SEND_OK"
    assert up.lines("consume", topic) == []
    until(lambda: [each["body"] for each in up.lines("consume", topic)] == ["later"])


@pytest.mark.long
def test_a_message_comes_at_its_time_and_may_be_taken_back(up, topic):
    """A span that is no level, a point in time, a recall, and what waits meanwhile."""
    soon = datetime.fromtimestamp(time.time() + 4).isoformat(sep=" ", timespec="milliseconds")
    (late,) = up.lines("send", topic, "late", "--delay", "90s")
    (first,) = up.lines("send", topic, "first", "--at", soon)
    (gone,) = up.lines("send", topic, "gone", "--at", soon)
    assert up.json("message", "recall", gone["recall_handle"]) == {"msg_id": gone["msg_id"]}
    assert len({each["recall_handle"] for each in (late, first, gone)}) == 3
    waiting = {each["topic"]: each["waiting"] for each in up.json("stats", "timers", "--topics")}
    assert waiting[topic] >= 1
    (row,) = [each for each in up.json("stats", "timers") if each["broker"] == "broker-a"]
    assert row["waiting"] >= 1
    assert row["late"] == 0
    until(lambda: [each["body"] for each in up.lines("consume", topic)] == ["first"])
    text = up.run("send", topic, "more", "--delay", "90s").stdout
    assert text.splitlines()[1].startswith("to recall it: rmqkit message recall ")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--at", "soon"), "must be a time such as"),
        (("--at", "10m"), "--delay takes 90s"),
        (("--at", "2020-01-01"), "that time has passed"),
        (("--at", "2099-01-01", "--delay", "1s"), "exclude each other"),
        (("--delay", "19"), "must be a level from 1 to 18"),
        (("--delay", "later"), "must be a level such as 3, or a time"),
    ],
)
def test_times_that_are_none(up, topic, arguments, why):
    assert why in up.error("send", topic, "x", *arguments, code=2)


def test_a_time_that_is_too_far_away_and_handles_that_are_none(up, topic):
    assert "the max delay 259200000ms" in up.error("send", topic, "x", "--at", "2099-01-01", code=1)
    assert "recall handle is invalid" in up.error("message", "recall", "nonsense", code=2)
    forged = RecallHandle(topic, "broker-a", "1", "K").encode()
    assert "timestamp invalid" in up.error("message", "recall", forged, code=1)


@pytest.mark.parametrize(
    ("text", "level"),
    [("1s", 1), ("1", 1), ("18", 18), ("60s", 5), ("1m", 5), ("120m", 18), ("1000ms", 1), ("0.5m", 4), ("90s", 0)],
)
def test_delay_levels_by_time_and_by_number(text, level):
    assert choose_level(parse_delay(text), DEFAULT_DELAY_LEVELS) == level


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("19", "must be a level from 1 to 18"),
        ("0", "must be a level"),
        ("0s", "must be a level"),
        ("soon", "must be a level"),
    ],
)
def test_what_is_no_delay_level(text, says):
    with pytest.raises(UsageError) as caught:
        choose_level(parse_delay(text), DEFAULT_DELAY_LEVELS)
    assert says in str(caught.value)


def test_compressed_bodies_arrive_whole(up, topic):
    packages = {"zlib": "zlib", "lz4": "lz4", "zstd": "zstandard"}
    names = [name for name, package in packages.items() if find_spec(package)]
    for name in names:
        up.run("send", topic, name * 10, "--compress", name)
    assert [each["body"] for each in up.lines("consume", topic)] == [name * 10 for name in names]
    assert "choose one of" in up.error("send", topic, "x", "--compress", "rar", code=2)


# --- bench


def test_bench_counts_what_it_sends_reads_and_hears(up):
    sent = up.json("bench", "send", "benched", "--count", "200", "--size", "100", "--in-flight", "8")
    assert (sent["messages"], sent["failed"]) == (200, 0)
    assert 0 < sent["latency_ms"]["p50"] <= sent["latency_ms"]["p99"] <= sent["latency_ms"]["max"]
    assert up.json("bench", "send", "benched", "--count", "40", "--threads", "2", "--batch", "4")["messages"] == 40
    assert up.json("bench", "consume", "benched", "--fill", "60")["messages"] == 300
    assert up.json("bench", "consume", "benched", "--count", "10")["messages"] == 10
    both = up.json("bench", "e2e", "benched", "--count", "50", "--rate", "500")
    assert (both["messages"], both["lost"], both["duplicates"], both["send"]["messages"]) == (50, 0, 0, 50)
    assert both["latency_ms"]["p50"] > 0
    assert "p99.9 ms" in up.run("bench", "send", "benched", "--count", "10").stdout
    assert [each["group"] for each in up.json("group", "list") if "bench" in each["group"]] == []
    up.error("bench", "consume", "nowhere", code=1)
    up.error("bench", "e2e", "benched", "--size", "5", code=2)
    up.error("bench", "send", "benched", "--duration", "soon", code=2)


def test_percentiles_are_of_the_sorted_values():
    from array import array

    found = percentiles(array("q", [n * 1_000_000 for n in range(1000, 0, -1)]))
    assert found == {"p50": 501.0, "p90": 901.0, "p99": 991.0, "p99_9": 1000.0, "max": 1000.0}
    assert percentiles(array("q")) == {"p50": None, "p90": None, "p99": None, "p99_9": None, "max": None}


def test_a_pace_ends_by_count():
    from rmqkit.cli.data.bench_runs import Load

    assert len(list(BenchPace(Load("t", 1, 10, None, batch=3)))) == 4
    dues = list(BenchPace(Load("t", 1, 5, None, rate=10_000.0)))
    assert [b - a for a, b in pairwise(dues)] == [100_000] * 4


# --- errors, terminal, completion


@pytest.mark.parametrize(
    "words",
    [
        "message query t --key k",
        "group progress",
        "broker status",
        "stats all",
        "topic perm t",
        "config diff",
        "bench send",
    ],
)
def test_no_cluster_is_exit_code_3(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RMQKIT_HOME", str(tmp_path))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert main.run_command(words.split()) == 3
    assert "rmqkit cluster up" in capsys.readouterr().err


def test_progress_is_a_table_on_a_terminal(up, topic):
    up.run("send", topic, "--count", "2")
    up.run("consume", topic, "--group", f"g-{topic}")
    with up.terminal("group", "progress", f"g-{topic}", columns=140) as screen:
        screen.expect("committed")
        screen.expect(topic)
        screen.expect("behind 0")
        assert screen.process.wait() == 0


def test_completion_offers_groups_and_nodes(up):
    up.run("group", "create", "completed-group")

    def offered(*words):
        environment = {
            "_RMQKIT_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(["rmqkit", *words]),
            "COMP_CWORD": str(len(words)),
        }
        return up.outside.run(env=environment).stdout.split()

    # It offers nothing if nodes do not answer within 500 ms, as on a busy machine.
    until(lambda: offered("group", "progress", "completed-") == ["completed-group"])
    until(lambda: offered("broker", "status", "bro") == ["broker-a"])


def test_json_of_every_answer_is_one_document(up, topic):
    for words in ("group progress", f"topic perm {topic}", "broker status", "stats all", "config diff", "explain 17"):
        json.loads(up.run(*words.split(), "--json").stdout)
