"""A group of two processes whose master is killed and restarted, as its consumers see it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmqkit import Message, Producer, PullConsumer
from rmqkit.cluster.cluster import Cluster
from tests.helpers import ports

TOPIC, GROUP = "reading_on", "readers"
QUEUES = 4
COMMIT_MS = 200
#: about as many messages as are read while a commit is made and copied
AGAIN_MAX = 64


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster("reads", home=tmp_path)
    try:
        made.up(any_port=True, base_port=ports.free_base(range(-2, 40)), replicas=2)
        yield made
    finally:
        made.down(purge=True)


class Reader:
    def __init__(self, namesrv: str) -> None:
        self.got: list[tuple[int, int]] = []
        # Little is read ahead, so that most of the backlog comes from the slave.
        self.consumer = PullConsumer(
            GROUP,
            namesrv=namesrv,
            consume_from="first",
            auto_commit_interval_ms=COMMIT_MS,
            pull_batch_size=8,
            pull_threshold_for_queue=8,
        )
        self.consumer.subscribe(TOPIC)

    def read(self, until: Callable[[], bool], timeout_s: float = 20) -> None:
        deadline = time.monotonic() + timeout_s
        while not until():
            assert time.monotonic() < deadline, f"{len(self.got)} messages in {timeout_s} s"
            for message in self.consumer.poll(timeout_ms=200, count_max=8):
                self.got.append((message.queue_id, message.queue_offset))


def send(namesrv: str, count: int) -> set[tuple[int, int]]:
    with Producer("senders", namesrv=namesrv, default_topic_queue_nums=QUEUES) as producer:
        results = [producer.send(Message(TOPIC, b"%d" % number)) for number in range(count)]
    return {(result.queue.queue_id, result.queue_offset) for result in results}


def check_taken_over(before: Reader, after: Reader) -> None:
    again = set(before.got) & set(after.got)
    assert len(again) <= AGAIN_MAX, f"{len(again)} messages were delivered again"


@pytest.mark.long
def test_consumption_goes_on_from_the_slave_and_returns(cluster: Cluster) -> None:
    sent = send(cluster.namesrv, 800)
    first = Reader(cluster.namesrv)
    first.read(lambda: len(first.got) >= 300)
    cluster.kill("master")
    # The same member continues, then another one takes over with the slave's offsets.
    first.read(lambda: len(first.got) >= 550)
    first.consumer.close()
    second = Reader(cluster.namesrv)
    second.read(lambda: len({*first.got, *second.got}) >= 700)
    check_taken_over(first, second)
    cluster.start("master")
    second.consumer.close()
    third = Reader(cluster.namesrv)
    sent |= send(cluster.namesrv, 100)
    third.read(lambda: {*first.got, *second.got, *third.got} >= sent)
    check_taken_over(first, third)
    check_taken_over(second, third)
    third.consumer.close()
