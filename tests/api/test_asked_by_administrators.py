"""Requests of an administrator to a running consumer, through its broker: state, one message,
offsets.
"""

import threading

import pytest

from rmqkit import Message
from rmqkit.errors import BrokerError
from rmqkit.wire.codes import RequestCode
from tests.api.until import until


class Running:
    """A consumer of this program, and its client id."""

    def __init__(self, own, **options):
        self.own = own
        self.topic, self.group = own.topic(queue_nums=2), own.group()
        self.seen = []
        self.go = threading.Event()
        self.go.set()
        self.fails = ""
        consumer = own.push_consumer(self.group, consume_from="first", instance_name=own.name("asked"), **options)
        consumer.subscribe(self.topic)
        consumer.start(self.a_listener_at_work)
        self.queues = own.admin.queues(self.topic)
        until(lambda: set(consumer.assignment) >= set(self.queues))
        members = until(lambda: own.admin.consumer_connections(self.group))
        (self.client_id,) = {each.client_id for each in members.connection_set}

    def a_listener_at_work(self, message):
        assert self.go.wait(20)
        if self.fails:
            raise ValueError(self.fails)
        self.seen.append(message.body)


@pytest.mark.parametrize("orderly", [False, True])
def test_it_says_what_it_is_doing(own, orderly):
    running = Running(own, orderly=orderly)

    def told():
        info = own.admin.consumer_running_info(running.group, running.client_id)
        # Queues are assigned a moment before their locks are granted.
        return info if all(info.mq_table[queue].locked == orderly for queue in running.queues) else None

    info = until(told)
    assert info.properties["PROP_CONSUMEORDERLY"] == ("true" if orderly else "false")
    assert running.topic in [each.topic for each in info.subscription_set]
    assert info.jstack is None


def test_it_shows_where_its_threads_are(own):
    running = Running(own)
    running.go.clear()
    own.producer().send(Message(running.topic, b"hello"))
    # Not written out: the stack of this thread shows the lines of this test.
    listening = f"in {running.a_listener_at_work.__name__}"
    try:
        stacks = until(
            lambda: (
                text
                if listening in (text := own.admin.consumer_running_info(*of(running), stack=True).jstack or "")
                else None
            )
        )
        assert f'"rmqkit-{running.group}' in stacks
    finally:
        running.go.set()


def of(running):
    return running.group, running.client_id


def test_an_unknown_client_id_is_an_error(own):
    running = Running(own)
    with pytest.raises(BrokerError, match="not online"):
        own.admin.consumer_running_info(running.group, "somebody else")


@pytest.mark.parametrize("orderly", [False, True])
def test_it_consumes_one_message_now(own, orderly):
    running = Running(own, orderly=orderly)
    sent = own.producer().send(Message(running.topic, b"again"))
    until(lambda: running.seen == [b"again"])
    message = own.admin.view_message(sent.offset_msg_id)
    client_id, result = own.admin.consume_directly(running.group, message)
    assert (client_id, result.consume_result, result.order) == (running.client_id, "CR_SUCCESS", orderly)
    assert running.seen == [b"again", b"again"]
    running.fails = "no more"
    _, result = own.admin.consume_directly(running.group, message, running.client_id)
    assert (result.consume_result, result.remark) == ("CR_THROW_EXCEPTION", "ValueError: no more")
    running.fails = ""


def test_its_offsets_are_asked_and_set(own):
    running = Running(own)
    producer = own.producer()
    for number in range(6):
        producer.send(Message(running.topic, b"%d" % number))
    until(lambda: len(running.seen) == 6)
    for broker in {queue.broker_name for queue in running.queues}:
        fields = {"topic": running.topic, "group": running.group}
        reply = own.admin.ask_broker(broker, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)
        assert running.client_id in reply.body.decode()
    own.admin.reset_group_offsets(running.group, running.topic, to="first")
    until(lambda: len(running.seen) >= 12)
