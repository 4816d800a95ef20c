"""Statistics: how many messages went in and out, and the facts of GET_BROKER_RUNTIME_INFO under upstream's names.

Rates are taken over the last 10, 60 and 600 s from samples of running totals, as `getTransferredTps` and `putTps` show
three numbers.

Source: `store/.../StoreStatsService.getRuntimeInfo`, `broker/.../AdminBrokerProcessor.prepareRuntimeInfo`.
"""

from collections import deque
from typing import TYPE_CHECKING

from rmqkit.runtime.ports import Clock
from rmqkit.wire.codes import VERSION, Version

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker

WINDOWS_MS = (10_000, 60_000, 600_000)
SAMPLE_MS = 5000


class Statistics:
    """Totals since the start; `sample` is a duty."""

    def __init__(self, clock: Clock) -> None:
        self.boot_ms = clock.wall_ms
        self.put_count = 0
        self.put_bytes = 0
        self.get_count = 0
        self.get_bytes = 0
        self.get_found = 0
        self.get_missed = 0
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=WINDOWS_MS[-1] // SAMPLE_MS + 2)

    def got(self, count: int, size: int) -> None:
        """One pull was answered."""
        if count:
            self.get_found += 1
            self.get_count += count
            self.get_bytes += size
        else:
            self.get_missed += 1

    def sample(self, now_ms: int) -> int:
        self._samples.append((now_ms, self.put_count, self.get_count))
        return now_ms + SAMPLE_MS

    def facts(self, broker: "Broker") -> dict[str, str]:
        clock = broker.clock
        self.sample(clock.mono_ms)
        return {
            "brokerVersionDesc": Version(VERSION).name,
            "brokerVersion": str(VERSION),
            "brokerActive": "true" if broker.serving and not broker.store.failed else "false",
            "bootTimestamp": str(self.boot_ms),
            "runtime": f"[ {_duration(clock.wall_ms - self.boot_ms)} ]",
            "putTps": self._rates(clock.mono_ms, 1),
            "getTransferredTps": self._rates(clock.mono_ms, 2),
            "getFoundTps": self._rates(clock.mono_ms, 2),
            "putMessageTimesTotal": str(self.put_count),
            "putMessageSizeTotal": str(self.put_bytes),
            "getMessageTransferredMsgCount": str(self.get_count),
            "getMessageEntireTimeMax": "0",
            "msgPutTotalTodayNow": str(self.put_count),
            "msgPutTotalTodayMorning": "0",
            "msgPutTotalYesterdayMorning": "0",
            "msgGetTotalTodayNow": str(self.get_count),
            "msgGetTotalTodayMorning": "0",
            "msgGetTotalYesterdayMorning": "0",
            "sendThreadPoolQueueSize": str(len(broker.puts)),
            "sendThreadPoolQueueCapacity": str(broker.config.limits.waiters_max),
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "pullThreadPoolQueueSize": str(broker.arrivals.count),
            "pullThreadPoolQueueCapacity": str(broker.arrivals.waiters_max),
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "ackThreadPoolQueueSize": "0",
            "ackThreadPoolQueueHeadWaitTimeMills": "0",
            "queryThreadPoolQueueSize": "0",
            "queryThreadPoolQueueHeadWaitTimeMills": "0",
            "pageCacheLockTimeMills": "0",
            "timerReadBehind": "0",
            "timerOffsetBehind": "0",
            "timerCongestNum": "0",
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
            "producerConnections": str(sum(map(len, broker.clients.producers.values()))),
            "consumerConnections": str(sum(len(group.members) for group in broker.clients.consumers.values())),
        }

    def _rates(self, now_ms: int, column: int) -> str:
        """Three rates, "a b c", over 10 s, 1 min and 10 min, or what there is of it."""
        rates = []
        newest = self._samples[-1]
        for window_ms in WINDOWS_MS:
            oldest = next((each for each in self._samples if each[0] >= now_ms - window_ms), newest)
            passed_ms = newest[0] - oldest[0]
            rate = (newest[column] - oldest[column]) * 1000 / passed_ms if passed_ms else 0.0
            rates.append(f"{rate:.2f}")
        return " ".join(rates)


def _duration(passed_ms: int) -> str:
    seconds = max(0, passed_ms) // 1000
    return f"{seconds // 86400} days, {seconds // 3600 % 24} hours, {seconds // 60 % 60} minutes, {seconds % 60} seconds"
