"""Compares how a slave with an empty store copies its master's log, in two checkouts.

    python -m tests.bench.slave_copy [--against CHECKOUT] [--megabytes 400] [--pairs 3]

The master and the slave are processes of the same checkout. The master gets messages of 1 KiB in 8
queues, and then the slave is started. Its log is its master's once the sizes of both agree (code
28), and it is readable once its queues end where its master's do. The times begin when the
slave listens.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rmqkit.wire import fastjson
from tests.bench.checkouts import BODY, QUEUES, Broker, Senders, compare
from tests.bench.inprocess import TOPIC
from tests.helpers.script import write_command
from tests.hostile.process import Good, read_answer

SETTINGS = ("mappedFileSizeCommitLog=1073741824", "haListenPort=0")
POLL_S = 0.01
TIMEOUT_S = 120.0
_RUNTIME_INFO, _MAX_OFFSET = 28, 30


def measure(megabytes: int, checkout: Path) -> tuple[float, ...]:
    """Return the copy's MB/s, the seconds until all is readable, and CPU ms per MB of both."""
    with tempfile.TemporaryDirectory(prefix="slave-copy-") as folder:
        master = Broker(checkout, Path(folder) / "master", (*SETTINGS, "brokerRole=ASYNC_MASTER"))
        try:
            senders = Senders(master.node, 256, 1, True)
            while senders.answered * len(BODY) < megabytes * 1e6:
                senders.run(0.1)
            senders.finish()
            return _copy(checkout, Path(folder) / "slave", master)
        finally:
            master.end()


def _copy(checkout: Path, folder: Path, master: Broker) -> tuple[float, ...]:
    ha = f"haMasterAddress=127.0.0.1:{master.node.ports['ha_port']}"
    end = log_end(Good(master.node))
    before_s = master.cpu_s()
    slave = Broker(checkout, folder, (*SETTINGS, "brokerRole=SLAVE", "brokerId=1", ha))
    try:
        began_s = time.monotonic()
        good, master_good = Good(slave.node), Good(master.node)
        until(lambda: log_end(good) == end)
        copied_s = time.monotonic() - began_s
        for queue_id in range(QUEUES):
            until(partial(_is_readable, good, queue_id, queue_end(master_good, queue_id)))
        readable_s = time.monotonic() - began_s
        size = end / 1e6
        return size / copied_s, readable_s, (master.cpu_s() - before_s) * 1e3 / size, slave.cpu_s() * 1e3 / size
    finally:
        slave.end()


def until(reached: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not reached():
        if time.monotonic() > deadline_s:
            raise TimeoutError("the slave does not catch up")
        time.sleep(POLL_S)


def log_end(good: Good) -> int:
    good.sock.sendall(write_command(_RUNTIME_INFO, {}, b""))
    _, body = read_answer(good.sock)
    return int(fastjson.loads(body)["table"]["commitLogMaxOffset"])


def _is_readable(good: Good, queue_id: int, end: int) -> bool:
    return queue_end(good, queue_id) == end


def queue_end(good: Good, queue_id: int) -> int:
    answer = good.ask(_MAX_OFFSET, {"topic": TOPIC, "queueId": str(queue_id)})
    return int(answer["extFields"]["offset"])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.slave_copy", description="A wiped slave's copy.")
    parser.add_argument("--against", type=Path, help="the other checkout; without it only this one is measured")
    parser.add_argument("--megabytes", type=int, default=400, help="bodies in the master's log (400)")
    parser.add_argument("--pairs", type=int, default=3)
    chosen = parser.parse_args(arguments)
    names = ("MB per second", "seconds until readable", "CPU of the master, ms per MB", "CPU of the slave, ms per MB")
    compare(partial(measure, chosen.megabytes), names, chosen.against, chosen.pairs)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
