"""A master and its slaves in virtual time: what is copied, what a put waits for, and who is not followed."""

import json
from collections.abc import Mapping

import pytest

from rmqkit.broker.node import Broker
from rmqkit.config import from_values
from rmqkit.nameserver.node import NameServer
from rmqkit.runtime.calls import CallFailed, Reply
from rmqkit.runtime.connection import Address
from rmqkit.sim.cluster import SMALL_FILES, SimParts
from rmqkit.sim.world import World
from rmqkit.testing.brokers import _Client
from rmqkit.wire.bodies import KVTable
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.send import SendMessageRequestV2

PORT = 10911
NS = Address("10.0.0.1", 9876)


class Group:
    """One broker group with a name server and a client, driven by hand."""

    def __init__(self, *, slaves: int = 1, seed: int = 1, **settings) -> None:
        self.world = World(seed)
        config = from_values("nameserver", {"kvConfigPath": "kv.json", "configStorePath": "ns.properties"})
        self.world.add_node("ns", lambda ports: NameServer("ns", ports, config), NS.host)
        self.world.listen("ns", "remoting", NS)
        self.hosts = {}
        self.settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "haAcceptAnonymous": False, **settings}
        self.add(0)
        for broker_id in range(1, slaves + 1):
            self.add(broker_id)
        self.world.add_node("client", lambda ports: _Client("client", ports), "10.0.2.1")

    def add(self, broker_id: int, *, name: str = "", host: str = "", **own) -> str:
        node = name or f"broker-{broker_id}"
        host = host or f"10.0.1.{len(self.hosts) + 1}"
        role = {"brokerRole": "SLAVE"} if broker_id else {}
        values = {
            "brokerName": "broker-a",
            "brokerId": broker_id,
            "brokerIP1": host,
            "brokerIP2": host,
            "listenPort": PORT,
            "namesrvAddr": str(NS),
            "storePathRootDir": "/",
            "storePathCommitLog": "commitlog",
            "storageEngine": "mapped",
            **SMALL_FILES,
            **self.settings,
            **role,
            **own,
        }
        config = from_values("broker", values)
        self.hosts[node] = host
        self.world.add_node(node, lambda ports: Broker(node, ports, config, SimParts("mapped")), host)
        for tag, port in (("remoting", PORT), ("vip", PORT - 2), ("ha", PORT + 1)):
            self.world.listen(node, tag, Address(host, port))
        return node

    def node(self, name: str) -> Broker:
        return self.world.node(name)

    @property
    def master(self) -> Broker:
        return self.node("broker-0")

    @property
    def slave(self) -> Broker:
        return self.node("broker-1")

    def until(self, condition, limit_ms: int = 60_000) -> None:
        assert self.world.run_until(condition, limit_ms), [
            (name, self.node(name).replication.facts()) for name in self.hosts if self.world.is_alive(name)
        ]

    def in_sync(self, count: int = 2) -> "Group":
        self.until(lambda: self.master.serving and self.master.replication.in_sync_count() == count)
        return self

    def ask(
        self, node: str, code: int, ext: Mapping[str, str] | object = None, body: bytes = b"", limit_ms: int = 20_000
    ) -> Reply:
        found: list = []
        address = Address(self.hosts[node], PORT)
        self.world.call(
            "client",
            lambda client: client.remoting.call(address, int(code), ext, body, timeout_ms=limit_ms, then=found.append),
        )
        assert self.world.run_until(lambda: found, limit_ms + 1000)
        assert not isinstance(found[0], CallFailed), found[0]
        return found[0]

    def send(self, body: bytes = b"x", *, topic: str = "T", node: str = "broker-0", properties: str = "") -> Reply:
        request = SendMessageRequestV2(
            producer_group="p", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
            sys_flag=0, born_timestamp=1, flag=0, properties=properties,
        )  # fmt: skip
        return self.ask(node, RequestCode.SEND_MESSAGE_V2, request, body)

    def facts(self, node: str) -> dict:
        return KVTable.decode(self.ask(node, RequestCode.GET_BROKER_RUNTIME_INFO).body).table

    def log(self, name: str) -> bytes:
        store = self.node(name).store
        position, found = store.offset_min, b""
        while data := bytes(store.read_log(position, 1 << 20)):
            found += data
            position += len(data)
        return found

    def same_logs(self, *names: str) -> bool:
        logs = [self.log(name) for name in names or ("broker-0", "broker-1")]
        return bool(logs[0]) and all(log == logs[0] for log in logs)


def test_a_send_is_answered_when_the_slave_has_it():
    group = Group().in_sync()
    for number in range(50):
        assert group.send(b"%d" % number).code == 0
        assert group.slave.store.offset_written == group.master.store.offset_written
    assert group.same_logs()
    assert group.slave.store.queue_range("T", 0).offset_max == 50
    assert group.facts("broker-0")["replicationInSync"] == "2"
    assert group.facts("broker-1")["replicationState"] == "following"


def test_a_slave_takes_no_messages():
    group = Group().in_sync()
    answer = group.send(node="broker-1")
    assert answer.code == 14
    assert "is a slave" in answer.remark


def test_a_new_slave_gets_all_history():
    group = Group(slaves=0, inSyncReplicas=1)
    group.until(lambda: group.master.serving)
    for number in range(30):
        assert group.send(bytes(100_000) + b"%d" % number).code == 0
    assert group.master.store.offset_written > 2 * SMALL_FILES["mappedFileSizeCommitLog"]
    group.add(1)
    group.in_sync()
    group.until(group.same_logs)
    assert group.slave.store.offset_min == 0
    assert group.slave.store.queue_range("T", 0).offset_max == 30


def test_the_old_rule_gives_the_last_file_only():
    group = Group(slaves=0, inSyncReplicas=1)
    group.until(lambda: group.master.serving)
    for number in range(30):
        assert group.send(bytes(100_000) + b"%d" % number).code == 0
    group.add(1, syncFromLastFile=True)
    group.until(lambda: group.slave.serving and group.slave.store.offset_written == group.master.store.offset_written)
    assert group.slave.store.offset_min == 2 * SMALL_FILES["mappedFileSizeCommitLog"]


def test_without_a_slave_a_plain_sync_master_says_so_at_once():
    group = Group(slaves=0)
    group.until(lambda: group.master.serving)
    began_ms = group.world.now_ms
    assert group.send().code == 11
    assert group.world.now_ms - began_ms < 500
    assert group.master.store.queue_range("T", 0).offset_max == 1
    assert "SLAVE_NOT_AVAILABLE" in group.facts("broker-0")["replicationWhy"]


def test_a_quorum_without_enough_slaves_stores_nothing():
    group = Group(slaves=1, totalReplicas=2).in_sync()
    assert group.send().code == 0
    group.world.kill("broker-1")
    group.in_sync(1)
    end = group.master.store.offset_written
    answer = group.send()
    assert (answer.code, answer.remark[:29]) == (1, "in-sync replicas not enough: ")
    assert group.master.store.offset_written == end
    group.world.restart("broker-1")
    group.in_sync()
    assert group.send().code == 0


def test_a_quorum_may_shrink_and_grows_again():
    group = Group(slaves=1, totalReplicas=2, enableAutoInSyncReplicas=True).in_sync()
    group.world.kill("broker-1")
    group.in_sync(1)
    assert group.send().code == 0
    assert group.facts("broker-0")["replicationWanted"] == "1"
    group.world.restart("broker-1")
    group.in_sync()
    assert group.send().code == 0
    assert group.same_logs()


def test_a_slave_that_does_not_answer_ends_in_a_timeout_and_the_message_is_stored():
    group = Group(slaveTimeout=2000).in_sync()
    group.world.pause("broker-1")
    began_ms = group.world.now_ms
    assert group.send().code == 12
    assert 2000 <= group.world.now_ms - began_ms < 2500
    assert group.master.store.queue_range("T", 0).offset_max == 1
    group.world.resume("broker-1")
    assert group.send().code == 0
    assert group.same_logs()


def test_one_slow_slave_delays_nobody():
    group = Group(slaves=2, slaveTimeout=2000).in_sync(3)
    group.world.pause("broker-2")
    began_ms = group.world.now_ms
    for _ in range(20):
        assert group.send().code == 0
    assert group.world.now_ms - began_ms < 1000


def test_wait_false_waits_for_nobody():
    group = Group(slaveTimeout=2000).in_sync()
    group.world.pause("broker-1")
    began_ms = group.world.now_ms
    assert group.send(properties="WAIT\x01false\x02").code == 0
    assert group.world.now_ms - began_ms < 500


def test_an_async_master_waits_for_nobody_and_is_copied():
    group = Group(brokerRole="ASYNC_MASTER").in_sync()
    group.world.pause("broker-1")
    assert group.send().code == 0
    group.world.resume("broker-1")
    group.until(group.same_logs)


@pytest.mark.parametrize("end", ["kill", "crash", "stop"])
def test_a_slave_that_comes_back_goes_on_where_it_was(end: str):
    group = Group(inSyncReplicas=1).in_sync()
    for number in range(20):
        group.send(b"%d" % number * 200)
    getattr(group.world, end)("broker-1")
    for number in range(20):
        group.send(b"%d" % number * 200)
    group.until(lambda: not group.world.is_alive("broker-1"))
    group.world.restart("broker-1")
    group.in_sync()
    group.until(group.same_logs)
    assert group.slave.store.queue_range("T", 0).offset_max == 40


def test_a_slave_finds_its_master_again():
    group = Group(inSyncReplicas=1).in_sync()
    group.send()
    group.world.kill("broker-0")
    group.until(lambda: group.slave.replication.state == "connecting")
    assert "no HA connection" in group.facts("broker-1")["replicationWhy"]
    group.world.restart("broker-0")
    group.in_sync()
    group.send()
    group.until(group.same_logs)


def _ahead(**settings) -> Group:
    """A slave that has messages which its master lost: the master's disk is as it was before them."""
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


def test_a_slave_that_is_ahead_stops_and_nothing_is_cut():
    group = _ahead()
    group.until(lambda: group.slave.replication.state == "ahead")
    end = group.slave.store.offset_written
    assert "that it never had; nothing was cut" in group.facts("broker-1")["replicationWhy"]
    # Even when the master has grown beyond it.
    for _ in range(20):
        group.send(b"other messages at the same places")
    group.world.run_for(10_000)
    assert group.slave.replication.state in ("ahead", "foreign")
    assert group.slave.store.offset_written == end
    assert group.master.replication.in_sync_count() == 1


def test_a_slave_that_is_ahead_may_cut_itself_and_keeps_a_copy():
    group = _ahead(haTruncateAhead=True)
    group.in_sync()
    group.send(b"after")
    group.until(group.same_logs)
    disk = group.world.disk("broker-1")
    (copy,) = disk.list("diverged")
    assert copy.size > 0
    assert b"lost by the master" in disk.read(f"diverged/{copy.name}", 0, copy.size)
    assert group.slave.store.queue_range("T", 0).offset_max == 2


def test_a_foreign_log_is_not_followed_nor_touched():
    group = Group(slaves=0, inSyncReplicas=1)
    group.until(lambda: group.master.serving)
    for _ in range(50):
        group.send(b"ours")
    stranger = group.add(1)
    group.in_sync()
    group.until(group.same_logs)
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


def test_a_stranger_who_reports_a_huge_offset_counts_for_nothing():
    group = Group(slaves=0, slaveTimeout=500, haAcceptAnonymous=True)
    group.until(lambda: group.master.serving)

    def stranger(client) -> None:
        conn = client.outbox.dial(Address(group.hosts["broker-0"], PORT + 1), "stranger")
        client.outbox.send(conn, (1 << 62).to_bytes(8, "big"))

    group.world.call("client", lambda client: setattr(client, "closed", lambda conn, reason: None))
    group.world.call(
        "client",
        lambda client: setattr(
            client, "opened", lambda conn: None if conn.tag == "stranger" else client.remoting.opened(conn)
        ),
    )
    group.world.call("client", stranger)
    group.world.run_for(1000)
    assert group.master.replication.in_sync_count() == 1
    assert group.send().code == 11
    lines = [line.fields for line in group.world.log("broker-0").events("replica-refused")]
    assert "this log ends at 0" in lines[0]["reason"]


def test_members_tell_why_they_are_not_in_sync():
    group = Group(slaves=1, totalReplicas=2, enableAutoInSyncReplicas=True).in_sync()
    group.world.pause("broker-1")
    group.world.run_for(25_000)  # given up by housekeeping; the name server still knows it
    (member,) = json.loads(group.facts("broker-0")["replicationMembers"])
    assert (member["broker_id"], member["in_sync"], member["why"]) == (1, False, "no HA connection")
