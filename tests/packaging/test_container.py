"""The scripts of the container image, run on this machine: start, health, stop.

Building the image itself needs a builder.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.helpers.ports import free_base

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tools" / "container"
BIN = Path(sys.executable).parent


@pytest.fixture
def environment(tmp_path):
    path = f"{BIN}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "RMQKIT_HOME": str(tmp_path / "home")}


@pytest.mark.long
def test_the_first_process_starts_a_cluster_and_stops_it_on_sigterm(environment):
    base = free_base(range(-2, 22))
    command = [SCRIPTS / "cluster.sh", "--replicas", "1", "--base-port", str(base)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        try:
            for line in first.stdout:
                if "rmqkit cluster status" in line:
                    break
            assert run("health.sh", environment) == 0
            pids = pids_of(environment)
            assert len(pids) == 2
            subprocess.run(["rmqkit", "cluster", "kill", "ns-0"], env=environment, check=True, stdout=subprocess.DEVNULL)
            assert run("health.sh", environment) != 0
            first.send_signal(signal.SIGTERM)
            assert first.wait(60) == 0
            assert not any(is_running(pid) for pid in pids)
        finally:
            subprocess.run(["rmqkit", "cluster", "down"], env=environment, stdout=subprocess.DEVNULL)
            first.kill()


def test_a_single_node_is_healthy_while_its_port_accepts(environment):
    port = free_base([0])
    environment = {**environment, "RMQKIT_PORT": str(port)}
    assert run("health.sh", environment) != 0
    command = ["rmqkit", "nameserver", "run", "--set", f"listenPort={port}"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as node:
        assert node.stderr is not None
        next(line for line in node.stderr if str(port) in line)
        assert run("health.sh", environment) == 0
        node.terminate()
        node.stderr.read()


def test_the_image_names_files_that_exist():
    text = (ROOT / "Containerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source


@pytest.mark.skipif(not shutil.which("docker") and not shutil.which("podman"), reason="no builder of images")
def test_the_image_builds():
    builder = "podman" if shutil.which("podman") else "docker"
    if subprocess.run([builder, "info"], capture_output=True).returncode != 0:
        pytest.skip(f"{builder} has no engine here")
    subprocess.run([builder, "build", "-f", "Containerfile", "-t", "rmqkit-test", "."], cwd=ROOT, check=True)


def run(script: str, environment: dict[str, str]) -> int:
    return subprocess.run([SCRIPTS / script], env=environment, capture_output=True).returncode


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pids_of(environment: dict[str, str]) -> list[int]:
    shown = subprocess.run(["rmqkit", "cluster", "status", "--json"], env=environment, capture_output=True, text=True)
    return [int(pid) for pid in re.findall(r'"pid": ?(\d+)', shown.stdout)]
