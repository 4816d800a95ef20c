"""Consumers in pop mode against real brokers: what their settings allow, and what becomes of
messages.
"""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from rmqkit import Message, PushConsumer, aio
from rmqkit.errors import ClientError
from rmqkit.wire.trace import TraceType
from tests.api.test_consumers import Heard, fill
from tests.api.test_trace import records_of
from tests.api.until import until


def popping(own, topic, heard, **settings):
    consumer = own.push_consumer(mode="pop", consume_from="first", **settings)
    consumer.subscribe(topic)
    return consumer.start(heard)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"mode": "push"}, "mode 'push' is not known; choose one of pull, pop"),
        ({"pop_invisible_time_ms": 4999}, "pop_invisible_time_ms is 4999, and must be from 5000 to 300000 ms"),
        ({"pop_invisible_time_ms": 300_001}, "must be from 5000 to 300000 ms"),
        ({"pop_batch_nums": 0}, "pop_batch_nums is 0, and must be from 1 to 32"),
        ({"pop_batch_nums": 33}, "must be from 1 to 32"),
        ({"pop_threshold_for_queue": 0}, "pop_threshold_for_queue is 0, and must be at least 1"),
        ({"orderly": True}, 'mode="pop" excludes orderly'),
        ({"model": "broadcasting"}, 'mode="pop" excludes model="broadcasting"'),
        ({"consume_from": "timestamp"}, "rmqkit offset set"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, error):
    with pytest.raises(ClientError, match=error):
        PushConsumer("workers", **{"mode": "pop", "namesrv": "127.0.0.1:1", **settings})


def test_members_share_one_queue(own):
    topic = own.topic(queue_nums=1)
    heard = [Heard(), Heard()]
    group = own.group()
    consumers = [
        popping(own, topic, each, group=group, instance_name=name, pop_batch_nums=1, pop_threshold_for_queue=1)
        for name, each in zip("ab", heard, strict=True)
    ]
    bodies = fill(own, topic, 60)
    until(lambda: len(heard[0].bodies) + len(heard[1].bodies) >= len(bodies))
    assert sorted(heard[0].bodies + heard[1].bodies) == sorted(bodies)
    assert all(each.bodies for each in heard)
    assert {queue.queue_id for each in consumers for queue in each.assignment} == {-1}
    connections = own.admin.consumer_connections(group)
    assert connections.consume_type == "CONSUME_POP"


@pytest.mark.long
def test_what_a_closed_member_did_not_begin_goes_to_another_one(own):
    topic = own.topic(queue_nums=1)
    group = own.group()
    busy, go_on = threading.Event(), threading.Event()

    def block(message):
        busy.set()
        go_on.wait(10)

    first = popping(own, topic, block, group=group, instance_name="a", consume_threads=1)
    bodies = fill(own, topic, 20)
    assert busy.wait(10)
    closing = threading.Thread(target=first.close)
    closing.start()
    until(lambda: all(work.stopped for work in first._core.works.values()))
    go_on.set()
    closing.join(20)
    heard = Heard()
    popping(own, topic, heard, group=group, instance_name="b")
    until(lambda: len(set(heard.bodies)) >= len(bodies) - 1)
    assert all(message.reconsume_times == 0 for message in heard.messages)


def test_batches_and_coroutines(own):
    topic = own.topic(queue_nums=1)
    bodies = fill(own, topic, 20)

    async def main():
        seen = []
        consumer = aio.PushConsumer(own.group(), namesrv=own.namesrv, mode="pop", consume_from="first", batch_max=8)
        await consumer.subscribe(topic)

        async def handle(messages):
            assert 1 <= len(messages) <= 8
            seen.extend(message.body for message in messages)

        async with await consumer.start(handle):
            while len(seen) < len(bodies):
                await asyncio.sleep(0.01)
        return seen

    assert sorted(asyncio.run(asyncio.wait_for(main(), 30))) == sorted(bodies)


def test_a_group_begins_at_the_end_by_default(own):
    topic = own.topic(queue_nums=1)
    fill(own, topic, 1)
    heard = Heard()
    consumer = own.push_consumer(mode="pop")
    consumer.subscribe(topic)
    consumer.start(heard)
    until(lambda: consumer.assignment)
    own.producer().send(Message(topic, b"new"))
    heard.has(b"new")


@pytest.mark.long
def test_what_a_member_in_pull_mode_failed_on_is_popped(own):
    """Members in pull mode leave failed messages in `%RETRY%<group>`; pops read it too."""
    topic, group = own.topic(queue_nums=1), own.group()
    pulling = own.push_consumer(group, consume_from="first", persist_interval_ms=50)
    pulling.subscribe(topic)
    failing = Heard(fail=lambda message: True)
    pulling.start(failing)
    queue = own.producer().send(Message(topic, b"failed")).queue
    until(lambda: own.admin.group_offset(group, queue) == 1)
    pulling.close()
    heard = Heard()
    popping(own, topic, heard, group=group)
    heard.has(b"failed")
    (message,) = heard.messages
    assert (message.topic, message.queue.topic, message.reconsume_times) == (topic, f"%RETRY%{group}", 1)
    until(lambda: not own.admin.pop_in_flight(group).total)


@pytest.mark.long
def test_a_dead_letter_of_a_timer_message_waits_for_no_timer(own):
    """Its properties still have the time of delivery, and the copy must not be delayed again."""
    topic, group = own.topic(queue_nums=1), own.group()
    heard = Heard(fail=lambda message: True)
    popping(own, topic, heard, group=group, max_reconsume_times=0)
    at = datetime.now(UTC) + timedelta(seconds=1)
    producer = own.producer()
    producer.send(Message(topic, b"timer", deliver_at=at))
    producer.send(Message(topic, b"level", delay_level=1))
    heard.has(b"timer", b"level")
    until(lambda: sum(queue.total for queue in own.admin.dead_letters(group)) == 2)


@pytest.mark.long
def test_a_trace_shows_what_a_popping_listener_did(own):
    topic = own.topic(queue_nums=1)
    heard = Heard()
    consumer = popping(own, topic, heard, trace=True)
    sent = own.producer().send(Message(topic, b"traced"))
    heard.has(b"traced")
    consumer.close()
    wanted = {TraceType.SUB_BEFORE, TraceType.SUB_AFTER}
    until(lambda: wanted <= {record.type for record in records_of(own, sent.msg_id)})


@pytest.mark.long
def test_an_administrator_asks_a_popping_consumer(own):
    """What it holds (307), and one message to consume now (309)."""
    topic, group = own.topic(queue_nums=1), own.group()
    heard = Heard()
    consumer = popping(own, topic, heard, group=group)
    sent = own.producer().send(Message(topic, b"once"))
    heard.has(b"once")
    (member,) = own.admin.consumer_connections(group).connection_set
    info = own.admin.consumer_running_info(group, member.client_id)
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_POP"
    assert {queue.topic for queue in info.mq_pop_table} >= {topic}
    _, result = own.admin.consume_directly(group, own.admin.message_at(sent.queue, sent.queue_offset))
    assert result.consume_result == "CR_SUCCESS"
    assert heard.bodies == [b"once", b"once"]
    consumer.close()


@pytest.mark.long
def test_a_share_that_the_broker_assigns_is_kept_to(own):
    """`group mode GROUP TOPIC pop --share 1`: a member pops its queues and its neighbour's."""
    topic, group = own.topic(queue_nums=3), own.group()
    own.admin.create_group(group)
    own.admin.set_request_mode(group, topic, "pop", share_queue_num=1)
    heard = [Heard(), Heard(), Heard()]
    consumers = [
        popping(own, topic, each, group=group, instance_name=name) for name, each in zip("abc", heard, strict=True)
    ]

    def shares():
        return [{queue for queue in each.assignment if queue.topic == topic} for each in consumers]

    queues = set(own.admin.queues(topic))
    until(lambda: all(len(share) == 4 for share in shares()))
    assert all(share < queues for share in shares())
    assert set.union(*shares()) == queues
    bodies = fill(own, topic, 60)
    until(lambda: sum(len(each.bodies) for each in heard) >= len(bodies))
    assert sorted(heard[0].bodies + heard[1].bodies + heard[2].bodies) == sorted(bodies)
