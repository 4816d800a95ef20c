"""asyncio: send 100 messages concurrently, then read them with a pull consumer."""

import asyncio

from rmqkit import Message
from rmqkit.aio import Producer, PullConsumer

TOPIC = "example-aio"
COUNT = 100


async def main() -> None:
    async with Producer(group="example-aio-producer") as producer:
        results = await asyncio.gather(*(producer.send(Message(TOPIC, f"m{i}".encode())) for i in range(COUNT)))
    print(f"{len(results)} sends acknowledged")

    bodies: set[bytes] = set()
    async with PullConsumer("example-aio-consumer", consume_from="first") as consumer:
        await consumer.subscribe(TOPIC)
        while len(bodies) < COUNT:
            bodies.update(message.body for message in await consumer.poll(timeout_ms=5000))
        await consumer.commit()
    print(f"{len(bodies)} messages read back")
    assert bodies == {f"m{i}".encode() for i in range(COUNT)}


if __name__ == "__main__":
    asyncio.run(main())
