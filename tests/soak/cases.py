"""The cases of the soak: each brings one topic into a lake of its own, whole, whatever happens meanwhile."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import SparkSession

from rmqkit import Admin
from rmqkit.cluster import Cluster
from rmqkit.errors import ClientError
from rmqkit.spark.pipelines import lake
from tests.soak.checking import Checked, Expected, check, expected_of
from tests.soak.filling import fill
from tests.soak.ingesting import Command, Ingest, rows_of

WAIT_S = 120


@dataclass
class Soak:
    """What the cases share: a cluster of a master and its slave, and a topic with `count` messages of `size` bytes.

    `ingest` runs most cases, `command` makes the process that is killed. An AvailableNow run takes `batches` micro-batches;
    what is killed is so after `killed_after` of them.
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
    queues: int = 8
    topic: str = "soak"
    random: Random = field(default_factory=lambda: Random(7))
    expected: list[Expected] = field(default_factory=list)

    @property
    def options(self) -> dict[str, str]:
        return {"maxMessagesPerTrigger": str(-(-self.count // self.batches)), "minPartitions": str(self.queues)}

    def fill(self, topic: str, count: int, first: int = 0) -> None:
        if not first:
            with Admin(self.cluster.namesrv) as admin:
                admin.create_topic(topic, queue_nums=self.queues)
                _until(f"a route of {topic}", lambda: _queues(admin, topic) == self.queues)
        fill(self.cluster.namesrv, topic, count, self.size, first=first)

    def prepare(self) -> None:
        """Send the topic's messages and wait until the slave has them all."""
        self.fill(self.topic, self.count)
        self.cluster.wait("in-sync")
        self.expected = expected_of(self.cluster.namesrv, self.topic)

    @contextmanager
    def lake(self, name: str) -> Iterator[Path]:
        """A folder for one case's lake, gone at the end."""
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


def _until(what: str, is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_there():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {WAIT_S} s")
        time.sleep(0.05)


def _ignore(rows: int) -> None:
    """Nobody waits for this batch."""


def available_now(soak: Soak) -> tuple[Checked, dict[str, Any]]:
    """One run takes what is there, in several micro-batches."""
    with soak.lake("available-now") as path:
        batches: list[int] = []
        soak.ingest(soak.topic, path, follow=False, options=soak.options, on_batch=batches.append, stop=lambda: False)
        return soak.check(path, soak.expected), {"batches": len(batches)}


def follow(soak: Soak) -> tuple[Checked, dict[str, Any]]:
    """The query runs while the messages come; it is interrupted when all are in."""
    topic = f"{soak.topic}-followed"
    half = soak.count // 2
    soak.fill(topic, half)
    errors: list[BaseException] = []

    def send_rest() -> None:
        try:
            soak.fill(topic, soak.count - half, first=half)
        except BaseException as error:
            errors.append(error)
            raise

    sender = threading.Thread(target=send_rest)
    batches: list[int] = []

    def on_batch(rows: int) -> None:
        batches.append(rows)
        if len(batches) == 1:
            sender.start()

    with soak.lake("follow") as path:
        soak.ingest(
            topic,
            path,
            follow=True,
            options=soak.options,
            on_batch=on_batch,
            stop=lambda: bool(batches) and (batches[-1] >= soak.count or bool(errors)),
        )
        sender.join()
        return soak.check(path, expected_of(soak.cluster.namesrv, topic)), {"batches": len(batches)}


def killed_driver(soak: Soak, kills: int = 3) -> tuple[Checked, dict[str, Any]]:
    """The driver gets SIGKILL in the middle of a batch, several times; started again each time, it ends in the end."""
    with soak.lake("killed-driver") as path:
        killed_at: list[int] = []
        for number in range(kills):
            killed_at.append(_run_and_kill(soak, path, alone=number % 2 == 0))
        soak.ingest(soak.topic, path, follow=False, options=soak.options, on_batch=_ignore, stop=lambda: False)
        return soak.check(path, soak.expected), {"kills": kills, "batches_before_each": killed_at}


def _run_and_kill(soak: Soak, path: Path, *, alone: bool) -> int:
    """How many batches the run had told of when it was killed, somewhere within the next."""
    with soak.command(soak.topic, path, namesrv=soak.cluster.namesrv, follow=False, options=soak.options) as command:
        begun_s = time.monotonic()
        for number, told in enumerate(command.progress()):
            if rows_of(told) is None:
                raise RuntimeError(f"the run ended before it could be killed: {told}")
            if number + 1 == soak.killed_after:
                # The first batch has the start of the JVM before it.
                time.sleep(soak.random.random() * (time.monotonic() - begun_s) / 2 if number else 0.1)
                if not command.is_running:
                    break
                command.kill(alone=alone)
                return number + 1
            begun_s = time.monotonic()
        command.wait()
        raise RuntimeError("the run ended before it could be killed")


def killed_master(soak: Soak) -> tuple[Checked, dict[str, Any]]:
    """The master gets SIGKILL during the query and stays away for some batches: the slave serves meanwhile."""
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


CASES: Mapping[str, Callable[[Soak], tuple[Checked, dict[str, Any]]]] = {
    "available_now": available_now,
    "follow": follow,
    "killed_driver": killed_driver,
    "killed_master": killed_master,
}
