"""An order service: failed payments are retried, then repaired from the dead-letter topic.

    orders ──► payments ──► paid
                 │  a payment fails: the broker redelivers the order, later each time
                 ▼
               %DLQ%payments ──► repairs: correct the order and send it again

    python examples/order_service.py             starts its own cluster, takes a few seconds
    python examples/order_service.py HOST:PORT   uses yours; two minutes with the usual delay levels

A message may be delivered more than once: after a rebalance, or when a consumer stops between its
work and its commit. Therefore payments are stored by order number, and a paid order is not paid
again.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rmqkit import Message, MessageExt, Producer, PushConsumer

ORDERS = "shop-orders"
PAYMENTS = "shop-payments"
DEAD_LETTERS = f"%DLQ%{PAYMENTS}"
TRIES_AFTER_THE_FIRST = 2
#: Apache's default is 1s 5s 10s 30s 1m 2m ... 2h; the first retry uses the third level
SHORT_LEVELS = "1s 1s 1s 1s 1s 1s"


class Declined(Exception):
    """Raised when the bank declines a payment."""


class Bank:
    """Charges cards: a `shaky` card fails at the first try, an `expired` one always."""

    def __init__(self) -> None:
        self.tries: Counter[str] = Counter()

    def charge(self, number: str, card: str) -> None:
        self.tries[number] += 1
        if card == "expired" or (card == "shaky" and self.tries[number] == 1):
            raise Declined(f"card of {number} is {card}")


class Payments:
    """Consumes orders and charges their cards."""

    def __init__(self, namesrv: str, bank: Bank) -> None:
        self.bank = bank
        #: order number → amount; a real service has a table with a unique key
        self.paid: dict[str, int] = {}
        self.changed = threading.Condition()
        self.consumer = PushConsumer(
            PAYMENTS, namesrv=namesrv, consume_from="first", max_reconsume_times=TRIES_AFTER_THE_FIRST
        )
        self.consumer.subscribe(ORDERS, "created || repaired")
        self.consumer.listener(self.pay)

    def pay(self, message: MessageExt) -> bool:
        """Pay an order; if it returns False or raises, the broker redelivers the message later."""
        order = json.loads(message.body)
        number = order["number"]
        if number in self.paid:
            print(f"{number}: paid already")
            return True
        try:
            self.bank.charge(number, order["card"])
        except Declined as declined:
            print(f"{number}: {declined}, try {message.reconsume_times + 1}")
            return False
        with self.changed:
            self.paid[number] = order["amount"]
            self.changed.notify_all()
        print(f"{number}: paid at try {message.reconsume_times + 1}")
        return True

    def wait_for(self, numbers: list[str], timeout_s: float) -> None:
        with self.changed:
            done = self.changed.wait_for(lambda: set(numbers) <= set(self.paid), timeout_s)
        assert done, f"not paid in time: {sorted(set(numbers) - set(self.paid))}"


class Repairs:
    """Consumes the dead letters, corrects the orders and sends them again."""

    def __init__(self, namesrv: str, producer: Producer) -> None:
        self.producer = producer
        self.repaired: list[str] = []
        self.consumer = PushConsumer(f"{PAYMENTS}-repairs", namesrv=namesrv, consume_from="first")
        # The broker creates this topic with the first dead letter. Subscribing earlier is fine.
        self.consumer.subscribe(DEAD_LETTERS)
        self.consumer.listener(self.repair)

    def repair(self, message: MessageExt) -> None:
        order = json.loads(message.body)
        print(f"{order['number']}: moved to {message.queue.topic} after its last retry; the customer has a new card")
        again = json.dumps({**order, "card": "good"})
        # The same key: `rmqkit message query shop-orders --key ORDER` shows both.
        self.producer.send(Message(ORDERS, again, keys=message.keys, tags="repaired"))
        self.repaired.append(order["number"])


def main(namesrv: str, timeout_s: float) -> None:
    cards = {"order-1": "good", "order-2": "shaky", "order-3": "good", "order-4": "expired", "order-5": "shaky"}
    bank = Bank()
    with Producer("shop", namesrv=namesrv) as producer:
        for number, card in cards.items():
            order = json.dumps({"number": number, "card": card, "amount": 100})
            result = producer.send(Message(ORDERS, order, keys=number, tags="created"))
            print(f"{number}: {result.status}, id {result.msg_id}")
        payments, repairs = Payments(namesrv, bank), Repairs(namesrv, producer)
        with payments.consumer, repairs.consumer:
            payments.wait_for(list(cards), timeout_s)

    good = [number for number, card in cards.items() if card == "good"]
    shaky = [number for number, card in cards.items() if card == "shaky"]
    assert payments.paid == dict.fromkeys(cards, 100), payments.paid
    assert all(bank.tries[number] == 1 for number in good)
    assert all(bank.tries[number] == 2 for number in shaky)
    assert set(repairs.repaired) == {"order-4"}
    # One try per delivery with the expired card, and one with the new card.
    assert bank.tries["order-4"] == 1 + TRIES_AFTER_THE_FIRST + 1, bank.tries
    print(f"\n{len(good)} orders paid at once, {len(shaky)} at a later try, {len(set(repairs.repaired))} after a repair")


@contextlib.contextmanager
def own_cluster() -> Iterator[str]:
    """Start a cluster with short delay levels in a temporary folder; yield its name servers."""
    rmqkit = str(Path(sys.executable).with_name("rmqkit"))
    with tempfile.TemporaryDirectory(prefix="orders-") as home:
        env = {**os.environ, "RMQKIT_HOME": home}
        up = [rmqkit, "cluster", "up", "orders", "--any-port", "--set", f"messageDelayLevel={SHORT_LEVELS}", "--json"]
        status = subprocess.run(up, env=env, check=True, stdout=subprocess.PIPE, text=True)
        try:
            yield json.loads(status.stdout)["namesrv"]
        finally:
            subprocess.run([rmqkit, "cluster", "down", "orders", "--purge"], env=env, check=True)


if __name__ == "__main__":
    began_s = time.monotonic()
    if len(sys.argv) > 1:
        main(sys.argv[1], timeout_s=300)
    else:
        with own_cluster() as address:
            main(address, timeout_s=30)
    print(f"in {time.monotonic() - began_s:.1f} s")
