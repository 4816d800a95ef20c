"""The public contract suite of special duties, run on the built-in ones."""

from rmqkit.broker.special.delay.delivery import DelayDelivery
from rmqkit.broker.special.table import SPECIAL_DUTIES
from rmqkit.broker.special.timer.duty import TimerDuty
from rmqkit.store.contract import Put, PutStatus
from rmqkit.testing import SimBroker, SpecialDutyContract
from rmqkit.testing.brokers import NAME

QUEUES = 4


def test_each_built_in_duty_passes_the_suite():
    assert [row.name for row in SPECIAL_DUTIES] == [TestDelays.row.name, TestTimers.row.name]


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
