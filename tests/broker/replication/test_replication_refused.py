"""Refused peers: slaves ahead of their master, foreign logs, twins, unknown peers, garbage."""

import random

import pytest

from rmqkit.broker.node import Broker
from rmqkit.runtime.connection import Address
from rmqkit.runtime.node import BaseNode
from rmqkit.wire.ha.stream import transfer_head
from tests.broker.replica_group import PORT, Group


def _ahead(**settings) -> Group:
    """A slave with messages that its master has lost: the master's disk is as before them."""
    group = Group(inSyncReplicas=1, **settings).in_sync()
    group.send(b"kept")
    kept = group.master.store.offset_written
    for _ in range(5):
        group.send(b"lost by the master")
    group.until(group.same_logs)
    group.world.stop("broker-0")
    group.until(lambda: not group.world.is_alive("broker-0"))
    lost: list = []
    group.world.restart("broker-0")
    group.until(lambda: group.master.serving)
    return group if lost else _cut(group, kept)


def _cut(group: Group, offset: int) -> Group:
    ended: list = []
    group.world.kill("broker-1")
    group.world.call("broker-0", lambda broker: broker.store.truncate(offset, ended.append))
    group.until(lambda: ended)
    assert ended == [None]
    group.world.stop("broker-0")
    group.until(lambda: not group.world.is_alive("broker-0"))
    group.world.restart("broker-0")
    group.until(lambda: group.master.serving)
    group.world.restart("broker-1")
    return group


def test_a_slave_that_is_ahead_stops_and_truncates_nothing():
    group = _ahead()
    group.until(lambda: group.slave.replication.state == "ahead")
    end = group.slave.store.offset_written
    assert "that it never had; nothing was truncated" in group.facts("broker-1")["replicationWhy"]
    # It stays so when the master's log has grown beyond the slave's.
    for _ in range(20):
        group.send(b"other messages at the same places")
    group.world.run_for(10_000)
    assert group.slave.replication.state in ("ahead", "foreign")
    assert group.slave.store.offset_written == end
    assert group.master.replication.in_sync_count() == 1


def test_a_slave_that_is_ahead_may_truncate_its_log_and_keeps_a_copy():
    group = _ahead(haTruncateAhead=True)
    group.in_sync()
    group.send(b"after")
    group.until(group.same_logs)
    disk = group.world.disk("broker-1")
    (copy,) = disk.list("diverged")
    assert copy.size > 0
    assert b"lost by the master" in disk.read(f"diverged/{copy.name}", 0, copy.size)
    assert group.slave.store.queue_range("T", 0).offset_max == 2


def test_a_failed_truncation_is_not_retried():
    """Each try would leave one more copy of the tail."""
    group = Group(inSyncReplicas=1, haTruncateAhead=True).in_sync()
    group.send(b"kept")
    group.until(group.same_logs)
    tries: list[int] = []

    def truncate(offset: int, then) -> None:
        tries.append(offset)
        then(OSError(28, "No space left on device"))

    group.world.call("broker-1", lambda broker: setattr(broker.store, "truncate", truncate))
    group.world.call("broker-1", lambda broker: broker.store.append_log(broker.store.offset_max, b"behind the end"))
    group.world.call("broker-0", lambda broker: broker.replication.accept.close_all("a test"))
    group.until(lambda: tries != [])
    group.world.run_for(30_000)
    assert len(tries) == len(group.world.disk("broker-1").list("diverged")) == 1
    assert group.slave.replication.state == "ahead"
    why = group.facts("broker-1")["replicationWhy"]
    assert why.endswith("the truncation has failed, and is tried again after a restart: No space left on device")


def _lose_disk(group: Group) -> None:
    group.world.lose_disk("broker-0")
    group.world.run_for(500)
    group.world.restart("broker-0")
    group.world.restart("client")
    group.until(lambda: group.master.serving)


def test_a_second_copy_of_a_truncated_tail_leaves_the_first_alone():
    group = Group(haTruncateAhead=True).in_sync()
    for body in (b"first life", b"second life"):
        group.send(body)
        group.until(group.same_logs)
        _lose_disk(group)
        group.until(lambda: group.slave.store.offset_written == 0)
        group.in_sync()
    disk = group.world.disk("broker-1")
    one, two = disk.list("diverged")
    assert b"first life" in disk.read(f"diverged/{one.name}", 0, one.size)
    assert b"second life" in disk.read(f"diverged/{two.name}", 0, two.size)


def test_a_master_that_lost_its_disk_takes_no_topic_from_its_slave():
    group = Group().in_sync()
    for _ in range(3):
        group.send(b"the slave alone will have this")
    group.until(lambda: "T" in group.slave.topics.by_name and group.same_logs())
    _lose_disk(group)
    group.until(lambda: group.slave.replication.state == "ahead")
    # New topics make the empty master's table newer than the slave's.
    for number in range(5):
        group.send(b"other", topic=f"T{number}")
    group.world.run_for(20_000)
    assert group.slave.replication.state == "ahead"
    assert "T" in group.slave.topics.by_name
    assert group.slave.store.queue_range("T", 0).offset_max == 3


def test_a_foreign_log_is_not_followed_nor_touched():
    group = Group(slaves=0, inSyncReplicas=1)
    group.until(lambda: group.master.serving)
    for _ in range(50):
        group.send(b"ours")
    stranger = group.add(1)
    group.in_sync()
    group.until(group.same_logs)
    group.world.run_for(1000)  # until it has saved which master it follows
    group.world.kill(stranger)
    disk = group.world.disk("broker-0")
    path = group.master.store.log.files.path(0)
    data = disk.read(path, 0, 200)
    group.world.call(
        "broker-0",
        lambda broker: broker.ports.disk.write(path, broker.store.offset_written - 10, [b"??"]),
    )
    group.world.restart(stranger)
    group.until(lambda: group.slave.serving and group.slave.replication.state == "foreign")
    assert data == group.world.disk(stranger).read(path, 0, 200)
    assert "another group" in group.facts(stranger)["replicationWhy"]
    assert group.master.replication.in_sync_count() == 1


def test_another_broker_name_is_refused():
    group = Group(slaves=0, inSyncReplicas=1)
    master_ha = f"{group.hosts['broker-0']}:{PORT + 1}"
    group.add(1, brokerName="broker-b", haMasterAddress=master_ha)
    group.until(lambda: group.slave.serving)
    group.world.call(
        "broker-1", lambda broker: broker.replication.follow.learned(Address(group.hosts["broker-0"], PORT), None)
    )
    group.until(lambda: group.slave.replication.state == "refused")
    assert "this is broker-a, not broker-b" in group.slave.replication.why


def test_two_slaves_with_one_id():
    group = Group(inSyncReplicas=1).in_sync()
    twin = group.add(1, name="twin")
    group.until(lambda: group.node(twin).serving and group.node(twin).replication.state == "refused")
    assert "id 1 belongs to 10.0.1.2:10911" in group.node(twin).replication.why
    assert group.master.replication.in_sync_count() == 2
    group.world.kill("broker-1")
    group.until(lambda: group.node(twin).replication.state == "following")


def _deaf(group: Group) -> None:
    """Let the client open connections on which it sends no frames."""

    def make(client) -> None:
        opened, closed = client.opened, client.closed
        client.opened = lambda conn: None if conn.tag == "stranger" else opened(conn)
        client.closed = lambda conn, reason: None if conn.tag == "stranger" else closed(conn, reason)

    group.world.call("client", make)


def test_an_unknown_peer_that_reports_a_huge_offset_does_not_count():
    group = Group(slaves=0, slaveTimeout=500, haAcceptAnonymous=True)
    group.until(lambda: group.master.serving)

    def stranger(client) -> None:
        conn = client.outbox.dial(Address(group.hosts["broker-0"], PORT + 1), "stranger")
        client.outbox.send(conn, (1 << 62).to_bytes(8, "big"))

    _deaf(group)
    group.world.call("client", stranger)
    group.world.run_for(1000)
    assert group.master.replication.in_sync_count() == 1
    assert group.send().code == 11
    lines = [line.fields for line in group.world.log("broker-0").events("replica-refused")]
    assert "this log ends at 0" in lines[0]["reason"]


def _false_master(group: Group, *, what) -> None:
    """Add a machine whose HA port sends something other than a master's stream."""

    class Fake(BaseNode):
        def received(self, conn, data: bytes) -> None:
            self.outbox.send(conn, what(int.from_bytes(data[:8], "big")))

    group.world.add_node("fake", lambda ports: Fake("fake", ports), "10.0.9.9")
    group.world.listen("fake", "any", Address("10.0.9.9", PORT + 1))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (lambda end: transfer_head(end, 1 << 30), "the peer is no master"),
        (lambda end: transfer_head(end, -5), "the peer is no master"),
        (lambda end: transfer_head(-1, 0), "the peer is no master"),
        (lambda end: transfer_head(end + 100, 4) + b"abcd", "do not continue the log"),
        (lambda end: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "the peer is no master"),
    ],
)
def test_an_invalid_stream_changes_nothing(what, said: str):
    group = Group(slaves=0, inSyncReplicas=1)
    group.world.kill("broker-0")
    _false_master(group, what=what)
    group.add(1, haMasterAddress=f"10.0.9.9:{PORT + 1}")
    group.until(lambda: group.slave.serving and said in group.slave.replication.why)
    group.world.run_for(5000)
    assert group.slave.store.offset_written == 0


def test_an_incomplete_transfer_is_dropped_and_sent_again():
    group = Group(inSyncReplicas=1).in_sync()
    group.send(b"whole")
    group.until(group.same_logs)
    end = group.slave.store.offset_written

    def half(slave: Broker) -> None:
        follow = slave.replication.follow
        follow.received(follow._conn, transfer_head(end, 500) + b"x" * 100)

    group.world.call("broker-1", half)
    group.world.run_for(10)
    assert group.slave.store.offset_max == end
    group.world.call("broker-0", lambda master: master.replication.accept.close_all("a test"))
    group.in_sync()
    group.send(b"more")
    group.until(group.same_logs)


def test_garbage_on_the_port_for_slaves():
    group = Group(slaves=1, haAcceptAnonymous=True).in_sync()
    rng = random.Random(5)

    def knock(client) -> None:
        for size in (1, 7, 8, 9, 16, 1000, 65_536):
            conn = client.outbox.dial(Address(group.hosts["broker-0"], PORT + 1), "stranger")
            client.outbox.send(conn, rng.randbytes(size))

    _deaf(group)
    group.world.call("client", knock)
    group.world.run_for(2000)
    assert group.send().code == 0
    assert group.same_logs()
    assert group.master.replication.in_sync_count() == 2


def test_a_slave_with_a_full_disk_reports_it_and_resumes_later():
    group = Group(inSyncReplicas=1).in_sync()
    group.send(b"first")
    group.until(group.same_logs)
    disk = group.world.disk("broker-1")
    capacity, disk.folder.capacity = disk.folder.capacity, 1
    for _ in range(20):
        group.send(bytes(100_000))
    group.world.run_for(5000)
    assert group.slave.store.offset_written < group.master.store.offset_written
    disk.folder.capacity = capacity
    group.in_sync()
    group.until(group.same_logs)
