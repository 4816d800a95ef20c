"""The public contract suite of special duties, run on the built-in ones."""

from rmqkit.broker.node import Broker
from rmqkit.broker.special.delay.delivery import DelayDelivery
from rmqkit.broker.special.pop.records import checkpoint_put
from rmqkit.broker.special.pop.revive import PopRevive
from rmqkit.broker.special.table import SPECIAL_DUTIES
from rmqkit.store.contract import Put, PutStatus
from rmqkit.testing import SimBroker, SpecialDutyContract
from rmqkit.testing.brokers import NAME
from rmqkit.wire.bodies import TopicConfig
from rmqkit.wire.bodies.pop import PopCheckpoint

QUEUES = 4


def test_each_built_in_duty_passes_the_suite():
    assert [row.name for row in SPECIAL_DUTIES] == [TestDelays.row.name, TestPop.row.name]


class TestDelays(SpecialDutyContract):
    row = SPECIAL_DUTIES[0]

    def give_work(self, broker: SimBroker, count: int) -> None:
        delay = broker.node.special.find(DelayDelivery)
        for number in range(count):
            put = Put("T", number % QUEUES, 0, 0, 1, bytes(8), bytes(8), 0, 0, b"late", b"", 0)
            broker.world.call(NAME, lambda node, put=put: self._append(delay, put))
        broker.advance(1)

    @staticmethod
    def _append(delay: DelayDelivery, put: Put) -> None:
        assert delay.append(put, 1).status is PutStatus.PUT_OK


class TestPop(SpecialDutyContract):
    row = SPECIAL_DUTIES[1]

    def give_work(self, broker: SimBroker, count: int) -> None:
        for number in range(count):
            broker.world.call(NAME, lambda node, number=number: self._pop(node, f"T{number % QUEUES}"))
            broker.advance(1)

    @staticmethod
    def _pop(node: Broker, topic: str) -> None:
        """Store a message, and the checkpoint of a pop that took it and hid it for no time."""
        node.topics.by_name.setdefault(topic, TopicConfig(topic_name=topic))
        unique = f"UNIQ_KEY\x01{node.store.offset_max}\x02".encode()
        stored = node.store.append(Put(topic, 0, 0, 0, 1, bytes(8), bytes(8), 0, 0, b"popped", unique, 0))
        now_ms = node.clock.wall_ms
        checkpoint = PopCheckpoint(
            broker_name=node.config.identity.broker_name,
            group="CG",
            differences=[0],
            count=1,
            pop_ms=now_ms,
            revive_ms=now_ms,
            start=stored.queue_offset,
            topic=topic,
        )
        revive = node.special.find(PopRevive)
        put = checkpoint_put(checkpoint, revive.topic, stored.queue_offset % QUEUES, now_ms, bytes(8))
        assert node.store.append(put).status is PutStatus.PUT_OK
