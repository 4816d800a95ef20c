"""Our client's newer features with Apache's broker 5.5.0.

Filters, delays, dead letters, offset resets, request and reply.
"""

import threading
import time
from collections.abc import Iterator

import pytest

from rmqkit import (
    Admin,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    sql,
)
from rmqkit.errors import RequestTimeout, RmqkitError
from rmqkit.wire.trace import TRACE_TOPIC, decode
from tests.interop.apache import ApacheCluster
from tests.interop.test_our_client import make_topic, read_all, send_all
from tests.interop.until import DEADLINE_S, until, until_delivered

OURS_SHOWS = {
    "ordered": ["orderly_groups_keep_order_over_a_change_of_members"],
    "SQL92": ["sql_filters_pushed_and_pulled", "a_bad_expression_is_refused_before_the_start"],
    "delay level": ["delay_level"],
    "pop": [
        "popping_members_share_one_queue",
        "popped_messages_come_again_until_they_are_dead_letters",
        "a_member_in_pop_mode_reads_what_one_in_pull_mode_failed_on",
    ],
    "retry → DLQ": ["failing_messages_end_as_dead_letters"],
    "query by key and id": ["a_message_is_found_by_each_of_its_ids"],
    "offset reset": ["a_reset_group_consumes_again"],
    "request–reply": ["request_and_reply"],
    "trace": ["traces_of_sending_and_consuming"],
}


@pytest.fixture(scope="module")
def admin(apache_cluster: ApacheCluster) -> Iterator[Admin]:
    with Admin(apache_cluster.namesrv) as made:
        yield made


@pytest.fixture(scope="module")
def producer(apache_cluster: ApacheCluster) -> Iterator[Producer]:
    with Producer("our-features", namesrv=apache_cluster.namesrv, send_msg_timeout_ms=10_000) as made:
        yield made


@pytest.fixture
def topic(admin: Admin) -> str:
    return make_topic(admin, 2)


def send_numbered(producer: Producer, topic: str) -> None:
    """Send m0 to m11 with their number as property n; every third has no n."""
    for i in range(12):
        producer.send(Message(topic, f"m{i}", tags=f"Tag{i % 2}", properties={"n": str(i)} if i % 3 != 2 else None))


def test_sql_filters_pushed_and_pulled(apache_cluster: ApacheCluster, producer: Producer, topic: str) -> None:
    pushed: list[bytes] = []
    consumer = PushConsumer("ours-sql", namesrv=apache_cluster.namesrv, consume_from="first")
    consumer.subscribe(topic, sql("n > 5 AND TAGS = 'Tag0' OR n IS NULL"))
    with consumer.start(lambda message: pushed.append(message.body)):
        send_numbered(producer, topic)
        until_delivered("what the filter lets through", pushed, [b"m6", b"m10", b"m2", b"m5", b"m8", b"m11"])
    pulled: list[bytes] = []
    with PullConsumer("ours-sql-pull", namesrv=apache_cluster.namesrv, consume_from="first") as puller:
        puller.subscribe(topic, sql("n BETWEEN 3 AND 7"))
        until_delivered("four", pulled, [b"m3", b"m4", b"m6", b"m7"], lambda: [m.body for m in puller.poll(500)])


def test_a_bad_expression_is_refused_before_the_start(apache_cluster: ApacheCluster, topic: str) -> None:
    consumer = PushConsumer("ours-bad-sql", namesrv=apache_cluster.namesrv)
    consumer.subscribe(topic, sql("n > > 3"))
    with pytest.raises(RmqkitError, match="SUBSCRIPTION_PARSE_FAILED"):
        consumer.start(lambda _message: None)
    consumer.close()


def test_lite_pull_consumer(apache_cluster: ApacheCluster, producer: Producer, topic: str) -> None:
    wanted = send_all(producer, topic, "m", 20)
    got: list[bytes] = []
    with LitePullConsumer("ours-lite", namesrv=apache_cluster.namesrv, consume_from="first") as consumer:
        consumer.subscribe(topic)
        until_delivered("twenty", got, wanted, lambda: [m.body for m in consumer.poll(500)])


def test_delay_level(apache_cluster: ApacheCluster, producer: Producer, topic: str) -> None:
    came: list[float] = []
    consumer = PushConsumer("ours-delay", namesrv=apache_cluster.namesrv, consume_from="first")
    consumer.subscribe(topic)
    with consumer.start(lambda _message: came.append(time.monotonic())):
        sent_s = time.monotonic()
        producer.send(Message(topic, "later", delay_level=2))
        until("the delayed message", lambda: bool(came))
    assert came[0] - sent_s >= 4.5


def test_failing_messages_end_as_dead_letters(
    apache_cluster: ApacheCluster, admin: Admin, producer: Producer, topic: str
) -> None:
    """The group allows one retry, which Apache's broker delays by its third level, 10 s."""
    seen: list[tuple[bytes, int]] = []
    consumer = PushConsumer("ours-dead", namesrv=apache_cluster.namesrv, consume_from="first", max_reconsume_times=1)
    consumer.subscribe(topic)

    def fail(message: MessageExt) -> bool:
        seen.append((message.body, message.reconsume_times))
        return False

    dead = MessageQueue("%DLQ%ours-dead", "broker-a", 0)
    with consumer.start(fail):
        sent = producer.send(Message(topic, "dead", keys="dead-key", properties={"color": "red"}))
        until("the dead letter", lambda: dead.topic in admin.topics() and admin.offset_max(dead) > 0, seen=lambda: seen)
    # Each delivery is promised at least once: a second copy of it is no fault.
    assert set(seen) == {(b"dead", 0), (b"dead", 1)}, seen
    assert seen[0] == (b"dead", 0), seen
    until("the index has it", lambda: bool(admin.query_messages(dead.topic, "dead-key")))
    letter = admin.query_messages(dead.topic, "dead-key")[0]
    assert (letter.body, letter.properties["color"]) == (b"dead", "red")
    assert (letter.properties["RETRY_TOPIC"], letter.origin_msg_id) == (topic, sent.offset_msg_id)


def test_orderly_groups_keep_order_over_a_change_of_members(
    apache_cluster: ApacheCluster, admin: Admin, producer: Producer
) -> None:
    topic = make_topic(admin, 4)
    queues = sorted(admin.queues(topic))
    seen: dict[int, list[int]] = {queue.queue_id: [] for queue in queues}
    shares = [0, 0]

    def member(number: int) -> PushConsumer:
        made = PushConsumer(
            "ours-orderly-two",
            namesrv=apache_cluster.namesrv,
            instance_name=f"orderly-{number}",
            consume_from="first",
            orderly=True,
        )
        made.subscribe(topic)

        def take(message: MessageExt) -> None:
            seen[message.queue_id].append(int(message.body))
            shares[number] += 1

        return made.start(take)

    def send(begin: int) -> None:
        for i in range(begin, begin + 40):
            producer.send(Message(topic, str(i)), queues[i % 4])

    with member(0) as first:
        send(0)
        until("messages for one", lambda: shares[0] >= 40)
        with member(1) as second:
            until("two queues each", lambda: len(mine(first, topic)) == len(mine(second, topic)) == 2)
            send(40)
            until(
                "messages for two",
                lambda: shares[1] >= 20 and len({n for all_ in seen.values() for n in all_}) == 80,
                seen=lambda: (shares, seen),
            )
    for numbers in seen.values():
        once = list(dict.fromkeys(numbers))
        assert once == sorted(once)


def mine(member: PushConsumer, topic: str) -> list[MessageQueue]:
    return [queue for queue in member.assignment if queue.topic == topic]


def test_a_message_is_found_by_each_of_its_ids(admin: Admin, producer: Producer, topic: str) -> None:
    sent = producer.send(Message(topic, "find me", keys="found-key"))
    until("the index has it", lambda: bool(admin.query_messages(topic, "found-key")))
    by_unique_id = admin.query_messages(topic, sent.msg_id, unique=True)
    by_offset_id = admin.view_message(sent.offset_msg_id)
    by_place = admin.message_at(sent.queue, sent.queue_offset)
    assert {m.offset_msg_id for m in (*by_unique_id, by_offset_id, by_place) if m} == {sent.offset_msg_id}
    assert by_offset_id is not None
    assert by_place is not None


def behind(admin: Admin, group: str, topic: str) -> list[int]:
    stats = admin.consume_stats(group, topic).values()
    return [progress.broker_offset - progress.consumer_offset for progress in stats]


def test_a_reset_group_consumes_again(apache_cluster: ApacheCluster, admin: Admin, producer: Producer, topic: str) -> None:
    wanted = send_all(producer, topic, "m", 10)
    got: list[bytes] = []
    consumer = PushConsumer("ours-reset", namesrv=apache_cluster.namesrv, consume_from="first", persist_interval_ms=500)
    consumer.subscribe(topic)
    with consumer.start(lambda message: got.append(message.body)):
        until_delivered("all", got, wanted)
        until("committed", lambda: set(behind(admin, "ours-reset", topic)) == {0})
        begin = len(got)
        moved = admin.reset_group_offsets("ours-reset", topic, to="first")
        assert set(moved.values()) == {0}
        until_delivered("all again", got, wanted, begin=begin)


def test_request_and_reply(apache_cluster: ApacheCluster, producer: Producer, topic: str) -> None:
    consumer = PushConsumer("ours-reply", namesrv=apache_cluster.namesrv, consume_from="first")
    consumer.subscribe(topic)

    def answer(message: MessageExt) -> None:
        if message.wants_reply and message.body != b"silent":
            producer.send(message.reply(b"re: " + message.body))

    with consumer.start(answer):
        for i in range(3):
            assert producer.request(Message(topic, f"ask {i}"), timeout_ms=30_000).body == f"re: ask {i}".encode()
        with pytest.raises(RequestTimeout):
            producer.request(Message(topic, "silent"), timeout_ms=1_000)


def test_traces_of_sending_and_consuming(apache_cluster: ApacheCluster, admin: Admin, topic: str) -> None:
    namesrv = apache_cluster.namesrv
    got: list[bytes] = []
    consumer = PushConsumer("ours-traced", namesrv=namesrv, consume_from="first", trace=True)
    consumer.subscribe(topic)
    traced = Producer("ours-traced-p", namesrv=namesrv, send_msg_timeout_ms=10_000, trace=True)
    with consumer.start(lambda message: got.append(message.body)), traced as producer:
        sent = producer.send(Message(topic, "traced"))
        until_delivered("it is consumed", got, [b"traced"])
    kinds: set[str] = set()

    def all_kinds() -> bool:
        for found in admin.query_messages(TRACE_TOPIC, sent.msg_id):
            kinds.update(record.type.value for record in decode(found.body))
        return kinds >= {"Pub", "SubBefore", "SubAfter"}

    until("three kinds of traces", all_kinds)


def test_batch_of_many_is_read_in_order(apache_cluster: ApacheCluster, producer: Producer, admin: Admin) -> None:
    topic = make_topic(admin, 1)
    producer.send_batch([Message(topic, f"m{i:03}") for i in range(100)])
    found = read_all(apache_cluster, topic, 100)
    assert [message.body for message in found] == [f"m{i:03}".encode() for i in range(100)]


# --- pop


def test_popping_members_share_one_queue(apache_cluster: ApacheCluster, admin: Admin, producer: Producer) -> None:
    topic = make_topic(admin, 1)
    seen: dict[str, list[bytes]] = {"a": [], "b": []}

    def member(name: str) -> PushConsumer:
        made = PushConsumer(
            "ours-pop",
            namesrv=apache_cluster.namesrv,
            instance_name=f"pop-{name}",
            mode="pop",
            consume_from="first",
            pop_batch_nums=2,
            pop_threshold_for_queue=2,
        )
        made.subscribe(topic)
        return made.start(lambda message: seen[name].append(message.body))

    with member("a"), member("b"):
        wanted = send_all(producer, topic, "m", 60)
        until("all messages", lambda: {*seen["a"], *seen["b"]} >= set(wanted), seen=lambda: seen)
        online = admin.consumer_connections("ours-pop")
        assert online is not None
        assert online.consume_type == "CONSUME_POP"
    assert {*seen["a"], *seen["b"]} == set(wanted), seen
    assert seen["a"]
    assert seen["b"]


def test_popped_messages_come_again_until_they_are_dead_letters(
    apache_cluster: ApacheCluster, admin: Admin, producer: Producer, topic: str
) -> None:
    """One message fails once, one always, one keeps its listener until it is given again.

    The group allows one retry, which the client delays by 10 s. Apache's pop promises each delivery
    at least once and no order: if an acknowledgement is late, the broker may give the message again
    beside the retry that the client asked for. A late acknowledgement counts until the broker has
    revived the checkpoint, so a listener that is merely slow need not see its message again.
    """
    again = threading.Event()
    seen: list[tuple[bytes, int, float]] = []
    consumer = PushConsumer(
        "ours-pop-dead",
        namesrv=apache_cluster.namesrv,
        mode="pop",
        consume_from="first",
        max_reconsume_times=1,
        pop_invisible_time_ms=10_000,
    )
    consumer.subscribe(topic)

    def handle(message: MessageExt) -> bool:
        seen.append((message.body, message.reconsume_times, time.monotonic()))
        if message.body == b"slow":
            if message.reconsume_times:
                again.set()
            else:
                again.wait(DEADLINE_S)
        return message.body != b"poison" and (message.body != b"shaky" or message.reconsume_times > 0)

    def times(body: bytes) -> list[int]:
        return [count for each, count, _ in seen if each == body]

    dead = MessageQueue("%DLQ%ours-pop-dead", "broker-a", 0)
    with consumer.start(handle):
        for body in ("fine", "shaky", "slow"):
            producer.send(Message(topic, body))
        sent = producer.send(Message(topic, "poison", keys="poison-key", properties={"color": "red"}))
        until("a dead letter", lambda: dead.topic in admin.topics() and admin.offset_max(dead) > 0, seen=lambda: seen)
        until("the others", lambda: {0, 1} <= {*times(b"shaky")} & {*times(b"slow")}, seen=lambda: seen)
    assert times(b"fine")[0] == 0, seen
    assert {0, 1} <= {*times(b"poison")}, seen
    assert all(times(body)[0] == 0 for body in (b"shaky", b"slow", b"poison")), seen
    at_s = {(body, count): at_s for body, count, at_s in reversed(seen)}  # of the first copy of each
    assert at_s[b"shaky", 1] - at_s[b"shaky", 0] >= 9, seen
    until("the index has it", lambda: bool(admin.query_messages(dead.topic, "poison-key")))
    letter = admin.query_messages(dead.topic, "poison-key")[0]
    assert (letter.body, letter.properties["color"]) == (b"poison", "red")
    assert (letter.properties["RETRY_TOPIC"], letter.properties["ORIGIN_MESSAGE_ID"]) == (topic, sent.msg_id)


def test_a_member_in_pop_mode_reads_what_one_in_pull_mode_failed_on(
    apache_cluster: ApacheCluster, admin: Admin, producer: Producer, topic: str
) -> None:
    seen: list[tuple[str, bytes, int]] = []

    def start(mode: str, outcome: bool) -> PushConsumer:
        made = PushConsumer(
            "ours-pull-pop",
            namesrv=apache_cluster.namesrv,
            mode=mode,
            consume_from="first",
            persist_interval_ms=200,
        )
        made.subscribe(topic)

        def handle(message: MessageExt) -> bool:
            seen.append((mode, message.body, message.reconsume_times))
            return outcome

        return made.start(handle)

    with start("pull", False):
        queue = producer.send(Message(topic, "failed")).queue
        until("the failure is sent back", lambda: admin.group_offset("ours-pull-pop", queue) == 1)
    with start("pop", True):
        until("the message again", lambda: ("pop", b"failed", 1) in seen, seen=lambda: seen)
    assert seen[0] == ("pull", b"failed", 0), seen


def test_popped_messages_are_filtered_by_tags_and_expressions(
    apache_cluster: ApacheCluster, producer: Producer, topic: str
) -> None:
    seen: dict[str, list[bytes]] = {"tags": [], "sql": []}
    filters = {"tags": "Tag0", "sql": sql("n > 5")}
    members = []
    for name, expression in filters.items():
        made = PushConsumer(f"ours-pop-{name}", namesrv=apache_cluster.namesrv, mode="pop", consume_from="first")
        made.subscribe(topic, expression)
        members.append(made.start(lambda message, name=name: seen[name].append(message.body)))
    send_numbered(producer, topic)
    try:
        until_delivered("by tags", seen["tags"], [b"m%d" % i for i in range(0, 12, 2)])
        until_delivered("by expression", seen["sql"], [b"m6", b"m7", b"m9", b"m10"])
    finally:
        for each in members:
            each.close()


def test_the_mode_of_a_group_and_what_only_our_brokers_know(admin: Admin, topic: str) -> None:
    admin.create_group("ours-mode")
    assert admin.set_request_mode("ours-mode", topic, "pop") == ["broker-a"]
    assert admin.request_modes("ours-mode") == {topic: "pop"}
    with pytest.raises(RmqkitError, match="REQUEST_CODE_NOT_SUPPORTED"):
        admin.pop_in_flight("ours-mode")
