"""Timer messages in a store folder that our broker and Apache's serve in turn.

The second broker delivers the messages that still wait. Both use the same files for that: the timer
topic, the timer log, and timercheck. After a clean stop no message is delivered twice. After
kill -9 the second broker may redeliver what the first one delivered in its last second.
"""

import time
from pathlib import Path

import pytest

from rmqkit import Message
from tests.interop.test_delayed_stores import TOPIC, Place, place, with_topic, works
from tests.interop.until import until

__all__ = ["place"]

SOON_MS = 2_000
LATER_MS = 25_000
COUNT = 5


def sent(place: Place, kind: str) -> int:
    """Start a broker, send the messages, wait for the first ones. Return when the rest is due."""
    place.start(kind)
    with with_topic(place) as producer:
        for number in range(COUNT):
            assert producer.send(Message(TOPIC, f"soon {number}", delay_ms=SOON_MS)).is_ok
        due_ms = time.time_ns() // 1_000_000 + LATER_MS
        handles = [
            producer.send(Message(TOPIC, f"later {number}", tags="T", deliver_at=due_ms)).recall_handle
            for number in range(COUNT + 1)
        ]
        assert handles[-1] is not None
        producer.recall(handles[-1])
        until("the first ones", lambda: len(place.found()) == COUNT)
    # The progress is saved once a second, by both brokers.
    time.sleep(2.5)
    return due_ms


@pytest.mark.parametrize(
    ("first", "second", "clean"),
    [
        pytest.param("rmqkit", "apache", False, id="rmqkit-apache-killed"),
        pytest.param("apache", "rmqkit", True, id="apache-rmqkit-stopped"),
        pytest.param("rmqkit", "apache", True, id="rmqkit-apache-stopped", marks=pytest.mark.interop_full),
        pytest.param("apache", "rmqkit", False, id="apache-rmqkit-killed", marks=pytest.mark.interop_full),
        pytest.param("rmqkit", "rmqkit", True, id="rmqkit-rmqkit-stopped", marks=pytest.mark.interop_full),
        pytest.param("rmqkit", "rmqkit", False, id="rmqkit-rmqkit-killed", marks=pytest.mark.interop_full),
    ],
)
def test_what_waits_is_delivered_by_the_other_broker(place: Place, first: str, second: str, clean: bool) -> None:
    due_ms = sent(place, first)
    place.end(clean=clean)
    place.start(second)

    def bodies() -> list[str]:
        return sorted(message.body.decode() for message in place.found())

    wanted = sorted([*(f"soon {i}" for i in range(COUNT)), *(f"later {i}" for i in range(COUNT))])
    until("the second broker", works(lambda: place.found()), 0.3)
    assert time.time_ns() // 1_000_000 < due_ms, "the change took too long for this test"
    assert len(bodies()) == COUNT, "nothing is delivered again at the start"
    until("all of them", lambda: set(bodies()) >= set(wanted), 0.2)
    time.sleep(1.5)
    assert bodies() == wanted, "each once, and the recalled one never"
    for message in place.found():
        if message.body.startswith(b"later"):
            assert due_ms <= message.store_timestamp_ms < due_ms + 3_000
            assert message.tags == "T"


@pytest.mark.interop_full
def test_a_store_goes_back_and_forth(place: Place) -> None:
    """A timer that is written by ours, waits at Apache's, and is delivered by ours."""
    due_ms = sent(place, "rmqkit")
    place.end(clean=False)
    place.start("apache")
    until("the second broker", works(lambda: place.found()), 0.3)
    time.sleep(2.5)
    place.end(clean=False)
    place.start("rmqkit")
    until("the third broker", works(lambda: place.found()), 0.3)
    late = [f"later {i}" for i in range(COUNT)]

    def bodies() -> list[str]:
        return sorted(message.body.decode() for message in place.found())

    until("all of them", lambda: set(bodies()) >= set(late), 0.2)
    time.sleep(1.5)
    assert bodies() == sorted([*(f"soon {i}" for i in range(COUNT)), *late])
    assert min(each.store_timestamp_ms for each in place.found() if each.body.startswith(b"later")) >= due_ms


def test_apache_finds_the_files_where_it_looks(place: Place, tmp_path: Path) -> None:
    sent(place, "rmqkit")
    place.end(clean=True)
    store = Path(place.servers.store)
    assert (store / "config/timercheck").stat().st_size == 4096
    assert (store / "timerlog/00000000000000000000").stat().st_size == 1024 * 1024
    assert not (store / "timerwheel").exists(), "rebuilt from the timer log by both"
