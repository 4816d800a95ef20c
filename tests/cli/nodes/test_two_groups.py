"""Two groups of a master and a slave: where topics are created, and rolling restarts under load."""

import threading
import time
from itertools import count

import pytest

from rmqkit import Message, Producer
from rmqkit.cluster import Cluster
from rmqkit.cluster.health.caller import Caller, NoAnswer
from rmqkit.errors import ClientError
from rmqkit.wire.codes import PullSysFlag, RequestCode
from rmqkit.wire.schemas.pull import PullMessageRequest
from tests.cli.conftest import free_base, make_shell, purge

SMALL = ("--set", "mappedFileSizeCommitLog=16777216")


@pytest.fixture(scope="module")
def own(tmp_path_factory, lifeline):
    made = make_shell(tmp_path_factory.mktemp("two") / "home", lifeline)
    made.run("cluster", "up", "--any-port", "--base-port", free_base(), "--groups", "2", *SMALL)
    yield made
    purge(made)


def groups_of(shell, topic):
    return [row["broker_name"] for row in shell.json("topic", "route", topic)["brokers"]]


def test_the_first_send_creates_a_topic_on_every_group(own):
    done = own.run("send", "everywhere", "x")
    assert done.stderr == "topic everywhere is new: created on broker-a, broker-b\n"
    assert groups_of(own, "everywhere") == ["broker-a", "broker-b"]
    assert own.run("send", "everywhere", "x").stderr == ""
    assert [each["body"] for each in own.lines("consume", "everywhere")] == ["x", "x"]


def test_a_topic_without_a_master_is_advised_to_another_group(own):
    own.run("topic", "create", "lonely", "--broker", "broker-a")
    own.run("cluster", "kill", "broker-a:0")
    try:
        own.run("send", "everywhere", "x")
        told = own.error("send", "lonely", "x", code=1)
        assert "has no queue to write to" in told
        assert told.endswith("; `rmqkit topic create lonely --broker broker-b` creates it there as well")
        own.run("topic", "create", "lonely", "--broker", "broker-b")
        own.run("send", "lonely", "x")
        own.run("topic", "create", "closed", "--broker", "broker-b", "--perm", "r")
        assert "topic create" not in own.error("send", "closed", "x", code=1)
    finally:
        own.run("cluster", "start")


class Work(threading.Thread):
    """Calls a function repeatedly until the end of a `with` block, which raises its error."""

    def __init__(self, step):
        super().__init__()
        self._step, self._ended, self._error = step, threading.Event(), None

    def run(self):
        try:
            while not self._ended.wait(0.005):
                self._step()
        except BaseException as error:
            self._error = error

    def __enter__(self):
        self.start()

    def __exit__(self, *_error):
        self._ended.set()
        self.join()
        if self._error is not None:
            raise self._error


class Sender:
    """Sends numbers to a topic; repeats each until it is acknowledged."""

    def __init__(self, producer, topic):
        self._producer, self._topic, self._numbers = producer, topic, count()
        self.sent, self.failed_s = [], []

    def step(self):
        body = str(next(self._numbers))
        while body not in self.sent[-1:]:
            try:
                # Every result means stored, including a timeout of the copy to a slave that is
                # stopping.
                self._producer.send(Message(self._topic, body.encode()))
                self.sent.append(body)
            except ClientError:
                self.failed_s.append(time.monotonic())
                time.sleep(0.02)


class Reader:
    """Checks that some broker of a group always serves the first message of a queue."""

    def __init__(self, topic, brokers):
        self._brokers = [address.split(":") for address in brokers]
        self._request = PullMessageRequest(
            consumer_group="readers", topic=topic, queue_id=0, queue_offset=0, max_msg_nums=1, subscription="*",
            sys_flag=PullSysFlag.SUBSCRIPTION, suspend_timeout_millis=0, expression_type="TAG", commit_offset=0,
        )  # fmt: skip
        self.read = 0
        self._unread = 0

    def step(self):
        # Both brokers may miss one check: one stops and the other starts in between. Not two.
        self._unread = 0 if any(map(self._is_read_at, self._brokers)) else self._unread + 1
        assert self._unread < 2, "nobody gives the message"
        self.read += 1

    def _is_read_at(self, address):
        host, port = address
        try:
            with Caller(host, int(port), time.monotonic() + 3.0) as broker:
                return b"first" in broker.ask(RequestCode.PULL_MESSAGE, self._request).body
        except NoAnswer:
            return False


@pytest.mark.long
def test_a_rolling_restart_loses_no_message_and_keeps_groups_readable(own, lifeline):
    own.run("topic", "create", "lonely-roll", "--broker", "broker-a")
    own.run("topic", "create", "roll")
    own.run("send", "lonely-roll", "first", "--queue", "0")
    nodes = own.json("cluster", "status")["nodes"]
    namesrv = own.json("cluster", "env")["NAMESRV_ADDR"]
    reader = Reader("lonely-roll", [node["address"] for node in nodes if node.get("broker_name") == "broker-a"])
    began_s = {}
    cluster = Cluster(
        home=own.home, lifeline=lifeline, note=lambda text: began_s.setdefault(text.split()[-1], time.monotonic())
    )
    with Producer("rolled", namesrv=namesrv) as producer:
        one, both = Sender(producer, "lonely-roll"), Sender(producer, "roll")
        one.step()
        both.step()
        with Work(one.step), Work(both.step), Work(reader.step):
            assert cluster.restart("ns,broker-a", rolling=True) == ["ns-0", "broker-a-0", "broker-a-1"]
            ended_s = time.monotonic()
        one.step()
    assert list(began_s) == ["ns-0", "broker-a-1", "broker-a-0"]
    after = own.json("cluster", "status")["nodes"]
    new = [node["node"] for node, old in zip(after, nodes, strict=True) if node["pid"] != old["pid"]]
    assert new == ["ns-0", "broker-a-0", "broker-a-1"]
    assert {node["replication"]["why"] for node in after[1:]} == {""}
    # Sends to one group fail while its master is down, and are repeated. With two groups none
    # fails.
    assert both.failed_s == []
    assert all(began_s["broker-a-0"] < failed_s < ended_s for failed_s in one.failed_s)
    assert reader.read > 20
    for sender, topic in ((one, "lonely-roll"), (both, "roll")):
        assert len(sender.sent) > 20
        assert set(sender.sent) <= {each["body"] for each in own.lines("consume", topic)}


@pytest.mark.long
def test_a_rolling_restart_does_not_begin_without_a_slave(own):
    own.run("cluster", "stop", "broker-b:1")
    try:
        before = own.json("cluster", "status")["nodes"]
        assert "broker-b-1 does not run" in own.error("cluster", "restart", "--rolling", code=1)
        assert [node["pid"] for node in own.json("cluster", "status")["nodes"]] == [node["pid"] for node in before]
    finally:
        own.run("cluster", "start")
