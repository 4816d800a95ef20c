"""Scripts of the services' clients: timers, transactions, and members that pop, by the plan's seed.

Timers. One writer (`timer-writer`) sends messages that are due 1 to 5 s later to queues of the
broken group, half of them with a time and half with a delay. It recalls one in `RECALLS_ONE_IN`
soon after it was acknowledged.

Transactions. `TRANSACTION_MEMBERS` producers of one group send half messages to queues of the
broken group. A half is sent once; a repeated send would be another transaction. `decision` is what
the group's record of transactions says. It follows from the seed, so every member gives the same
answer to a check, also for a half that its producer does not know to be stored. What the local
transaction says (`local`):

    commit, rollback   the decision; it is sent at once
    unknown            nothing is known yet, so the broker has to ask
    dies               the producer ends after the half and before the outcome, and starts again
                       `DEAD_MS` later; the broker has to ask another member

Pop. `POP_MEMBERS` members of one group pop the topic of the plain messages, at all its brokers. A
member works on a batch, then acks it message by message. It forgets some messages on their first
delivery (`is_acked`), and in a step with `dies` it forgets the batch and is away for `DEAD_MS`.
Forgotten messages return when their invisible time ends.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from rmqkit.drill.plan import Plan

#: parts of the names of topics and groups (`RecordedLoad.group`)
TIMER, TRANSACTION = "timers", "transactions"

TIMER_WRITER = "timer-writer"
#: the reader of timers, and of committed messages
TIMER_READER, TRANSACTION_READER = "timer-reader", "transaction-reader"
DELAYS_MS = (1_000, 5_000)
RECALLS_ONE_IN = 5
#: a recall is asked for at least this long before the timer is due
RECALL_MARGIN_MS = 600

TRANSACTION_MEMBERS = 2
COMMIT, ROLLBACK, ASK_LATER, DIES = "commit", "rollback", "unknown", "dies"
#: how often a local transaction says what, in parts of the sum
LOCALS = {COMMIT: 9, ROLLBACK: 4, ASK_LATER: 3, DIES: 2}
#: share of transactions that commit if the broker has to ask
COMMITS = 0.7
DEAD_MS = 1_500

POP_MEMBERS = 2
INVISIBLE_MS = (1_500, 4_000)
#: most messages of a pop
BATCHES = (1, 4, 16)
WORK_MS = (0, 200)
#: one in this many messages is forgotten on its first delivery
FORGETS_ONE_IN = 8
#: share of the steps in which a member dies
POP_DIES = 0.02


class TimerOrder(NamedTuple):
    """A timer to send after `pause_ms`."""

    key: str
    body: bytes
    queue: int
    pause_ms: float
    delay_ms: int
    #: send the due time itself, not the delay
    is_absolute: bool
    #: recall it this long after it was acknowledged; 0: not
    recall_after_ms: int


class TransactionOrder(NamedTuple):
    """A transaction to begin after `pause_ms`; the head of this module describes the words."""

    key: str
    body: bytes
    queue: int
    pause_ms: float
    local: str
    decision: str


class PopOrder(NamedTuple):
    """One pop, after `pause_ms`. The batch is acked after `work_ms`, unless the member dies."""

    pause_ms: int
    batch: int
    invisible_ms: int
    work_ms: int
    dies: bool


def timer_script(plan: Plan) -> Iterator[TimerOrder]:
    """Yield the timers, endlessly."""
    chance = random.Random(f"{plan.seed}/timers")
    mean_ms = 1000 / plan.timer_rate
    count = 0
    while True:
        key = f"t-{count:06d}"
        delay_ms = chance.randrange(DELAYS_MS[0], DELAYS_MS[1] + 1, 100)
        recall_ms = chance.randint(1, max(1, delay_ms - RECALL_MARGIN_MS) // 2)
        is_recalled = chance.randrange(RECALLS_ONE_IN) == 0
        queue, pause_ms = chance.randrange(plan.queues), mean_ms * chance.uniform(0.5, 1.5)
        is_absolute = chance.random() < 0.5
        yield TimerOrder(key, key.encode(), queue, pause_ms, delay_ms, is_absolute, recall_ms if is_recalled else 0)
        count += 1


def transaction_script(plan: Plan, number: int) -> Iterator[TransactionOrder]:
    """Yield the transactions of producer `number`, endlessly."""
    chance = random.Random(f"{plan.seed}/transactions/{number}")
    mean_ms = 1000 * TRANSACTION_MEMBERS / plan.transaction_rate
    count = 0
    while True:
        key = f"x{number}-{count:06d}"
        local = chance.choices(list(LOCALS), list(LOCALS.values()))[0]
        decision = decision_of(plan, key) if local in (ASK_LATER, DIES) else local
        queue, pause_ms = chance.randrange(plan.queues), mean_ms * chance.uniform(0.5, 1.5)
        yield TransactionOrder(key, f"{key} {decision}".encode(), queue, pause_ms, local, decision)
        count += 1


def decision_of(plan: Plan, key: str) -> str:
    """Return the decision about a transaction of which the local transaction said nothing."""
    return COMMIT if random.Random(f"{plan.seed}/decision/{key}").random() < COMMITS else ROLLBACK


def decision_in(body: bytes) -> str:
    """Return the decision in the group's record: the body of the half stands for it."""
    return ROLLBACK if body.endswith(ROLLBACK.encode()) else COMMIT


def pop_script(plan: Plan, number: int) -> Iterator[PopOrder]:
    """Yield the pops of member `number`, endlessly."""
    chance = random.Random(f"{plan.seed}/pop/{number}")
    while True:
        yield PopOrder(
            pause_ms=chance.randrange(20, 200),
            batch=chance.choice(BATCHES),
            invisible_ms=chance.randrange(INVISIBLE_MS[0], INVISIBLE_MS[1] + 1, 100),
            work_ms=chance.randint(*WORK_MS),
            dies=chance.random() < POP_DIES,
        )


def is_acked(key: str, attempt: int) -> bool:
    """Return whether a member acks this delivery. `attempt` is 0 for the first one."""
    return attempt > 0 or crc32(key.encode()) % FORGETS_ONE_IN != 0


def transaction_member(number: int) -> str:
    return f"transactor-{number}"


def popper(number: int) -> str:
    return f"popper-{number}"
