"""The commands of docs/do/spark-cluster.md on a real standalone Spark cluster.

The cluster is a master, two workers and their executors, each in its own JVM. The commands are
those of the page, with this test's cluster address and folders. All processes of Spark carry a
variable in their environment, by which the fixture finds the ones to kill.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil
import pyarrow as pa
import pyarrow.parquet as parquet
import pyspark
import pytest

from rmqkit.spark.java import find_java
from rmqkit.spark.pipelines import lake
from rmqkit.testing import clusters
from tests.helpers import ports
from tests.pages import test_blocks
from tests.spark.conftest import SHORT

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/do/spark-cluster.md"
SPARK = Path(pyspark.__file__).parent
BIN = Path(sys.executable).parent
MARK = "SPARK_CLUSTER_OF_TEST"
GONE = ("NAMESRV", "PYSPARK", "PYTHONPATH", "RMQKIT", "SPARK")
WORKERS = ("worker-1", "worker-2")
START_S, RUN_S = 60, 240
#: small JVMs, which live for seconds
CONF = f"""\
spark.cores.max 1
spark.driver.memory 512m
spark.executor.memory 512m
spark.driver.extraJavaOptions {SHORT}
spark.executor.extraJavaOptions {SHORT}
spark.ui.enabled false
spark.sql.shuffle.partitions 2
"""


class SparkCluster:
    """A master and two workers on 127.0.0.1, each with one core. The system picks all ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "conf").mkdir()
        (folder / "conf/spark-defaults.conf").write_text(CONF)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(GONE)}
        self.environment = kept | {
            MARK: str(folder),
            "HOME": str(folder),
            "JAVA_HOME": str(find_java().home),
            "PATH": f"{BIN}:{SPARK / 'bin'}:{kept['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SPARK_HOME": str(SPARK),
            "SPARK_CONF_DIR": str(folder / "conf"),
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LAUNCHER_OPTS": SHORT,
            "SPARK_DAEMON_JAVA_OPTS": SHORT,
            "SPARK_DAEMON_MEMORY": "256m",
        }
        self.url = ""
        self._nodes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        address = ("--host", "127.0.0.1", "--webui-port", "0")
        self._start("master", "master.Master", *address, "--port", "0")
        self.url = self._logged("master", r"Starting Spark master at (spark://\S+)")[1]
        for name in WORKERS:
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name))
            self._start(name, "worker.Worker", *address, *size, self.url)
        for name in WORKERS:
            self._logged(name, "Successfully registered with master")

    def stop(self) -> None:
        deadline = time.monotonic() + START_S
        while (left := self.processes()) and time.monotonic() < deadline:
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=5)
        for node in self._nodes:
            node.wait()

    def processes(self) -> list[psutil.Process]:
        """Everything of Spark that runs: nodes, drivers, executors and their Python workers."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == str(self.folder):
                    found.append(process)
        return found

    def executors(self) -> list[psutil.Process]:
        found = []
        for process in self.processes():
            with suppress(psutil.Error):
                if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in process.cmdline():
                    found.append(process)
        return found

    def _start(self, name: str, kind: str, *arguments: str) -> None:
        command = [str(SPARK / "bin/spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        with (self.folder / f"{name}.log").open("wb") as log:
            started = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, cwd=self.folder)
        self._nodes.append(started)

    def _logged(self, name: str, text: str) -> re.Match[str]:
        deadline = time.monotonic() + START_S
        while not (found := re.search(text, log := (self.folder / f"{name}.log").read_text())):
            assert time.monotonic() < deadline, log[-2000:]
            time.sleep(0.1)
        return found


class Both:
    """A Spark cluster and an rmqkit cluster, and commands that use them."""

    def __init__(self, spark: SparkCluster, namesrv: str) -> None:
        self.spark = spark
        #: messages in the topic `orders`
        self.sent = 0
        self._environment = spark.environment | {"NAMESRV_ADDR": namesrv}

    def command(self, part: str) -> str:
        """The one command of the page with this text, for this cluster."""
        text = "\n".join(line for block in test_blocks.blocks(PAGE) for line in test_blocks.commands(block.text))
        text = text.replace("spark://spark-1:7077", self.spark.url).replace("/shared/lake", str(self.lake))
        (found,) = [each for each in text.replace("\\\n", "").splitlines() if part in each]
        return found

    @property
    def lake(self) -> Path:
        return self.spark.folder / "lake"

    @contextmanager
    def running(self, command: str, **variables: str) -> Iterator[IO[str]]:
        """The output of a command, which must end well."""
        with (
            tempfile.TemporaryFile("w+") as log,
            subprocess.Popen(
                ["bash", "-c", command],  # bash becomes the command
                cwd=self.spark.folder,
                env=self._environment | variables,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            ) as process,
        ):
            assert process.stdout
            limit = threading.Timer(RUN_S, process.kill)
            limit.start()
            yield process.stdout
            code = process.wait()
            limit.cancel()
            log.seek(0)
            assert code == 0, log.read()[-3000:]

    def output(self, command: str, **variables: str) -> str:
        with self.running(command, **variables) as printed:
            return printed.read()

    def send(self, count: int) -> None:
        self.output(f"rmqkit send orders --count {count} order")
        self.sent += count

    def in_lake(self) -> int:
        """How many messages the lake has; none of them twice."""
        if not self.lake.exists():
            return 0
        files = [each.removeprefix("file://") for each in lake.files(self.lake)]
        places = pa.concat_tables(parquet.ParquetFile(each).read(["broker", "queue", "offset"]) for each in files)
        assert places.group_by(places.column_names).aggregate([]).num_rows == places.num_rows
        return places.num_rows


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("spark-cluster")
    spark = SparkCluster(folder)
    base = ports.free_base(range(-2, 40))
    running = clusters.start(folder / "queues", timeout_s=START_S, groups=2, replicas=1, base_port=base)
    try:
        spark.start()
        made = Both(spark, running.namesrv)
        made.output("rmqkit topic create orders --queues 2")
        yield made
    finally:
        spark.stop()
        running.down(keep=False)
        assert not spark.processes()


def test_an_ingest_survives_the_death_of_an_executor(both):
    both.send(2000)
    spark, killed = both.spark, 0
    command = both.command("--conf spark.cores.max=4 --conf spark.executor.memory=2g").replace("=2g", "=512m")
    with both.running(f"{command} --json --option maxMessagesPerTrigger=1000") as printed:
        for line in map(json.loads, printed):
            if "progress" in line and not killed:
                killed = spark.executors()[0].pid
                os.kill(killed, signal.SIGKILL)
    assert killed
    assert line["done"]["rows"] == both.in_lake() == both.sent
    assert line["done"]["batches"] >= 2
    assert all(list((spark.folder / worker).glob("app-*/*/stderr")) for worker in WORKERS)


def test_the_next_ingest_continues_with_a_packed_environment(both):
    """The environment is a script that notes where it runs, and becomes this Python."""
    folder, before = both.spark.folder, both.in_lake()
    script = folder / "python"
    script.write_text(f'#!/bin/sh\npwd >> {folder}/packed-pythons\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    with tarfile.open(folder / "environment.tar.gz", "w:gz") as archive:
        archive.add(script, "bin/python")
    both.send(500)
    both.output(both.command("tar -xzf"))
    printed = both.output(both.command("spark.archives=environment"), PYSPARK_PYTHON="./environment/bin/python")
    assert printed.startswith(f"{both.sent - before} messages ")
    assert both.in_lake() == both.sent
    ran_in = {Path(line) for line in (folder / "packed-pythons").read_text().splitlines()}
    assert {each.relative_to(folder).parts[0] for each in ran_in - {folder}} & set(WORKERS)


def test_spark_submit_runs_the_command_and_a_job_of_ones_own(both):
    before = both.in_lake()
    for block in test_blocks.blocks(PAGE):
        if name := test_blocks.FILE_NAME.match(block.text):
            (both.spark.folder / name[1]).write_text(block.text)
    both.send(10)
    printed = both.output(
        both.command(f"pipeline.py pipeline ingest orders --to {both.lake}"), PYSPARK_PYTHON=sys.executable
    )
    assert re.search(rf"^{both.sent - before} messages ", printed, re.M), printed
    table = both.output(both.command("orders_by_tag.py"))
    assert re.search(rf"\| *NULL\| *{both.sent}\|", table), table
