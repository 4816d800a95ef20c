"""The workload: which message each client sends when, and to which queue, by the plan's seed.

Writers are independent and synchronous: each waits for an answer before its next message. Writers
with an even number choose a queue of the broken group for each message and try once. Writers with
an odd number let the client choose the queue and retry, as user programs do. A body is the key of
the message followed by noise; histories hold checksums of bodies. The time between two sends varies
around the plan's rate, so writers do not run in step.

Two groups read from the start: `pull` (one PullConsumer) and `push` (two ordered PushConsumers). A
third group, `late` (a PullConsumer), joins after the proof of the fault and reads from the first
message on: from a slave, if it can.

If a slave may act for its master (`Plan.acting`), there is more to take over:

- One more writer (`delayer`) sends delayed messages to queues of the broken group, in a topic of
  their own (`-delayed`), with levels of up to `LEVEL_MAX_MS`. The group `delayed` (one
  PullConsumer) reads them.
- The group `ordered` (one PushConsumer) joins as `late` does, and consumes in order from the first
  message on: from the acting slave, with its locks.
- Two lockers compete for the locks of the broken group's queues, as two members of a group of their
  own. Each asks for all queues that it does not hold, keeps the granted ones for a while, renews
  them, and releases them (`lock_script`).
"""

import random
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from rmqkit.drill.plan import Plan
from rmqkit.settings.broker_sections import DEFAULT_DELAY_LEVELS, delays_ms

PULL, PUSH, LATE, ORDERED = "pull", "push", "late", "ordered"
#: groups that join after the proof of the fault
LATECOMERS = (LATE, ORDERED)
#: groups that consume in order, so their members hold locks
IN_ORDER = (PUSH, ORDERED)
PUSH_MEMBERS = 2

DELAYED = "delayed"
DELAYER = "delayer"
#: levels with a longer delay are not used
LEVEL_MAX_MS = 5_000

LOCK = "lock"
LOCKERS = 2
LEASE_MS = 60_000


class Order(NamedTuple):
    """One message to send, after `pause_ms`. `queue` is -1 when the client chooses."""

    key: str
    body: bytes
    queue: int
    pause_ms: float
    #: 0: not delayed
    level: int = 0


class LockOrder(NamedTuple):
    """One step of a locker.

    After `pause_ms`, ask for the locks of `queues`, and keep the granted ones for `hold_ms`.
    """

    pause_ms: int
    queues: tuple[int, ...]
    hold_ms: int


def levels_ms(plan: Plan) -> dict[int, int]:
    """Return the delay levels in use: level → delay in ms.

    Levels whose delay exceeds `LEVEL_MAX_MS` or the length of the fault are left out. The shortest
    level stays if it is within `LEVEL_MAX_MS`.
    """
    every = dict(enumerate(delays_ms(plan.word("messageDelayLevel", DEFAULT_DELAY_LEVELS)), 1))
    most_ms = min(LEVEL_MAX_MS, max(plan.fault_ms, min(every.values())))
    return {level: delay_ms for level, delay_ms in every.items() if delay_ms <= most_ms}


def delay_script(plan: Plan) -> Iterator[Order]:
    """Yield the messages of the delayer, endlessly; none if every level exceeds `LEVEL_MAX_MS`."""
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
    """Yield the steps of locker `number`, endlessly."""
    chance = random.Random(f"{plan.seed}/locker/{number}")
    every = tuple(range(plan.queues))
    while True:
        yield LockOrder(chance.randrange(50, 150), every, chance.randrange(300, 1_200))


def locker_name(number: int) -> str:
    return f"locker-{number}"


def writer_name(number: int) -> str:
    return f"writer-{number}"


def script(plan: Plan, number: int) -> Iterator[Order]:
    """Yield the messages of writer `number`, endlessly; the same plan yields the same ones."""
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
    """Return the checksum that represents a body in histories."""
    return f"{crc32(body):08x}"
