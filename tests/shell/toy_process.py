"""A process that runs one toy node, for tests of `run_nodes`.

`python -m tests.shell.toy_process KIND FOLDER …` prints "ready PORT" on stdout and logs to
`FOLDER/log`. KIND chooses how the node behaves.
"""

import argparse
import resource
import sys
import time
from collections.abc import Mapping, Sequence

from rmqkit.config import NetworkLimits
from rmqkit.errors import CannotStart, RmqkitError
from rmqkit.runtime.connection import Connection
from rmqkit.runtime.node import BaseNode
from rmqkit.runtime.ports import Ports
from rmqkit.shell.log import LogSink
from rmqkit.shell.node_host import Listen, NodeSpec, ReadyNode
from rmqkit.shell.run import run_nodes


class Echo(BaseNode):
    def received(self, conn: Connection, data: bytes) -> None:
        self.doing = "echo"
        self.outbox.send(conn, data)

    def stop(self) -> None:
        """Stop once a last file is durable, like a store."""
        self.ports.log.info("asked to stop")
        self.ports.disk.replace("last", b"words", self._saved)

    def _saved(self, error: OSError | None) -> None:
        self.stopped = True


class Stubborn(Echo):
    def stop(self) -> None:
        self.ports.log.info("asked to stop")


class Broken(Echo):
    def received(self, conn: Connection, data: bytes) -> None:
        self.ports.log.info("got", size=len(data))
        self.doing = "breaking"
        raise AssertionError("an invariant")


class Refusing(Echo):
    def start(self) -> None:
        raise RmqkitError("the store is damaged; restore it from a backup")


class Refusinglater(Echo):
    """Fails in a duty, like a store in its recovery."""

    def start(self) -> None:
        self.duties.add("recovery", self._recover, self.clock.mono_ms)

    def _recover(self, now_ms: int) -> None:
        raise CannotStart("the store cannot be recovered; look at the disk")


class Starting(Echo):
    """Takes 300 ms to start."""

    def start(self) -> None:
        self.ports.log.info("starting")
        time.sleep(0.3)


class Locking(Echo):
    def start(self) -> None:
        try:
            self.ports.disk.lock("lock", b"lock")
        except BlockingIOError as error:
            raise RmqkitError("the folder is in use by another process") from error


class Slow(Echo):
    """Takes 250 ms in its handler for b"handler", in a duty for other data."""

    def received(self, conn: Connection, data: bytes) -> None:
        self.doing = "a long request"
        if data == b"handler":
            time.sleep(0.25)
        else:
            self.duties.add("quick", lambda now_ms: None, self.clock.mono_ms)
            self.duties.add("long", self._long, self.clock.mono_ms)
            self.duties.add("quick too", lambda now_ms: None, self.clock.mono_ms)
        self.outbox.send(conn, data)

    def _long(self, now_ms: int) -> None:
        time.sleep(0.25)


KINDS = {kind.__name__.lower(): kind for kind in (Echo, Stubborn, Broken, Refusing, Refusinglater, Starting, Locking, Slow)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--lifeline", type=int)
    parser.add_argument("--grace-ms", type=int, default=30_000)
    parser.add_argument("--descriptors", type=int)
    parser.add_argument("--descriptors-later", type=int)
    parser.add_argument("--connections-max", type=int, default=10_000)
    parser.add_argument("--stderr", action="store_true")
    parser.add_argument("--drill", action="store_true")
    told = parser.parse_args()
    if told.descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (told.descriptors, told.descriptors))

    def make(ports: Ports, numbers: Mapping[str, int]) -> BaseNode:
        return KINDS[told.kind]("toy", ports)

    def ready(started: Sequence[ReadyNode]) -> None:
        if told.descriptors_later:
            resource.setrlimit(resource.RLIMIT_NOFILE, (told.descriptors_later, told.descriptors_later))
        print("ready", started[0].ports["toy"], flush=True)

    return run_nodes(
        [
            NodeSpec(
                "toy",
                f"{told.folder}/store",
                make,
                [Listen("toy", "127.0.0.1", told.port)],
                told.folder if told.drill else None,
            )
        ],
        sink=LogSink(None if told.stderr else f"{told.folder}/log"),
        limits=NetworkLimits(connections_max=told.connections_max),
        lifeline_fd=told.lifeline,
        grace_ms=told.grace_ms,
        ready=ready,
    )


if __name__ == "__main__":
    sys.exit(main())
