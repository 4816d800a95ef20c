"""Ordered consumption: the steps of each order arrive in order, even if a consumer leaves midway.

- The producer sends all steps of an order with the same `ordering_key`, so they are in one queue.
- The consumers are `orderly`. A broker locks each queue for one member of the group at a time. The
  member passes the next step to the listener only after the listener has returned.
- A member that leaves unlocks its queues after its last step is committed. The other members
  continue from there.

It uses the cluster that NAMESRV_ADDR names (default 127.0.0.1:9876).
"""

import threading
import time

from rmqkit import Admin, Message, Producer, PushConsumer

TOPIC = "example-order-steps"
GROUP = "example-shipping"
ORDERS = [f"order-{number}" for number in range(6)]
STEPS = ["created", "paid", "packed", "shipped", "delivered"] * 4


class Warehouse:
    """Records the steps of each order in the sequence in which its consumers receive them."""

    def __init__(self) -> None:
        self.steps: dict[str, list[int]] = {order: [] for order in ORDERS}
        self.worked: dict[str, int] = {}
        self._lock = threading.Lock()

    def consumer(self, name: str) -> PushConsumer:
        # Two members of a group in the same process need different instance names.
        consumer = PushConsumer(GROUP, orderly=True, consume_from="first", instance_name=name)
        consumer.subscribe(TOPIC)

        @consumer.listener
        def handle(message):
            order = message.keys
            number = int(message.properties["step"])
            with self._lock:
                self.worked[name] = self.worked.get(name, 0) + 1
                seen = self.steps[order]
                # After a crash a step may be redelivered, but a step never arrives before its
                # predecessor.
                if number not in seen:
                    assert number == len(seen), f"{order}: step {number} came after {seen}"
                    seen.append(number)

        return consumer

    @property
    def count(self) -> int:
        return sum(map(len, self.steps.values()))


def send_steps(producer: Producer, first: int, last: int) -> None:
    """Send steps `first` to `last` - 1 of every order, alternating between orders."""
    for number in range(first, last):
        for order in ORDERS:
            message = Message(TOPIC, STEPS[number], keys=order, properties={"step": str(number)})
            producer.send(message, ordering_key=order)


def wait_until(condition, what: str, limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def main() -> None:
    with Admin() as admin:
        admin.create_topic(TOPIC, queue_nums=4)

    warehouse = Warehouse()
    half, whole = len(STEPS) // 2, len(STEPS)
    with Producer(group="example-shop") as producer:
        one, two = warehouse.consumer("one"), warehouse.consumer("two")
        with two:
            with one:
                wait_until(lambda: one.assignment and two.assignment, "both members get queues")
                send_steps(producer, 0, half)
                wait_until(lambda: all(warehouse.worked.get(name) for name in ("one", "two")), "both members work")
            print(f"member one leaves after {warehouse.worked['one']} steps; {warehouse.count} are done")
            send_steps(producer, half, whole)
            everything = len(ORDERS) * whole
            wait_until(lambda: warehouse.count == everything, f"only {warehouse.count} of {everything} steps came")

    for order, steps in warehouse.steps.items():
        assert steps == list(range(whole)), f"{order}: {steps}"
    print(f"{len(ORDERS)} orders of {whole} steps each, all in order; steps per member: {warehouse.worked}")


if __name__ == "__main__":
    main()
