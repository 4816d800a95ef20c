"""Statistics: counts of messages in and out, and their figures in GET_BROKER_RUNTIME_INFO.

`puts` counts by topic, `gets` and `sent_back` by (topic, group). VIEW_BROKER_STATS_DATA shows them
under upstream's names (`named`). A send or pull costs one dictionary look-up and a few additions.
The counter of a group also has the offset of its last pull of each queue (`pulled`): messages that
are pulled but not committed are in flight.

The three rates in `putTps` and similar fields are over the last 10, 60 and 600 s, computed from
samples of the totals. The "Morning" totals are those at the last midnight of the machine's time
zone, without system topics, as upstream counts a day. Fields that tools parse but that nothing here
measures (times of single puts and reads, thread pools) are 0.

Source: `store/.../StoreStatsService.getRuntimeInfo`,
`store/.../stats/{BrokerStats,BrokerStatsManager}.java`,
`broker/.../AdminBrokerProcessor.prepareRuntimeInfo`.
"""

from collections import deque
from datetime import datetime

from rmqkit.broker.counters import SAMPLE_MS, Count, Counters, CounterSpan
from rmqkit.broker.names import is_system_topic
from rmqkit.metrics.histogram import HistogramTable
from rmqkit.runtime.ports import Clock
from rmqkit.wire.bodies import BrokerStatsData, BrokerStatsItem

WINDOWS_MS = (10_000, 60_000, 600_000)
RATES_MS = 5000
_NO_TIMES = (
    "[<=0ms]:0 [0~10ms]:0 [10~50ms]:0 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 [500ms~1s]:0 [1~2s]:0 [2~3s]:0 [3~4s]:0 "
    "[4~5s]:0 [5~10s]:0 [10s~]:0 "
)

#: upper bounds of the buckets for sizes of messages, in bytes
SIZE_BOUNDS = (1_024, 4_096, 524_288, 1_048_576, 2_097_152, 4_194_304)

TopicGroup = tuple[str, str]


class GroupCount(Count):
    """Counts for a topic and group; `pulled` is the start offset of the last pull, by queue id."""

    __slots__ = ("pulled",)

    def __init__(self) -> None:
        super().__init__()
        self.pulled: dict[int, int] = {}


class Statistics:
    """Totals since the start of the broker. `sample` runs as a duty."""

    def __init__(self, clock: Clock) -> None:
        self.boot_ms = clock.wall_ms
        now_ms = clock.mono_ms
        self.puts: Counters[str, Count] = Counters(Count, now_ms)
        self.gets: Counters[TopicGroup, GroupCount] = Counters(GroupCount, now_ms)
        self.sent_back: Counters[TopicGroup, Count] = Counters(Count, now_ms)
        #: bytes of a stored message, by topic; None: not counted, as no endpoint shows it
        self.sizes: HistogramTable[str] | None = None
        #: pulls that were answered without messages
        self.missed = 0
        self._clock = clock
        self._rates: deque[tuple[int, int, int, int, int]] = deque(maxlen=WINDOWS_MS[-1] // RATES_MS + 2)
        self._sampled_ms = now_ms
        self._day = _day(clock)
        #: messages (put, got) up to the last midnight, and up to the one before
        self._today = self._yesterday = (0, 0)

    # --- counting ---------------------------------------------------------------------------------

    def put(self, topic: str, messages: int, size: int, times: int = 1) -> None:
        """Count messages, of `size` bytes, stored by `times` requests or by the broker itself.

        The messages of several requests must have the same size.
        """
        count = self.puts.table.get(topic) or self.puts.new(topic)
        count.messages += messages
        count.size += size
        count.times += times
        if self.sizes is not None:
            self.sizes.add(topic, size // messages, messages)

    def got(self, topic: str, group: str, queue_id: int, offset: int, messages: int, size: int) -> None:
        """Count an answered pull that began at `offset`; `size` in bytes."""
        count = self.gets.table.get((topic, group)) or self.gets.new((topic, group))
        count.pulled[queue_id] = offset
        if messages:
            count.messages += messages
            count.size += size
            count.times += 1
        else:
            self.missed += 1

    def count_send_back(self, topic: str, group: str) -> None:
        """Count a message that a consumer sent back."""
        count = self.sent_back.table.get((topic, group)) or self.sent_back.new((topic, group))
        count.messages += 1
        count.times += 1

    def pulled(self, topic: str, group: str, queue_id: int) -> int:
        """Return the start offset of the group's last pull of the queue; -1 if there was none."""
        count = self.gets.table.get((topic, group))
        return -1 if count is None else count.pulled.get(queue_id, -1)

    def forget_topic(self, topic: str) -> None:
        self.puts.forget(lambda key: key == topic)
        self.gets.forget(lambda key: key[0] == topic)
        self.sent_back.forget(lambda key: key[0] == topic)

    def forget_group(self, group: str) -> None:
        self.gets.forget(lambda key: key[1] == group)
        self.sent_back.forget(lambda key: key[1] == group)

    @property
    def put_count(self) -> int:
        return self.puts.messages

    @property
    def get_count(self) -> int:
        return self.gets.messages

    def sample(self, now_ms: int) -> int:
        """Take the samples for rates and counters. Return when to run next (monotonic ms)."""
        self._rates.append((now_ms, self.put_count, self.get_count, self.gets.times, self.missed))
        if now_ms - self._sampled_ms >= SAMPLE_MS:
            self._sampled_ms = now_ms
            for counters in (self.puts, self.gets, self.sent_back):
                counters.sample(now_ms)
        day = _day(self._clock)
        if day != self._day:
            self._day = day
            self._yesterday, self._today = self._today, self._totals()
        return now_ms + RATES_MS

    # --- showing ----------------------------------------------------------------------------------

    def put_rate(self, topic: str) -> float:
        """Return the messages stored per second over the last minute."""
        spans = self.puts.spans(topic, self._clock.mono_ms)
        return 0.0 if spans is None else spans[0].rate(spans[0].growth.messages)

    def get_rate(self, topic: str, group: str) -> float:
        spans = self.gets.spans((topic, group), self._clock.mono_ms)
        return 0.0 if spans is None else spans[0].rate(spans[0].growth.messages)

    def named(self, name: str, key: str) -> BrokerStatsData | None:
        """Return a counter by upstream's name; None if it is unknown or nothing was counted."""
        topic, _, group = key.partition("@")
        now_ms = self._clock.mono_ms
        if name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
            spans = self.puts.spans(key, now_ms)
        elif name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
            spans = self.gets.spans((topic, group), now_ms)
        elif name == "SNDBCK_PUT_NUMS":
            spans = self.sent_back.spans((topic, group), now_ms)
        else:
            return None
        if spans is None:
            return None
        minute, hour, day = (_item(span, name.endswith("_SIZE")) for span in spans)
        return BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day)

    def _totals(self) -> tuple[int, int]:
        """Return the messages put and got, without those of system topics."""
        system_puts = sum(count.messages for topic, count in self.puts.table.items() if is_system_topic(topic))
        system_gets = sum(count.messages for key, count in self.gets.table.items() if is_system_topic(key[0]))
        return self.put_count - system_puts, self.get_count - system_gets

    def facts(self) -> dict[str, str]:
        """Return the fields of GET_BROKER_RUNTIME_INFO that come from these counts."""
        clock = self._clock
        self.sample(clock.mono_ms)
        puts, gets = self._totals()
        put_count, put_bytes = self.put_count, self.puts.size
        facts = {
            "bootTimestamp": str(self.boot_ms),
            "runtime": f"[ {_duration(clock.wall_ms - self.boot_ms)} ]",
            "putTps": self._rate(1),
            "getTransferredTps": self._rate(2),
            "getTransferedTps": self._rate(2),  # its name until 4.x
            "getFoundTps": self._rate(3),
            "getMissTps": self._rate(4),
            "getTotalTps": self._rate(3, 4),
            "putMessageTimesTotal": str(put_count),
            "putMessageSizeTotal": str(put_bytes),
            "putMessageAverageSize": str(put_bytes / max(1, put_count)),
            "putMessageDistributeTime": _NO_TIMES,
            "getMessageTransferredMsgCount": str(self.get_count),
            "msgPutTotalTodayNow": str(puts),
            "msgPutTotalTodayMorning": str(self._today[0]),
            "msgPutTotalYesterdayMorning": str(self._yesterday[0]),
            "msgGetTotalTodayNow": str(gets),
            "msgGetTotalTodayMorning": str(self._today[1]),
            "msgGetTotalYesterdayMorning": str(self._yesterday[1]),
        }
        return {**dict.fromkeys(_ZEROES, "0"), **facts}

    def _rate(self, *columns: int) -> str:
        """Return "a b c": the rates over 10 s, 1 min and 10 min, or since the start if later."""
        newest = self._rates[-1]
        texts = []
        for window_ms in WINDOWS_MS:
            oldest = next((each for each in self._rates if each[0] >= newest[0] - window_ms), newest)
            passed_ms = newest[0] - oldest[0]
            grown = sum(newest[column] - oldest[column] for column in columns)
            texts.append(f"{grown * 1000 / passed_ms if passed_ms else 0.0:.2f}")
        return " ".join(texts)


#: fields that tools expect and that are always 0 here: no request queues up in front of a handler,
#: and single puts and reads are not timed
_ZEROES = (
    "startAcceptSendRequestTimeStamp", "putMessageEntireTimeMax", "getMessageEntireTimeMax", "dispatchMaxBuffer",
    "pageCacheLockTimeMills", "remainTransientStoreBufferNumbs",
    "sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills",
    "litePullThreadPoolQueueSize", "litePullThreadPoolQueueCapacity", "litePullThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueSize", "queryThreadPoolQueueCapacity", "queryThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueSize", "ackThreadPoolQueueCapacity", "ackThreadPoolQueueHeadWaitTimeMills",
    "EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity",
)  # fmt: skip


def _item(span: CounterSpan, is_size: bool) -> BrokerStatsItem:
    growth = span.growth
    total = growth.size if is_size else growth.messages
    return BrokerStatsItem(sum=total, tps=span.rate(total), avgpt=total / growth.times if growth.times else 0.0)


def _day(clock: Clock) -> int:
    return datetime.fromtimestamp(clock.wall_ms / 1000).toordinal()


def _duration(passed_ms: int) -> str:
    seconds = max(0, passed_ms) // 1000
    return f"{seconds // 86400} days, {seconds // 3600 % 24} hours, {seconds // 60 % 60} minutes, {seconds % 60} seconds"
