"""Runs every file under `examples/` as a reader would; each must exit with 0.

A script runs against the session's cluster, named by NAMESRV_ADDR. A folder is a pytest project and
runs as one. Examples of Spark run in tests/spark/test_examples.py, in the session shared by all
tests of Spark. The first test fails for a file that belongs to none of these.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LIMIT_S = 90

OF_SPARK = sorted([*EXAMPLES.glob("spark_*.py"), *EXAMPLES.glob("lake_*.py")])
SCRIPTS = sorted(path for path in EXAMPLES.glob("*.py") if path not in OF_SPARK)
#: scripts that start their own cluster and break it, or wait for redeliveries, checks or timers
LONG = {EXAMPLES / name for name in ("demo.py", "pop_workers.py", "transaction.py", "order_timeout.py")}
PROJECTS = sorted(path for path in EXAMPLES.iterdir() if path.is_dir() and any(path.glob("test_*.py")))


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def test_every_example_is_run():
    scripts = [*SCRIPTS, *OF_SPARK]
    elsewhere = [*PROJECTS, EXAMPLES / "three_machines"]  # run by test_machines.py
    left = [path for path in files(EXAMPLES) if path not in scripts and not any(map(path.is_relative_to, elsewhere))]
    assert not left, f"nothing runs {left}"
    for project in PROJECTS:
        names = {
            path.stem for path in files(project) if path.suffix == ".py" and not path.stem.startswith(("test_", "conftest"))
        }
        tests = "".join(path.read_text() for path in project.glob("test_*.py"))
        unused = [name for name in names if f"from {name} import" not in tests and f"import {name}\n" not in tests]
        assert not unused, f"no test of {project.name} uses {unused}"


def run(command: list[str], env: dict[str, str]) -> None:
    """Run a command that must exit with 0. If it hangs, send Ctrl-C so that it stops its nodes."""
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        told, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            told, _ = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
            process.wait()
        pytest.fail(f"{command} did not end within {LIMIT_S} s:\n{told}")
    assert process.returncode == 0, f"{command} ended with {process.returncode}:\n{told}"


@pytest.mark.parametrize(
    "script",
    [pytest.param(path, marks=[pytest.mark.long] if path in LONG else []) for path in SCRIPTS],
    ids=lambda path: path.name,
)
def test_script(script, rmqkit_cluster, heeds_ctrl_c):
    rmqkit_cluster.put_right()
    run([sys.executable, "-W", "error", str(script)], rmqkit_cluster.env)


@pytest.mark.long
@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.name)
def test_project(project, rmqkit_cluster, heeds_ctrl_c):
    run([sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "-q", str(project)], rmqkit_cluster.env)
