"""Producer against real brokers: every way to send, errors, threads, brokers that fail."""

import threading
from concurrent.futures import wait

import pytest

from rmqkit import Admin, Message, MessageQueue, Producer, SendStatus
from rmqkit.errors import ClientClosed, ClientError, ConfigError, InvalidMessage, NoRoute, PeerUnreachable, SendFailed
from tests.api.until import until


def stored(own, topic):
    """Bodies of all messages of a topic, sorted."""
    reader = own.closes(own.pull_consumer(consume_from="first"))
    queues = reader.queues(topic)
    reader.assign(queues)
    wanted = sum(reader.offset_max(queue) - reader.offset_min(queue) for queue in queues)
    found = []
    until(lambda: found.extend(reader.poll(100, 1000)) or len(found) >= wanted)
    return sorted(message.body for message in found)


def test_every_way_to_send(own):
    topic = own.topic()
    producer = own.producer()
    result = producer.send(Message(topic, "sync", keys=["k1", "k2"], tags="A", properties={"x": "1"}))
    assert result.is_ok
    assert result.status is SendStatus.SEND_OK
    assert producer.send_async(Message(topic, b"async")).result(10).queue.topic == topic
    producer.send_oneway(Message(topic, b"oneway"))
    batch = producer.send_batch([Message(topic, b"batch 1"), Message(topic, b"batch 2")])
    assert len(batch.msg_id.split(",")) == len(batch.offset_msg_id.split(",")) == 2
    producer.flush()
    wanted = [b"async", b"batch 1", b"batch 2", b"oneway", b"sync"]
    until(lambda: sum(each.max_offset for each in own.admin.topic_stats(topic).values()) == 5)
    assert stored(own, topic) == wanted
    message = own.admin.view_message(result.offset_msg_id)
    assert (message.body, message.keys, message.tags, message.msg_id) == (b"sync", "k1 k2", "A", result.msg_id)
    assert message.properties["x"] == "1"
    assert message.queue == result.queue
    assert message.queue_offset == result.queue_offset


def test_a_large_body_travels_compressed(own):
    topic = own.topic()
    body = b"text " * 100_000
    result = own.producer().send(Message(topic, body))
    message = own.admin.view_message(result.offset_msg_id)
    assert message.body == body
    assert len(message.record.body) < len(body) // 10


def test_a_topic_comes_into_being_with_its_first_message(own):
    topic = own.name("new")
    assert own.producer().send(Message(topic, b"first")).is_ok
    # The broker registers the topic at the name server after it has responded.
    until(lambda: topic in own.admin.topics())


def test_messages_are_spread_over_both_brokers(own):
    topic = own.topic(queue_nums=2)
    producer = own.producer()
    places = {producer.send(Message(topic, b"x")).queue for _ in range(4)}
    assert places == set(producer.queues(topic))
    assert len({queue.broker_name for queue in places}) == 2


def test_a_chosen_queue_and_an_ordering_key(own):
    topic = own.topic()
    producer = own.producer()
    queue = producer.queues(topic)[3]
    assert producer.send(Message(topic, b"x"), queue).queue == queue
    assert len({producer.send(Message(topic, b"x"), ordering_key="order-1").queue for _ in range(5)}) == 1
    with pytest.raises(InvalidMessage, match="does not belong to topic"):
        producer.send(Message(topic, b"x"), MessageQueue("other", "broker-a", 0))


def test_many_threads_share_one_producer(own):
    topic = own.topic()
    producer = own.producer()
    results = []

    def send(number):
        results.extend(producer.send(Message(topic, b"%d-%d" % (number, i))) for i in range(50))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({result.msg_id for result in results}) == 400
    assert len({(result.queue, result.queue_offset) for result in results}) == 400


def test_a_thousand_at_a_time(own):
    topic = own.topic()
    producer = own.producer(pending_max=100)
    futures = [producer.send_async(Message(topic, b"%d" % i)) for i in range(1000)]
    done, _ = wait(futures, 30)
    assert len(done) == 1000
    assert stored(own, topic) == sorted(b"%d" % i for i in range(1000))


def test_a_callback_may_send_again_but_not_wait(own):
    topic = own.topic()
    producer = own.producer()
    told = threading.Event()
    outcome = []

    def callback(future):
        with pytest.raises(ClientError, match="would wait for itself"):
            producer.send(Message(topic, b"2"))
        outcome.append(producer.send_async(Message(topic, b"3")))
        told.set()

    # Block the I/O thread until the callback is added. Otherwise a fast response would make
    # the callback run in this thread.
    held = threading.Event()
    producer._io.post(held.wait)
    producer.send_async(Message(topic, b"1")).add_done_callback(callback)
    held.set()
    assert told.wait(10)
    assert outcome[0].result(10).is_ok


# --- errors


def test_no_name_server_answers():
    with Producer("G", namesrv="127.0.0.1:1") as producer, pytest.raises(PeerUnreachable, match="no name server answers"):
        producer.send(Message("T", b"x"))


@pytest.mark.parametrize("namesrv", ["", "nonsense", "host:port", "127.0.0.1:99999"])
def test_addresses_that_are_none(namesrv, monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", "")
    with pytest.raises(ClientError):
        Producer("G", namesrv=namesrv or ";")


def test_the_environment_says_where_the_name_server_is(own, monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", own.namesrv)
    with Producer(own.name("env")) as producer:
        assert producer.send(Message(own.topic(), b"x")).is_ok


def test_settings_that_are_none():
    with pytest.raises(ConfigError, match="latency"):
        Producer("G", fault_policy="latenci")
    with pytest.raises(ClientError, match="zlib"):
        Producer("G", compress_type="rar")
    with pytest.raises(InvalidMessage, match="group"):
        Producer("a group")


def test_what_no_broker_takes_is_refused_at_once(own):
    producer = own.producer()
    for message in (Message("", b"x"), Message("T", b""), Message("T", b"x", properties={"DELAY": "1"})):
        with pytest.raises(InvalidMessage):
            producer.send_async(message)


def test_a_topic_that_may_not_be_created(own):
    with pytest.raises(NoRoute, match="does not exist"):
        own.producer(create_topic_key="NoSuchTopic").send(Message(own.name("nope"), b"x"))


def test_a_refusal_has_code_and_remark(own):
    topic = own.topic()
    producer = own.producer()
    queue = producer.queues(topic)[0]
    with pytest.raises(SendFailed) as caught:
        producer.send(Message(topic, b"x"), queue._replace(queue_id=77))
    assert caught.value.code is not None
    assert caught.value.remark
    assert not caught.value.maybe_stored


def test_closing_is_idempotent_and_final(own):
    topic = own.topic()
    producer = own.producer()
    pending = [producer.send_async(Message(topic, b"x")) for _ in range(50)]
    producer.close()
    producer.close()
    assert all(future.result(1).is_ok for future in pending)
    for call in (producer.send, producer.send_async, producer.send_oneway):
        with pytest.raises(ClientClosed):
            call(Message(topic, b"x"))


def test_an_interrupted_block_closes_too(own):
    topic = own.topic()
    producer = own.producer()

    def work():
        with producer:
            producer.send(Message(topic, b"x"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    with pytest.raises(ClientClosed):
        producer.send(Message(topic, b"x"))


def test_a_cancelled_send_disturbs_nobody(own):
    topic = own.topic()
    producer = own.producer()
    futures = [producer.send_async(Message(topic, b"x")) for _ in range(100)]
    cancelled = [future for future in futures if future.cancel()]
    assert all(future.result(10).is_ok for future in futures if future not in cancelled)
    assert producer.send(Message(topic, b"y")).is_ok


# --- nodes that fail


def test_a_broker_is_killed_and_the_other_takes_the_messages(own):
    topic = own.topic()
    producer = own.producer()
    assert {producer.send(Message(topic, b"x")).queue.broker_name for _ in range(8)} == {"broker-a", "broker-b"}
    own.cluster.kill("broker-a:0")
    results = [producer.send(Message(topic, b"y")) for _ in range(20)]
    assert {result.queue.broker_name for result in results} == {"broker-b"}


@pytest.mark.long
def test_a_message_goes_to_the_other_broker_in_time_if_one_is_paused(own):
    """A half-open connection: the peer accepts bytes and sends none."""
    topic = own.topic()
    producer = own.producer()
    queues = {producer.send(Message(topic, b"x")).queue.broker_name for _ in range(8)}
    assert queues == {"broker-a", "broker-b"}
    own.cluster.pause("broker-a:0")
    results = [producer.send(Message(topic, b"y")) for _ in range(6)]
    assert {result.queue.broker_name for result in results} == {"broker-b"}


def test_name_servers_are_killed_one_after_the_other(two_name_servers):
    cluster = two_name_servers
    with Admin(cluster.namesrv) as admin, Producer("first", namesrv=cluster.namesrv) as producer:
        admin.create_topic("T", queue_nums=1)
        assert producer.send(Message("T", b"x")).is_ok
        cluster.cluster.kill("ns-0")
        assert producer.send(Message("T", b"x")).is_ok
        with Producer("second", namesrv=cluster.namesrv, instance_name="second") as newcomer:
            assert newcomer.send(Message("T", b"x")).is_ok
        # A name server that has just restarted and knows no routes hides none.
        cluster.cluster.start("ns-0")
        with Producer("third", namesrv=cluster.namesrv, instance_name="third") as newcomer:
            assert newcomer.send(Message("T", b"x")).is_ok
        cluster.cluster.kill("ns-0")
        cluster.cluster.kill("ns-1")
        assert producer.send(Message("T", b"known topics work on")).is_ok
        with pytest.raises(PeerUnreachable, match="no name server answers"):
            producer.send(Message("unknown", b"x"))
