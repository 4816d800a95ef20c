"""An order that is cancelled after a while unless it is paid: a timer that a payment recalls.

    order ──► database: open ──► message to `cancellations`, delivered after the time to pay
    payment ──► database: paid ──► recall of that message
    the message arrives ──► database: cancelled, if the order is still open

The recall saves work. What is right is decided in the database, by one statement that changes an
order only while it is open. So it does no harm if a recall comes too late, if the message is
delivered twice, or if the program is killed between two steps.

    python examples/order_timeout.py             uses the cluster that NAMESRV_ADDR names
    python examples/order_timeout.py HOST:PORT   uses yours; it needs recallMessageEnable=true
"""

import os
import sqlite3
import sys
import threading
import time

from rmqkit import Admin, Message, MessageExt, Producer, PushConsumer
from rmqkit.errors import BrokerError

#: A shop would say 30 minutes. A broker's timers are precise to 1 s: this one may end after 2 s.
TIME_TO_PAY_MS = 3_000


class Orders:
    """The database: the state of each order, and the handle that takes its timer back."""

    def __init__(self) -> None:
        # The listener runs in another thread than the shop.
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._guard = threading.Lock()
        self._database.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT, timer TEXT)")

    def open(self, number: str, timer: str) -> None:
        with self._guard, self._database:
            self._database.execute("INSERT INTO orders VALUES (?, 'open', ?)", (number, timer))

    def end(self, number: str, state: str) -> bool:
        """Move an open order to `state`. Return False if it is not open any more."""
        with self._guard, self._database:
            update = "UPDATE orders SET state = ? WHERE id = ? AND state = 'open'"
            return self._database.execute(update, (state, number)).rowcount == 1

    def state(self, number: str) -> str:
        return self._column("state", number)

    def timer(self, number: str) -> str:
        return self._column("timer", number)

    def _column(self, name: str, number: str) -> str:
        with self._guard:
            (value,) = self._database.execute(f"SELECT {name} FROM orders WHERE id = ?", (number,)).fetchone()
        return str(value)

    def close(self) -> None:
        self._database.close()


class Shop:
    """Takes orders and payments."""

    def __init__(self, orders: Orders, producer: Producer, topic: str) -> None:
        self._orders = orders
        self._producer = producer
        self._topic = topic

    def order(self, number: str) -> None:
        timer = self._producer.send(Message(self._topic, number, keys=number, delay_ms=TIME_TO_PAY_MS))
        assert timer.recall_handle is not None
        self._orders.open(number, timer.recall_handle)
        print(f"{number}: open, to be paid within {TIME_TO_PAY_MS / 1000:g} s", flush=True)

    def pay(self, number: str, *, recall: bool = True) -> None:
        if not self._orders.end(number, "paid"):
            print(f"{number}: too late to pay, it is {self._orders.state(number)}", flush=True)
            return
        print(f"{number}: paid", flush=True)
        if recall:
            try:
                self._producer.recall(self._orders.timer(number))
            except BrokerError:
                print(f"{number}: too late to recall its timer, which will find it paid", flush=True)


def main(namesrv: str) -> None:
    topic = f"cancellations-{os.getpid()}"
    orders = Orders()
    delivered: list[str] = []
    with Admin(namesrv) as admin:
        admin.create_topic(topic, queue_nums=1)

    consumer = PushConsumer(f"cancellers-{os.getpid()}", namesrv=namesrv, consume_from="first")
    consumer.subscribe(topic)

    @consumer.listener
    def cancel(message: MessageExt) -> None:
        number = message.body.decode()
        ended = "cancelled" if orders.end(number, "cancelled") else f"nothing to cancel, it is {orders.state(number)}"
        print(f"{number}: its time is over; {ended}", flush=True)
        delivered.append(number)

    with Producer("shop", namesrv=namesrv) as producer, consumer:
        shop = Shop(orders, producer, topic)
        shop.order("order-1")
        shop.pay("order-1")  # in time: its timer is recalled, and never delivered
        shop.order("order-2")
        shop.order("order-3")
        shop.pay("order-3", recall=False)  # as if the program were killed before the recall
        until_s = time.monotonic() + 30
        while not {"order-2", "order-3"} <= set(delivered):
            assert time.monotonic() < until_s, f"only {delivered} were delivered"
            time.sleep(0.05)
        shop.pay("order-2")  # too late
    states = {number: orders.state(number) for number in ("order-1", "order-2", "order-3")}
    orders.close()
    assert states == {"order-1": "paid", "order-2": "cancelled", "order-3": "paid"}, states
    assert "order-1" not in delivered, "it was recalled"
    print(f"\n{', '.join(f'{number} is {state}' for number, state in states.items())}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))
