"""The workload: what is sent, by whom, how often and to which queue. Pure: it follows from the plan's seed alone.

Writers are independent and synchronous: each waits for an answer before its next message. Writers with an even number
choose a queue of the broken group for each message, which is tried once; the others let the client choose and try
again, as programs do. Bodies are a message's key and noise; histories hold their checksums.

Two groups read from the begin: `pull` (one member, a PullConsumer) and `push` (two members in order, PushConsumers). A
third, `late` (a PullConsumer), comes when the fault has bitten and reads from the first message on: from a slave, if it
can. Times between two sends vary around the plan's rate, so that writers do not march in step.

Where a slave may act for its master (`Plan.acting`) there is more to take over:

- one writer more (`delayer`) sends delayed messages to queues of the broken group, in a topic of their own (`-delayed`), of
  levels up to `LEVEL_MAX_MS`; the group `delayed` (one PullConsumer) is given them.
- a group `ordered` (one PushConsumer) comes with the proof of the fault as `late` does, and consumes in order from the
  first message on: from who acts, with the locks of who acts.
- two lockers compete for the locks of the broken group's queues, as two members of a group of their own would: each asks
  for all queues that it has not, keeps what it got for a while, renews it, and gives it back (`lock_script`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from rmqkit.drill.plan import DEFAULT_LEVELS, Plan
from rmqkit.settings.broker_sections import delays_ms

PULL, PUSH, LATE, ORDERED = "pull", "push", "late", "ordered"
#: groups that come when the fault has bitten
LATECOMERS = (LATE, ORDERED)
#: those whose members hold locks
IN_ORDER = (PUSH, ORDERED)
PUSH_MEMBERS = 2

DELAYED = "delayed"
DELAYER = "delayer"
#: levels that take longer are not used
LEVEL_MAX_MS = 5_000

LOCK = "lock"
LOCKERS = 2
LEASE_MS = 60_000


class Order(NamedTuple):
    """One message to be sent. `queue` is -1 when the client chooses; `pause_ms` comes before it."""

    key: str
    body: bytes
    queue: int
    pause_ms: float
    #: 0: not delayed
    level: int = 0


class LockOrder(NamedTuple):
    """One step of a locker: after `pause_ms` ask for the locks of `queues`, and keep what is granted for `hold_ms`."""

    pause_ms: int
    queues: tuple[int, ...]
    hold_ms: int


def levels_ms(plan: Plan) -> dict[int, int]:
    """The delay levels that are used, level → ms: none that outlasts the fault, unless every one does."""
    every = dict(enumerate(delays_ms(plan.word("messageDelayLevel", DEFAULT_LEVELS)), 1))
    most_ms = min(LEVEL_MAX_MS, max(plan.fault_ms, min(every.values())))
    return {level: delay_ms for level, delay_ms in every.items() if delay_ms <= most_ms}


def delay_script(plan: Plan) -> Iterator[Order]:
    """What the delayer sends, without end; nothing when every level takes too long."""
    levels = sorted(levels_ms(plan))
    chance = random.Random(f"{plan.seed}/delayer")
    mean_ms = 1000 / plan.delay_rate
    count = 0
    while levels:
        key = f"d-{count:06d}"
        level, queue = chance.choice(levels), chance.randrange(plan.queues)
        yield Order(key, key.encode(), queue, mean_ms * chance.uniform(0.5, 1.5), level)
        count += 1


def lock_script(plan: Plan, number: int) -> Iterator[LockOrder]:
    """What locker `number` does, without end."""
    chance = random.Random(f"{plan.seed}/locker/{number}")
    every = tuple(range(plan.queues))
    while True:
        yield LockOrder(chance.randrange(50, 150), every, chance.randrange(300, 1_200))


def locker_name(number: int) -> str:
    return f"locker-{number}"


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
