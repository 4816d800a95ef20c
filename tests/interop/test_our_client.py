"""Our producer, consumers and admin against Apache's name server and broker 5.5.0.

Our own client reads the messages back. Apache's own answers show that it stored and understood
them: topic stats, offsets, queries by key, and its tag filter, which uses what our client wrote.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqkit import (
    Admin,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    SendStatus,
    TransactionProducer,
    TransactionState,
    sql,
)
from rmqkit.errors import BrokerError, NoRoute, SendFailed
from rmqkit.wire.codes import ResponseCode
from tests.interop.apache import ApacheCluster
from tests.interop.until import until, until_delivered

OURS_SHOWS = {
    "sync": ["sync_send", "keys_tags_properties_and_unicode", "large_bodies"],
    "async": ["async_send_with_many_under_way"],
    "one-way": ["oneway_send"],
    "batch": ["batch_send"],
    "ordered": ["ordering_key_keeps_to_one_queue", "orderly_consumption_keeps_the_order_of_each_queue"],
    "tag": ["tag_filter", "push_with_a_tag_filter"],
    "broadcasting": ["broadcasting_gives_each_member_everything"],
    "rebalance": ["two_members_share_the_queues", "a_push_group_resumes_where_it_was"],
    "transaction": ["transactions_with_each_outcome", "an_operator_decides_a_transaction"],
    "retry → DLQ": ["a_failed_message_comes_again"],
    "query by key and id": ["messages_are_found_again"],
}
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def admin(apache_cluster: ApacheCluster) -> Iterator[Admin]:
    with Admin(apache_cluster.namesrv) as made:
        yield made


@pytest.fixture(scope="module")
def producer(apache_cluster: ApacheCluster) -> Iterator[Producer]:
    with Producer("our-producers", namesrv=apache_cluster.namesrv, send_msg_timeout_ms=10_000) as made:
        yield made


@pytest.fixture
def topic(admin: Admin) -> str:
    """Create a topic of four queues."""
    return make_topic(admin, 4)


def make_topic(admin: Admin, queue_nums: int) -> str:
    name = f"ours_{next(_NUMBERS)}"
    admin.create_topic(name, queue_nums=queue_nums)
    until(f"a route of {name}", lambda: has_route(admin, name))
    return name


def has_route(admin: Admin, topic: str) -> bool:
    try:
        return bool(admin.route(topic).queue_datas)
    except BrokerError:
        return False


def read_all(cluster: ApacheCluster, topic: str, count: int) -> list[MessageExt]:
    """Read the topic from the beginning; expect exactly `count` messages."""
    with PullConsumer(namesrv=cluster.namesrv) as consumer:
        queues = consumer.queues(topic)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_begin(queue)
        found: list[MessageExt] = []
        until(f"{count} messages of {topic}", lambda: len(found.__iadd__(consumer.poll(500))) >= count)
        assert len(found) == count, [message.body for message in found]
        return found


@pytest.fixture
def stored(apache_cluster: ApacheCluster, topic: str) -> Callable[[int], list[MessageExt]]:
    return lambda count: read_all(apache_cluster, topic, count)


def bodies(messages: list[MessageExt]) -> list[bytes]:
    return sorted(message.body for message in messages)


def numbered(prefix: str, count: int) -> list[bytes]:
    return sorted(f"{prefix}{i}".encode() for i in range(count))


# --- sending


def test_sync_send(producer: Producer, topic: str, stored: Callable[[int], list[MessageExt]]) -> None:
    results = [producer.send(Message(topic, f"m{i}")) for i in range(40)]
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    assert {result.queue.queue_id for result in results} == {0, 1, 2, 3}
    messages = stored(40)
    assert bodies(messages) == numbered("m", 40)
    places = {(m.queue_id, m.queue_offset, m.msg_id, m.offset_msg_id) for m in messages}
    assert places == {(r.queue.queue_id, r.queue_offset, r.msg_id, r.offset_msg_id) for r in results}


def test_async_send_with_many_under_way(producer: Producer, topic: str, stored: Callable[[int], list[MessageExt]]) -> None:
    futures = [producer.send_async(Message(topic, f"a{i}")) for i in range(500)]
    results = [future.result(30) for future in futures]
    assert len({(r.queue.queue_id, r.queue_offset) for r in results}) == 500
    assert bodies(stored(500)) == numbered("a", 500)


def test_oneway_send(producer: Producer, topic: str, stored: Callable[[int], list[MessageExt]]) -> None:
    for i in range(20):
        producer.send_oneway(Message(topic, f"o{i}"))
    assert bodies(stored(20)) == numbered("o", 20)


def test_batch_send(producer: Producer, topic: str, stored: Callable[[int], list[MessageExt]]) -> None:
    batch = [Message(topic, f"b{i}", tags="TagB", keys=f"key{i}", properties={"n": str(i)}) for i in range(5)]
    result = producer.send_batch(batch)
    assert result.is_ok
    assert len(result.msg_id.split(",")) == len(result.offset_msg_id.split(",")) == 5
    messages = stored(5)
    assert [(m.body, m.queue_offset, m.tags, m.keys, m.properties["n"]) for m in messages] == [
        (f"b{i}".encode(), i, "TagB", f"key{i}", str(i)) for i in range(5)
    ]
    assert {m.queue_id for m in messages} == {result.queue.queue_id}


def test_keys_tags_properties_and_unicode(
    producer: Producer, topic: str, stored: Callable[[int], list[MessageExt]]
) -> None:
    text = 'grüße, 世界, мир, 🚀 {"quote\\":"}'
    result = producer.send(
        Message(topic, text, tags="标签", keys=["eins", "клÿч"], properties={"名前": text, "color": "red"}, flag=77)
    )
    (message,) = stored(1)
    assert message.body.decode() == text
    assert (message.tags, message.keys, message.flag) == ("标签", "eins клÿч", 77)
    assert (message.properties["名前"], message.properties["color"]) == (text, "red")
    assert message.msg_id == result.msg_id


def test_large_bodies(producer: Producer, topic: str, stored: Callable[[int], list[MessageExt]]) -> None:
    regular = b"0123456789abcdef" * (1 << 16)
    varied = b"".join((i * 2654435761 % (1 << 32)).to_bytes(4, "big") for i in range(1 << 18))
    for body in (regular, varied):
        producer.send(Message(topic, body))
    messages = stored(2)
    assert {message.body for message in messages} == {regular, varied}
    assert min(message.record.size for message in messages) < 64 << 10  # stored as our client compressed it


def test_ordering_key_keeps_to_one_queue(producer: Producer, topic: str) -> None:
    for key in ("one", "two", "three"):
        assert len({producer.send(Message(topic, "x"), ordering_key=key).queue for _ in range(6)}) == 1


def test_send_to_an_unknown_topic_creates_it(apache_cluster: ApacheCluster, producer: Producer, admin: Admin) -> None:
    name = f"ours_{next(_NUMBERS)}"
    assert producer.send(Message(name, "first")).is_ok
    until(f"a route of {name}", lambda: has_route(admin, name))
    assert len(admin.queues(name)) == 4
    assert bodies(read_all(apache_cluster, name, 1)) == [b"first"]


def test_a_refused_send_says_why(producer: Producer, admin: Admin) -> None:
    topic = make_topic(admin, 1)
    with pytest.raises(SendFailed) as caught:
        producer.send(Message(topic, "x"), MessageQueue(topic, "broker-a", 99))
    assert "queueId[99] is illegal" in str(caught.value)
    assert not caught.value.maybe_stored


# --- pulling


def test_tag_filter(apache_cluster: ApacheCluster, producer: Producer, admin: Admin) -> None:
    topic = make_topic(admin, 2)
    tags = ["TagA", "TagB", "TagC", "TagD", None, "Aa", "BB"]
    for i in range(70):
        producer.send(Message(topic, f"{tags[i % 7]}-{i}", tags=tags[i % 7]))
    wanted = sorted(f"{tags[i % 7]}-{i}".encode() for i in range(70) if tags[i % 7] in ("TagA", "TagC"))
    got: list[bytes] = []
    with PullConsumer("ours-tags", namesrv=apache_cluster.namesrv, consume_from="first") as consumer:
        consumer.subscribe(topic, "TagA || TagC")
        until_delivered("the chosen tags", got, wanted, lambda: [m.body for m in consumer.poll(500)])


def test_filter_by_properties(apache_cluster: ApacheCluster, producer: Producer, admin: Admin) -> None:
    topic = make_topic(admin, 2)
    for i in range(40):
        producer.send(Message(topic, f"{i}", properties={"price": str(i), **({"region": "eu"} if i % 2 else {})}))
    wanted = sorted(f"{i}".encode() for i in range(11, 40, 2))
    chosen = sql("price > 10 AND region = 'eu'")
    got: list[bytes] = []
    with PullConsumer("ours-sql", namesrv=apache_cluster.namesrv, consume_from="first") as consumer:
        consumer.subscribe(topic, chosen)
        until_delivered("the chosen ones", got, wanted, lambda: [m.body for m in consumer.poll(500)])
    with PullConsumer(namesrv=apache_cluster.namesrv) as reader:
        reader.assign(reader.queues(topic), chosen)
        for queue in reader.assignment:
            reader.seek_to_begin(queue)
        read: list[bytes] = []
        until("the chosen ones again", lambda: len(read.__iadd__(m.body for m in reader.poll(500))) >= len(wanted))
    assert sorted(read) == wanted


def test_a_bad_expression_is_refused_at_once(apache_cluster: ApacheCluster, admin: Admin) -> None:
    topic = make_topic(admin, 1)
    with PullConsumer("ours-bad-sql", namesrv=apache_cluster.namesrv) as consumer:
        with pytest.raises(BrokerError) as told:
            consumer.subscribe(topic, sql("price > > 10"))
        assert told.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    pushed = PushConsumer("ours-bad-push", namesrv=apache_cluster.namesrv)
    try:
        pushed.subscribe(topic, "price >", expression_type="SQL92")
        with pytest.raises(BrokerError) as told:
            pushed.start(lambda message: None)
        assert told.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    finally:
        pushed.close()


def test_assign_and_seek(apache_cluster: ApacheCluster, producer: Producer, admin: Admin) -> None:
    topic = make_topic(admin, 1)
    for i in range(10):
        producer.send(Message(topic, f"m{i}"))
    with PullConsumer(namesrv=apache_cluster.namesrv) as consumer:
        (queue,) = consumer.queues(topic)
        consumer.assign([queue])
        consumer.seek(queue, 7)
        got: list[MessageExt] = []
        until("three messages", lambda: len(got.__iadd__(consumer.poll(500))) >= 3)
        assert [message.queue_offset for message in got] == [7, 8, 9]
        assert (consumer.offset_min(queue), consumer.offset_max(queue), consumer.position(queue)) == (0, 10, 10)
        assert consumer.offset_for_time(queue, got[0].store_timestamp_ms + 1_000_000) == 10
        assert consumer.offset_for_time(queue, 1) == 0


def is_committed(admin: Admin, group: str, topic: str) -> bool:
    """Return whether the broker knows that a group has consumed all.

    A consumer that closes sends its offsets without waiting for an answer.
    """
    stats = admin.consume_stats(group, topic).values()
    return all(each.consumer_offset == each.broker_offset for each in stats)


def test_a_group_resumes_where_it_was(apache_cluster: ApacheCluster, admin: Admin, producer: Producer, topic: str) -> None:
    def take(wanted: list[bytes]) -> None:
        got: list[bytes] = []
        with PullConsumer("ours-resume", namesrv=apache_cluster.namesrv, consume_from="first") as consumer:
            consumer.subscribe(topic)
            until_delivered("20 messages", got, wanted, lambda: [m.body for m in consumer.poll(500)])
        until("its offsets are at the broker", lambda: is_committed(admin, "ours-resume", topic))

    take(send_all(producer, topic, "early", 20))
    take(send_all(producer, topic, "late", 20))


def test_a_waiting_poll_is_woken(apache_cluster: ApacheCluster, producer: Producer, admin: Admin) -> None:
    topic = make_topic(admin, 1)
    with PullConsumer(namesrv=apache_cluster.namesrv) as consumer:
        consumer.assign(consumer.queues(topic))
        assert consumer.poll(200) == []
        producer.send(Message(topic, "woken"))
        assert [message.body for message in consumer.poll(10_000)] == [b"woken"]


# --- pushing


class Member:
    """A group member that records its deliveries."""

    def __init__(self, cluster: ApacheCluster, group: str, topic: str, filter_: str = "*", **options: Any) -> None:
        self.topic = topic
        self.got: list[bytes] = []
        self.consumer = PushConsumer(
            group,
            namesrv=cluster.namesrv,
            instance_name=f"member-{next(_NUMBERS)}",
            consume_from="first",
            **options,
        )
        self.consumer.subscribe(topic, filter_)
        self.consumer.start(self._take)

    def _take(self, message: MessageExt) -> None:
        self.got.append(message.body)

    def queues(self) -> set[int]:
        return {queue.queue_id for queue in self.consumer.assignment if queue.topic == self.topic}

    def has(self, wanted: list[bytes]) -> bool:
        return set(self.got) >= set(wanted)


@pytest.fixture
def join(apache_cluster: ApacheCluster) -> Iterator[Callable[..., Member]]:
    """Return a function that creates members; all of them leave at the end of the test."""
    members: list[Member] = []

    def make(group: str, topic: str, *arguments: Any, **options: Any) -> Member:
        members.append(Member(apache_cluster, group, topic, *arguments, **options))
        return members[-1]

    yield make
    for member in members:
        member.consumer.close()


def send_all(producer: Producer, topic: str, prefix: str, count: int) -> list[bytes]:
    for i in range(count):
        producer.send(Message(topic, f"{prefix}{i}"))
    return numbered(prefix, count)


def test_two_members_share_the_queues(producer: Producer, admin: Admin, join: Callable[..., Member]) -> None:
    topic = make_topic(admin, 8)
    first = join("ours-shared", topic)
    until("the first has all queues", lambda: len(first.queues()) == 8)
    alone = send_all(producer, topic, "alone", 40)
    until("messages for one", lambda: first.has(alone))

    second = join("ours-shared", topic)
    until("four queues each", lambda: len(first.queues()) == len(second.queues()) == 4)
    assert first.queues() | second.queues() == set(range(8))
    shared = send_all(producer, topic, "shared", 80)
    until("messages for two", lambda: {*first.got, *second.got} >= set(shared))
    assert 0 < sum(body in set(shared) for body in second.got) < 80

    second.consumer.close()
    until("the queues return", lambda: len(first.queues()) == 8)
    again = send_all(producer, topic, "again", 40)
    until("messages for one again", lambda: first.has(again))
    assert {*first.got, *second.got} == {*alone, *shared, *again}


def test_broadcasting_gives_each_member_everything(
    producer: Producer, topic: str, join: Callable[..., Member], tmp_path: Path
) -> None:
    members = [join("ours-broadcast", topic, model="broadcasting", offset_folder=str(tmp_path)) for _ in range(2)]
    until("all queues for each", lambda: all(len(member.queues()) == 4 for member in members))
    wanted = send_all(producer, topic, "m", 30)
    for member in members:
        until_delivered("all messages for each", member.got, wanted)


def test_push_with_a_tag_filter(producer: Producer, topic: str, join: Callable[..., Member]) -> None:
    member = join("ours-push-tags", topic, "TagA || TagC")
    for i in range(40):
        producer.send(Message(topic, f"{i}", tags=["TagA", "TagB", "TagC", "Aa"][i % 4]))
    wanted = sorted(f"{i}".encode() for i in range(40) if i % 4 in (0, 2))
    until_delivered("the chosen tags", member.got, wanted)


def test_push_with_an_expression(producer: Producer, topic: str, join: Callable[..., Member]) -> None:
    member = join("ours-push-sql", topic, sql("price BETWEEN 10 AND 19 OR price IS NULL"))
    for i in range(40):
        producer.send(Message(topic, f"{i}", properties={"price": str(i)} if i < 38 else {}))
    wanted = sorted(f"{i}".encode() for i in (*range(10, 20), 38, 39))
    until_delivered("the chosen ones", member.got, wanted)


def test_a_push_group_resumes_where_it_was(
    admin: Admin, producer: Producer, topic: str, join: Callable[..., Member]
) -> None:
    before = join("ours-push-resume", topic)
    early = send_all(producer, topic, "early", 40)
    until("the early ones", lambda: before.has(early))
    before.consumer.close()
    until("its offsets are at the broker", lambda: is_committed(admin, "ours-push-resume", topic))
    late = send_all(producer, topic, "late", 40)
    after = join("ours-push-resume", topic)
    until_delivered("the late ones", after.got, late)


def test_orderly_consumption_keeps_the_order_of_each_queue(
    producer: Producer, admin: Admin, join: Callable[..., Member]
) -> None:
    topic = make_topic(admin, 2)
    queues = sorted(admin.queues(topic))
    member = join("ours-orderly", topic, orderly=True)
    for i in range(40):
        producer.send(Message(topic, f"{i % 2}-{i:02}"), queues[i % 2])
    until("40 messages", lambda: len(set(member.got)) == 40, seen=lambda: member.got)
    for side in (b"0-", b"1-"):
        once = list(dict.fromkeys(body for body in member.got if body.startswith(side)))
        assert once == sorted(once), member.got


def test_a_failed_message_comes_again(apache_cluster: ApacheCluster, producer: Producer, topic: str) -> None:
    """The client sends the message back (36) and later pulls it from the retry topic.

    The broker delays it, by 10 s the first time.
    """
    seen: list[tuple[bytes, int, str]] = []

    consumer = PushConsumer("ours-retry", namesrv=apache_cluster.namesrv, consume_from="first")
    consumer.subscribe(topic)

    @consumer.listener
    def handle(message: MessageExt) -> bool:
        seen.append((message.body, message.reconsume_times, message.topic))
        return message.reconsume_times > 0

    with consumer:
        producer.send(Message(topic, "again"))
        until("the second delivery", lambda: (b"again", 1, topic) in seen, seen=lambda: seen)
    assert seen[0] == (b"again", 0, topic), seen
    assert {*seen} == {(b"again", 0, topic), (b"again", 1, topic)}, seen


# --- administration


def test_topics_and_routes(admin: Admin, topic: str) -> None:
    with pytest.raises(NoRoute):
        admin.queues("ours_nobody_made_this")
    assert topic in admin.topics()
    assert [queue.queue_id for queue in sorted(admin.queues(topic))] == [0, 1, 2, 3]
    config = admin.topic_config(topic, "broker-a")
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (4, 4, 6)
    assert admin.topic_config("ours_nobody_made_this", "broker-a") is None
    admin.delete_topic(topic)
    until("the topic is gone", lambda: topic not in admin.topics())


def test_topic_stats_and_offsets(admin: Admin, producer: Producer, topic: str) -> None:
    for i in range(12):
        producer.send(Message(topic, f"m{i}"))
    stats = admin.topic_stats(topic)
    assert sum(offsets.max_offset - offsets.min_offset for offsets in stats.values()) == 12
    for queue in admin.queues(topic):
        assert (admin.offset_min(queue), admin.offset_max(queue)) == (0, stats[queue].max_offset)


def test_messages_are_found_again(admin: Admin, producer: Producer, topic: str) -> None:
    result = producer.send(Message(topic, "see me", keys=["view-key", "other"], tags="TagV"))
    assert admin.view_message(result.offset_msg_id).body == b"see me"
    until("the index has it", lambda: bool(admin.query_messages(topic, "view-key")))
    (found,) = admin.query_messages(topic, "view-key")
    assert (found.body, found.tags, found.msg_id) == (b"see me", "TagV", result.msg_id)


def test_group_offsets(admin: Admin, topic: str) -> None:
    queue = sorted(admin.queues(topic))[0]
    with pytest.raises(BrokerError) as refused:
        admin.set_group_offset("ours-unknown", queue, 0)
    assert refused.value.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    admin.create_group("ours-group")
    assert admin.group_offset("ours-group", queue) in (None, 0)
    admin.set_group_offset("ours-group", queue, 0)
    assert admin.group_offset("ours-group", queue) == 0
    assert "ours-group" in admin.groups()


def test_broker_settings_and_facts(admin: Admin) -> None:
    before = admin.broker_config("broker-a")["shortPollingTimeMills"]
    admin.update_broker_config("broker-a", {"shortPollingTimeMills": "1234"})
    assert admin.broker_config("broker-a")["shortPollingTimeMills"] == "1234"
    admin.update_broker_config("broker-a", {"shortPollingTimeMills": before})
    assert admin.broker_runtime("broker-a")["brokerVersionDesc"] == "V5_5_0"
    assert admin.cluster_info().cluster_addr_table == {"DefaultCluster": ["broker-a"]}
    assert "listenPort" in next(iter(admin.nameserver_config().values()))


def test_kv_and_write_permission(admin: Admin, topic: str) -> None:
    admin.put_kv("ours", "k", "value 1")
    assert (admin.get_kv("ours", "k"), admin.kv_list("ours")) == ("value 1", {"k": "value 1"})
    admin.delete_kv("ours", "k")
    assert admin.get_kv("ours", "k") is None
    assert admin.wipe_write_perm("broker-a") > 0
    assert admin.route(topic).queue_datas[0].perm == 4
    admin.add_write_perm("broker-a")
    assert admin.route(topic).queue_datas[0].perm == 6


def test_transactions_with_each_outcome(apache_cluster: ApacheCluster, topic: str) -> None:
    asked: list[bytes] = []

    def check(message: MessageExt) -> TransactionState:
        asked.append(message.body)
        return TransactionState.COMMIT

    def local(message: Message, state: TransactionState) -> TransactionState:
        return state

    namesrv = apache_cluster.namesrv
    with TransactionProducer("our-transactions", check=check, namesrv=namesrv, send_msg_timeout_ms=10_000) as producer:
        for state in TransactionState:
            result = producer.send_in_transaction(Message(topic, state.value), local, state)
            assert (result.state, result.end_error) == (state, "")
        found = read_all(apache_cluster, topic, 2)
    assert sorted(message.body for message in found) == [b"COMMIT", b"UNKNOWN"]
    assert set(asked) == {b"UNKNOWN"}


def test_an_operator_decides_a_transaction(apache_cluster: ApacheCluster, admin: Admin, topic: str) -> None:
    def never(message: MessageExt) -> TransactionState:
        return TransactionState.UNKNOWN

    namesrv = apache_cluster.namesrv
    with TransactionProducer("our-undecided", check=never, namesrv=namesrv, send_msg_timeout_ms=10_000) as producer:
        sent = producer.send_half(Message(topic, b"by hand")).result(10)
    (prepared,) = [each for each in admin.prepared_transactions() if each.message.msg_id == sent.msg_id][-1:]
    assert (prepared.topic, prepared.group) == (topic, "our-undecided")
    admin.end_transaction(prepared, commit=True)
    assert [message.body for message in read_all(apache_cluster, topic, 1)] == [b"by hand"]
