"""An order service: payments that fail are tried again, what keeps failing is parked, looked at, and sent again.

    orders ──► payments ──► paid
                 │  a payment fails: the broker delivers the order again, later each time (its delay levels)
                 ▼
               %DLQ%payments ──► repairs: put right what was wrong, send the order again

    python examples/order_service.py                  with a cluster of its own, in a few seconds
    python examples/order_service.py HOST:PORT        against yours; with the usual delay levels this takes two minutes

A message may come more than once: after a rebalance, or when a consumer ends between its work and its commit. So payments
are kept by order number, and an order that is paid already is not paid again.
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
#: upstream's are 1s 5s 10s 30s 1m 2m ... 2h; a first retry waits for the third
SHORT_LEVELS = "1s 1s 1s 1s 1s 1s"


class Declined(Exception):
    """The bank says no."""


class Bank:
    """Charges cards: `shaky` ones at the second try, `expired` ones never."""

    def __init__(self) -> None:
        self.tries: Counter[str] = Counter()

    def charge(self, number: str, card: str) -> None:
        self.tries[number] += 1
        if card == "expired" or (card == "shaky" and self.tries[number] == 1):
            raise Declined(f"card of {number} is {card}")


class Payments:
    """Consumes orders and has them paid."""

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
        """False, or an exception, has the broker deliver the message again later."""
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
    """Reads the dead letters, puts right what was wrong, and sends the orders again."""

    def __init__(self, namesrv: str, producer: Producer) -> None:
        self.producer = producer
        self.repaired: list[str] = []
        self.consumer = PushConsumer(f"{PAYMENTS}-repairs", namesrv=namesrv, consume_from="first")
        # The topic is made by the first message that is given up; until then there is nothing to consume.
        self.consumer.subscribe(DEAD_LETTERS)
        self.consumer.listener(self.repair)

    def repair(self, message: MessageExt) -> None:
        order = json.loads(message.body)
        print(f"{order['number']}: given up, it stands in {message.queue.topic} now; the customer has a new card")
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
    # Every delivery of the expired card, and one of the new card.
    assert bank.tries["order-4"] == 1 + TRIES_AFTER_THE_FIRST + 1, bank.tries
    print(f"\n{len(good)} orders paid at once, {len(shaky)} at a later try, {len(set(repairs.repaired))} after a repair")


@contextlib.contextmanager
def own_cluster() -> Iterator[str]:
    """A cluster in a temporary folder whose delay levels are short; its name servers."""
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
