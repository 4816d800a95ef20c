"""When the index begins a batch: not while the records of a burst still arrive, within limits."""

from unittest import mock

from rmqkit.broker.node import Broker
from rmqkit.store.index import index as index_module
from tests.broker.requests import UNIQ, send, with_topic
from tests.helpers.script import Client, Script

STEP_MS = 3
#: fewer than fit into the longest wait
BURST = 300


def burst(script: Script[Broker], client: Client, number: int) -> list[int]:
    """Send a message every 3 ms; return how many records waited for the index after each."""
    waiting = []
    for _ in range(number):
        assert send(client).code == 0
        script.advance(STEP_MS)
        waiting.append(script.node.store.index._waiting_count)
    return waiting


def test_the_index_waits_for_the_end_of_a_burst(broker):
    client = with_topic(broker)
    broker.advance(5_000)
    assert burst(broker, client, BURST) == list(range(1, BURST + 1))
    broker.advance(1_100)
    assert not broker.node.store.index._has_work


def test_a_burst_that_does_not_end_is_indexed_after_two_seconds(broker):
    client = with_topic(broker)
    broker.advance(5_000)
    waiting = burst(broker, client, 4 * BURST)
    assert 2 * BURST < max(waiting) < 3 * BURST


def test_the_index_begins_early_if_many_records_wait(broker):
    client = with_topic(broker)
    broker.advance(5_000)
    with mock.patch.object(index_module, "BURST_RECORDS", 50):
        assert max(burst(broker, client, BURST)) == 49


def test_a_query_in_a_burst_finds_what_waits(broker):
    client = with_topic(broker)
    broker.advance(5_000)
    assert burst(broker, client, 5)[-1] == 5
    key = UNIQ.removeprefix("UNIQ_KEY\x01").removesuffix("\x02")
    hits = broker.node.store.query("T", key, count_max=32, begin_ms=0, end_ms=1 << 60)
    assert len(hits.buffers) == 5
