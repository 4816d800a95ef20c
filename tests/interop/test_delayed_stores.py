"""Delayed messages in a store folder that our broker and Apache's serve in turn.

The second broker delivers the messages that are still pending. Both use the same files for that:
the queues of SCHEDULE_TOPIC_XXXX with the due times, and delayOffset.json. After a clean stop no
message is delivered twice. After kill -9 the second broker may redeliver messages that the first
one had delivered.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmqkit import Admin, Message, MessageExt, Producer, PullConsumer, PushConsumer
from rmqkit.errors import ClientError
from tests.interop.apache import HOST, ApacheCluster, ApacheError, end
from tests.interop.until import until

TOPIC = "delayed_stores"
LEVELS = {"messageDelayLevel": "1s 12s", "recallMessageEnable": "true"}
SOON, LATER = 1, 2
LATER_MS = 12_000


class Place:
    """Apache's name server, and the folder and port that both brokers use in turn."""

    def __init__(self, home: Path, **own: str) -> None:
        """`own` are more settings of both brokers."""
        self._settings = {**LEVELS, **own}
        self.servers = ApacheCluster(home=home, broker_properties=self._settings)
        self.servers.start_nameserver()
        self.namesrv = self.servers.namesrv
        self._ours: subprocess.Popen[str] | None = None

    def start(self, kind: str) -> None:
        if kind == "apache":
            for left in range(4, -1, -1):
                try:
                    self.servers.start_broker()
                    return
                except ApacheError as error:
                    # Another process's outgoing connection may occupy a neighbouring port for a
                    # moment.
                    if "Address already in use" not in str(error) or not left:
                        raise
                    time.sleep(1)
        settings = {
            **self._settings,
            "brokerName": "broker-a",
            "bindAddress": HOST,
            "brokerIP1": HOST,
            "brokerIP2": HOST,
            "listenPort": str(self.servers.broker_port),
            "namesrvAddr": self.namesrv,
            "storePathRootDir": str(self.servers.store),
            "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
            "mappedFileSizeConsumeQueue": str(20 * 20_000),
            "mappedFileSizeTimerLog": str(1024 * 1024),
            "maxIndexNum": "200000",
            "maxHashSlotNum": "50000",
            "diskMaxUsedSpaceRatio": "95",
        }
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        log = self.servers.home / "ours.log"
        self._ours = subprocess.Popen(
            [sys.executable, "-m", "rmqkit.process", *sets, "--log-file", str(log)], stdin=subprocess.PIPE, text=True
        )

    def end(self, *, clean: bool) -> None:
        if self._ours is not None:
            end(self._ours, clean=clean)
            self._ours = None
        self.servers.stop_broker(clean=clean)

    def found(self) -> list[MessageExt]:
        """Return all messages of the topic."""
        with PullConsumer(namesrv=self.namesrv) as reader:
            queues = reader.queues(TOPIC)
            count = sum(reader.offset_max(queue) for queue in queues)
            reader.assign(queues)
            for queue in queues:
                reader.seek_to_begin(queue)
            messages: list[MessageExt] = []
            until(f"{count} messages", lambda: len(messages.__iadd__(reader.poll(200))) >= count)
            return messages


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    try:
        yield made
    finally:
        made.end(clean=False)
        made.servers.stop()


def works(attempt: Callable[[], object]) -> Callable[[], bool]:
    def tried() -> bool:
        try:
            attempt()
        except ClientError:
            return False
        return True

    return tried


@contextmanager
def with_topic(place: Place) -> Iterator[Producer]:
    with Admin(place.namesrv) as admin:
        until("a topic", works(lambda: admin.create_topic(TOPIC, queue_nums=2)), 0.3)
        until("its route", works(lambda: admin.route(TOPIC)), 0.3)
    with Producer("p", namesrv=place.namesrv, send_msg_timeout_ms=10_000) as producer:
        yield producer


@pytest.mark.parametrize(
    ("first", "second", "clean"),
    [
        pytest.param("rmqkit", "apache", False, id="rmqkit-apache-killed"),
        pytest.param("apache", "rmqkit", True, id="apache-rmqkit-stopped"),
        pytest.param("rmqkit", "apache", True, id="rmqkit-apache-stopped", marks=pytest.mark.interop_full),
        pytest.param("apache", "rmqkit", False, id="apache-rmqkit-killed", marks=pytest.mark.interop_full),
    ],
)
def test_what_waits_is_delivered_by_the_other_broker(place: Place, first: str, second: str, clean: bool) -> None:
    place.start(first)
    with with_topic(place) as producer:
        for number in range(5):
            assert producer.send(Message(TOPIC, f"soon {number}", delay_level=SOON)).is_ok
        sent_ms = time.time_ns() // 1_000_000
        for number in range(5):
            assert producer.send(Message(TOPIC, f"later {number}", tags="T", delay_level=LATER)).is_ok
        until("the first five", lambda: len(place.found()) == 5)
    place.end(clean=clean)
    place.start(second)

    def bodies() -> list[str]:
        return sorted(message.body.decode() for message in place.found())

    wanted = sorted([*(f"soon {i}" for i in range(5)), *(f"later {i}" for i in range(5))])
    until("all of them", works(lambda: place.found()), 0.3)
    until("all of them", lambda: set(bodies()) == set(wanted), 0.2)
    time.sleep(1)
    assert bodies() == wanted or not clean, "twice after a clean stop"
    assert [body for body in bodies() if body.startswith("later")] == wanted[:5], "delivered once, whoever did it"
    for message in place.found():
        if message.body.startswith(b"later"):
            assert message.store_timestamp_ms >= sent_ms + LATER_MS, "early"
            assert (message.tags, message.properties["REAL_TOPIC"]) == ("T", TOPIC)


@pytest.mark.parametrize(
    ("first", "second"),
    [("rmqkit", "apache"), pytest.param("apache", "rmqkit", marks=pytest.mark.interop_full)],
)
def test_what_was_sent_back_comes_again_from_the_other_broker(place: Place, first: str, second: str) -> None:
    """The second delivery is pending in the store folder while the brokers change."""
    place.start(first)
    seen: list[tuple[str, int, str | None]] = []
    with with_topic(place) as producer:
        sent = producer.send(Message(TOPIC, "try again"))
    consumer = PushConsumer("stubborn", namesrv=place.namesrv, consume_from="first")
    consumer.subscribe(TOPIC)

    @consumer.listener
    def listen(message: MessageExt) -> bool:
        seen.append((message.topic, message.reconsume_times, message.origin_msg_id))
        return message.reconsume_times > 0

    with consumer:
        until("the first delivery", lambda: bool(seen))
        # A first redelivery has delay level 3. With two levels the highest applies: 12 s.
        time.sleep(1)
        place.end(clean=True)
        place.start(second)
        until("the second delivery", lambda: (TOPIC, 1, sent.offset_msg_id) in seen, seen=lambda: seen)
    assert seen[0] == (TOPIC, 0, None), seen
    # The first may come twice: its offset need not be on disk when the broker ends.
    assert {*seen} == {(TOPIC, 0, None), (TOPIC, 1, sent.offset_msg_id)}, seen
