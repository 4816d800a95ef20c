"""PullConsumer against real brokers: what Java's DefaultLitePullConsumer does.

Source: `client/.../consumer/DefaultLitePullConsumer.java`.
"""

import asyncio

import pytest

import rmqkit
from rmqkit import LitePullConsumer, Message, PullConsumer, aio
from rmqkit.errors import ClientError, NoRoute
from tests.api.until import until


@pytest.fixture
def topic(own):
    """Four queues at each of two brokers, ten messages in total."""
    name = own.topic(queue_nums=4)
    producer = own.producer()
    for number in range(10):
        producer.send(Message(name, b"%d" % number, tags="even" if number % 2 == 0 else "odd"))
    return name


def drain(consumer, count):
    found = []
    until(lambda: found.extend(consumer.poll(200)) or len(found) >= count)
    return sorted(message.body for message in found)


def test_it_has_java_s_name():
    assert LitePullConsumer is PullConsumer is rmqkit.LitePullConsumer


def test_on_change_gets_all_queues_and_the_own_share(own, topic):
    told = []
    first = own.pull_consumer(consume_from="first")
    first.subscribe(topic, on_change=lambda *change: told.append(change))
    assert len(drain(first, 10)) == 10
    assert told[0][0] == topic
    assert told[-1][1] == told[-1][2] == first.assignment
    assert len(told[-1][1]) == 8
    second = own.pull_consumer(first.group, instance_name="second")
    second.subscribe(topic)
    until(lambda: first.poll(50) or len(first.assignment) == 4)
    until(lambda: first.poll(50) or len(told[-1][2]) == 4)
    assert told[-1] == (topic, sorted(first.queues(topic)), first.assignment)


def test_a_listener_may_seek(own, topic):
    consumer = own.pull_consumer(consume_from="last")

    def rewind(_topic, _queues, mine):
        for queue in mine:
            consumer.seek_to_begin(queue)

    consumer.subscribe(topic, on_change=rewind)
    assert len(drain(consumer, 10)) == 10


def test_unsubscribing_stops_reading_and_keeps_what_is_done(own, topic):
    other = own.topic("other", queue_nums=1)
    consumer = own.pull_consumer(consume_from="first")
    consumer.subscribe(topic)
    consumer.subscribe(other)
    assert len(drain(consumer, 10)) == 10
    consumer.poll(0)
    consumer.unsubscribe(topic)
    until(lambda: {queue.topic for queue in consumer.assignment} == {other})
    until(lambda: sum(offset or 0 for offset in own.admin.group_offsets(consumer.group, topic).values()) == 10)
    own.producer().send(Message(topic, b"unwanted"))
    own.producer().send(Message(other, b"wanted"))
    assert drain(consumer, 1) == [b"wanted"]
    consumer.unsubscribe("never-subscribed")


def test_queues_that_are_assigned_may_be_filtered(own, topic):
    consumer = own.closes(PullConsumer(namesrv=own.namesrv))
    consumer.assign(consumer.queues(topic), "even")
    for queue in consumer.assignment:
        consumer.seek_to_begin(queue)
    assert drain(consumer, 5) == [b"0", b"2", b"4", b"6", b"8"]


def test_a_listener_of_a_topic_gets_its_new_queues(own):
    topic = own.topic(queue_nums=1)
    told = []
    consumer = own.closes(PullConsumer(namesrv=own.namesrv))
    consumer.watch_queues(topic, lambda name, queues: told.append((name, len(queues))))
    consumer.assign(consumer.queues(topic))
    own.admin.create_topic(topic, queue_nums=3)
    # The client checks routes every 30 s; `queues` checks now.
    until(lambda: len(consumer.queues(topic)) == 6 and (consumer.poll(10) or told))
    assert told == [(topic, 6)]
    consumer.unwatch_queues(topic)
    own.admin.create_topic(topic, queue_nums=4)
    until(lambda: len(consumer.queues(topic)) == 8)
    consumer.poll(10)
    assert told == [(topic, 6)]
    with pytest.raises(NoRoute):
        consumer.watch_queues(own.name("nowhere"), lambda name, queues: None)


def test_some_queues_are_committed_and_others_not(own, topic):
    consumer = own.pull_consumer(consume_from="first", auto_commit=False)
    consumer.assign(consumer.queues(topic))
    assert len(drain(consumer, 10)) == 10
    one, *others = [queue for queue in consumer.assignment if consumer.position(queue)]
    consumer.commit([one])
    assert consumer.committed(one) == consumer.position(one)
    # A broker returns 0 for a queue whose first message it still has.
    assert not any(consumer.committed(queue) for queue in others)
    consumer.commit({others[0]: 1})
    assert consumer.committed(others[0]) == 1
    with pytest.raises(ClientError, match="not assigned"):
        consumer.commit([one._replace(queue_id=99)])


def test_the_same_for_asyncio(own, topic):
    async def run():
        told = []
        async with aio.PullConsumer(own.group("aio"), namesrv=own.namesrv, consume_from="first") as consumer:
            await consumer.subscribe(topic, on_change=lambda *change: told.append(change))
            found = []
            async for message in consumer:
                found.append(message.body)
                if len(found) == 10:
                    break
            await consumer.unsubscribe(topic)
            return told

    assert asyncio.run(run())[-1][0] == topic


def test_wrong_arguments_of_an_admin_raise_where_they_are_given(own):
    with pytest.raises(TypeError, match="queues"):
        own.admin.create_topic("t", queues=4)
    assert own.admin.topics()

    async def run():
        async with aio.Admin(own.namesrv) as admin:
            with pytest.raises(TypeError):
                await admin.create_topic()
            return await admin.topics()

    assert asyncio.run(run())
