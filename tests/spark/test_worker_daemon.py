"""The process that forks Python workers has their imports done, and has one thread."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from rmqkit.spark import sessions, worker_daemon

PROGRAM = """
import os, sys
from pyspark import daemon
from rmqkit.spark import worker_daemon

daemon.manager = lambda: print(len(os.listdir("/proc/self/task")), set(worker_daemon.IMPORTED) <= set(sys.modules))
worker_daemon.main()
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts the threads that Linux shows")
def test_it_has_the_imports_of_tasks_and_one_thread():
    """Spark sets OMP_NUM_THREADS to the cores of a task."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.stdout == "1 True\n", done.stderr


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_a_worker_without_a_jvm_ends_without_a_traceback(monkeypatch, error):
    def fail(sock, authenticated):
        raise error

    monkeypatch.setattr(worker_daemon, "_serve", fail)
    one, other = socket.socketpair()
    with one, other:
        assert worker_daemon.serve_task(one, True) == 1


def test_only_local_masters_use_it(monkeypatch):
    """A cluster may run workers without rmqkit, for instance for other queries of the session."""
    monkeypatch.delenv(sessions.GATEWAY, raising=False)
    assert sessions._settings("local[2]", {})[worker_daemon.MODULE_KEY] == worker_daemon.__name__
    assert worker_daemon.MODULE_KEY not in sessions._settings("spark://host:7077", {})
    given = {worker_daemon.MODULE_KEY: "pyspark.daemon"}
    assert sessions._settings(None, given)[worker_daemon.MODULE_KEY] == "pyspark.daemon"


@pytest.mark.long
def test_workers_are_forked_from_it(spark):
    from pyspark.sql.functions import udf

    there = udf(lambda _number: "rmqkit.spark.worker_daemon" in sys.modules["__main__"].__spec__.name, "boolean")
    assert {row[0] for row in spark.range(4).select(there("id")).collect()} == {True}
