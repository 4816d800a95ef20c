"""Apache's broker 5.5.0 and ours open each other's store folders, after SIGTERM and kill -9.

The second broker serves every message with its properties, offsets and timestamps, and finds it by
key and id. It continues with the group's offsets, the topics, the group and the delayed messages,
and it appends. Then the first broker takes its folder back.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqkit import Producer
from tests.interop import exchange
from tests.interop.exchange import Exchange


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Exchange]:
    made = Exchange(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(("giver", "taker", "how"), exchange.HANDOVERS)
def test_the_other_broker_takes_the_folder_over(opened: Exchange, giver: str, taker: str, how: str) -> None:
    opened.start(giver)
    exchange.fill(opened)
    given = exchange.sight(opened)
    assert len(given.records[exchange.PLAIN]) == 302
    opened.stop(how)

    opened.start(taker)
    taken = exchange.sight(opened)
    assert_same(given, taken)
    exchange.expect_found_by_key(opened, early=how == "clean" or taker == "ours")
    exchange.expect_soon(opened, once=how == "clean")
    with Producer("ex", namesrv=opened.namesrv, send_msg_timeout_ms=10_000) as producer:
        exchange.write_more(producer, 60)
    grown = exchange.sight(opened)
    assert len(grown.records[exchange.PLAIN]) == 362
    opened.stop(how)

    opened.start(giver)
    assert_same(grown, exchange.sight(opened))
    exchange.expect_found_by_key(opened, early=how == "clean" or giver == "ours")
    opened.stop("clean")


def assert_same(before: exchange.Sight, after: exchange.Sight) -> None:
    """Expect everything to be there still; only the topic of delayed messages may have more."""
    for topic, records in before.records.items():
        now = after.records[topic]
        assert now[: len(records)] == records, topic
        assert len(now) == len(records) or topic == exchange.DELAY, topic
    assert after[1:] == before[1:]
