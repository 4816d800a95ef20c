"""Replay of a bad day: send the messages that a broken service lost again, from the lake.

Payments go through a topic into a ledger and, by `ingest`, into a lake. For a while the ledger is
broken: it consumes messages but books nothing. After the repair, the payments of that interval are
replayed to a separate topic.

- `replay` sends exactly the messages stored between two times. The payments of an account keep
  their order, since `order="queue"` keeps the order of each queue.
- Each message names its original (REPLAY_ID). The ledger uses it to book a payment only once, even
  if a task of the replay sends a message twice.

It uses the cluster that NAMESRV_ADDR names (default 127.0.0.1:9876) and needs rmqkit[spark].
"""

import os
import tempfile
import threading
import time

from rmqkit import Admin, Message, Producer, PushConsumer
from rmqkit.spark import session
from rmqkit.spark.pipelines import lake
from rmqkit.spark.pipelines.ingest import ingest
from rmqkit.spark.pipelines.replay import replay

TOPIC, AGAIN = "example-spark-payments", "example-spark-payments-again"
ACCOUNTS = [f"account-{number}" for number in range(4)]


class Ledger:
    """Books payments, each once per original message id; books nothing while `broken`."""

    def __init__(self):
        self.broken = False
        self.taken = 0
        self.booked = {}
        self._changed = threading.Condition()

    def take(self, message):
        with self._changed:
            self.taken += 1
            if not self.broken:
                of = message.properties.get("REPLAY_ID", message.msg_id)
                self.booked.setdefault(of, (message.properties["account"], int(message.body)))
            self._changed.notify_all()

    def wait_until(self, condition, what):
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), 60), what

    def payments(self, account):
        return [number for whose, number in self.booked.values() if whose == account]


def pay(producer, first, last):
    for number in range(first, last):
        account = ACCOUNTS[number % len(ACCOUNTS)]
        producer.send(Message(TOPIC, str(number), properties={"account": account}), ordering_key=account)


def consumer(ledger, topic):
    made = PushConsumer(f"example-ledger-of-{topic}", orderly=True, consume_from="last" if topic == TOPIC else "first")
    made.subscribe(topic)
    made.listener(ledger.take)
    return made


def main(spark, folder) -> None:
    with Admin() as admin:
        for topic in (TOPIC, AGAIN):
            admin.create_topic(topic, queue_nums=4)
    ledger = Ledger()
    with Producer(group="example-payers") as producer, consumer(ledger, TOPIC) as live:
        deadline = time.monotonic() + 30
        while not live.assignment and time.monotonic() < deadline:
            time.sleep(0.05)
        pay(producer, 0, 20)
        ledger.wait_until(lambda it: it.taken >= 20, "the first payments come")
        time.sleep(0.01)
        since, ledger.broken = lake.wall_ms(), True
        pay(producer, 20, 60)
        ledger.wait_until(lambda it: it.taken >= 60, "payments come and are not booked")
        time.sleep(0.01)
        until, ledger.broken = lake.wall_ms(), False
        pay(producer, 60, 80)
        ledger.wait_until(lambda it: it.taken >= 80, "the last payments come")
    print(f"{ledger.taken} payments taken, {len(ledger.booked)} booked")
    assert len(ledger.booked) == 40

    ingest(spark, TOPIC, folder)
    done = replay(spark, folder, AGAIN, since=since, until=until, topics=[TOPIC])
    print(f"{done.rows} messages of {done.queues} queues replayed")
    assert done.rows == 40

    before = ledger.taken
    with consumer(ledger, AGAIN):
        ledger.wait_until(lambda it: it.taken >= before + done.rows, "the replayed payments come")
    assert len(ledger.booked) == 80
    for account in ACCOUNTS:
        again = [number for number in ledger.payments(account) if 20 <= number < 60]
        assert again == sorted(again), f"{account}: {again}"
    print(f"{len(ledger.booked)} payments booked, in order per account")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(session("example"), os.path.join(temporary, "lake"))
