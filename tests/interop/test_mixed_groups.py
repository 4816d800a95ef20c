"""Broker groups of an Apache member and one of ours: the slave's log equals the master's.

It is equal byte for byte, and the slave serves what it has.

The order of these tests matters. An Apache slave copies tables for the first time after a minute
and serves no topic before. So its group is created first and left alone while the other group is
tested. That also shows that a connection without traffic stays open. The first group is tested
again at the end.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rmqkit import Admin, Message, MessageQueue, Producer, SendStatus
from rmqkit.errors import ClientError
from rmqkit.wire.bodies import SubscriptionGroupConfig
from tests.interop import apache
from tests.interop.exchange import records
from tests.interop.groups import (
    BROKER,
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    FILE_SIZE,
    GROUPS,
    SCHEDULE,
    TOPICS,
    Group,
    Member,
)
from tests.interop.mqadmin import Mqadmin
from tests.interop.until import until

#: `OLD` is written before the slave starts, `NEW` after; `DELAY` gets delayed messages when due
OLD, NEW, DELAY = "mixed_old", "mixed_new", "mixed_delay"
QUEUES = {OLD: 4, NEW: 4, DELAY: 1, SCHEDULE: 2}
#: delay level of a message that lies in the log's first file, which the slave never gets
EARLY_LEVEL = 3
CONSUMERS, READERS = "mixed_consumers", "mixed_readers"
#: ms after which either side closes a connection without heartbeats
HOUSEKEEPING_MS = 20_000
EXCHANGE_HA_INFO = 906


class Story:
    """A group with its clients, and the state that one test leaves to the next."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.master, self.slave = group.master, group.slave
        self.master.start()
        self.admin = Admin(group.namesrv)
        self.producer = Producer("mixed", namesrv=group.namesrv, send_msg_timeout_ms=10_000)
        self.slave_started_s = self.quiet_since_s = 0.0
        self._number = 0

    def close(self) -> None:
        self.producer.close()
        self.admin.close()
        self.group.close()

    def messages(self, topic: str, count: int) -> Iterator[Message]:
        for _ in range(count):
            self._number += 1
            body = f"message {self._number} " + "x" * (self._number % 700)
            yield Message(topic, body, keys=f"key{self._number}", tags=f"Tag{self._number % 5}")

    def send(self, topic: str, count: int) -> list[SendStatus]:
        return [self.producer.send(message).status for message in self.messages(topic, count)]

    def fill(self) -> None:
        """Create topics and a group with offsets; send several log files of messages one-way."""
        for topic, count in QUEUES.items():
            if topic != SCHEDULE:
                self.admin.create_topic(topic, queue_nums=count)
                until(f"a route of {topic}", lambda topic=topic, count=count: len(self.admin.queues(topic)) == count)
        self.expect_no_copy([self.producer.send(Message(OLD, "early", delay_level=EARLY_LEVEL)).status])
        self.admin.create_group(CONSUMERS, config=SubscriptionGroupConfig(group_name=CONSUMERS, retry_max_times=5))
        for message in self.messages(OLD, 400):
            self.producer.send_oneway(message)
        until("401 messages", lambda: sum(self.admin.offset_max(queue) for queue in self.admin.queues(OLD)) == 401)
        for queue in sorted(self.admin.queues(OLD)):
            self.admin.set_group_offset(CONSUMERS, queue, 7 * queue.queue_id)
        assert self.master.log_end() > 2 * FILE_SIZE

    def start_slave(self) -> None:
        self.slave.start()
        self.slave_started_s = time.monotonic()

    def send_all_kinds(self) -> None:
        """Send messages of every kind; each must be acknowledged as copied to the slave."""
        assert set(self.send(NEW, 40)) == {SendStatus.SEND_OK}
        batch = [Message(NEW, f"batched {number}", keys=f"batch{number}") for number in range(10)]
        assert self.producer.send_batch(batch).status == SendStatus.SEND_OK
        assert self.producer.send(Message(NEW, "compress " * 1024, keys="zip")).is_ok
        assert self.producer.send(Message(NEW, "grüße, 世界", tags="标签", properties={"名前": "мир"}, flag=77)).is_ok
        before = self.admin.offset_max(MessageQueue(DELAY, BROKER, 0))
        for number in range(3):
            assert self.producer.send(Message(DELAY, f"delayed {number}", delay_level=1)).is_ok
        until("what waited", lambda: self.admin.offset_max(MessageQueue(DELAY, BROKER, 0)) == before + 3)

    def expect_copied(self) -> None:
        """Expect the slave's log and the ends of its queues to equal the master's."""
        until("the slave has it all", self.group.same_end)
        self.group.expect_same_logs()
        until("its queues know it all", lambda: self._ends(self.slave) == self._ends(self.master))

    def expect_same(self) -> None:
        """Expect equal logs, and the slave to serve every record."""
        self.expect_copied()
        self.group.expect_same_queues(QUEUES)

    def _ends(self, member: Member) -> list[int]:
        # The slave may have none of the old topic's messages.
        return [member.offset_max(topic, queue_id) for topic in (NEW, DELAY, SCHEDULE) for queue_id in range(QUEUES[topic])]

    def expect_same_tables(self) -> None:
        """Expect the slave's topics, groups and offsets to equal the master's.

        The offsets are those of consumers and of delay levels.
        """
        until("the slave's offsets", lambda: self._offsets(self.slave) == self._offsets(self.master) != {})
        until("the slave's delay offsets", lambda: self._delays(self.slave) == self._delays_within() != {})
        of_master, of_slave = (member.table(TOPICS)["topicConfigTable"] for member in (self.master, self.slave))
        for topic in (OLD, NEW, DELAY):
            assert _topic(of_slave[topic]) == _topic(of_master[topic])
        of_master, of_slave = (member.table(GROUPS)["subscriptionGroupTable"] for member in (self.master, self.slave))
        assert of_slave[CONSUMERS]["retryMaxTimes"] == of_master[CONSUMERS]["retryMaxTimes"] == 5

    @staticmethod
    def _offsets(member: Member) -> Any:
        return member.table(CONSUMER_OFFSETS)["offsetTable"].get(f"{OLD}@{CONSUMERS}", {})

    @staticmethod
    def _delays(member: Member) -> Any:
        return member.table(DELAY_OFFSETS)["offsetTable"]

    def _delays_within(self) -> dict[str, int]:
        """Return the delay offsets that the slave should have.

        Our slave limits them to the ends of its own queues. Apache's slave copies the file
        unchanged.
        """
        of_master: dict[str, int] = self._delays(self.master)
        if self.slave.whose == "apache":
            return of_master
        ends = {level: self.slave.offset_max(SCHEDULE, int(level) - 1) for level in of_master}
        return {level: min(offset, ends[level]) for level, offset in of_master.items()}

    @staticmethod
    def expect_no_copy(statuses: Sequence[SendStatus]) -> None:
        """Expect statuses for messages that were stored but not copied to a slave in time."""
        assert set(statuses) <= {SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE}, statuses

    def until_copied(self) -> None:
        """Wait until sends are acknowledged as copied, then send ten more.

        A new slave's log may begin after the messages sent before that.
        """
        until("a send is copied", self._is_copied)
        assert set(self.send(NEW, 10)) == {SendStatus.SEND_OK}

    def _is_copied(self) -> bool:
        try:
            return self.send(OLD, 1) == [SendStatus.SEND_OK]
        except ClientError:
            return False  # the producer has not noticed the master's return yet

    def expect_slave_serves(self, java: Mqadmin, group: str) -> None:
        """Expect our client and Java's to read everything from the slave of a dead master."""
        until("the route has the slave alone", lambda: list(_brokers(self.admin)) == [1])
        served = {topic: [self.slave.queue(topic, queue_id) for queue_id in range(QUEUES[topic])] for topic in (NEW, DELAY)}
        for topic, queues in served.items():
            read = records(self.group.namesrv, topic)
            assert len(read) == sum(len(queue.records) for queue in queues) > 0
            assert {row[2] for row in read} == {record.phy_offset for queue in queues for record in queue.records.values()}
        java.namesrv = self.group.namesrv
        java.consume(group, NEW)
        for queue_id, queue in enumerate(served[NEW]):
            until(
                "Java's consumer has read it and committed on the slave",
                lambda queue_id=queue_id, queue=queue: self.slave.group_offset(group, NEW, queue_id) == queue.offset_max,
            )


def _brokers(admin: Admin) -> dict[int, str]:
    (data,) = admin.route(NEW).broker_datas
    return dict(data.broker_addrs)


def _topic(config: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(config[key] for key in ("topicName", "readQueueNums", "writeQueueNums", "perm"))


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mqadmin]:
    made = Mqadmin("", tmp_path_factory.mktemp("mqadmin"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def their_slave(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Run our master with an Apache slave."""
    yield from _story(Group(tmp_path_factory.mktemp("ours"), master="ours", slave="apache"))


@pytest.fixture(scope="module")
def our_slave(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Run an Apache master with our slave."""
    yield from _story(Group(tmp_path_factory.mktemp("theirs"), master="apache", slave="ours"))


def _story(group: Group) -> Iterator[Story]:
    try:
        story = Story(group)
    except BaseException:
        group.close()
        raise
    try:
        yield story
    finally:
        story.close()


# --- our master, Apache's slave: the first part


def test_an_apache_slave_copies_our_log(their_slave: Story) -> None:
    story = their_slave
    story.fill()
    story.expect_no_copy(story.send(OLD, 2))
    story.start_slave()
    story.until_copied()
    story.send_all_kinds()
    story.expect_copied()
    begin, _ = story.slave.log()
    assert begin > 0, "who comes with an empty log and does not say who it is gets the last file"


def test_our_master_answers_right_while_its_apache_slave_is_dead(their_slave: Story) -> None:
    story = their_slave
    story.slave.kill()
    story.expect_no_copy(story.send(NEW, 3))
    until("status says so", lambda: story.master.facts().get("replicationInSync") == "1")
    assert "no slave is in sync" in story.master.facts()["replicationWhy"]
    story.start_slave()
    story.until_copied()
    story.expect_copied()
    assert story.master.facts()["replicationInSync"] == "2"
    assert story.master.facts()["replicationWhy"] == ""


def test_mqadmin_sees_the_link(their_slave: Story, java: Mqadmin) -> None:
    story = their_slave
    java.namesrv = story.group.namesrv
    printed = java("haStatus", "-b", story.master.address)
    end = str(story.master.log_end())
    for line in (["#MasterAddr", story.master.address], ["#MasterCommitLogMaxOffset", end], ["#InSyncSlaveNum", "1"]):
        assert line in [row.split() for row in printed.out.splitlines()], printed
    (link,) = [row for row in printed.rows if row[0].startswith(f"{apache.HOST}:")]
    assert (link[1], link[2], link[4], link[5]) == (end, "0", "OK", end)
    story.quiet_since_s = time.monotonic()


# --- Apache's master, our slave


def test_our_slave_begins_where_an_apache_master_lets_it(our_slave: Story) -> None:
    story = our_slave
    story.fill()
    story.expect_no_copy(story.send(OLD, 1))
    story.start_slave()
    story.until_copied()
    story.send_all_kinds()
    story.expect_same()
    begin, _ = story.slave.log()
    assert begin > 0
    facts = story.slave.facts()
    assert facts["replicationState"] == "following"
    assert "older messages are missing" in facts["replicationWhy"]


def test_our_slave_copies_the_tables_of_an_apache_master(our_slave: Story) -> None:
    our_slave.expect_same_tables()
    assert our_slave.master.table(DELAY_OFFSETS)["offsetTable"][str(EARLY_LEVEL)] == 1
    assert our_slave.slave.table(DELAY_OFFSETS)["offsetTable"][str(EARLY_LEVEL)] == 0, "it has none of that queue"
    assert our_slave.slave.facts()["metadataWhy"] == ""


def test_an_apache_master_answers_right_while_our_slave_is_dead(our_slave: Story) -> None:
    story = our_slave
    story.slave.kill()
    story.expect_no_copy(story.send(NEW, 2))
    story.start_slave()
    story.until_copied()
    story.expect_same()
    assert "older messages are missing" in story.slave.facts()["replicationWhy"], "it does not forget at its restart"


def test_our_slave_goes_on_with_the_folder_of_another(our_slave: Story) -> None:
    """A slave without replication.json has no record of its master.

    That its log exceeds the log that the master had at its start is then no sign of divergence.
    """
    story = our_slave
    story.slave.stop()
    (story.slave.store / "config" / "replication.json").unlink()
    story.start_slave()
    story.until_copied()
    story.expect_same()
    assert story.slave.facts()["replicationState"] == "following"


def test_our_slave_serves_when_its_apache_master_is_dead(our_slave: Story, java: Mqadmin) -> None:
    story = our_slave
    story.master.kill()
    until("the slave knows", lambda: story.slave.facts()["replicationState"] == "connecting")
    story.expect_slave_serves(java, f"{READERS}_of_ours")
    story.group.keep_store(story.master, "killed")


def test_our_slave_follows_its_apache_master_through_a_restart(our_slave: Story) -> None:
    """The master returns as an ASYNC_MASTER, which waits for no slave."""
    story = our_slave
    end = story.slave.log_end()
    story.master.set(brokerRole="ASYNC_MASTER")
    story.master.start()
    answer = apache.ask(story.master.address, EXCHANGE_HA_INFO, {})
    assert int(answer["extFields"]["masterFlushOffset"]) == end, "the end of its log when it started"
    until("the slave follows", lambda: story.slave.facts()["replicationState"] == "following")
    assert set(story.send(NEW, 20)) == {SendStatus.SEND_OK}
    story.expect_same()
    story.slave.kill()
    assert set(story.send(NEW, 20)) == {SendStatus.SEND_OK}
    story.start_slave()
    story.expect_same()


def test_our_slave_that_has_more_than_its_apache_master_stops(our_slave: Story) -> None:
    """The master restarts from its folder of the earlier kill.

    It reports the log end of that folder as its start.
    """
    story = our_slave
    kept = story.slave.log()
    story.master.kill()
    story.group.bring_back(story.master, "killed")
    story.master.start()
    until("the slave stops", lambda: story.slave.facts()["replicationState"] == "ahead")
    assert "nothing was truncated" in story.slave.facts()["replicationWhy"]
    assert set(story.send(NEW, 60)) == {SendStatus.SEND_OK}
    assert story.master.log_end() > len(kept[1]) + kept[0]
    story.slave.kill()
    story.start_slave()
    until("it stops again", lambda: story.slave.facts()["replicationState"] in ("ahead", "foreign"))
    assert story.slave.log() == kept


# --- our master, Apache's slave: the second part


def test_a_link_without_traffic_lives_on(their_slave: Story) -> None:
    story = their_slave
    until("long enough", lambda: (time.monotonic() - story.quiet_since_s) * 1000 > HOUSEKEEPING_MS + 2000)
    said = story.master.output()
    assert said.count("replica-connected") == 2, "one for each life of the slave"
    assert said.count("replica-gone") == 1
    assert story.master.facts()["replicationInSync"] == "2"
    assert set(story.send(NEW, 5)) == {SendStatus.SEND_OK}


def test_an_apache_slave_copies_our_tables(their_slave: Story) -> None:
    their_slave.expect_same_tables()
    until("it knows the topics", lambda: NEW in their_slave.slave.table(TOPICS)["topicConfigTable"])
    their_slave.expect_same()


def test_an_apache_slave_serves_when_our_master_is_dead(their_slave: Story, java: Mqadmin) -> None:
    story = their_slave
    story.master.kill()
    story.expect_slave_serves(java, f"{READERS}_of_theirs")


def test_an_apache_slave_follows_our_master_through_a_restart(their_slave: Story) -> None:
    story = their_slave
    story.master.start()
    story.until_copied()
    story.expect_same()
