"""The workload: what is sent, by whom, how often and to which queue. Pure: it follows from the plan's seed alone.

Writers are independent and synchronous: each waits for an answer before its next message. Writers with an even number
choose a queue of the broken group for each message, which is tried once; the others let the client choose and try
again, as programs do. Bodies are a message's key and noise; histories hold their checksums.

Two groups read from the begin: `pull` (one member, a PullConsumer) and `push` (two members in order, PushConsumers). A
third, `late` (a PullConsumer), comes when the fault has bitten and reads from the first message on: from a slave, if it
can. Times between two sends vary around the plan's rate, so that writers do not march in step.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from rmqkit.drill.plan import Plan

PULL, PUSH, LATE = "pull", "push", "late"
PUSH_MEMBERS = 2


class Order(NamedTuple):
    """One message to be sent. `queue` is -1 when the client chooses; `pause_ms` comes before it."""

    key: str
    body: bytes
    queue: int
    pause_ms: float


def writer_name(number: int) -> str:
    return f"writer-{number}"


def script(plan: Plan, number: int) -> Iterator[Order]:
    """What writer `number` sends, without end. The same for the same plan."""
    chance = random.Random(f"{plan.seed}/writer/{number}")
    mean_ms = 1000 / plan.rate
    count = 0
    while True:
        key = f"w{number}-{count:06d}"
        queue = chance.randrange(plan.queues) if number % 2 == 0 else -1
        noise = chance.randbytes(max(0, plan.body_size - len(key) - 1)).hex().encode()
        body = (key.encode() + b" " + noise)[: max(plan.body_size, len(key))]
        yield Order(key, body, queue, mean_ms * chance.uniform(0.5, 1.5))
        count += 1


def checksum(body: bytes) -> str:
    """What stands for a body in histories."""
    return f"{crc32(body):08x}"
