"""Messages, topics, groups, offsets and settings on the command line of a running cluster."""

import json
import subprocess

import pytest

from rmqkit.cli.data.consume import are_tags
from rmqkit.cli.data.message_output import FIELDS

_numbers = iter(range(1_000_000))


@pytest.fixture
def topic():
    """A topic that only this test uses."""
    return f"topic-{next(_numbers)}"


def test_one_message_there_and_back(up, topic):
    up = up.outside
    sent = up.run("send", topic, "hello", "--key", "k1", "--tag", "red", "--property", "a=b=c").stdout
    assert sent.startswith(f"SEND_OK: {topic} broker-a:")
    (message,) = up.lines("consume", topic)
    assert set(message) == set(FIELDS)
    assert (message["body"], message["keys"], message["tags"]) == ("hello", "k1", "red")
    assert message["properties"]["a"] == "b=c"
    assert message["msg_id"] in sent
    assert up.run("consume", topic).stdout == "hello\n"


def test_a_send_as_json_says_where_the_message_is(up, topic):
    (sent,) = up.lines("send", topic, "x")
    (message,) = up.lines("consume", topic)
    for name in ("topic", "broker_name", "queue_id", "queue_offset", "msg_id", "offset_msg_id"):
        assert sent[name] == message[name]
    assert (sent["n"], sent["status"]) == (1, "SEND_OK")


def test_lines_of_stdin_and_of_a_file(up, topic):
    done = up.outside.run("send", topic, "-", input="one\ntwo\r\n\nthree")
    assert done.stdout.startswith("3 sent in ")
    assert sorted(up.run("consume", topic).stdout.split()) == ["one", "three", "two"]
    (up.home / "lines").write_bytes(b"four\n\xff\xfe\n")
    assert [each["n"] for each in up.lines("send", topic, "--file", "lines")] == [1, 2]
    bodies = {message.get("body", message.get("body_base64")) for message in up.lines("consume", topic)}
    assert bodies == {"one", "two", "three", "four", "//4="}
    assert "nothing was sent" in up.run("send", topic, "-", input="").stderr


def test_made_up_messages(up, topic):
    assert up.run("send", topic, "--count", "250", "--size", "40").stdout.startswith("250 sent in ")
    messages = up.lines("consume", topic)
    assert len(messages) == 250
    assert {len(message["body"]) for message in messages} == {40}
    assert len({message["body"] for message in messages}) == 250
    assert len(up.lines("consume", topic, "--max", "7")) == 7


@pytest.mark.long
def test_a_pipe_whose_reader_leaves_ends_quietly(up, topic):
    # Each command prints more than a pipe buffers, so none ends before its reader leaves.
    up.run("send", topic, "--count", "1000", "--size", "300")
    for words in (f"consume {topic} --json", f"consume {topic}", f"send {topic} --count 2000 --json"):
        line = f"{' '.join(up_command())} {words} | head -n 1"
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            capture_output=True, text=True, env=up.environment, pass_fds=(up.lifeline,), cwd=up.home, timeout=40,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout.splitlines()) == 1


def up_command():
    from tests.cli.conftest import COMMAND

    return COMMAND


def test_a_chosen_queue_and_an_ordering_key(up, topic):
    up.run("topic", "create", topic, "--queues", "4")
    sent = up.lines("send", topic, "x", "--count", "3", "--queue", "2") + up.lines(
        "send", topic, "x", "--queue", "broker-a:2"
    )
    assert {each["queue_id"] for each in sent} == {2}
    keyed = up.lines("send", topic, "y", "--count", "5", "--ordering-key", "order-7")
    assert len({each["queue_id"] for each in keyed}) == 1
    assert "broker-a:0, broker-a:1" in up.error("send", topic, "x", "--queue", "9", code=2)
    assert "broker-z has no such queue now" in up.error("send", topic, "x", "--queue", "broker-z:0", code=2)


def test_where_a_reader_begins_and_ends(up, topic):
    up.run("topic", "create", topic, "--queues", "1")
    first = up.lines("send", topic, "--count", "5")
    bodies = [f"message {number}" for number in range(1, 6)]

    def read(*words):
        return [message["body"] for message in up.lines("consume", topic, *words)]

    assert read() == bodies
    assert read("--from", "2") == bodies[2:]
    assert read("--from", "1", "--to", "3") == bodies[1:3]
    assert read("--from", "latest") == []
    assert read("--from", "99") == []
    assert read("--from", "1h") == bodies
    assert read("--to", "1h") == []
    assert read("--to", "2099-01-01") == bodies
    assert len(first) == 5


def test_formats(up, topic):
    up.run("send", topic, "a\tb", "--key", "k")
    assert up.run("consume", topic, "--format", "{keys}/{tags}/{body}").stdout == "k//a\tb\n"
    line = up.run("consume", topic, "--format", "line").stdout
    assert "keys=k" in line
    assert line.endswith("a\\tb\n")
    assert "did you mean keys?" in up.error("consume", topic, "--format", "{key}", code=2)


def test_only_messages_with_a_tag(up, topic):
    for tag in ("red", "green", "blue"):
        up.run("send", topic, tag, "--tag", tag)
    assert sorted(up.run("consume", topic, "--filter", "red || blue").stdout.split()) == ["blue", "red"]
    assert up.run("consume", topic, "--filter", "green", "--group", f"g-{topic}").stdout == "green\n"


def test_only_messages_with_properties(up, topic):
    """A filter with spaces or comparisons is an SQL92 expression.

    The broker of `cluster up` has the property filter enabled.
    """
    for price in ("5", "10", "15"):
        up.run("send", topic, price, "--property", f"price={price}", "--tag", "t")
    assert sorted(up.run("consume", topic, "--filter", "price > 5 AND TAGS = 't'").stdout.split()) == ["10", "15"]
    assert up.run("consume", topic, "--filter", "price=5").stdout == "5\n"
    assert up.run("consume", topic, "--filter", "price>10", "--group", f"g-{topic}").stdout == "15\n"
    assert up.run("consume", topic, "--filter", "price IS NULL").stdout == ""
    assert "it ends too early" in up.error("consume", topic, "--filter", "price >", code=1)


@pytest.mark.parametrize(
    ("expression", "tags"),
    [("*", True), ("", True), ("a", True), ("A || B", True), ("a||b", True), ("a>1", False), ("a IS NULL", False)],
)
def test_a_filter_is_one_of_tags_when_it_could_be(expression, tags):
    assert are_tags(expression) is tags


def test_a_group_goes_on_where_it_left_off(up, topic):
    group = f"g-{topic}"
    up.run("send", topic, "--count", "5")
    assert len(up.lines("consume", topic, "--group", group, "--max", "2")) == 2
    assert len(up.lines("consume", topic, "--group", group)) == 3
    assert up.lines("consume", topic, "--group", group) == []
    up.run("send", topic, "later")
    assert up.run("consume", topic, "--group", group).stdout == "later\n"
    shown = up.json("offset", "show", group, topic)
    assert sum(queue["lag"] or 0 for queue in shown["queues"]) == 0
    assert sum(queue["offset"] or 0 for queue in shown["queues"]) == 6


def test_a_group_is_moved(up, topic):
    group = f"g-{topic}"
    up.run("topic", "create", topic, "--queues", "1")
    up.run("send", topic, "--count", "4")
    up.run("consume", topic, "--group", group)
    assert [row["offset"] for row in up.json("offset", "reset", group, topic, "--to", "earliest")["queues"]] == [0]
    assert len(up.lines("consume", topic, "--group", group)) == 4
    up.run("offset", "set", group, topic, "0", "3")
    assert len(up.lines("consume", topic, "--group", group)) == 1
    assert [row["offset"] for row in up.json("offset", "reset", group, topic, "--to", "1h")["queues"]] == [0]
    assert [row["offset"] for row in up.json("offset", "by-time", topic, "1h")["queues"]] == [0]
    assert [row["offset"] for row in up.json("offset", "by-time", topic, "2099-01-01")["queues"]] == [4]
    assert "0 to 4" in up.error("offset", "set", group, topic, "0", "9", code=2)
    told = up.run("offset", "show", group).stdout
    assert topic in told


def test_groups_are_listed_and_looked_into(up, topic):
    group = f"g-{topic}"
    up.run("send", topic, "x")
    up.run("consume", topic, "--group", group)
    assert group in [each["group"] for each in up.json("group", "list")]
    assert "TOOLS_CONSUMER" not in up.run("group", "list").stdout
    info = up.json("group", "info", group)
    assert info["members"] == []
    assert {row["topic"] for row in info["progress"]} >= {topic}
    assert up.json("group", "members", group) == {"group": group, "members": []}
    assert f"did you mean {group}?" in up.error("group", "info", f"{group}x", code=1)
    up.run("group", "create", f"{group}-made")
    up.run("group", "delete", f"{group}-made")
    up.error("group", "info", f"{group}-made", code=1)


def test_members_are_shown_while_they_are_there(up, topic):
    group = f"g-{topic}"
    up.run("send", topic, "x")
    with up.start("consume", topic, "--group", group, "--follow", stdout=subprocess.PIPE) as member:
        assert member.stdout.readline() == "x\n"
        (shown,) = up.json("group", "members", group)["members"]
        assert shown["address"].startswith("127.0.0.1:")
        member.terminate()
        assert member.wait(20) == 143


def test_topics_are_made_listed_looked_into_and_deleted(up, topic):
    assert up.json("topic", "create", topic, "--queues", "3", "--perm", "rw")["brokers"]
    assert topic in up.run("topic", "list").stdout.splitlines()
    assert "TBW102" not in up.run("topic", "list").stdout
    assert "TBW102" in up.run("topic", "list", "--all").stdout.splitlines()
    up.run("send", topic, "--count", "5")
    info = up.json("topic", "info", topic)
    assert (info["messages"], len(info["queues"])) == (5, 3)
    (route,) = up.json("topic", "route", topic)["brokers"]
    assert (route["broker_name"], route["read_queues"], route["perm"]) == ("broker-a", 3, 6)
    up.run("topic", "create", topic, "--queues", "5")
    assert up.json("topic", "route", topic)["brokers"][0]["write_queues"] == 5
    up.run("topic", "delete", topic)
    assert topic not in up.run("topic", "list").stdout.splitlines()
    assert "there is no topic" in up.error("topic", "info", topic, code=1)
    assert "there is no topic" in up.error("consume", topic, code=1)


def test_names_that_no_broker_would_take_are_refused(up):
    assert "'a/b' is not a name" in up.error("send", "a/b", "x", code=2)
    up.error("topic", "create", "../../x", code=2)
    up.error("consume", "t", "--group", "a b", code=2)


def test_a_refused_send_is_exit_code_1_with_counts(up, topic):
    up.run("topic", "create", topic, "--perm", "r")
    assert "writing is not permitted" in up.error("send", topic, "x", code=1)
    done = up.run("send", topic, "--count", "3", code=1)
    assert done.stdout.startswith("0 sent, 3 failed in ")
    lines = [json.loads(line) for line in up.run("send", topic, "--count", "2", "--json", code=1).stdout.splitlines()]
    assert [line["status"] for line in lines] == ["FAILED", "FAILED"]


def test_settings_of_nodes(up):
    assert up.run("config", "get", "brokerName").stdout == "broker-a\n"
    assert "brokerName=broker-a" in up.run("config", "list", "broker-a").stdout.splitlines()
    changed = up.json("config", "list", "--changed")["broker-a"]
    assert changed["brokerRole"] == "SYNC_MASTER"
    assert "fileReservedTime" not in changed
    before = up.run("config", "get", "traceOn").stdout.strip()
    up.run("config", "set", "traceOn=false")
    assert up.run("config", "get", "traceOn").stdout == "false\n"
    up.run("config", "set", f"traceOn={before}", "--node", "broker-a")
    assert "storePathRootDir" in up.error("config", "set", "broker-a", "storePathRootDir=/x", code=1)
    assert up.json("config", "get", "listenPort", "--node", "nameserver")["nodes"]
    assert "there are: broker-a" in up.error("config", "get", "brokerName", "--node", "broker-z", code=1)
    told = up.run("config", "explain", "flushDiskType").stdout
    assert "ASYNC_FLUSH" in told
    assert "restart" in up.json("config", "explain", "storePathRootDir")["kinds"]["broker"]["change"]


def test_plug_ins_are_listed(up):
    rows = up.json("plugin", "list")
    assert {"hook": "rmqkit_storage_engines", "name": "mapped"}.items() <= next(
        row for row in rows if row["name"] == "mapped"
    ).items()
    assert "mapped" in up.run("plugin", "list").stdout


def test_the_doctor_finds_a_healthy_cluster(up):
    report = up.json("doctor", "--no-spark", code=None)
    by_check = {each["check"]: each for each in report["checks"]}
    assert by_check["python"]["state"] == "ok"
    assert by_check["leftovers"]["state"] == "ok"
    assert by_check["home"]["text"] == str(up.home)
    assert (by_check["groups"]["state"], by_check["groups"]["text"]) == (
        "ok",
        "cluster default: settings of 1 group are consistent",
    )


def test_a_cluster_by_another_name_is_pointed_to(up):
    assert up.run("topic", "list", env={"NAMESRV_ADDR": up.json("cluster", "env")["NAMESRV_ADDR"]}).returncode == 0
