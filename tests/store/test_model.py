"""Random lives of a store, compared with a model.

Puts, batches, failed writes, deleted topics, cuts, retention, clean stops, kills and power losses.
What was settled survives a kill; what was synced survives a power loss. What survives is a prefix
of the log, in every queue, under its original numbers, and found by its key.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.broker.handlers.messages.batch_shape import of_messages
from rmqkit.store import ENGINES
from rmqkit.store.contract import PutStatus, StoreWriteError
from rmqkit.testing.store_world import FOREVER_MS, StoreWorld, body_of, drain, offset_of, phy_offset_of, put, store_config

TOPICS = ("A", "B")


class Known(NamedTuple):
    phy_offset: int
    phy_next: int
    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    key: str


class Model:
    """What the store must have. `turn` holds the puts that are not yet settled."""

    def __init__(self) -> None:
        self.log: list[Known] = []
        self.turn: list[Known] = []
        #: topic -> end of the log when it was deleted
        self.deleted: dict[str, int] = {}
        self.start = 0

    def settle(self) -> None:
        self.log += self.turn
        self.turn = []

    def cut(self, end: int, start: int = 0) -> None:
        self.turn = []
        self.log = [known for known in self.log if start <= known.phy_offset and known.phy_next <= end]
        self.deleted = {topic: min(known, end) for topic, known in self.deleted.items()}

    def queue(self, topic: str, queue_id: int) -> list[tuple[int, int, bytes]]:
        return [
            (known.queue_offset, known.phy_offset, known.body)
            for known in self.log
            if (known.topic, known.queue_id) == (topic, queue_id) and known.phy_offset >= self.deleted.get(topic, 0)
        ]


class Life:
    def __init__(self, seed: int, pool: bool) -> None:
        config = store_config(
            flush={"flush_consume_queue_thorough_interval_ms": 700, "transient_store_pool_enable": pool},
            retention={"clean_resource_interval_ms": 100, "delete_when": "", "disk_max_used_space_ratio": 95},
        )
        self.world = StoreWorld(ENGINES["mapped"], config, seed=seed)
        self.engine = self.world.start()
        self.model = Model()
        self.pool = pool
        self.count = 0

    # --- actions

    def put(self, topic: int, queue_id: int, size: int) -> None:
        self.count += 1
        key = f"id{self.count:06d}"
        body = f"{self.count}|".encode() + b"b" * size
        properties = f"UNIQ_KEY\x01{key}\x02TAGS\x01t\x02".encode()
        result = self.engine.append(put(TOPICS[topic], queue_id, body, properties=properties))
        assert result.status is PutStatus.PUT_OK
        self.model.turn.append(
            Known(result.phy_offset, result.phy_offset_next, TOPICS[topic], queue_id, result.queue_offset, body, key)
        )

    def batch(self, topic: int, queue_id: int, count: int) -> None:
        bodies = [f"{self.count + number}|batch".encode() for number in range(1, count + 1)]
        keys = [f"id{self.count + number:06d}" for number in range(1, count + 1)]
        self.count += count
        texts = [f"UNIQ_KEY\x01{key}\x02".encode() for key in keys]
        sent = [(0, body, text) for body, text in zip(bodies, texts, strict=True)]
        messages = of_messages(sent) if count % 2 else [(*each, 0) for each in sent]
        assert messages is not None
        result = self.engine.append_batch(put(TOPICS[topic], queue_id), messages)
        assert result.status is PutStatus.PUT_OK
        ends = [*result.phy_offsets[1:], result.phy_offset_next]
        for number in range(count):
            self.model.turn.append(
                Known(
                    result.phy_offsets[number],
                    ends[number],
                    TOPICS[topic],
                    queue_id,
                    result.queue_offset + number,
                    bodies[number],
                    keys[number],
                )
            )

    def turn(self, ms: int) -> None:
        self.world.turn(ms)
        self.model.settle()

    def run(self, ms: int) -> None:
        self.turn(1)
        self.world.run(ms, 50)

    def fail_write(self) -> None:
        self.turn(1)
        if not self.pool:
            self.put(0, 0, 50)
            self.put(1, 1, 3000)
            self.world.disk.fail("write", "/store/commitlog")
            try:
                self.world.settle()
            except StoreWriteError:
                self.model.turn = []
            else:
                raise AssertionError("the write did not fail")

    def delete(self, topic: int) -> None:
        self.turn(1)
        self.engine.delete_topics([TOPICS[topic]])
        self.model.deleted[TOPICS[topic]] = self.engine.offset_max
        for _ in range(50):
            self.world.turn()

    def cut(self, back: int) -> None:
        self.turn(1)
        if self.pool:
            self.world.run(500)
        if self.model.log:
            at = self.model.log[-min(back, len(self.model.log))].phy_offset
            if any(end > at for end in self.model.deleted.values()):
                return
            ended: list[OSError | None] = []
            self.engine.truncate(at, ended.append)
            self.world.until(lambda: ended)
            if ended == [None]:
                self.model.cut(at)
            elif self.engine.failed:
                # The disk failed half-way: the store refuses puts; a restart finds it consistent.
                assert self.engine.append(put()).status is PutStatus.SERVICE_NOT_AVAILABLE
                self.world.kill()
                self.engine = self.world.start()
                self.check(at)

    def stop(self) -> None:
        self.turn(1)
        self.engine = self.world.restart()
        self.check(self.engine.offset_max)

    def kill(self) -> None:
        end = self.engine.log.offset_written
        self.world.kill()
        self.engine = self.world.start()
        assert self.engine.offset_max >= end
        self.check(end)

    def crash(self) -> None:
        synced = self.engine.offset_synced
        self.world.crash()
        self.engine = self.world.start()
        self.check(synced)

    def expire(self, count: int) -> None:
        """Let retention remove up to `count` of the oldest files."""
        self.turn(1)
        self.world.run(700)
        retention = replace(
            self.world.config.retention,
            file_reserved_time_hours=0,
            delete_when=";".join(map(str, range(24))),
            delete_file_batch_max=count,
            delete_commit_log_files_interval_ms=1000,
        )
        self.engine.configure(replace(self.world.config, retention=retention))
        self.world.run(100)
        self.engine.configure(self.world.config)
        self.world.run(50)  # so that a power loss does not undo the removal
        assert self.engine.offset_min % 4096 == 0
        assert self.engine.offset_min <= self.engine.offset_max
        self.model.start = self.engine.offset_min
        self.model.cut(self.engine.offset_max, self.model.start)

    def fail_later(self, folder: str) -> None:
        """Let the next write below `folder`, which holds derived files, fail."""
        self.world.disk.fail("write", f"/store/{folder}")

    def jump(self, ms: int) -> None:
        """Move the wall clock by `ms`."""
        self.world.clock.wall_ms += ms

    def sync(self) -> None:
        self.turn(1)
        told: list[bool] = []
        self.engine.sync(self.engine.offset_written, told.append)
        self.world.until(lambda: told)
        assert told == [True]

    # --- checks

    def check(self, end_min: int) -> None:
        """After a start: all records up to `end_min` are there, and no record that was not put."""
        engine, model = self.engine, self.model
        model.settle()
        assert engine.offset_max >= max([known.phy_next for known in model.log if known.phy_next <= end_min], default=0)
        # The first file may be gone if it was never synced, even if the second is there.
        assert engine.offset_min == model.start or not end_min
        model.start = engine.offset_min
        model.cut(engine.offset_max, model.start)
        assert engine.offset_synced == engine.offset_written == engine.offset_max
        for topic in TOPICS:
            for queue_id in (0, 1):
                expected = model.queue(topic, queue_id)
                found = [
                    (offset_of(record), phy_offset_of(record), body_of(record)) for record in drain(engine, topic, queue_id)
                ]
                assert found == expected

    def check_index(self) -> None:
        self.world.disk.heal()
        for _ in range(60):
            self.world.run(1000, 200)
            if not self.engine.index.progress:
                break
        assert not self.engine.index.progress
        for known in self.model.log[-30:] + self.model.log[:10]:
            hits = self.engine.query(known.topic, known.key, count_max=8, begin_ms=0, end_ms=FOREVER_MS)
            assert [body_of(record) for record in hits.buffers] == [known.body]


TOPIC, QUEUE = st.integers(0, 1), st.integers(0, 1)
OPERATIONS = st.one_of(
    st.tuples(st.just("put"), TOPIC, QUEUE, st.sampled_from([0, 7, 100, 400, 1500, 3000])),
    st.tuples(st.just("put"), TOPIC, QUEUE, st.integers(0, 300)),
    st.tuples(st.just("batch"), TOPIC, QUEUE, st.integers(1, 8)),
    st.tuples(st.just("turn"), st.sampled_from([1, 5, 300])),
    st.tuples(st.just("turn"), st.just(1)),
    st.tuples(st.just("run"), st.sampled_from([600, 1500, 12_000])),
    st.tuples(st.just("sync")),
    st.tuples(st.just("fail_write")),
    st.tuples(st.just("delete"), TOPIC),
    st.tuples(st.just("cut"), st.integers(1, 12)),
    st.tuples(st.just("expire"), st.integers(1, 2)),
    st.tuples(st.just("fail_later"), st.sampled_from(["consumequeue", "index"])),
    st.tuples(st.just("jump"), st.sampled_from([-10_000, -3, 3_600_000])),
    st.tuples(st.just("stop")),
    st.tuples(st.just("kill")),
    st.tuples(st.just("crash")),
)


@settings(max_examples=max(settings().max_examples, 150))
@given(st.integers(0, 1 << 16), st.booleans(), st.lists(OPERATIONS, min_size=5, max_size=80))
def test_no_life_loses_what_was_promised(seed, pool, operations):
    life = Life(seed, pool)
    for name, *arguments in operations:
        getattr(life, name)(*arguments)
    life.run(700)
    life.check_index()
    life.stop()
    life.crash()
    life.check_index()
