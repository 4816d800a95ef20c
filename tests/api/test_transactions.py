"""TransactionProducer against real brokers: outcomes, questions, a program that ends halfway."""

import asyncio

import pytest

from rmqkit import Message, TransactionProducer, TransactionState, aio
from rmqkit.errors import ClientError, InvalidMessage
from tests.api.test_producer import stored
from tests.api.until import until

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


def never(message):
    raise AssertionError("not asked")


def transactions(own, check=never, **settings):
    group = settings.pop("group", None) or own.name("group")
    return own.closes(TransactionProducer(group, check=check, namesrv=own.namesrv, **settings))


def test_a_commit_is_delivered_and_a_rollback_is_not(own):
    topic = own.topic()
    producer = transactions(own)
    seen = []

    def local(message, arg):
        seen.append((message.body, arg))
        return arg

    results = [
        producer.send_in_transaction(Message(topic, b"%d" % n, keys="k"), local, state)
        for n, state in enumerate((COMMIT, ROLLBACK))
    ]
    assert [(each.state, each.end_error, each.send.is_ok) for each in results] == [(COMMIT, "", True), (ROLLBACK, "", True)]
    assert seen == [(b"0", COMMIT), (b"1", ROLLBACK)]
    assert stored(own, topic) == [b"0"]


def test_a_compressed_message_is_delivered_whole(own):
    topic = own.topic()
    body = b"text " * 10_000
    transactions(own).send_in_transaction(Message(topic, body), lambda message, arg: COMMIT)
    assert stored(own, topic) == [body]


def test_an_unknown_outcome_is_asked_for(own):
    topic = own.topic()
    asked = []

    def check(message):
        asked.append((message.topic, message.body, message.keys, message.msg_id))
        if len(asked) == 1:
            raise RuntimeError("the database is away")
        return UNKNOWN if len(asked) == 2 else COMMIT

    producer = transactions(own, check)
    result = producer.send_in_transaction(Message(topic, b"late", keys="k7"), lambda message, arg: UNKNOWN)
    assert (result.state, result.end_error) == (UNKNOWN, "")
    until(lambda: len(asked) >= 3)
    until(lambda: sum(each.max_offset for each in own.admin.topic_stats(topic).values()) == 1)
    assert set(asked) == {(topic, b"late", "k7", result.send.msg_id)}
    assert stored(own, topic) == [b"late"]


def test_what_the_local_transaction_raises_leaves_the_outcome_open(own):
    topic = own.topic()
    asked = []
    producer = transactions(own, lambda message: asked.append(message.body) or ROLLBACK)

    def local(message, arg):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        producer.send_in_transaction(Message(topic, b"broken"), local)
    with pytest.raises(ClientError, match="TransactionState"):
        producer.send_in_transaction(Message(topic, b"nothing"), lambda message, arg: None)
    until(lambda: set(asked) == {b"broken", b"nothing"})
    assert stored(own, topic) == []


def test_another_producer_of_the_group_answers_for_one_that_is_gone(own):
    topic, group = own.topic(), own.name("group")
    first = TransactionProducer(group, check=never, namesrv=own.namesrv, instance_name="first")
    assert first.send_half(Message(topic, b"left behind")).result(10).is_ok
    first.close()
    transactions(own, lambda message: COMMIT, group=group, instance_name="second", topics=[topic])
    until(lambda: sum(each.max_offset for each in own.admin.topic_stats(topic).values()) == 1)
    assert stored(own, topic) == [b"left behind"]


def test_messages_and_callbacks_that_transactions_refuse(own):
    producer = transactions(own)
    with pytest.raises(InvalidMessage, match="delay"):
        producer.send_in_transaction(Message(own.name("T"), b"x", delay_level=1), lambda message, arg: COMMIT)
    with pytest.raises(ClientError, match="check"):
        TransactionProducer("G", check=None, namesrv=own.namesrv)


def test_coroutines(own):
    topic = own.topic()
    asked = []

    async def check(message):
        asked.append(message.body)
        return COMMIT

    async def local(message, arg):
        await asyncio.sleep(0)
        return arg

    async def main():
        async with aio.TransactionProducer(own.name("group"), check=check, namesrv=own.namesrv) as producer:
            for state in (COMMIT, ROLLBACK, UNKNOWN):
                await producer.send_in_transaction(Message(topic, state.value), local, state)
            for _ in range(300):
                if asked:
                    break
                await asyncio.sleep(0.05)

    asyncio.run(main())
    assert asked == [b"UNKNOWN"]
    until(lambda: sum(each.max_offset for each in own.admin.topic_stats(topic).values()) == 2)
    assert stored(own, topic) == [b"COMMIT", b"UNKNOWN"]
