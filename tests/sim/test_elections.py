"""Random faults on a group in controller mode: what was acknowledged under allAck survives.

Each seed kills, pauses, isolates and restarts brokers and the controller, or cuts their power,
while messages are sent to every broker. At the end everything heals.
"""

from random import Random

import pytest

from rmqkit.broker.election.election import MASTER
from rmqkit.runtime.calls import CallFailed
from rmqkit.runtime.connection import Address
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.record import iter_records
from rmqkit.wire.schemas.send import SendMessageRequestV2
from tests.broker.elected_group import ElectedGroup
from tests.broker.replica_group import PORT

#: the first ones, and seeds that once failed
SEEDS = (*range(1, 21), 180, 362, 462, 748)
STEPS = 25


class Chaos:
    """One run: `group` under faults, and what its masters have acknowledged."""

    def __init__(self, seed: int, *, brokers: int, power: bool) -> None:
        self.random = Random(seed)
        settings = {"flushDiskType": "SYNC_FLUSH"} if power else {}
        self.group = ElectedGroup(brokers=brokers, seed=seed, **settings)
        self.power = power
        self.acked: set[bytes] = set()
        self.paused: set[str] = set()
        #: who was seen as master in each epoch
        self.masters: dict[int, set[str]] = {}
        self.sent = 0

    def run(self) -> None:
        self.group.settled(count=len(self.group.hosts))
        for _ in range(STEPS):
            self._fault()
            for _ in range(self.random.randrange(1, 12)):
                self._send_some()
                self.group.world.run_for(self.random.choice((5, 50, 200, 600)))
                self._look()
        self._heal()

    def _fault(self) -> None:
        world, nodes = self.group.world, [*self.group.hosts, "ctl"]
        node = self.random.choice(nodes)
        kind = self.random.choice(("kill", "restart", "restart", "pause", "resume", "isolate", "part", "heal", "heal"))
        if kind == "kill" and world.is_alive(node) and node not in self.paused:
            if self.power and node != "ctl" and self.random.random() < 0.5:
                world.crash(node)
            else:
                world.kill(node)
        elif kind == "restart" and not world.is_alive(node):
            world.restart(node)
        elif kind == "pause" and world.is_alive(node) and node not in self.paused:
            world.pause(node)
            self.paused.add(node)
        elif kind == "resume" and self.paused:
            self._resume(self.random.choice(sorted(self.paused)))
        elif kind == "isolate":
            world.net.partition([node], [each for each in nodes if each != node])
        elif kind == "part":
            world.net.partition([node], [self.random.choice([each for each in nodes if each != node])])
        elif kind == "heal":
            world.net.heal()

    def _resume(self, node: str) -> None:
        self.paused.discard(node)
        if self.group.world.is_alive(node):
            self.group.world.resume(node)

    def _send_some(self) -> None:
        for name, host in self.group.hosts.items():
            self.sent += 1
            body = b"%06d" % self.sent
            request = SendMessageRequestV2(
                producer_group="p", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
                sys_flag=0, born_timestamp=1, flag=0, properties="", batch=False,
            )  # fmt: skip

            def answered(outcome, body=body, name=name) -> None:
                if not isinstance(outcome, CallFailed) and outcome.code == 0:
                    self.acked.add(body)

            def send(client, host=host, body=body, request=request, answered=answered) -> None:
                code = RequestCode.SEND_MESSAGE_V2
                client.remoting.call(Address(host, PORT), code, request, body, timeout_ms=5000, then=answered)

            self.group.world.call("client", send)

    def _look(self) -> None:
        for name in self.group.hosts:
            if self.group.world.is_alive(name):
                election = self.group.election(name)
                if election.state is MASTER:
                    self.masters.setdefault(election.epoch, set()).add(name)

    def _heal(self) -> None:
        world = self.group.world
        world.net.heal()
        for node in sorted(self.paused):
            self._resume(node)
        for node in [*self.group.hosts, "ctl"]:
            if not world.is_alive(node):
                world.restart(node)
        world.run_for(6000)
        self.group.until(lambda: len(self.group.data.in_sync) == len(self.group.hosts), 120_000)
        self.master = self.group.settled(count=len(self.group.hosts))
        world.run_for(2000)

    def check(self) -> None:
        names = list(self.group.hosts)
        assert all(len(each) == 1 for each in self.masters.values()), self.masters
        if self.acked:
            self.group.until(lambda: self.group.same_logs(*names))
        entries = [self.group.election(each).epochs.entries for each in names]
        assert all(each == entries[0] for each in entries), entries
        assert not any(self.group.world.log(name).events("confirmed-messages-cut") for name in names)
        for name in names:
            records = list(iter_records(self.group.log(name)))
            assert self.acked <= {bytes(each.body) for each in records}, name
            offsets = [each.queue_offset for each in records if each.topic == "T"]
            assert offsets == list(range(len(offsets))), name
            assert self.group.node(name).store.queue_range("T", 0).offset_max == len(offsets), name


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_survives(seed: int):
    chaos = Chaos(seed, brokers=2 + seed % 2, power=seed % 3 == 0)
    chaos.run()
    assert chaos.acked
    chaos.check()
