"""The last reading of a real cluster.

It reads every queue from every replica by the replica's own address, the offsets of the groups, and
the bytes of the commit logs.

Logs are compared file by file, in pieces of `PIECE_SIZE` bytes, up to the end that all replicas of
a group have. By then the nodes no longer write, and what they wrote is in the page cache, where
this process can read it.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from rmqkit.cluster.health.readiness import Target
from rmqkit.drill.history import FAIL, History
from rmqkit.drill.real.node_client import SILENT, NodeClient, key_of
from rmqkit.drill.real.watch import ClusterWatch, look
from rmqkit.drill.workload import checksum

READ_S = 20.0
PIECE_SIZE = 64 * 1024
#: limit for replicas to agree on the groups' offsets once nothing changes any more
AGREE_S = 5.0
AGREE_PAUSE_S = 0.2

Now = Callable[[], int]


def read_queues(
    history: History, now_ms: Now, targets: Sequence[Target], masters: Collection[str], topic: str, queues: int
) -> None:
    """Record a `read` row for each message of each replica, and an `end` row per queue.

    `masters` are the nodes that are masters now.
    """
    for target in targets:
        for queue in range(queues):
            begun_ms = now_ms()
            plan = target.plan
            role = "master" if plan.node in masters else "slave"
            try:
                with NodeClient(target.host, target.port, READ_S) as asked:
                    offset_min, end = asked.offsets(topic, queue)
                    for record in asked.read(topic, queue, offset_min, end):
                        history.add(
                            "read",
                            client=plan.node,
                            key=key_of(record),
                            value=checksum(record.body),
                            invoke_ms=begun_ms,
                            complete_ms=now_ms(),
                            broker=plan.broker_name,
                            queue=queue,
                            offset=record.queue_offset,
                            phy_offset=record.phy_offset,
                        )
                more: dict[str, Any] = {"offset": end, "offset_min": offset_min}
            except SILENT as error:
                more = {"outcome": FAIL, "error": str(error)}
            history.add(
                "end",
                client=plan.node,
                invoke_ms=begun_ms,
                complete_ms=now_ms(),
                broker=plan.broker_name,
                queue=queue,
                role=role,
                **more,
            )


def read_offsets(watch: ClusterWatch, targets: Sequence[Target]) -> None:
    """Poll each broker for the last time.

    First wait until the replicas hold the same offsets, for at most `AGREE_S`.
    """
    until_s = time.monotonic() + AGREE_S
    while time.monotonic() < until_s and not _agree(watch, targets):
        time.sleep(AGREE_PAUSE_S)
    for target in targets:
        begun_ms = watch.now_ms()
        try:
            with NodeClient(target.host, target.port, READ_S) as asked:
                look(watch, asked, target, final=True)
        except SILENT as error:
            watch.history.add(
                "node",
                client=target.plan.node,
                invoke_ms=begun_ms,
                complete_ms=watch.now_ms(),
                outcome=FAIL,
                broker=target.plan.broker_name,
                error=str(error),
                final=True,
            )


def _agree(watch: ClusterWatch, targets: Sequence[Target]) -> bool:
    held: dict[tuple[str, str, int], set[int | None]] = {}
    try:
        for target in targets:
            with NodeClient(target.host, target.port, READ_S) as asked:
                for group in watch.groups:
                    for queue in range(watch.queues):
                        place = (target.plan.broker_name, group, queue)
                        held.setdefault(place, set()).add(asked.committed(group, watch.topic, queue))
    except SILENT:
        return True  # waiting longer would not make it answer
    return all(len(offsets) == 1 for offsets in held.values())


def read_logs(
    history: History,
    now_ms: Now,
    stores: Sequence[tuple[Target, Path]],
    masters: Collection[str],
    ends: dict[str, int],
) -> None:
    """Record a `log` row for each piece of each replica's log.

    `masters` are the nodes that are masters now. `ends` maps each node to the end of its log, as
    the node reports it.
    """
    for broker in dict.fromkeys(target.plan.broker_name for target, _ in stores):
        members = [(target, store) for target, store in stores if target.plan.broker_name == broker]
        if len(members) < 2:
            continue
        end = min((ends[target.plan.node] for target, _ in members if target.plan.node in ends), default=0)
        for target, store in members:
            begun_ms = now_ms()
            common: dict[str, Any] = {"client": target.plan.node, "broker": broker, "invoke_ms": begun_ms}
            role = "master" if target.plan.node in masters else "slave"
            try:
                for offset, size, value in pieces(store / "commitlog", end):
                    history.add("log", value=value, offset=offset, role=role, size=size, **common)
            except OSError as error:
                history.add("log", outcome=FAIL, role=role, error=str(error), size=0, **common)


def pieces(folder: Path, end: int) -> Iterator[tuple[int, int, str]]:
    """Yield (offset, size, checksum) of the pieces of a log up to `end`. Raises OSError."""
    for path in sorted(path for path in folder.iterdir() if path.name.isdigit()):
        start = int(path.name)
        with open(path, "rb") as log:
            stop = min(end, start + path.stat().st_size)
            for offset in range(start, stop, PIECE_SIZE):
                data = log.read(min(PIECE_SIZE, stop - offset))
                yield offset, len(data), f"{crc32(data):08x}"
