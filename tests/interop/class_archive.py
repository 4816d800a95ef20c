"""An archive of the classes that Apache's broker loads (class data sharing).

A JVM that maps it neither reads nor verifies these classes, which saves a quarter of the CPU time
of a start. The archive belongs to a list of jars: a JVM uses it only if its class path begins with
them, and they have not changed. Otherwise it starts as without.
"""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.helpers.ports import free_base

_MAIN = "org.apache.rocketmq.broker.BrokerStartup"
_HOST = "127.0.0.1"
_START_S = 60.0
_STOP_S = 60.0


def write(path: Path, jars: str, options: Sequence[str]) -> None:
    """Start a broker that needs no name server, stop it, and so write the archive.

    `options` are those of the JVMs that will use it. Without an archive at the end (a JVM that
    cannot make one) they start more slowly.
    """
    port = free_base((-2, 0, 1))
    with tempfile.TemporaryDirectory(prefix="class-archive-") as home:
        settings = {
            "brokerName": "broker-a",
            "brokerIP1": _HOST,
            "listenPort": str(port),
            "namesrvAddr": f"{_HOST}:9",
            "storePathRootDir": "./store",
            "storePathCommitLog": "./store/commitlog",
            "mappedFileSizeCommitLog": str(1024 * 1024),
            "haListenPort": str(port + 1),
        }
        Path(home, "broker.conf").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = ["java", *options, f"-XX:ArchiveClassesAtExit={path}", "-Drocketmq.home.dir=.", f"-Duser.home={home}"]
        with subprocess.Popen(
            [*command, "-cp", jars, _MAIN, "-c", "broker.conf"],
            cwd=home,
            env={**os.environ, "NAMESRV_ADDR": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as broker:
            try:
                _await(broker, port)
                broker.terminate()
                broker.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                pass
            finally:
                broker.kill()


def _await(broker: "subprocess.Popen[bytes]", port: int) -> None:
    """Return when the broker accepts connections, or has ended. Raises TimeoutExpired."""
    end_s = time.monotonic() + _START_S
    while broker.poll() is None:
        try:
            socket.create_connection((_HOST, port)).close()
            return
        except OSError:
            if time.monotonic() > end_s:
                raise subprocess.TimeoutExpired(_MAIN, _START_S) from None
            time.sleep(0.1)
