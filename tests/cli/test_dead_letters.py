"""`rmqkit dlq` shows and redelivers the dead letters of a running cluster."""

import contextlib

import pytest

from rmqkit import PushConsumer
from tests.api.until import until

BODIES = {f"bad {number}" for number in range(5)}


class Member:
    """A group member that fails or consumes every message, and records them."""

    def __init__(self, consumer, fails):
        self.consumer = consumer
        self.messages = []
        self._fails = fails

    def listen(self, message):
        self.messages.append(message)
        return not self._fails

    @property
    def bodies(self):
        return [message.body.decode() for message in self.messages]


@contextlib.contextmanager
def member(up, group, topic, *, fails=False, **settings):
    namesrv = up.json("cluster", "env")["NAMESRV_ADDR"]
    consumer = PushConsumer(group, namesrv=namesrv, consume_from="first", max_reconsume_times=0, **settings)
    made = Member(consumer, fails)
    consumer.subscribe(topic)
    consumer.listener(made.listen)
    with consumer:
        until(lambda: consumer.assignment)
        yield made


def dead(up, group):
    return {row["group"]: row for row in up.json("dlq", "list")}.get(group)


@pytest.fixture(scope="module")
def letters(up):
    """A group with five dead letters from one topic."""
    group, topic = "dead-group", "dead-orders"
    up.run("topic", "create", topic, "--queues", "2")
    up.run("send", topic, "-", "--property", "a=b", input="\n".join(sorted(BODIES)))
    with member(up, group, topic, fails=True) as failing:
        until(lambda: len(failing.messages) == len(BODIES))
        until(lambda: (dead(up, group) or {}).get("dead") == len(BODIES))
    return group, topic


def test_dead_letters_are_counted_and_shown_with_their_topic(up, letters):
    group, topic = letters
    assert dead(up, group) | {"newest_ms": 0} == {
        "group": group, "dead": 5, "not_requeued": 5, "brokers": ["broker-a"], "newest_ms": 0,
    }  # fmt: skip
    shown = up.lines("dlq", "show", group)
    assert {each["body"] for each in shown} == BODIES
    assert {each["original_topic"] for each in shown} == {topic}
    assert {each["reconsume_times"] for each in shown} == {1}
    assert f"topic={topic}" in up.run("dlq", "show", group).stdout
    some = up.run("dlq", "show", group, "--max", "2", "--from", "1")
    assert len(some.stdout.splitlines()) == 2
    assert "2 of 5" in some.stderr


def test_groups_count_their_dead_letters(up, letters):
    group, _topic = letters
    assert {row["group"]: row["dead_letters"] for row in up.json("group", "list")}[group] == 5
    assert {row["group"]: row["dead_letters"] for row in up.json("group", "progress")}[group] == 5
    assert up.json("group", "progress", group)["dead_letters"] == 5
    assert f"dead letters: 5, see `rmqkit dlq show {group}`" in up.run("group", "progress", group).stdout


def test_requeued_letters_reach_their_group_once_and_under_their_topic(up, letters):
    group, topic = letters
    other = "dead-other-group"
    assert up.json("dlq", "requeue", group, "--all", "--max", "2") | {"left": 3} == {
        "group": group, "topic": None, "requeued": 2, "left": 3, "error": None,
    }  # fmt: skip
    assert "3 dead letters" in up.run("dlq", "requeue", group, "--all").stdout
    assert up.json("dlq", "requeue", group, "--all")["requeued"] == 0
    with member(up, group, topic) as taking, member(up, other, topic) as bystander:
        until(lambda: len(taking.messages) == 5 and len(bystander.messages) == 5)
    assert set(taking.bodies) == BODIES
    assert {message.topic for message in taking.messages} == {topic}
    assert {message.reconsume_times for message in taking.messages} == {0}
    assert {message.properties["a"] for message in taking.messages} == {"b"}
    assert {message.queue.topic for message in taking.messages} == {f"%RETRY%{group}"}
    assert {message.queue.topic for message in bystander.messages} == {topic}, "another group got a requeued copy"
    assert dead(up, group)["not_requeued"] == 0
    assert dead(up, group)["dead"] == 5, "requeued letters stay where they are"


def test_letters_go_to_another_topic_again_and_single_ones_by_id(up, letters):
    group, _topic = letters
    up.run("topic", "create", "dead-repaired", "--queues", "1")
    assert up.json("dlq", "requeue", group, "--all", "--again", "--topic", "dead-repaired")["requeued"] == 5
    assert {each["body"] for each in up.lines("consume", "dead-repaired")} == BODIES
    msg_id = up.lines("dlq", "show", group, "--max", "1")[0]["msg_id"]
    assert up.json("dlq", "requeue", group, "--id", msg_id, "--topic", "dead-repaired")["requeued"] == 1
    assert len(up.lines("consume", "dead-repaired")) == 6


def test_letters_of_an_ordered_group_are_not_sent_in_a_circle(up, letters):
    group, topic = letters
    with member(up, group, topic, orderly=True):
        assert "consumes in order" in up.error("dlq", "requeue", group, "--all", "--again", code=1)
    assert dead(up, group)["dead"] == 5


def test_requeues_that_are_refused(up, letters):
    group, _topic = letters
    assert "--all" in up.error("dlq", "requeue", group, code=2)
    assert "--all" in up.error("dlq", "requeue", group, "--all", "--id", "0" * 32, code=2)
    assert "no dead letter" in up.error("dlq", "requeue", group, "--id", "0" * 32, code=1)
    assert "there is no group" in up.error("dlq", "show", "dead-nobody", code=1)
    assert "there is no topic dead-nowhere" in up.error("dlq", "requeue", group, "--all", "--topic", "dead-nowhere", code=1)
