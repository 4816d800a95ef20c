"""The asyncio forms of the public classes."""

import asyncio

import pytest

from rmqkit import aio
from rmqkit.aio import Message
from rmqkit.errors import ClientClosed, ClientError, InvalidMessage, NoRoute


def run(flow):
    return asyncio.run(asyncio.wait_for(flow, 40))


def test_sends_administration_and_a_pull_consumer(own):
    topic, group = own.name("topic"), own.group()

    async def main():
        async with aio.Admin(own.namesrv) as admin, aio.Producer(namesrv=own.namesrv) as producer:
            await admin.create_topic(topic, queue_nums=2)
            results = await asyncio.gather(*(producer.send(Message(topic, b"%d" % i)) for i in range(50)))
            assert all(result.is_ok for result in results)
            assert (await producer.send_batch([Message(topic, b"b1"), Message(topic, b"b2")])).is_ok
            await producer.send_oneway(Message(topic, b"o"))
            await producer.flush()
            with pytest.raises(InvalidMessage):
                await producer.send(Message(topic, b""))
            with pytest.raises(NoRoute):
                await admin.queues(own.name("nope"))
            seen = []
            async with aio.PullConsumer(group, namesrv=own.namesrv, consume_from="first") as consumer:
                await consumer.subscribe(topic)
                async for message in consumer:
                    seen.append(message.body)
                    if len(seen) == 53:
                        break
            offsets = await admin.group_offsets(group, topic)
            assert sum(offsets.values()) == 53
        return seen

    seen = run(main())
    assert sorted(seen) == sorted([*(b"%d" % i for i in range(50)), b"b1", b"b2", b"o"])


def test_a_subscription_that_was_not_awaited_is_reported_as_that(own):
    topic = own.topic(queue_nums=1)
    says = f"not awaited: subscribe\\('{topic}'\\); in rmqkit.aio write `await consumer.subscribe"

    async def main():
        async with aio.PullConsumer(own.group(), namesrv=own.namesrv) as consumer:
            consumer.subscribe(topic)
            with pytest.raises(ClientError, match=says):
                await consumer.poll(10)
            consumer.subscribe(topic)
            with pytest.raises(ClientError, match=says):
                await anext(aiter(consumer))
            soon = asyncio.create_task(consumer.subscribe(topic))
            assert await consumer.poll(10) == []
            await soon
        async with aio.PullConsumer(namesrv=own.namesrv) as reader:
            reader.assign(await reader.queues(topic))
            with pytest.raises(ClientError, match="not awaited: assign"):
                await reader.poll(10)
        consumer = aio.PushConsumer(own.group(), namesrv=own.namesrv)
        consumer.subscribe(topic, "a")
        async with consumer:
            with pytest.raises(ClientError, match=says):
                await consumer.start(listener)
            await consumer.subscribe(topic, "a")
            await consumer.start(listener)

    async def listener(message):
        pass

    run(main())


def test_a_cancelled_poll_loses_nothing(own):
    topic = own.topic(queue_nums=1)

    async def main():
        async with (
            aio.Producer(namesrv=own.namesrv) as producer,
            aio.PullConsumer(own.group(), namesrv=own.namesrv, consume_from="first") as consumer,
        ):
            await consumer.assign(await consumer.queues(topic))
            seen = []
            for i in range(20):
                polling = asyncio.create_task(consumer.poll(30_000))
                await asyncio.sleep(0)
                await producer.send(Message(topic, b"%d" % i))
                polling.cancel()
                try:
                    seen += [message.body for message in await polling]
                except asyncio.CancelledError:
                    pass
            while len(seen) < 20:
                seen += [message.body for message in await consumer.poll(1000)]
            return seen

    seen = run(main())
    assert sorted(seen) == sorted(b"%d" % i for i in range(20))


def test_a_push_consumer_with_a_coroutine_as_its_listener(own):
    topic = own.topic()

    async def main():
        seen, failed = [], []
        done = asyncio.Event()
        consumer = aio.PushConsumer(own.group(), namesrv=own.namesrv, consume_from="first", retry_delay_ms=20)
        await consumer.subscribe(topic)

        @consumer.listener
        async def handle(message):
            await asyncio.sleep(0.001)
            if message.body == b"3" and not failed:
                failed.append(message)
                raise ZeroDivisionError
            seen.append(message.body)
            if len(seen) == 20:
                done.set()

        async with consumer, aio.Producer(namesrv=own.namesrv) as producer:
            for i in range(20):
                await producer.send(Message(topic, b"%d" % i))
            await done.wait()
        return seen, failed

    seen, failed = run(main())
    assert sorted(seen) == sorted(b"%d" % i for i in range(20))
    assert len(failed) == 1


def test_closing_is_final(own):
    async def main():
        producer = aio.Producer(namesrv=own.namesrv)
        await producer.close()
        await producer.close()
        with pytest.raises(ClientClosed):
            await producer.send(Message("T", b"x"))

    run(main())
