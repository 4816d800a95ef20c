"""`rmqkit usage`: its calculations, and the whole command on a real cluster."""

import json
import subprocess
import sys
import time

import pytest

from rmqkit import Message
from rmqkit.cli.errors import UsageError
from rmqkit.testing import Clean, RunningCluster
from rmqkit_usage import command
from rmqkit_usage.protocol import TopicUsage, UsageBody

COUNT = 30
LIMIT_S = 20


def rmqkit(running: RunningCluster, *words: str) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "rmqkit.cli.main", *words]
    return subprocess.run(line, env=running.env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.long
def test_a_cluster_counts_and_the_command_shows_it(usage_clean: Clean):
    """The plug-in is enabled by settings alone.

    A broker process samples, answers, saves its file, and continues after kill -9.
    """
    running = usage_clean.running
    topic, other = usage_clean.topic("orders", queue_nums=2), usage_clean.topic("quiet", queue_nums=1)
    producer = usage_clean.producer()
    for number in range(COUNT):
        producer.send(Message(topic, b"x" * 50, keys=f"k{number}"))
    producer.send(Message(other, b"only one"))
    usage = until_counted(running, topic, COUNT)
    assert (usage["queues"], usage["messages"], usage["kept"]) == (2, COUNT, COUNT)
    assert usage["added_bytes"] > COUNT * 50
    assert sum(step["added"] for step in usage["steps"]) == COUNT
    assert {step["broker"] for step in usage["steps"]} == {"broker-a"}
    mine = json.loads(rmqkit(running, "usage", f"{usage_clean.prefix}*", "--json").stdout)["topics"]
    assert [(each["topic"], each["added"]) for each in mine] == [(topic, COUNT), (other, 1)]
    table = rmqkit(running, "usage", "--top", "1").stdout.splitlines()
    assert table[0].split()[:4] == ["topic", "queues", "kept", "added"]
    assert table[1].split()[:4] == [topic, "2", str(COUNT), str(COUNT)]
    assert len(table) == 2

    running.cluster.kill("master")
    running.cluster.start("master")
    producer.send(Message(topic, b"after the restart"))
    assert until_counted(running, topic, COUNT + 1)["added"] == COUNT + 1
    store = running.cluster.node_folder("broker-a-0") / "store"
    assert topic in json.loads((store / "config" / "usage.json").read_text())["topics"]


def until_counted(running: RunningCluster, topic: str, count: int) -> dict:
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        done = rmqkit(running, "usage", topic, "--json")
        if done.returncode == 0:
            (usage,) = json.loads(done.stdout)["topics"]
            if usage["added"] >= count:
                return usage
        assert time.monotonic() < deadline_s, done
        time.sleep(0.1)


def test_a_topic_nobody_has_counted_is_an_error_in_one_line(usage_cluster: RunningCluster):
    done = rmqkit(usage_cluster, "usage", "no-such-topic")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: topic no-such-topic: no broker has counted any message of it\n"


@pytest.mark.long
def test_brokers_without_the_plug_in_are_named(rmqkit_cluster: RunningCluster):
    """The plug-in is installed there too, but the settings do not name it."""
    done = rmqkit(rmqkit_cluster, "usage")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: broker-a does not count usage: put `plugins=usage` into its settings and restart it\n"


def test_a_span_that_is_none_is_an_error_in_one_line(usage_cluster: RunningCluster):
    done = rmqkit(usage_cluster, "usage", "--since", "yesterday")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --since yesterday: must be a number and one of s, m, h, d")


@pytest.mark.parametrize(("text", "ms"), [("90s", 90_000), ("15m", 900_000), ("2h", 7_200_000), ("7d", 604_800_000)])
def test_spans(text, ms):
    assert command.milliseconds(text) == ms


@pytest.mark.parametrize("text", ["", "m", "0m", "-5m", "1.5h", "5w", "5 m", "9999999999s"])
def test_spans_that_are_none(text):
    with pytest.raises(UsageError):
        command.milliseconds(text)


def test_the_same_topic_of_two_brokers_is_one():
    one = TopicUsage(
        topic="T", queues=4, messages=50, kept=40, added=20, size_added=2_000, from_millis=0, grown_millis=9_000,
        points=[(0, 30, 0), (5_000, 40, 1_000), (9_000, 50, 2_000)],
    )  # fmt: skip
    two = TopicUsage(
        topic="T", queues=2, messages=5, kept=5, added=5, size_added=500, from_millis=5_000, grown_millis=7_000,
        points=[(5_000, 0, 0), (7_000, 5, 500)],
    )  # fmt: skip
    quiet = TopicUsage(topic="A", messages=9, from_millis=10_000, grown_millis=10_000)
    answers = [
        UsageBody(broker_name="broker-a", round_millis=10_000, topics=[one, quiet]),
        UsageBody(broker_name="broker-b", round_millis=10_000, topics=[two]),
    ]
    topic, other = command.merged(answers)
    steps = topic.pop("steps")
    assert topic == {
        "topic": "T", "queues": 6, "messages": 55, "kept": 45, "added": 25, "added_bytes": 2_500, "rate_per_s": 3.0,
        "grown_ms": 9_000,
    }  # fmt: skip
    assert [(step["at_ms"], step["broker"], step["added"]) for step in steps] == [
        (5_000, "broker-a", 10),
        (7_000, "broker-b", 5),
        (9_000, "broker-a", 10),
    ]
    assert (other["topic"], other["rate_per_s"]) == ("A", 0.0), "the window has length 0"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_500_000, "1.4 MiB"), (1 << 50, "1024.0 TiB")]
)
def test_bytes_for_people(size, text):
    assert command.in_units(size) == text
