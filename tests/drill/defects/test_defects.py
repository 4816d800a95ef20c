"""Planted defects: each scenario breaks a promise with its defect, and keeps it without."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rmqkit.broker.node import Broker
from rmqkit.config import NodeConfig
from rmqkit.drill.defects.table import DEFECTS, check, plant
from rmqkit.drill.promises import PROMISES
from rmqkit.errors import ConfigError
from rmqkit.runtime.connection import Address, Connection
from rmqkit.runtime.node import BaseNode
from rmqkit.runtime.ports import Ports
from rmqkit.wire.codes import PullSysFlag, RequestCode
from rmqkit.wire.ha.stream import Transfers, encode_report
from rmqkit.wire.schemas.offsets import QueryConsumerOffsetRequest, UpdateConsumerOffsetRequest
from rmqkit.wire.schemas.pull import PullMessageRequest
from tests.broker import replica_group
from tests.broker.replica_group import PORT, Group

QUEUE_OFFSET_AT = 20


@pytest.fixture(autouse=True)
def _planting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant the defects named in a broker's settings, as a node process does."""

    def make(name: str, ports: Ports, config: NodeConfig, parts: Any) -> Broker:
        broker = Broker(name, ports, config, parts)
        plant(broker, config.drills.defects)
        return broker

    monkeypatch.setattr(replica_group, "Broker", make)


def with_defect(defect: str) -> dict[str, Any]:
    return {"drillFaultsEnable": True, "drillDefects": defect} if defect else {}


def alone(defect: str, **settings: Any) -> Group:
    """Return a started group of a master without slaves."""
    group = Group(slaves=0, brokerRole="ASYNC_MASTER", inSyncReplicas=1, **with_defect(defect), **settings)
    group.until(lambda: group.master.serving)
    return group


def restart(group: Group, name: str = "broker-0", *, how: str = "kill") -> None:
    getattr(group.world, how)(name)
    group.world.restart(name)
    group.world.restart("client")
    group.until(lambda: group.node(name).serving)


class Stranger(BaseNode):
    """A rogue replica: connects to the HA port and reports `offset`, then whatever it was sent."""

    def __init__(self, name: str, ports: Ports, peer: Address, offset: int) -> None:
        super().__init__(name, ports)
        self.peer, self.offset = peer, offset
        self.transfers = Transfers()

    def start(self) -> None:
        self.outbox.dial(self.peer, "stranger")

    def opened(self, conn: Connection) -> None:
        self.outbox.send(conn, encode_report(self.offset))

    def received(self, conn: Connection, data: bytes) -> None:
        for offset, body in self.transfers.feed(data):
            self.outbox.send(conn, encode_report(offset + len(body)))


def visit(group: Group, offset: int) -> None:
    peer = Address(group.hosts["broker-0"], PORT + 1)
    group.world.add_node("stranger", lambda ports: Stranger("stranger", ports, peer, offset), "10.0.9.9")
    group.world.run_for(1000)


def pulls(group: Group, count: int) -> Iterator[int]:
    """Yield the queue offsets that a consumer gets; send `count` messages, one before each pull."""
    offset = sent = idle = 0
    while idle < 3:
        if sent < count:
            assert group.send(b"body-%d" % sent).code == 0
            sent += 1
        request = PullMessageRequest(
            consumer_group="g", topic="T", queue_id=0, queue_offset=offset, max_msg_nums=32,
            sys_flag=PullSysFlag.SUBSCRIPTION, subscription="*", expression_type="TAG",
        )  # fmt: skip
        reply = group.ask("broker-0", RequestCode.PULL_MESSAGE, request)
        offset = int(reply.ext["nextBeginOffset"])
        idle = idle + 1 if reply.code == 19 else 0
        position = 0
        while position < len(reply.body):
            yield int.from_bytes(reply.body[position + QUEUE_OFFSET_AT :][:8], "big")
            position += int.from_bytes(reply.body[position:][:4], "big")


def commit(group: Group, node: str, offset: int) -> None:
    group.world.call(node, lambda broker: broker.groups.get("g"))  # like a member's heartbeat
    request = UpdateConsumerOffsetRequest(consumer_group="g", topic="T", queue_id=0, commit_offset=offset)
    assert group.ask(node, RequestCode.UPDATE_CONSUMER_OFFSET, request).code == 0


def committed(group: Group, node: str) -> int:
    request = QueryConsumerOffsetRequest(consumer_group="g", topic="T", queue_id=0)
    return int(group.ask(node, RequestCode.QUERY_CONSUMER_OFFSET, request).ext.get("offset", -1))


def behind(slave_defect: str) -> tuple[Group, int]:
    """Bring a master back without its last messages, which the slave still has.

    Return the group and the end of the master's log.
    """
    group = Group(slaves=0, inSyncReplicas=1)
    group.add(1, haTruncateAhead=True, **with_defect(slave_defect))
    group.in_sync()
    group.send(b"kept")
    end = group.master.store.offset_written
    for _ in range(5):
        group.send(b"lost by the master")
    group.until(group.same_logs)
    group.world.pause("broker-1")
    ended: list[Any] = []
    group.world.call("broker-0", lambda broker: broker.store.truncate(end, ended.append))
    group.until(lambda: ended)
    restart(group)
    group.world.resume("broker-1")
    return group, end


# --- one scenario per defect; each returns whether the promise was broken


def ack_before_sync(defect: str) -> bool:
    group = alone(defect, flushDiskType="SYNC_FLUSH", flushIntervalCommitLog=60_000)
    for number in range(20):
        assert group.send(b"%d" % number * 500).code == 0
    restart(group, how="crash")
    return group.master.store.queue_range("T", 0).offset_max < 20


def ack_before_replication(defect: str) -> bool:
    group = Group(slaveTimeout=500, **with_defect(defect)).in_sync()
    group.world.pause("broker-1")
    code = group.send().code
    assert code in (0, 12)
    return code == 0 and group.slave.store.offset_written < group.master.store.offset_written


def acks_by_connection(defect: str) -> bool:
    group = Group(slaves=0, **with_defect(defect))
    group.until(lambda: group.master.serving)
    visit(group, 0)
    return group.send().code == 0


def trust_any_report(defect: str) -> bool:
    group = Group(slaves=0, haAcceptAnonymous=True, slaveTimeout=500, **with_defect(defect))
    group.until(lambda: group.master.serving)
    visit(group, 1 << 62)
    return group.send().code == 0


def recovery_cuts(defect: str) -> bool:
    group = alone(defect)
    for _ in range(10):
        assert group.send().code == 0
    restart(group)
    return group.master.store.queue_range("T", 0).offset_max < 10


def confirm_not_reset(defect: str) -> bool:
    group, _ = behind(defect)
    return not group.world.run_until(lambda: group.master.replication.in_sync_count() == 2, 20_000)


def lost_queue_tail(defect: str) -> bool:
    group = alone(defect)
    places = [int(group.send().ext["queueOffset"]) for _ in range(10)]
    restart(group)
    return int(group.send().ext["queueOffset"]) in places


def truncate_in_memory(defect: str) -> bool:
    group, end = behind(defect)
    group.in_sync()
    group.world.kill("broker-0")
    restart(group, "broker-1")
    return group.slave.store.offset_written > end


def slave_differs(defect: str) -> bool:
    group = Group(**with_defect(defect)).in_sync()
    for _ in range(3):
        assert group.send().code == 0
    group.until(lambda: group.slave.store.queue_range("T", 0).offset_max == 3)
    group.world.run_for(100)
    assert group.slave.store.offset_written == group.master.store.offset_written
    return not group.same_logs()


def corrupt_body(defect: str) -> bool:
    group = alone(defect)
    for number in range(25):
        assert group.send(b"body-%03d." % number).code == 0
    log = group.log("broker-0")
    return any(b"body-%03d." % number not in log for number in range(25))


def phantom(defect: str) -> bool:
    group = alone(defect)
    for _ in range(25):
        assert group.send().code == 0
    return group.master.store.queue_range("T", 0).offset_max > 25


def skip_delivery(defect: str) -> bool:
    return set(pulls(alone(defect), 30)) != set(range(30))


def reorder(defect: str) -> bool:
    first = list(dict.fromkeys(pulls(alone(defect), 30)))
    assert set(first) == set(range(30))
    return first != sorted(first)


def offsets_backwards(defect: str) -> bool:
    group = Group(inSyncReplicas=1, **with_defect(defect)).in_sync()
    for _ in range(10):
        assert group.send().code == 0
    commit(group, "broker-0", 5)
    group.until(lambda: committed(group, "broker-1") == 5)
    group.world.run_for(10_000)  # both brokers save their offsets
    group.world.kill("broker-0")
    group.world.restart("client")
    commit(group, "broker-1", 9)
    restart(group)
    group.in_sync()
    group.world.run_for(5_000)
    return committed(group, "broker-1") < 9


def offsets_to_zero(defect: str) -> bool:
    group = alone(defect)
    assert group.send().code == 0
    commit(group, "broker-0", 1)
    group.world.run_for(10_000)
    restart(group)
    return committed(group, "broker-0") < 1


def slow_ack(defect: str) -> bool:
    group = Group(slaveTimeout=1000, **with_defect(defect)).in_sync()
    group.world.pause("broker-1")
    asked = group.ask
    group.ask = lambda *args: asked(*args, limit_ms=60_000)  # type: ignore[method-assign]
    began_ms = group.world.now_ms
    assert group.send().code == 12
    return group.world.now_ms - began_ms > 3_000


def no_comeback(defect: str) -> bool:
    group = alone(defect)
    assert group.send().code == 0
    restart(group)
    return group.send().code != 0


SCENARIOS: dict[str, Callable[[str], bool]] = {
    name.replace("_", "-"): scenario
    for name, scenario in list(globals().items())
    if name.replace("_", "-") in DEFECTS and callable(scenario)
}


#: defects of acting masters have no scenario here: `test_simulated_acting.py` shows them by seeds
HERE = [name for name, defect in DEFECTS.items() if defect.family == "replicas"]


@pytest.mark.parametrize("name", HERE)
def test_it_breaks_its_promise(name: str):
    assert SCENARIOS[name](name)


@pytest.mark.parametrize("name", HERE)
def test_without_it_the_promise_holds(name: str):
    assert not SCENARIOS[name]("")


def test_every_promise_has_a_defect_that_breaks_it():
    assert {defect.promise for defect in DEFECTS.values()} == set(PROMISES)


def test_a_broken_broker_says_so():
    group = alone("corrupt-body;phantom")
    assert group.facts("broker-0")["drillDefects"] == "corrupt-body;phantom"
    (line,) = group.world.log("broker-0").events("BROKEN ON PURPOSE")
    assert line.fields["defects"] == "corrupt-body;phantom"
    assert "drillDefects" not in alone("").facts("broker-0")


@pytest.mark.parametrize(("name", "hint"), [("phantoms", "did you mean phantom"), ("x", "there are ack-before-sync, ")])
def test_a_defect_that_is_none_is_named(name: str, hint: str):
    with pytest.raises(ConfigError, match=hint):
        check(["phantom", name])
