"""Requests and replies against real brokers.

There are two broker groups, so a reply may go through another broker than its request.
"""

import asyncio

import pytest

from rmqkit import Message, aio
from rmqkit.errors import ClientClosed, ClientError, InvalidMessage, RequestTimeout
from tests.api.until import until


def answering(own, topic, answer):
    """A consumer that replies through its own producer."""
    replier = own.producer(group=own.name("replier"), instance_name=own.name("replier"))
    consumer = own.push_consumer(own.group(), consume_from="first", instance_name=own.name("answering"))
    consumer.subscribe(topic)

    def handle(message):
        body = answer(message)
        if body is not None:
            replier.send(message.reply(body))

    consumer.start(handle)
    until(lambda: consumer.assignment)
    return consumer


def test_requests_are_answered(own):
    topic = own.topic()
    answering(own, topic, lambda message: message.body.upper())
    producer = own.producer()
    reply = producer.request(Message(topic, "first"), timeout_ms=15_000)
    assert reply.body == b"FIRST"
    futures = [producer.request_async(Message(topic, b"%d" % i), timeout_ms=15_000) for i in range(20)]
    assert [future.result().body for future in futures] == [b"%d" % i for i in range(20)]
    big = "long " * 10_000
    assert producer.request(Message(topic, big), timeout_ms=15_000).body == big.upper().encode()


def test_the_face_for_asyncio(own):
    topic = own.topic()
    answering(own, topic, lambda message: b"re: " + message.body)

    async def main():
        async with aio.Producer(namesrv=own.namesrv) as producer:
            replies = await asyncio.gather(
                *(producer.request(Message(topic, b"%d" % i), timeout_ms=15_000) for i in range(5))
            )
            return [reply.body for reply in replies]

    assert asyncio.run(asyncio.wait_for(main(), 40)) == [b"re: %d" % i for i in range(5)]


def test_a_request_without_a_reply_times_out(own):
    topic = own.topic()
    producer = own.producer()
    with pytest.raises(RequestTimeout, match="no reply came within 300 ms"):
        producer.request(Message(topic, b"anybody?"), timeout_ms=300)
    assert producer.send(Message(topic, b"x")).is_ok


def test_a_producer_that_closes_waits_for_nobody(own):
    topic = own.topic()
    producer = own.producer()
    future = producer.request_async(Message(topic, b"anybody?"), timeout_ms=60_000)
    producer.close()
    with pytest.raises(ClientClosed):
        future.result(10)
    with pytest.raises(ClientClosed):
        producer.request(Message(topic, b"anybody?"))


def test_a_request_that_cannot_be(own):
    topic = own.topic()
    producer = own.producer()
    with pytest.raises(InvalidMessage):
        producer.request(Message(topic, b""))
    with pytest.raises(InvalidMessage, match="does not belong to topic"):
        producer.request(Message("other", b"x"), producer.queues(topic)[0])
    caught = []

    def in_the_io_thread(future):
        try:
            producer.request(Message(topic, b"x"))
        except ClientError as error:
            caught.append(str(error))

    # Delay the reply, so that the callback is added before the future ends.
    producer.request_async(Message(topic, b"x"), timeout_ms=300).add_done_callback(in_the_io_thread)
    until(lambda: caught)
    assert "use request_async()" in caught[0]
