"""The part of a storage engine's contract that is about several puts in one call.

`StorageEngineContract` contains these tests: some messages, a batch, a run and an inner batch.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from rmqkit.broker.handlers.messages.batch_shape import of_messages
from rmqkit.store.contract import EngineFactory, PutStatus
from rmqkit.testing.store_world import (
    FOREVER_MS,
    StoreWorld,
    body_of,
    drain,
    phy_offset_of,
    put,
    records_of,
    run_of,
    store_config,
)


class ManyPutsContract:
    """The tests of calls that append several messages."""

    make: ClassVar[EngineFactory]

    def other(self, **sections: dict[str, Any]) -> StoreWorld:
        """Return another world with an engine that is ready.

        Args:
            **sections: Fields of sections of the configuration, as in
                `store_config(retention={"delete_when": "05"})`.
        """
        world = StoreWorld(type(self).make, store_config(**sections))
        world.start()
        return world

    def test_messages_are_appended_up_to_the_first_that_is_refused(self, world: StoreWorld) -> None:
        engine = world.engine
        single = engine.append(put("T", 1, b"m0"))
        results = engine.append_some([put("T", 1, b"m1"), put("T", 2, b"m2"), put("T", 1, b"m3", tags_code=7)])
        assert [(each.status, each.queue_offset) for each in results] == [(PutStatus.PUT_OK, n) for n in (1, 0, 2)]
        assert [each.phy_offset for each in (*results,)] == [each.phy_offset_next for each in (single, *results[:-1])]
        end = results[-1].phy_offset_next
        refused = put("T", 1, properties=b"p" * 40_000)
        assert [each.status for each in engine.append_some([refused, put("T", 1)])] == [PutStatus.PROPERTIES_SIZE_EXCEEDED]
        assert engine.offset_max == end
        some = engine.append_some([put("T", 1, b"m4"), refused, put("T", 1)])
        assert [each.status for each in some] == [PutStatus.PUT_OK, PutStatus.PROPERTIES_SIZE_EXCEEDED]
        assert engine.offset_max == some[0].phy_offset_next
        assert [(arrival.queue_id, arrival.tags_code) for arrival in world.settle()] == [
            (1, 0),
            (1, 0),
            (2, 0),
            (1, 7),
            (1, 0),
        ]
        assert [body_of(record) for record in drain(engine, "T", 1)] == [b"m0", b"m1", b"m3", b"m4"]

    def test_a_batch_is_all_or_nothing(self, world: StoreWorld) -> None:
        engine = world.engine
        messages = [(number, f"m{number}".encode(), b"", number) for number in range(5)]
        result = engine.append_batch(put("T", 1, tags_code=1), messages)
        assert result.status is PutStatus.PUT_OK
        assert (result.queue_offset, len(result.phy_offsets)) == (0, 5)
        assert (result.phy_offsets[0], result.phy_offset_next) == (result.phy_offset, engine.offset_max)
        bad = [*messages, (0, b"x", b"p" * 40_000, 0)]
        assert engine.append_batch(put("T", 1), bad).status is not PutStatus.PUT_OK
        assert engine.offset_max == result.phy_offset_next
        arrivals = world.settle()
        assert [(arrival.queue_offset, arrival.tags_code) for arrival in arrivals] == [(n, n) for n in range(5)]
        records = drain(engine, "T", 1)
        assert [body_of(record) for record in records] == [b"m0", b"m1", b"m2", b"m3", b"m4"]
        assert [phy_offset_of(record) for record in records] == list(result.phy_offsets)

    @pytest.mark.parametrize("size", [0, 7])
    def test_a_uniform_batch_is_stored_as_its_messages_are(self, size: int) -> None:
        """By column or one by one: the same records, entries, arrivals and keys."""
        texts = [b"UNIQ_KEY\x01id%04d\x02TAGS\x01a\x02KEYS\x01k\x02" % number for number in range(12)]
        batch = of_messages([(3, b"b" * (9 + number * size), text) for number, text in enumerate(texts)])
        assert batch is not None
        found = []
        for messages in (batch, list(batch)):
            world = self.other()
            world.engine.append(put("T", 1, b"before"))
            result = world.engine.append_batch(put("T", 1), messages)
            assert result.status is PutStatus.PUT_OK
            arrivals = [
                (arrival.queue_offset + more, arrival.tags_code)
                for arrival in world.settle()
                for more in range(arrival.record_count)
            ]
            records = drain(world.engine, "T", 1)
            assert [phy_offset_of(record) for record in records[1:]] == list(result.phy_offsets)
            hits = [
                list(map(bytes, world.engine.query("T", key, count_max=20, begin_ms=0, end_ms=FOREVER_MS).buffers))
                for key in ("id0000", "id0011", "k")
            ]
            assert [len(each) for each in hits] == [1, 1, 12]
            entries = list(world.engine.entries("T", 1, 0, 20))
            found.append((result.queue_offset, arrivals, list(map(bytes, records)), entries, hits))
        assert found[0] == found[1]

    @pytest.mark.parametrize("bad", [None, "size", "topic", "transaction"])
    @pytest.mark.parametrize("sizes", [(9, 9, 9), (0, 1500, 80)])
    def test_a_run_is_stored_as_its_messages_are(self, sizes: Sequence[int], bad: str | None) -> None:
        """By column or one by one: the same log, queues and keys, and log files that end alike.

        A message that `append` refuses, or that gets no entry, ends the run.
        """
        puts = []
        for number in range(120):
            key = b"UNIQ_KEY\x01id%04d\x02" % number + b"TAGS\x01a\x02" * (number > 60)
            topic, size = "TU"[number % 5 == 0], sizes[number % 3]
            fields = {"flag": number % 2, "born_ms": 7 + number, "reconsume_times": number % 3, "tags_code": number // 60}
            puts.append(put(topic, number % 3, bytes(size), properties=key, **fields))
        taken = 120
        if bad is not None:
            taken = 77
            wrong: dict[str, dict[str, Any]] = {
                "size": {"properties": b"x" * 32768},
                "topic": {"topic": "a/b"},
                "transaction": {"sys_flag": 4},
            }
            puts[taken] = puts[taken]._replace(**wrong[bad])
        found = []
        for is_run in (True, False):
            world = self.other(commit_log={"mapped_file_size_commit_log": 16_384})
            if is_run:
                count = len(world.engine.append_run(run_of(puts)))
            else:
                count = sum([world.engine.append(each).status is PutStatus.PUT_OK for each in puts[:taken]])
            assert count == taken
            end = world.engine.offset_max
            arrivals = sorted(
                (arrival.topic, arrival.queue_id, arrival.queue_offset + more, arrival.tags_code)
                for arrival in world.settle()
                for more in range(arrival.record_count)
            )
            log, at = b"", 0
            while data := bytes(world.engine.read_log(at, 1 << 20)):
                log, at = log + data, at + len(data)
            entries = [list(world.engine.entries(topic, queue_id, 0, 100)) for topic in "TU" for queue_id in range(3)]
            keys = [key for topic in "TU" for key in map(bytes, _records_of_key(world, topic, "id0005"))]
            found.append((end, arrivals, log, entries, keys))
        assert found[0] == found[1]
        assert len(found[0][1]) == taken

    def test_an_inner_batch_takes_an_offset_for_each_message(self, world: StoreWorld) -> None:
        """Topics with `queue.type=BatchCQ`: one record holds a whole batch."""
        engine = world.engine
        first, second = (
            engine.append_inner_batch(put("B", 0, b"x", sys_flag=0xC0, properties=b"INNER_NUM\x01%d\x02" % count), count)
            for count in (3, 2)
        )
        world.settle()
        assert (first.queue_offset, first.inner_count) == (0, 3)
        assert (second.queue_offset, second.inner_count) == (3, 2)
        assert engine.queue_range("B", 0)[2:] == (0, 5)
        read = engine.read("B", 0, 1, count_max=1, size_max=100_000)
        assert (read.offset_next, read.message_count) == (3, 3)
        (record,) = records_of(read.buffers)
        assert b"INNER_BASE\x010\x02" in bytes(record)


def _records_of_key(world: StoreWorld, topic: str, key: str) -> Sequence[Any]:
    return world.engine.query(topic, key, count_max=9, begin_ms=0, end_ms=FOREVER_MS).buffers
