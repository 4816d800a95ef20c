"""The program under test: consumes paid orders and sends an invoice for each."""

from rmqkit import Message, Producer, PushConsumer


class Billing:
    def __init__(self, *, namesrv: str, group: str, orders: str, invoices: str) -> None:
        self.invoices = invoices
        self.producer = Producer(group=f"{group}-out", namesrv=namesrv)
        self.consumer = PushConsumer(group, namesrv=namesrv, consume_from="first")
        self.consumer.subscribe(orders, "paid")

    def start(self) -> None:
        self.consumer.start(self.bill)

    def bill(self, order) -> None:
        # If this raises, the broker redelivers the order later.
        self.producer.send(Message(self.invoices, b"invoice for " + order.body, keys=order.keys))

    def close(self) -> None:
        self.consumer.close()
        self.producer.close()
