"""The public contract suite of special duties, run on the built-in ones."""

from rmqkit.broker.node import Broker
from rmqkit.broker.special.delay.delivery import DelayDelivery
from rmqkit.broker.special.pop.records import checkpoint_put
from rmqkit.broker.special.pop.revive import PopRevive
from rmqkit.broker.special.table import SPECIAL_DUTIES
from rmqkit.broker.special.timer.duty import TimerDuty
from rmqkit.broker.special.transactions.checks import TransactionChecks
from rmqkit.broker.special.transactions.progress import GROUP, HalfProgress
from rmqkit.store.contract import Put, PutStatus
from rmqkit.testing import SimBroker, SpecialDutyContract
from rmqkit.testing.brokers import NAME
from rmqkit.wire import properties as props
from rmqkit.wire.bodies import TopicConfig
from rmqkit.wire.bodies.pop import PopCheckpoint
from rmqkit.wire.topic_names import HALF_TOPIC, OP_TOPIC

QUEUES = 4


def test_each_built_in_duty_passes_the_suite():
    suites = (TestDelays, TestTimers, TestTransactions, TestPop)
    assert [row.name for row in SPECIAL_DUTIES] == [suite.row.name for suite in suites]


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


class TestTimers(SpecialDutyContract):
    row = SPECIAL_DUTIES[1]

    def give_work(self, broker: SimBroker, count: int) -> None:
        timers = broker.node.special.find(TimerDuty)
        out_ms = broker.now_ms // 1000 * 1000
        for number in range(count):
            put = Put("T", number % QUEUES, 0, 0, 1, bytes(8), bytes(8), 0, 0, b"late", b"", 0)
            broker.world.call(NAME, lambda node, put=put: self._append(timers, put, out_ms))
        broker.advance(1)

    @staticmethod
    def _append(timers: TimerDuty, put: Put, out_ms: int) -> None:
        assert timers.append(put, out_ms).status is PutStatus.PUT_OK


class TestTransactions(SpecialDutyContract):
    row = SPECIAL_DUTIES[2]
    settings = ("transactionTimeOut=500",)

    def give_work(self, broker: SimBroker, count: int) -> None:
        checks = broker.node.special.find(TransactionChecks)
        for _ in range(count):
            self.number = getattr(self, "number", 0) + 1
            properties = props.encode({"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": f"{self.number:032X}"})
            put = Put("T", 0, 0, 0, broker.now_ms, bytes(8), bytes(8), 0, 0, b"half", properties, 0)
            broker.world.call(NAME, lambda node, put=put: self._append(checks, put))
        broker.advance(1)

    def progress_of(self, table):
        offsets = table.offset_table
        return HalfProgress(offsets[f"{HALF_TOPIC}@{GROUP}"][0], offsets.get(f"{OP_TOPIC}@{GROUP}", {}).get(0, 0))

    @staticmethod
    def _append(checks: TransactionChecks, put: Put) -> None:
        assert checks.append(put).status is PutStatus.PUT_OK


class TestPop(SpecialDutyContract):
    row = SPECIAL_DUTIES[3]

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
