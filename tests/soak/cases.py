"""The cases of the soak test. Each ingests one whole topic into its own lake, during some fault."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import SparkSession

from rmqkit import Admin
from rmqkit.cluster import Cluster
from rmqkit.errors import ClientError
from rmqkit.spark.pipelines import lake
from tests.soak.background import Background, Drilled, drilled
from tests.soak.checking import Checked, Expected, check, expected_of
from tests.soak.filling import AT_ONCE, Through, fill
from tests.soak.ingesting import Command, Ingest, rows_of

WAIT_S = 120


#: the check of a case's lake, and facts about the run
Seen = tuple[Checked, dict[str, Any]]


@dataclass
class Soak:
    """What the cases share: a cluster with a master and its slave, and a topic.

    The topic has `count` messages of `size` bytes. `ingest` runs most cases; `command` starts the
    process of the case that kills the driver. An AvailableNow run has `batches` micro-batches.
    Kills happen after `killed_after` of them. In a drill, the fault lasts `outage_s` seconds.
    """

    cluster: Cluster
    spark: SparkSession
    folder: Path
    ingest: Ingest
    command: Callable[..., Command]
    count: int
    size: int
    batches: int = 10
    killed_after: int = 2
    outage_s: float = 6.0
    queues: int = 8
    topic: str = "soak"
    random: Random = field(default_factory=lambda: Random(7))
    expected: list[Expected] = field(default_factory=list)

    @property
    def options(self) -> dict[str, str]:
        return {"maxMessagesPerTrigger": str(-(-self.count // self.batches)), "minPartitions": str(self.queues)}

    def fill(self, topic: str, count: int, first: int = 0, through: Through = AT_ONCE) -> None:
        if not first:
            with Admin(self.cluster.namesrv) as admin:
                admin.create_topic(topic, queue_nums=self.queues)
                _until(f"a route of {topic}", lambda: _queues(admin, topic) == self.queues)
        fill(self.cluster.namesrv, topic, count, self.size, first=first, through=through)

    def prepare(self) -> None:
        """Send the topic's messages and wait until the slave has them all."""
        self.fill(self.topic, self.count)
        self.cluster.wait("in-sync")
        self.expected = self.now(self.topic)

    def now(self, topic: str) -> list[Expected]:
        return expected_of(self.cluster.namesrv, topic)

    @contextmanager
    def lake(self, name: str) -> Iterator[Path]:
        """Yield a folder for one case's lake; it is removed at the end."""
        path = self.folder / name
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def check(self, path: Path, expected: list[Expected]) -> Checked:
        return check(self.spark, lake.read(self.spark, path), expected, self.count)


def _queues(admin: Admin, topic: str) -> int:
    try:
        return len(admin.queues(topic))
    except ClientError:
        return 0


def _sum(queues: list[Expected]) -> int:
    return sum(queue.end - queue.begin for queue in queues)


def _until(what: str, is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_there():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {WAIT_S} s")
        time.sleep(0.05)


def _ignore(rows: int) -> None:
    """Ignore a batch: a callback for runs without background work."""


def _has(path: Path, rows: int) -> bool:
    """Return whether the lake has this many rows; then a following run is stopped."""
    return lake.is_lake(path) and lake.describe(path).rows >= rows


def available_now(soak: Soak) -> Seen:
    """One run ingests the existing messages in several micro-batches."""
    with soak.lake("available-now") as path:
        batches: list[int] = []
        soak.ingest(soak.topic, path, follow=False, options=soak.options, on_batch=batches.append, stop=lambda: False)
        return soak.check(path, soak.expected), {"batches": len(batches)}


def follow(soak: Soak) -> Seen:
    """The query runs while messages are sent; it is interrupted when the lake has all of them."""
    return _follow(soak, f"{soak.topic}-followed", ())


def _follow(soak: Soak, topic: str, meanwhile: Sequence[Callable[[], object]], through: Through = AT_ONCE) -> Seen:
    """Ingest half of the messages; after one batch, send the rest and run `meanwhile`."""
    half = soak.count // 2
    soak.fill(topic, half)
    rest = partial(soak.fill, topic, soak.count - half, first=half, through=through)
    background = Background({1: [rest, *meanwhile]})
    with soak.lake(topic) as path:
        soak.ingest(
            topic,
            path,
            follow=True,
            options=soak.options,
            on_batch=background.on_batch,
            stop=lambda: background.is_done and (bool(background.errors) or _has(path, _sum(soak.now(topic)))),
        )
        background.join()
        soak.cluster.wait("in-sync")
        return soak.check(path, soak.now(topic)), {"batches": background.batches}


def killed_driver(soak: Soak, *, follow: bool = False, kills: int = 3) -> Seen:
    """The driver gets SIGKILL within a batch, several times; a last run completes the ingest."""
    with soak.lake("killed-driver") as path:
        killed_at: list[int] = []
        for number in range(kills):
            killed_at.append(_run_and_kill(soak, path, follow=follow, alone=number % 2 == 0))
        rows = _sum(soak.expected)
        soak.ingest(soak.topic, path, follow=follow, options=soak.options, on_batch=_ignore, stop=lambda: _has(path, rows))
        return soak.check(path, soak.expected), {"kills": kills, "batches_before_each": killed_at}


def _run_and_kill(soak: Soak, path: Path, *, follow: bool, alone: bool) -> int:
    """Run the command and kill it within a batch; return the number of batches reported before."""
    with soak.command(soak.topic, path, namesrv=soak.cluster.namesrv, follow=follow, options=soak.options) as command:
        begun_s = time.monotonic()
        for number, told in enumerate(command.progress()):
            if rows_of(told) is None:
                raise RuntimeError(f"the run ended before it could be killed: {told}")
            if number + 1 == soak.killed_after:
                # Wait for a random part of the time so far. After the first batch wait 0.1 s: that
                # time includes the start of the JVM.
                time.sleep(soak.random.random() * (time.monotonic() - begun_s) / 2 if number else 0.1)
                if not command.is_running:
                    break
                command.kill(alone=alone)
                return number + 1
            begun_s = time.monotonic()
        command.wait()
        raise RuntimeError("the run ended before it could be killed")


def killed_master(soak: Soak) -> Seen:
    """The master gets SIGKILL during the query; the slave serves some batches meanwhile."""
    batches: list[int] = []

    def on_batch(rows: int) -> None:
        batches.append(rows)
        if len(batches) == soak.killed_after:
            soak.cluster.kill("master")
        if len(batches) == soak.batches - 1:
            soak.cluster.start("master")

    with soak.lake("killed-master") as path:
        try:
            soak.ingest(soak.topic, path, follow=False, options=soak.options, on_batch=on_batch, stop=lambda: False)
        finally:
            soak.cluster.start("all")
            soak.cluster.wait("in-sync")
        checked = soak.check(path, soak.expected)
        if not checked.from_slave:
            raise RuntimeError("no message came from the slave: the master was not missed")
        return checked, {"batches": len(batches)}


def fail_master(soak: Soak) -> Seen:
    """`rmqkit fail-master` runs during the query: a drill, with its own load, kills the master."""
    drill: list[Drilled] = []
    background = Background({1: [lambda: drill.append(drilled(soak.cluster, soak.outage_s))]})
    with soak.lake("fail-master") as path:
        soak.ingest(soak.topic, path, follow=False, options=soak.options, on_batch=background.on_batch, stop=lambda: False)
        background.join()
        soak.cluster.wait("in-sync")
        checked = soak.check(path, soak.expected)
        if not checked.from_slave:
            raise RuntimeError("no message came from the slave: the master was not missed")
        return checked, {"batches": background.batches, "drill": drill[0]._asdict()}


def fail_master_following(soak: Soak) -> Seen:
    """The same while messages are sent and read: before, during and after the fault."""
    drill: list[Drilled] = []
    checked, facts = _follow(
        soak,
        f"{soak.topic}-drilled",
        [lambda: drill.append(drilled(soak.cluster, soak.outage_s))],
        Through(spread_s=3 * soak.outage_s, patience_s=60.0),
    )
    return checked, {**facts, "drill": drill[0]._asdict()}


#: the cases of `make soak`: both ways to run an ingest, each with both kinds of fault
CASES: Mapping[str, Callable[[Soak], Seen]] = {
    "available_now": available_now,
    "follow": follow,
    "killed_driver": killed_driver,
    "killed_driver_following": partial(killed_driver, follow=True),
    "fail_master": fail_master,
    "fail_master_following": fail_master_following,
}
