"""Tests that each load of `inprocess` does what its description says."""

import pytest

from rmqkit.broker.special.timer.duty import TimerDuty
from rmqkit.wire.topic_names import TIMER_TOPIC
from tests.bench.inprocess import LOADS, QUEUES, TOPIC, InProcess, least_us


@pytest.mark.parametrize("name", ["batch", "hold"])
def test_every_message_of_a_load_is_stored(name: str) -> None:
    with InProcess("messageIndexEnable=false") as server:
        server.make_topic(TOPIC)
        load = LOADS[name]
        turns = load.make(server)
        took = server.run(turns, load.turn_us)
        assert len(took) == len(turns)
        assert server.broker.statistics.put_count == load.messages
        if name == "hold":
            assert server.broker.statistics.get_count == load.messages


def test_the_index_takes_what_was_sent() -> None:
    with InProcess() as server:
        server.make_topic(TOPIC)
        load = LOADS["index"]._replace(make=lambda made: made.sends(2, 64, 100), messages=128)
        assert server.index(load.make(server))
        hits = server.broker.store.query(TOPIC, f"7F000001{0:016X}{1:08X}", count_max=9, begin_ms=0, end_ms=1 << 60)
        assert len(hits.buffers) == 1
        assert least_us(server, LOADS["send"]._replace(make=load.make, messages=128), 2) > 0


def test_only_loads_of_the_index_measure_the_index() -> None:
    assert {name for name, load in LOADS.items() if load.is_index} == {"index", "batchindex"}
    with InProcess("messageIndexEnable=false") as server:
        server.make_topic(TOPIC)
        assert least_us(server, LOADS["batch"], 1) > 0


@pytest.mark.parametrize("name", ["pop", "ack"])
def test_every_message_is_popped_and_acked_once(name: str) -> None:
    with InProcess("messageIndexEnable=false") as server:
        server.make_topic(TOPIC)
        load = LOADS[name]
        server.run(load.make(server), load.turn_us)
        revive = server.broker.view.revive
        assert server.broker.statistics.get_count == load.messages
        assert not len(revive.pending)
        assert revive.facts()["popRevived"] == "0"


@pytest.mark.long
def test_every_timer_of_a_load_is_indexed_and_every_due_one_delivered() -> None:
    with InProcess("messageIndexEnable=false") as server:
        server.make_topic(TOPIC)
        load, index = LOADS["timer"], server.broker.special.find(TimerDuty).index
        server.run(load.make(server), load.turn_us)
        assert (
            index.next == server.broker.store.queue_range(TIMER_TOPIC, 0).offset_max == index.wheel.count == load.messages
        )
        load = LOADS["due"]
        turns = load.make(server)
        assert readable(server) == 0
        server.run(turns, load.turn_us)
        assert readable(server) == load.messages


@pytest.mark.long
def test_every_transaction_of_a_load_is_committed() -> None:
    with InProcess("messageIndexEnable=false") as server:
        server.make_topic(TOPIC)
        load = LOADS["transaction"]
        server.run(load.make(server), load.turn_us)
        assert readable(server) == load.messages


def readable(server: InProcess) -> int:
    return sum(server.broker.store.queue_range(TOPIC, queue_id).offset_max for queue_id in range(QUEUES))
