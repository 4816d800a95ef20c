"""What is pending at a takeover, and the clients that work on it; the same for both makes.

Everything is sent to the group whose master will fail. The clients ask the name server for the
head of the group before each request, as a client with a fresh route does.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from rmqkit import Admin, Message, MessageExt, MessageQueue, Producer, TransactionProducer, TransactionState
from rmqkit.errors import RmqkitError
from rmqkit.wire.bodies.pop import ReceiptHandle, real_topic
from rmqkit.wire.record import iter_records
from tests.interop import apache
from tests.interop.acting import BROKEN, COPY_S, OTHER, QUEUES, ActingCluster
from tests.interop.until import until

TIMERS, TRANSACTIONS, POPPED, PROGRESS = "takeover_timers", "takeover_halves", "takeover_popped", "takeover_progress"
ALL_TOPICS = (TIMERS, TRANSACTIONS, POPPED, PROGRESS)
GROUP = "takeover_group"
#: time in ms for which a popped message is invisible; it ends during the outage
INVISIBLE_MS = 10_000
#: messages of each queue whose offsets are committed, sent in a few batches
COMMITS_MAX, _PARTS = 2000, 4
_OFFSET, _COMMIT, _POP, _ACK = 14, 15, 200050, 200051
_ANSWER_S = 1.0


def prepare(cluster: ActingCluster) -> None:
    """Create the topics on both groups; return once the slave knows them."""
    with Admin(cluster.namesrv) as admin:
        for topic in ALL_TOPICS:
            admin.create_topic(topic, queue_nums=QUEUES)
        admin.create_group(GROUP)
    for topic in ALL_TOPICS:
        until(f"a route of {topic}", lambda topic=topic: len(cluster.route(topic)) == 2)
        until(f"the slave knows {topic}", lambda topic=topic: cluster.slave_knows(topic), deadline_s=COPY_S)


def queue_of(topic: str, number: int) -> MessageQueue:
    return MessageQueue(topic, BROKEN, number % QUEUES)


def head(cluster: ActingCluster) -> str:
    """Return the address that the route names as master of the broken group, or ""."""
    try:
        return cluster.route(PROGRESS).get(BROKEN, (0, {}))[1].get(0, "")
    except (OSError, ValueError, KeyError):
        return ""


def copies(members: Iterable[Any], topic: str) -> Counter[str]:
    """Return how often each body is readable in the topic, at these brokers together."""
    found: Counter[str] = Counter()
    for member in members:
        for queue_id in range(QUEUES):
            found.update(record.body.decode() for record in member.queue(topic, queue_id).records.values())
    return found


def send_all(namesrv: str, messages: Iterable[Message]) -> list[str]:
    """Send to the broken group; return the bodies that were acknowledged."""
    acknowledged = []
    with Producer("takeover", namesrv=namesrv, send_msg_timeout_ms=5000) as producer:
        for number, message in enumerate(messages):
            if producer.send(message, queue=queue_of(message.topic, number)).is_ok:
                acknowledged.append(message.body.decode())
    return acknowledged


class Halves:
    """Half messages without an outcome. The producer answers checks once `decide` is called."""

    def __init__(self, namesrv: str, count: int) -> None:
        self._decided = threading.Event()
        self.asked = 0
        self._producer = TransactionProducer(
            "takeover_transactions", check=self._check, namesrv=namesrv, send_msg_timeout_ms=5000, topics=[TRANSACTIONS]
        )
        self.committed: list[str] = []
        self.rolled_back: list[str] = []
        for number in range(count):
            body = f"{'commit' if number % 2 else 'rollback'} {number}"
            self._producer.send_in_transaction(
                Message(TRANSACTIONS, body),
                lambda message, _: TransactionState.UNKNOWN,
                queue=queue_of(TRANSACTIONS, number),
            )
            (self.committed if number % 2 else self.rolled_back).append(body)

    def decide(self) -> None:
        self._decided.set()

    def _check(self, message: MessageExt) -> TransactionState:
        self.asked += 1
        if not self._decided.is_set():
            return TransactionState.UNKNOWN
        return TransactionState.COMMIT if message.body.startswith(b"commit") else TransactionState.ROLLBACK

    def close(self) -> None:
        self._producer.close()


class _Worker:
    """A thread that repeats a step until it is closed. Errors of requests are part of an outage."""

    def __init__(self, step: Callable[[], None], pause_s: float) -> None:
        self._ended = threading.Event()

        def run() -> None:
            while not self._ended.wait(pause_s):
                try:
                    step()
                except (OSError, ValueError, KeyError, RmqkitError):
                    pass

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


class Progress:
    """Commits growing offsets of a group, and notes what a new head of the group lacks.

    The queues have more messages than are committed: a broker may limit offsets to a queue's end.
    """

    def __init__(self, cluster: ActingCluster) -> None:
        self._cluster = cluster
        with Producer("takeover", namesrv=cluster.namesrv, send_msg_timeout_ms=5000) as producer:
            batch = [Message(PROGRESS, b"consumed") for _ in range(COMMITS_MAX // _PARTS)]
            for number in range(QUEUES * _PARTS):
                producer.send_batch(batch, queue=queue_of(PROGRESS, number))
        self._head = head(cluster)
        self.committed = dict.fromkeys(range(QUEUES), 0)
        #: for each change of the head: its new address, and how many messages its offsets went back
        self.went_back: list[tuple[str, int]] = []
        self._worker = _Worker(self._step, 0.1)
        self.close = self._worker.close

    def _step(self) -> None:
        address = head(self._cluster)
        if not address:
            return
        if address != self._head:
            lacking = sum(max(0, offset - self._known(address, queue_id)) for queue_id, offset in self.committed.items())
            self.went_back.append((address, lacking))
            self._head = address
        for queue_id in range(QUEUES):
            offset = min(self.committed[queue_id] + 1, COMMITS_MAX)
            answer = apache.ask(address, _COMMIT, {**_place(queue_id), "commitOffset": str(offset)}, timeout_s=_ANSWER_S)
            if answer["code"] == 0:
                self.committed[queue_id] = offset

    def _known(self, address: str, queue_id: int) -> int:
        fields = {**_place(queue_id), "setZeroIfNotFound": "false"}
        answer = apache.ask(address, _OFFSET, fields, timeout_s=_ANSWER_S)
        return int(answer["extFields"]["offset"]) if answer["code"] == 0 else 0


def _place(queue_id: int) -> dict[str, str]:
    return {"consumerGroup": GROUP, "topic": PROGRESS, "queueId": str(queue_id)}


class Pops:
    """Pops and acks at the heads of both groups."""

    def __init__(self, cluster: ActingCluster) -> None:
        self._cluster = cluster
        #: body -> times of its deliveries, and the time of its first confirmed ack (`monotonic`)
        self.given: dict[str, list[float]] = {}
        self.acked: dict[str, float] = {}
        self._worker: _Worker | None = None

    def start(self) -> None:
        self._worker = _Worker(self._step, 0.05)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()

    def _step(self) -> None:
        for address, name in ((head(self._cluster), BROKEN), (self._cluster.other.address, OTHER)):
            if address:
                try:
                    self.pop(address, name)
                except OSError:
                    pass  # the broker is away; the other one is asked nevertheless

    def pop(self, address: str, name: str, *, ack: bool = True, count: int = 16, timeout_s: float = _ANSWER_S) -> int:
        """Pop once; return the number of messages. Raises OSError."""
        fields = {
            "consumerGroup": GROUP,
            "topic": POPPED,
            "queueId": "-1",
            "maxMsgNums": str(count),
            "invisibleTime": str(INVISIBLE_MS),
            "pollTime": "0",
            "bornTime": str(time.time_ns() // 1_000_000),
            "initMode": "0",
            "expType": "TAG",
            "exp": "*",
        }
        header, body = apache.ask_whole(address, _POP, fields, timeout_s=timeout_s)
        if header["code"] != 0:
            return 0
        bodies = [record.body.decode() for record in iter_records(body)]
        now_s = time.monotonic()
        for each in bodies:
            self.given.setdefault(each, []).append(now_s)
        if ack and self._ack_all(address, handles(header["extFields"], name)):
            for each in bodies:
                self.acked.setdefault(each, time.monotonic())
        return len(bodies)

    def _ack_all(self, address: str, given: Iterable[ReceiptHandle]) -> bool:
        """Ack each message; return whether all acks were confirmed."""
        answers = [self._ack(address, handle) for handle in given]
        return all(answers)

    def _ack(self, address: str, handle: ReceiptHandle) -> bool:
        fields = {
            "consumerGroup": GROUP,
            "topic": real_topic(POPPED, GROUP, handle.flag),
            "queueId": str(handle.queue_id),
            "extraInfo": handle.encode(),
            "offset": str(handle.offset),
        }
        return bool(apache.ask(address, _ACK, fields, timeout_s=_ANSWER_S)["code"] == 0)

    def given_after_ack(self) -> int:
        """Return how many messages were redelivered after their ack was confirmed."""
        return sum(any(at > self.acked[body] for at in times) for body, times in self.given.items() if body in self.acked)

    def given_since(self, bodies: Iterable[str], since_s: float) -> int:
        """Return how many of these messages were given after a time."""
        return sum(any(at > since_s for at in self.given.get(body, ())) for body in bodies)


def handles(head_fields: dict[str, str], broker_name: str) -> list[ReceiptHandle]:
    """Return a handle for each message of the answer to a pop (`ExtraInfoUtil`)."""
    starts = {}
    for part in filter(None, head_fields.get("startOffsetInfo", "").split(";")):
        flag, queue_id, start = part.split(" ")
        starts[flag, queue_id] = int(start)
    found = []
    for part in filter(None, head_fields.get("msgOffsetInfo", "").split(";")):
        flag, queue_id, offsets = part.split(" ")
        for offset in offsets.split(","):
            found.append(
                ReceiptHandle(
                    starts[flag, queue_id],
                    int(head_fields["popTime"]),
                    int(head_fields["invisibleTime"]),
                    int(head_fields["reviveQid"]),
                    flag,
                    broker_name,
                    int(queue_id),
                    int(offset),
                )
            )
    return found
