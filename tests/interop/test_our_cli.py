"""Our command line shows what Apache's own name server and broker answer."""

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from rmqkit import PushConsumer
from tests.interop.apache import ApacheCluster
from tests.interop.clusters import rmqkit
from tests.interop.until import until

TOPIC = "cli-topic"
GROUP = "cli-group"


class Cli:
    """Runs commands against the cluster."""

    def __init__(self, home: Path, namesrv: str) -> None:
        self.home = home
        self.namesrv = namesrv

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = rmqkit(self.home, *words, "--namesrv", self.namesrv)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", code=code).stdout)

    def lines(self, *words: str) -> list[Any]:
        return [json.loads(line) for line in self.run(*words, "--json").stdout.splitlines()]


@pytest.fixture(scope="module")
def cli(apache_cluster: ApacheCluster, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    made = Cli(tmp_path_factory.mktemp("home"), apache_cluster.namesrv)
    made.run("topic", "create", TOPIC, "--queues", "2")
    return made


@pytest.fixture(scope="module")
def sent(cli: Cli) -> list[Any]:
    """Send six messages and consume three of them as GROUP."""
    found = cli.lines("send", TOPIC, "hello", "--key", "k1", "--tag", "red", "--count", "6", "--queue", "0")
    assert [each["status"] for each in found] == ["SEND_OK"] * 6
    assert len(cli.lines("consume", TOPIC, "--group", GROUP, "--max", "3")) == 3
    # Several sends are in flight at once: Apache's threads may store them in another order.
    return sorted(found, key=lambda each: int(each["queue_offset"]))


def test_messages_by_id_key_and_place(cli: Cli, sent: list[Any]) -> None:
    first = sent[0]
    until("six messages by key", lambda: len(cli.json("message", "query", TOPIC, "--key", "k1")) == 6)
    for msg_id in (first["msg_id"], first["offset_msg_id"]):
        shown = cli.json("message", "show", msg_id)
        assert (shown["body"], shown["queue_offset"]) == ("hello", 0)
    assert cli.json("message", "query", TOPIC, "--offset", "0:0")[0]["msg_id"] == first["msg_id"]
    assert cli.json("message", "query", TOPIC, "--id", first["msg_id"])[0]["queue_offset"] == 0
    assert "no message" in cli.run("message", "show", "0" * 32, code=1).stderr
    (track,) = cli.json("message", "show", first["msg_id"], "--track")["tracks"]
    assert (track["group"], track["state"]) == (GROUP, "CONSUMED")


def test_progress_of_groups(cli: Cli, sent: list[Any]) -> None:
    said = cli.json("group", "progress", GROUP, "--topic", TOPIC)
    assert said["lag"] == 3
    assert [row["consumer_offset"] for row in said["queues"] if row["broker_offset"]] == [3]
    (line,) = [each for each in cli.json("group", "progress") if each["group"] == GROUP]
    assert line["lag"] >= 3
    assert "behind" in cli.run("group", "progress").stdout


def test_groups_are_moved_and_cloned(cli: Cli, sent: list[Any]) -> None:
    cli.run("group", "create", "cli-moved")
    for to, offset in (("latest", 6), ("earliest", 0), ("2", 2), ("1h", 0)):
        done = cli.json("group", "reset", "cli-moved", TOPIC, "--to", to)
        assert [(row["offset"], row["way"]) for row in done["queues"] if row["queue_id"] == 0] == [(offset, "reset")]
    cli.run("group", "create", "cli-cloned")
    rows = cli.json("group", "clone", GROUP, "cli-cloned", TOPIC)["queues"]
    assert [row["offset"] for row in rows if row["queue_id"] == 0] == [3]
    (shown,) = cli.json("group", "show", "cli-moved")["brokers"]
    assert shown["retry_max_times"] == 16


def test_members_of_a_group_and_a_message_given_to_one(cli: Cli, sent: list[Any]) -> None:
    heard = threading.Event()
    consumer = PushConsumer("cli-online", namesrv=cli.namesrv, consume_from="first")
    consumer.subscribe(TOPIC)
    consumer.listener(lambda message: heard.set())
    with consumer:
        assert heard.wait(30)
        (member,) = cli.json("group", "members", "cli-online")["members"]
        running = cli.json("group", "running", "cli-online")["members"]
        assert [each["client_id"] for each in running] == [member["client_id"]]
        said = cli.json("message", "direct", sent[0]["msg_id"], "cli-online", "--topic", TOPIC)
        assert (said["result"], said["client_id"]) == ("CR_SUCCESS", member["client_id"])
    assert "no member" in cli.run("message", "direct", sent[0]["msg_id"], "cli-online", "--topic", TOPIC, code=1).stderr


def test_topics(cli: Cli, sent: list[Any]) -> None:
    stats = cli.json("topic", "stats", TOPIC)
    assert stats["messages"] == 6
    assert GROUP in [row["group"] for row in stats["rates"]]
    (route,) = cli.json("topic", "route", TOPIC)["brokers"]
    assert (route["broker_name"], route["perm"]) == ("broker-a", 6)
    assert cli.json("topic", "perm", TOPIC, "r")["brokers"][0]["before"] == "rw"
    assert "writing is not permitted" in cli.run("send", TOPIC, "x", code=1).stderr
    cli.run("topic", "perm", TOPIC, "rw")
    assert TOPIC in cli.run("stats", "all").stdout
    assert cli.json("topic", "clean")["unused_topics"] == ["broker-a"]
    cli.run("topic", "create", "cli-short")
    cli.run("topic", "delete", "cli-short")
    assert "cli-short" not in cli.run("topic", "list").stdout


def test_settings_and_what_a_broker_says(cli: Cli) -> None:
    assert cli.run("config", "get", "broker-a", "brokerRole").stdout == "ASYNC_MASTER\n"
    cli.run("config", "set", "broker-a", "traceOn=false")
    assert cli.run("config", "get", "traceOn").stdout == "false\n"
    cli.run("config", "set", "traceOn=true")
    rows = {row["key"]: row for row in cli.json("config", "diff", "broker-a")}
    assert rows["mappedFileSizeCommitLog"]["note"] == ""
    assert "listenPort" in cli.json("config", "get", "nameserver")[f"{cli.namesrv}"]
    facts = cli.json("broker", "status")["broker-a"]
    assert int(facts["commitLogMaxOffset"]) > 0
    said = cli.run("broker", "status").stdout
    for word in ("version", "running since", "commit log", "disk"):
        assert word in said
    cli.run("broker", "wipe-write-perm", "broker-a")
    assert "read-only" in cli.run("explain", "broker-a").stdout
    cli.run("broker", "add-write-perm", "broker-a")
    assert cli.json("explain", "broker-a")["node"]["broker_name"] == "broker-a"


def test_a_delay_may_be_a_level_or_any_other_time(cli: Cli) -> None:
    (done,) = cli.lines("send", TOPIC, "later", "--delay", "1s", "--queue", "1")
    assert done["status"] == "SEND_OK"
    until("the message", lambda: "later" in [each["body"] for each in cli.lines("consume", TOPIC)])
    (done,) = cli.lines("send", TOPIC, "later still", "--delay", "1500ms", "--queue", "1")
    assert done["status"] == "SEND_OK"
    until("the timer", lambda: "later still" in [each["body"] for each in cli.lines("consume", TOPIC)])


def test_pops_and_what_only_our_brokers_tell(cli: Cli) -> None:
    cli.run("topic", "create", "cli-pop", "--queues", "1")
    cli.run("group", "create", "cli-pop-group")
    cli.run("send", "cli-pop", "popped", "--count", "3")
    pop = ("consume", "cli-pop", "--group", "cli-pop-group", "--pop", "--invisible", "10s")
    assert len(cli.lines(*pop, "--max", "2")) == 2
    until("the third message", lambda: [each["body"] for each in cli.lines(*pop, "--max", "1")] == ["popped"])
    assert cli.json("group", "mode", "cli-pop-group", "cli-pop", "pop")["brokers"] == ["broker-a"]
    assert cli.json("group", "mode", "cli-pop-group")["modes"] == [{"topic": "cli-pop", "mode": "pop"}]
    refused = cli.run("group", "pop", "cli-pop-group", code=1).stderr
    assert "does not know this request: 60001 GET_POP_IN_FLIGHT, which only brokers of rmqkit do" in refused


def test_bench(cli: Cli) -> None:
    said = cli.json("bench", "e2e", "--count", "100", "--rate", "200")
    assert (said["messages"], said["lost"]) == (100, 0)
    assert cli.json("bench", "consume")["messages"] == 100
