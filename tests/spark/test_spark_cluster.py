"""The commands of docs/do/spark-cluster.md on a real standalone Spark cluster.

The cluster is a master, two workers and their executors, each in its own JVM. They run in an
environment whose Python has no packages, and find rmqkit only where a test brings it: in a package,
or by the path of this test's Python. The commands are those of the page, with this test's cluster
address and folders. All processes of Spark carry a variable in their environment, by which the
fixture finds the ones to kill.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil
import pyarrow as pa
import pyarrow.parquet as parquet
import pyspark
import pytest

from rmqkit.spark import package
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
START_S, RUN_S = 120, 400
#: small JVMs, which live for seconds
CONF = f"""\
spark.cores.max 1
spark.executorEnv.PYTHONPATH {ROOT}
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
        #: An environment of this Python without packages.
        self.bare = folder / "bare"
        venv.create(self.bare, with_pip=False, symlinks=True)
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
        self.node_environment = self.environment | {"PATH": f"{self.bare / 'bin'}:{kept['PATH']}"}
        del self.node_environment["PYTHONPATH"]
        self.url = ""
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self._start("master", "master.Master", "--port", "0")
        self.url = self._logged("master", r"Starting Spark master at (spark://\S+)")[1]
        self.start_workers(*WORKERS)

    def start_workers(self, *names: str) -> None:
        for name in names:
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name))
            self._start(name, "worker.Worker", *size, self.url)
        for name in names:
            self._logged(name, "Successfully registered with master")

    def kill_worker(self, name: str) -> list[list[str]]:
        """Kill a worker with its executors and their Pythons, as the loss of its machine does.

        Return the commands of what was killed.
        """
        process = psutil.Process(self._nodes[name].pid)
        killed = [process, *process.children(recursive=True)]
        commands = []
        for each in killed:
            with suppress(psutil.Error):  # a Python worker may end at this moment
                commands.append(each.cmdline())
        for each in killed:
            with suppress(psutil.Error):
                each.kill()
        self._nodes[name].wait()
        return commands

    def stop(self) -> None:
        deadline = time.monotonic() + START_S
        while (left := self.processes()) and time.monotonic() < deadline:
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=5)
        for node in self._nodes.values():
            node.wait()

    def processes(self) -> list[psutil.Process]:
        """Everything of Spark that runs: nodes, drivers, executors and their Python workers."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == str(self.folder):
                    found.append(process)
        return found

    def packages(self) -> list[Path]:
        """The folders of executors in which Spark unpacked a package, relative to the cluster's."""
        found = self.folder.glob("worker-*/app-*/*/rmqkit-package/rmqkit")
        return [each.relative_to(self.folder) for each in found]

    def executors(self) -> list[psutil.Process]:
        found = []
        for process in self.processes():
            with suppress(psutil.Error):
                if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in process.cmdline():
                    found.append(process)
        return found

    def _start(self, name: str, kind: str, *arguments: str) -> None:
        address = ("--host", "127.0.0.1", "--webui-port", "0")
        command = [str(SPARK / "bin/spark-class"), f"org.apache.spark.deploy.{kind}", *address, *arguments]
        with (self.folder / f"{name}.log").open("wb") as log:
            self._nodes[name] = subprocess.Popen(
                command, env=self.node_environment, stdout=log, stderr=log, cwd=self.folder
            )

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
        text = text.replace("python3.11", package.python_name())
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
    for block in test_blocks.blocks(PAGE):
        if name := test_blocks.FILE_NAME.match(block.text):
            (folder / name[1]).write_text(block.text)
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


@pytest.fixture(scope="module")
def packed(both) -> Path:
    """The file that the page's command writes."""
    file = both.spark.folder / "rmqkit-package.tar.gz"
    printed = both.output(both.command("pipeline package"))
    assert printed.startswith(f"{file}: ")
    return file


def test_an_ingest_with_a_package_survives_the_death_of_a_worker(both, packed):
    """The workers have no rmqkit. Two batches run on both workers, then one worker dies."""
    spark, before = both.spark, both.in_lake()
    for name in ("rmqkit", "msgspec", "pyarrow"):
        found = subprocess.run(
            [package.python_name(), "-c", f"import {name}"],
            env=spark.node_environment,
            cwd=spark.folder,
            capture_output=True,
            check=False,
        )
        assert b"ModuleNotFoundError" in found.stderr, name
    both.send(4000)
    command = f"{both.command('spark.rmqkit.package=')} --conf spark.cores.max=2"
    commands: list[list[str]] = []
    with both.running(f"{command} --json --option maxMessagesPerTrigger=1000") as printed:
        for line in map(json.loads, printed):
            if "progress" in line and not commands:
                commands = spark.kill_worker("worker-1")
    said = " ".join(word for command in commands for word in command)
    assert "CoarseGrainedExecutorBackend" in said
    assert "pyspark.daemon" in said
    assert f"{spark.bare}" in said or package.python_name() in said
    assert line["done"]["rows"] == 4000
    assert line["done"]["batches"] >= 4
    assert both.in_lake() == both.sent == before + 4000
    assert {each.parts[0] for each in spark.packages()} == set(WORKERS)
    spark.start_workers("worker-1")


def test_spark_submit_runs_the_command_and_a_job_of_ones_own(both):
    before = both.in_lake()
    both.send(10)
    submit = both.command(f"{both.spark.url} --conf spark.cores.max=4")
    printed = both.output(submit, PYSPARK_PYTHON=sys.executable)
    assert re.search(rf"^{both.sent - before} messages ", printed, re.M), printed
    table = both.output(both.command("orders_by_tag.py"), PYSPARK_PYTHON=sys.executable)
    assert re.search(rf"\| *NULL\| *{both.sent}\|", table), table


def test_spark_submit_sends_a_package(both, packed):
    both.send(10)
    packages = len(both.spark.packages())
    submit = both.command(f"PYSPARK_PYTHON={package.python_name()} spark-submit --master {both.spark.url}")
    printed = both.output(submit)
    assert re.search(r"^10 messages ", printed, re.M), printed
    assert both.in_lake() == both.sent
    assert len(both.spark.packages()) == packages + 1
