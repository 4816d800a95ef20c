"""Python processes of Spark are forked from a server that has their imports done."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from pyspark import daemon

from rmqkit.spark import sessions
from rmqkit.spark.forks import fork_server

#: The server of a test. It may run modules named `forked_*`; its arguments name what it imports.
PROGRAM = """
import os, sys
from rmqkit.spark.forks import fork_server

fork_server.SERVED = "forked_"
if sys.argv[2:]:
    fork_server.IMPORTED = tuple(sys.argv[2:])
fork_server.main()
"""
REPORT = """
import json, os, sys

print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("NAMED"), os.getppid(), sys.stdin.read()]), flush=True)
sys.exit(7)
"""
LOOK = """
import os, sys
from rmqkit.spark.forks.fork_server import IMPORTED

threads = os.listdir(f"/proc/{os.getppid()}/task")
print(len(threads), set(IMPORTED) <= set(sys.modules), os.getppid())
"""
SLEEP = """
import time

print("sleeping", flush=True)
time.sleep(600)
"""


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server that imports little, and the program that stands in for Python."""
    (tmp_path / "forked_report.py").write_text(REPORT)
    (tmp_path / "forked_sleep.py").write_text(SLEEP)
    launcher = tmp_path / "serve.py"
    launcher.write_text(PROGRAM)
    monkeypatch.setattr(fork_server, "COMMAND", (str(launcher),))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(sessions.__file__).parents[2]), str(tmp_path)]))
    program, process = fork_server.start()
    yield SimpleNamespace(program=program, process=process)
    process.stdin.close()
    shutil.rmtree(program.parent, ignore_errors=True)


def ask(program, *words, **popen):
    return subprocess.Popen([program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **popen)


def test_a_process_is_what_a_python_would_be(server, tmp_path):
    """Arguments, environment, folder, streams and exit code are those of the client."""
    with ask(server.program, "-m", "forked_report", "one", cwd=tmp_path, env={**os.environ, "NAMED": "x"}) as client:
        printed, _errors = client.communicate("typed")
    assert json.loads(printed) == [["one"], str(tmp_path), "x", server.process.pid, "typed"]
    assert client.returncode == 7


@pytest.mark.parametrize("changed", [{"OMP_NUM_THREADS": "3"}, {"LD_PRELOAD": ""}])
def test_a_variable_that_imports_read_needs_a_python_of_its_own(server, changed):
    with ask(server.program, "-m", "forked_report", env={**os.environ, **changed}) as client:
        printed, _errors = client.communicate("")
    assert json.loads(printed)[3] == os.getpid()
    assert client.returncode == 7


def test_other_programs_get_a_python_of_their_own(server):
    with ask(server.program, "-c", "import os; print(os.getppid())") as client:
        assert client.communicate()[0] == f"{os.getpid()}\n"


def test_without_a_server_a_python_starts(server):
    os.kill(server.process.pid, signal.SIGKILL)
    os.waitpid(server.process.pid, 0)
    with ask(server.program, "-m", "forked_report") as client:
        printed, _errors = client.communicate("")
    assert json.loads(printed)[3] == os.getpid()


def test_a_terminated_client_takes_its_process_along(server):
    with ask(server.program, "-m", "forked_sleep") as client:
        assert client.stdout.readline() == "sleeping\n"
        client.terminate()
        assert client.wait() == -signal.SIGTERM
        assert client.stdout.read() == ""  # the process has closed its end too


def test_the_server_ends_after_its_processes_and_removes_its_folder(server):
    with ask(server.program, "-m", "forked_report") as client:
        server.process.stdin.close()
        printed, _errors = client.communicate("late")
    assert json.loads(printed)[4] == "late"
    os.waitpid(server.process.pid, 0)
    assert not server.program.parent.exists()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts the threads that Linux shows")
def test_imports_of_tasks_leave_one_thread(tmp_path):
    (tmp_path / "pyspark_look.py").write_text(LOOK)
    given = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(tmp_path)])}
    program, process = fork_server.start()
    with ask(program, "-m", "pyspark_look", env=given) as client:
        printed, _errors = client.communicate()
    process.stdin.close()
    assert printed == f"1 True {process.pid}\n"


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_a_worker_without_a_jvm_ends_without_a_traceback(monkeypatch, error):
    def fail(sock, authenticated):
        raise error

    monkeypatch.setattr(daemon, "worker", fail)
    codes = []

    def serve():
        one, other = socket.socketpair()
        with one, other:
            codes.append(daemon.worker(one, True))

    monkeypatch.setattr(daemon, "manager", serve)
    fork_server.serve_workers()
    assert codes == [1]


def test_paths_of_spark_itself_are_left_out():
    zips = ["/s/python/lib/pyspark.zip", "/s/python/lib/py4j-0.10.9.9-src.zip", "/s/jars/spark-core_2.13-4.3.0.jar"]
    assert fork_server.missing_paths(":".join([*zips, "/mine", "/there", "/mine", ""]), ["/there"]) == ["/mine"]


@pytest.mark.long
def test_workers_are_forked_from_it(spark):
    """Only with a local master: a cluster may run workers without rmqkit."""
    from pyspark.sql.functions import udf

    assert sessions._forking_python() is not None
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    there = udf(lambda _number: "rmqkit.spark.forks.fork_server" in sys.modules["__main__"].__spec__.name, "boolean")
    assert {row[0] for row in spark.range(4).select(there("id")).collect()} == {True}
