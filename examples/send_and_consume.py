"""Send ten messages, then consume them with a consumer group.

It uses the cluster that NAMESRV_ADDR names (default 127.0.0.1:9876).
"""

import threading

from rmqkit import Message, Producer, PushConsumer

TOPIC = "example-orders"
COUNT = 10


def main() -> None:
    seen: list[str] = []
    done = threading.Event()

    with Producer(group="example-producer") as producer:
        for number in range(COUNT):
            # Messages with the same ordering key go to the same queue, in order.
            message = Message(TOPIC, f"order {number}".encode(), tags="created", keys=f"order-{number}")
            result = producer.send(message, ordering_key=f"customer-{number % 3}")
            print(f"{result.status.name}: {result.msg_id} in queue {result.queue.queue_id} at {result.queue_offset}")

    consumer = PushConsumer("example-consumer", consume_from="first")
    consumer.subscribe(TOPIC, "created")

    @consumer.listener
    def handle(message):
        # If the listener raises or returns False, the broker redelivers the message later.
        seen.append(message.body.decode())
        print(f"queue {message.queue_id} offset {message.queue_offset}: {message.body.decode()}")
        if len(seen) >= COUNT:
            done.set()

    with consumer:
        assert done.wait(30), f"only {len(seen)} of {COUNT} messages came"
    assert sorted(seen) == sorted(f"order {number}" for number in range(COUNT))
    print(f"{len(seen)} messages consumed")


if __name__ == "__main__":
    main()
