"""PushConsumer and PullConsumer against real brokers."""

import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from rmqkit import Message, PullConsumer, PushConsumer
from rmqkit.errors import ClientClosed, ClientError, NoRoute
from tests.api.until import until


class Heard:
    """A listener that records its messages."""

    def __init__(self, fail=lambda message: False):
        self.fail = fail
        self.messages = []
        self.guard = threading.Lock()

    def __call__(self, message):
        with self.guard:
            self.messages.append(message)
        return not self.fail(message)

    @property
    def bodies(self):
        with self.guard:
            return [message.body for message in self.messages]

    def has(self, *bodies):
        until(lambda: set(bodies) <= set(self.bodies))


def fill(own, topic, count, **options):
    producer = own.producer()
    bodies = [b"%d" % i for i in range(count)]
    for future in [producer.send_async(Message(topic, body, **options)) for body in bodies]:
        assert future.result(10).is_ok
    return bodies


# --- push


def test_every_message_reaches_the_listener(own):
    topic = own.topic()
    heard = Heard()
    consumer = own.push_consumer(consume_from="first")
    consumer.subscribe(topic)
    bodies = fill(own, topic, 500)
    consumer.start(heard)
    heard.has(*bodies)
    assert len(heard.bodies) == 500
    consumer.close()
    assert sum(own.admin.group_offsets(consumer.group, topic).values()) == 500


def test_a_decorated_listener_and_a_with_block(own):
    topic = own.topic(queue_nums=1)
    fill(own, topic, 3)
    consumer = own.push_consumer(consume_from="first", batch_max=10)
    consumer.subscribe(topic)
    seen = []

    @consumer.listener
    def handle(messages):
        seen.extend(messages)
        if len(seen) >= 3:
            threading.Thread(target=consumer.close).start()

    with consumer:
        assert consumer.wait(20)
    # Queues of both brokers: each batch is of one queue.
    assert sorted(message.body for message in seen) == [b"0", b"1", b"2"]


def test_a_with_block_that_starts_in_it(own):
    topic = own.topic(queue_nums=1)
    heard = Heard()
    consumer = own.push_consumer(consume_from="first")
    consumer.subscribe(topic)
    bodies = fill(own, topic, 3)
    with consumer:
        consumer.start(heard)
        heard.has(*bodies)


def test_only_the_wanted_tags(own):
    topic = own.topic()
    heard = Heard()
    consumer = own.push_consumer(consume_from="first")
    consumer.subscribe(topic, "A || C")
    producer = own.producer()
    for tag in "ABCABC":
        producer.send(Message(topic, tag.encode(), tags=tag))
    consumer.start(heard)
    heard.has(b"A", b"C")
    producer.send(Message(topic, b"last", tags="A"))
    heard.has(b"last")
    assert Counter(heard.bodies) == {b"A": 2, b"C": 2, b"last": 1}


def test_two_members_share_and_the_one_that_stays_takes_over(own):
    topic = own.topic(queue_nums=2)
    group = own.group()
    first, second = Heard(), Heard()
    one = own.push_consumer(group, consume_from="first")
    two = own.push_consumer(group, consume_from="first")
    for consumer, heard in ((one, first), (two, second)):
        consumer.subscribe(topic)
        consumer.start(heard)

    def shares():
        return [{queue for queue in each.assignment if queue.topic == topic} for each in (one, two)]

    until(lambda: [len(each) for each in shares()] == [2, 2] and not shares()[0] & shares()[1])
    bodies = fill(own, topic, 100)
    until(lambda: len(first.bodies) + len(second.bodies) >= 100)
    assert sorted(first.bodies + second.bodies) == sorted(bodies)
    assert first.bodies
    assert second.bodies
    two.close()
    until(lambda: len(shares()[0]) == 4)
    more = [b"more %d" % i for i in range(20)]
    producer = own.producer()
    for body in more:
        producer.send(Message(topic, body))
    first.has(*more)


def test_broadcasting_gives_everything_to_everybody_and_keeps_offsets_in_files(own, tmp_path):
    topic = own.topic(queue_nums=1)
    group = own.group()
    listeners = [Heard(), Heard()]
    options = {"model": "broadcasting", "consume_from": "first", "offset_folder": str(tmp_path)}
    consumers = [own.push_consumer(group, **options) for _ in listeners]
    for consumer, heard in zip(consumers, listeners, strict=True):
        consumer.subscribe(topic)
        consumer.start(heard)
    bodies = fill(own, topic, 20)
    for heard in listeners:
        heard.has(*bodies)
    for consumer in consumers:
        consumer.close()
    files = sorted(Path(tmp_path).rglob("offsets.json"))
    assert len(files) == 2
    for file in files:
        assert file.parent.name == group
        text = "".join(file.read_text().split())
        assert text.startswith('{"offsetTable":{{"brokerName":"broker-')


def test_an_orderly_listener_sees_every_queue_in_order(own):
    topic = own.topic(queue_nums=2)
    producer = own.producer()
    queues = producer.queues(topic)
    for i in range(40):
        for queue in queues:
            producer.send(Message(topic, b"%d" % i), queue)
    seen, failed = {}, set()
    guard = threading.Lock()

    def handle(message):
        with guard:
            # Every tenth message of a queue fails once. No later message may overtake it.
            place = (message.queue, message.body)
            if int(message.body) % 10 == 0 and place not in failed:
                failed.add(place)
                return False
            seen.setdefault(message.queue, []).append(int(message.body))
        return None

    consumer = own.push_consumer(consume_from="first", orderly=True, suspend_current_queue_time_ms=20)
    consumer.subscribe(topic)
    consumer.start(handle)
    until(lambda: sum(map(len, seen.values())) == 40 * len(queues))
    assert all(each == list(range(40)) for each in seen.values())


@pytest.mark.long
def test_a_failed_message_comes_again_and_is_not_lost(own):
    topic = own.topic(queue_nums=1)
    times = Counter()
    heard = Heard(fail=lambda message: message.body == b"1" and times.update([message.body]) is None and times[b"1"] < 3)
    consumer = own.push_consumer(consume_from="first", retry_delay_ms=50)
    consumer.subscribe(topic)
    fill(own, topic, 3)
    consumer.start(heard)
    until(lambda: Counter(heard.bodies)[b"1"] == 3)
    redelivered = [message for message in heard.messages if message.body == b"1"]
    assert {message.topic for message in redelivered} == {topic}
    assert redelivered[-1].reconsume_times == 2
    consumer.close()
    assert sum(own.admin.group_offsets(consumer.group, topic).values()) == 3


def test_an_exception_in_a_listener_is_a_failure(own, caplog):
    topic = own.topic(queue_nums=1)
    calls = []

    def handle(message):
        calls.append(message)
        if len(calls) == 1:
            raise ZeroDivisionError("a bug of the user's")

    consumer = own.push_consumer(consume_from="first", retry_delay_ms=20)
    consumer.subscribe(topic)
    fill(own, topic, 1)
    consumer.start(handle)
    until(lambda: len(calls) == 2)
    assert "a bug of the user's" in caplog.text


def test_a_slow_listener_stops_nobody_else(own):
    slow_topic, topic = own.topic("slow"), own.topic("quick")
    release = threading.Event()
    slow = own.push_consumer(own.group("slow"), consume_from="first", consume_threads=2, close_wait_ms=100)
    slow.subscribe(slow_topic)
    fill(own, slow_topic, 10)
    slow.start(lambda message: release.wait(60) or True)
    quick = own.push_consumer(own.group("quick"), consume_from="first")
    quick.subscribe(topic)
    heard = Heard()
    bodies = fill(own, topic, 50)
    quick.start(heard)
    heard.has(*bodies)
    release.set()


def test_closing_waits_for_the_listener_at_work(own):
    topic = own.topic(queue_nums=1)
    begun, ended = threading.Event(), threading.Event()

    def handle(message):
        begun.set()
        time.sleep(0.2)
        ended.set()

    consumer = own.push_consumer(consume_from="first")
    consumer.subscribe(topic)
    fill(own, topic, 1)
    consumer.start(handle)
    assert begun.wait(20)
    consumer.close()
    assert ended.is_set()
    assert sum(filter(None, own.admin.group_offsets(consumer.group, topic).values())) == 1
    with pytest.raises(ClientClosed):
        consumer.subscribe(topic)


def test_start_needs_a_listener_and_a_subscription(own):
    consumer = own.push_consumer()
    with pytest.raises(ClientError, match="listener"):
        consumer.start()
    with pytest.raises(ClientError, match="subscribes to nothing"):
        consumer.start(print)
    with pytest.raises(ClientError, match="batch_max"):
        PushConsumer("G", namesrv=own.namesrv, batch_max=0)


def test_a_group_is_visible_to_administrators(own):
    topic = own.topic(queue_nums=1)
    consumer = own.push_consumer(consume_from="first")
    consumer.subscribe(topic, "A || B")
    consumer.start(lambda message: True)
    found = until(lambda: own.admin.consumer_connections(consumer.group))
    assert found.subscription_table[topic].tags_set == ["A", "B"]
    assert found.connection_set[0].language == "PYTHON"
    assert (found.consume_type, found.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")


def test_a_reset_reaches_a_running_consumer(own):
    topic = own.topic(queue_nums=1)
    heard = Heard()
    consumer = own.push_consumer(consume_from="first", persist_interval_ms=100)
    consumer.subscribe(topic)
    bodies = fill(own, topic, 10)
    consumer.start(heard)
    heard.has(*bodies)
    until(lambda: sum(filter(None, own.admin.group_offsets(consumer.group, topic).values())) == 10)
    own.admin.reset_group_offsets(consumer.group, topic, to="first")
    until(lambda: Counter(heard.bodies)[b"3"] >= 2)


@pytest.mark.long
def test_consumption_survives_the_broker_s_restart(own):
    topic = own.topic(queue_nums=1)
    heard = Heard()
    consumer = own.push_consumer(consume_from="first")
    consumer.subscribe(topic)
    consumer.start(heard)
    heard.has(*fill(own, topic, 10))
    own.cluster.restart("broker-a:0")
    producer = own.producer()
    queue = until(lambda: [each for each in producer.queues(topic) if each.broker_name == "broker-a"])[0]
    assert producer.send(Message(topic, b"after"), queue).is_ok
    heard.has(b"after")


# --- pull


def test_assign_seek_poll_and_commit(own):
    topic = own.topic(queue_nums=1, cluster=None)
    bodies = fill(own, topic, 30)
    consumer = own.pull_consumer(consume_from="first", auto_commit=False)
    queues = consumer.queues(topic)
    consumer.assign(queues)
    got = []
    until(lambda: got.extend(consumer.poll(500)) or len(got) >= 30)
    assert sorted(message.body for message in got) == sorted(bodies)
    queue = queues[0]
    end = consumer.offset_max(queue)
    assert consumer.position(queue) == end
    assert consumer.committed(queue) in (0, None)
    consumer.commit()
    assert consumer.committed(queue) == end
    consumer.seek(queue, 3)
    assert consumer.position(queue) == 3
    assert until(lambda: consumer.poll(500, 1))[0].queue_offset == 3
    consumer.seek_to_end(queue)
    assert consumer.position(queue) == end
    consumer.seek_to_begin(queue)
    assert consumer.position(queue) == 0
    consumer.commit({queue: 7})
    assert consumer.committed(queue) == 7


def test_a_reader_without_a_group_leaves_no_trace(own):
    topic = own.topic()
    bodies = fill(own, topic, 10)
    with PullConsumer(namesrv=own.namesrv, consume_from="first") as reader:
        queues = reader.queues(topic)
        reader.assign(queues)
        for queue in queues:
            reader.seek_to_begin(queue)
        got = []
        until(lambda: got.extend(reader.poll(500)) or len(got) >= 10)
        assert sorted(message.body for message in got) == sorted(bodies)
        for forbidden in (reader.commit, lambda: reader.subscribe(topic)):
            with pytest.raises(ClientError, match="needs a group"):
                forbidden()
    assert own.admin.groups_of_topic(topic) == []


def test_iterating_commits_what_was_worked_on(own):
    topic = own.topic()
    fill(own, topic, 20)
    group = own.group()
    seen = []
    consumer = own.pull_consumer(group, consume_from="first")
    consumer.subscribe(topic)

    def work():
        with consumer:
            for message in consumer:
                if len(seen) == 5:
                    raise ZeroDivisionError
                seen.append(message.body)

    with pytest.raises(ZeroDivisionError):
        work()
    assert sum(filter(None, own.admin.group_offsets(group, topic).values())) == 5
    rest = own.pull_consumer(group, consume_from="first")
    rest.subscribe(topic)
    for message in rest:
        seen.append(message.body)
        if len(seen) == 20:
            break
    rest.close()
    assert sorted(seen) == sorted(b"%d" % i for i in range(20))
    assert sum(own.admin.group_offsets(group, topic).values()) == 20


def test_closing_ends_an_iteration_in_another_thread(own):
    topic = own.topic()
    consumer = own.pull_consumer(consume_from="first")
    consumer.subscribe(topic)
    thread = threading.Thread(target=lambda: list(consumer))
    thread.start()
    consumer.close()
    thread.join(20)
    assert not thread.is_alive()


def test_offsets_by_time(own):
    topic = own.topic(queue_nums=1)
    producer = own.producer()
    queue = producer.queues(topic)[0]
    for i in range(3):
        producer.send(Message(topic, b"%d" % i), queue)
    stored_ms = [own.admin.message_at(queue, i).store_timestamp_ms for i in range(3)]
    reader = own.pull_consumer()
    assert reader.offset_for_time(queue, stored_ms[0]) == 0
    assert reader.offset_for_time(queue, stored_ms[2] + 1000) == 3
    assert reader.offset_for_time(queue, 0) == 0


def test_a_topic_that_is_not_there(own):
    reader = own.pull_consumer()
    with pytest.raises(NoRoute, match="does not exist"):
        reader.queues(own.name("nope"))
    with pytest.raises(NoRoute):
        reader.subscribe(own.name("nope"))


def test_a_pull_consumer_and_json(own):
    """What a script does: read all messages and stop."""
    topic = own.topic()
    own.producer().send(Message(topic, json.dumps({"n": 1})))
    reader = own.pull_consumer(consume_from="first")
    reader.assign(reader.queues(topic))
    assert json.loads(until(lambda: reader.poll(500))[0].body) == {"n": 1}
