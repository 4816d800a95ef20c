"""A broker in controller mode against forged requests, and peers that lie on the HA port."""

import struct

import pytest

from rmqkit.runtime.connection import Address
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.ha.epochs import SlaveHandshake, encode_epoch_report, encode_slave_handshake
from rmqkit.wire.schemas.controller import NotifyBrokerRoleChangedRequest
from tests.broker.elected_group import ElectedGroup
from tests.broker.replica_group import PORT
from tests.contract.toys import Toy

STRANGER = "10.0.9.9"


class Rig:
    """A master and a slave in sync, and a stranger."""

    def __init__(self) -> None:
        self.group = ElectedGroup()
        self.world = self.group.world
        self.world.add_node("stranger", lambda ports: Toy("stranger", ports), STRANGER)
        self.master = self.group.settled()
        self.slave = self.group.other(self.master)
        self.slave_id = self.group.election(self.slave).own_id
        assert self.send() == 0
        self.group.until(lambda: self.group.same_logs())

    def send(self) -> int:
        return int(self.group.send(node=self.master).code)

    @property
    def end(self) -> int:
        return int(self.group.node(self.master).store.offset_written)

    def say(self, *frames: bytes) -> str:
        """Send bytes to the master's HA port; return why it closed them, "" if it did not."""
        address = Address(self.group.hosts[self.master], PORT + 1)
        node: Toy = self.world.node("stranger")
        self.world.call("stranger", lambda toy: toy.dial(address, send=b"".join(frames)))
        self.world.run_for(1000)
        conn = node.dials[-1]
        reason = node.reasons.get(conn, "")
        if not reason:
            self.world.call("stranger", lambda toy: toy.outbox.close(conn, "done"))
            self.world.run_for(200)
        return reason

    def check(self) -> None:
        """The group works as before, and nobody has lost or gained a copy."""
        group = self.group
        assert self.send() == 0
        assert group.master_names() == [self.master]
        assert len(group.data.in_sync) == 2
        group.until(lambda: group.same_logs())
        for node in (self.master, self.slave):
            assert self.world.log(node).events("node failed") == []


@pytest.fixture(scope="module")
def rig() -> Rig:
    return Rig()


def hello(broker_id: int, *, is_learner: bool = False) -> bytes:
    return encode_slave_handshake(SlaveHandshake(broker_id, False, is_learner))


@pytest.mark.parametrize("broker_id", [0, -1, -(2**63)])
def test_a_handshake_without_a_slave_is_refused(rig: Rig, broker_id: int) -> None:
    assert rig.say(hello(broker_id))
    rig.check()


def test_nobody_takes_the_place_of_a_connected_slave(rig: Rig) -> None:
    """Else it would acknowledge what the slave does not have."""
    assert rig.say(hello(rig.slave_id), encode_epoch_report(rig.end))
    assert rig.say(hello(rig.group.election(rig.master).own_id))
    rig.check()


@pytest.mark.parametrize("offset", [-1, -(2**63), 2**40, 2**63 - 1])
def test_an_absurd_report_ends_the_connection(rig: Rig, offset: int) -> None:
    """A slave that claims to be ahead, or nowhere."""
    assert rig.say(hello(77), encode_epoch_report(offset))
    rig.check()


def test_garbage_ends_the_connection(rig: Rig) -> None:
    for data in (b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", bytes(16), hello(77) + hello(77), hello(77)[:4] + b"\xff" * 40):
        assert rig.say(data), data
    assert rig.say(hello(77)[:7]) == "", "half a handshake may go on"
    rig.check()


def test_unknown_slaves_that_connect_and_leave_are_not_kept(rig: Rig) -> None:
    """Each is about to join until the controllers refuse it; a master keeps none of them."""
    for broker_id in (50, 51, 2**40, 2**63 - 1):
        rig.say(hello(broker_id), encode_epoch_report(rig.end))
        rig.say(hello(broker_id, is_learner=True), encode_epoch_report(rig.end))
    rig.world.run_for(10_000)
    states = rig.group.election(rig.master)._sync_states
    assert set(states._progress) == {rig.slave_id}
    assert (states._joining, states._proposals) == ({}, {})
    rig.check()


def test_forged_pushes_change_nothing(rig: Rig) -> None:
    """1008 is a hint: whatever it says, the broker asks the controllers."""
    address = "10.6.6.6:1"
    for epoch in (2, 2**31 - 1, -1):
        for broker_id in (rig.slave_id, 99, -1):
            forged = NotifyBrokerRoleChangedRequest(
                master_address=address, master_broker_id=broker_id, master_epoch=epoch, sync_state_set_epoch=epoch
            )
            for node in (rig.master, rig.slave):
                for body in (b"", b"[]", b'{"syncStateSet":[99],"syncStateSetEpoch":9}', b"\xff" * 1000):
                    assert rig.group.ask(node, RequestCode.NOTIFY_BROKER_ROLE_CHANGED, forged, body).code == 0
    rig.check()


def test_the_epochs_are_shown_to_any_peer(rig: Rig) -> None:
    for body in (b"", b"[]", b"\xff" * 1000):
        assert rig.group.ask(rig.master, RequestCode.GET_BROKER_EPOCH_CACHE, None, body).code == 0
    rig.check()


def handshake_of(entries: int, *, end: int = 100, size: int | None = None) -> bytes:
    size = 12 * entries if size is None else size
    return struct.pack(">iiqi", 1, size, end, entries) + struct.pack(">iq", 1, 0) * entries


@pytest.mark.parametrize(
    "data",
    [
        handshake_of(1001),
        handshake_of(0, size=-12),
        handshake_of(0, size=13),
        handshake_of(0, size=2**31 - 1),
        handshake_of(1, end=-5),
        handshake_of(1) + struct.pack(">iiqiqq", 2, -1, 0, 1, 0, 0),
        handshake_of(1) + struct.pack(">iiqiqq", 2, 2**31 - 1, 0, 1, 0, 0),
        handshake_of(1) + struct.pack(">iiqiqq", 2, 4, -9, 1, 0, 0) + b"abcd",
        handshake_of(1) + struct.pack(">iiqiqq", 2, 0, 2**50, -7, -7, -7),
        b"\xff" * 100,
    ],
    ids=range(10),
)
def test_a_slave_survives_what_no_master_sends(rig: Rig, data: bytes) -> None:
    """The bytes arrive on the slave's new connection, before the true answer to its handshake."""
    client = rig.group.node(rig.slave).replication.follow
    before, frames = rig.group.log(rig.slave), client._frames
    rig.world.call(rig.slave, lambda node: node.outbox.abort(client._conn, "a test"))
    rig.group.until(lambda: client._frames is not frames and client._conn is not None)
    conn = client._conn
    rig.world.call(rig.slave, lambda node: client.received(conn, data))
    rig.world.run_for(1000)
    rig.group.until(lambda: len(rig.group.data.in_sync) == 2 and client._conn is not None)
    assert rig.group.log(rig.slave)[: len(before)] == before
    assert all(each.epoch > 0 and each.start >= 0 for each in rig.group.election(rig.slave).epochs.entries)
    rig.check()
