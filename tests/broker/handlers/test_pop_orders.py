"""Ordered pop: blocked queues, counts, acks, changed invisible times, consumerOrderInfo.json."""

import pytest

from rmqkit.broker.handlers.pop import orders as orders_module
from rmqkit.broker.handlers.pop.order_info import OrderInfo, OrderInfoTable
from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.handlers.pop_requests import (
    INVISIBLE_MS,
    ack,
    batch_ack,
    batch_of,
    change,
    fill,
    messages,
    pop,
    pop_fields,
    popped,
)
from tests.broker.handlers.test_pop import bodies, revive_records
from tests.broker.handlers.test_pop_in_flight import in_flight
from tests.broker.requests import send, with_topic
from tests.broker.special.test_pop_revive import Life

ORDER = {"order": "true", "queueId": 0}


def committed(script, queue_id=0):
    return script.node.offsets.query("CG", "T", queue_id)


def saved(script):
    return OrderInfoTable.decode(bytes(script.disk.files["config/consumerOrderInfo.json"])).table


def test_an_ordered_pop_has_the_revive_queue_999_and_writes_no_checkpoint(broker):
    client = with_topic(broker)
    fill(client, 3)
    answer = pop(broker, client, **ORDER)
    assert (answer.code, answer.ext["reviveQid"], answer.ext["orderCountInfo"]) == (0, "999", "0 0 0")
    assert bodies(messages(answer)) == [b"m0", b"m1", b"m2"]
    assert revive_records(client) == []
    assert committed(broker) == 0, "the start of the batch"


def test_a_queue_is_blocked_until_the_last_ack(broker):
    client = with_topic(broker)
    fill(client, 4)
    first, second = popped(broker, client, maxMsgNums=2, **ORDER)
    blocked = pop(broker, client, **ORDER)
    assert (blocked.code, blocked.ext["restNum"]) == (ResponseCode.POLLING_TIMEOUT, "0")
    assert ack(client, first).code == 0
    assert committed(broker) == 1
    assert popped(broker, client, **ORDER) == []
    assert ack(client, second).code == 0
    assert committed(broker) == 2
    assert bodies(popped(broker, client, **ORDER)) == [b"m2", b"m3"]


def test_an_ack_out_of_order_does_not_move_the_offset(broker):
    client = with_topic(broker)
    fill(client, 3)
    found = popped(broker, client, **ORDER)
    for each in (found[2], found[1]):
        assert ack(client, each).code == 0
        assert committed(broker) == 0
    ack(client, found[0])
    assert committed(broker) == 3


def test_blocked_queues_do_not_block_others(broker):
    client = with_topic(broker)
    fill(client, 1, queue_id=0)
    popped(broker, client, order="true")
    fill(client, 1, queue_id=1)
    assert [each.queue_id for each in popped(broker, client, order="true")] == [1]


def test_after_the_invisible_time_the_batch_comes_again_and_counts(broker):
    client = with_topic(broker)
    fill(client, 3)
    first = popped(broker, client, maxMsgNums=2, **ORDER)
    ack(client, first[0])
    broker.advance(INVISIBLE_MS)
    answer = pop(broker, client, **ORDER)
    assert bodies(messages(answer)) == [b"m1", b"m2"]
    assert answer.ext["orderCountInfo"] == "0 qo0%1 1;0 0 0", "m2 is new"
    broker.advance(INVISIBLE_MS)
    assert pop(broker, client, **ORDER).ext["orderCountInfo"] == "0 qo0%1 2;0 qo0%2 1;0 0 1"


def test_the_same_attempt_gets_its_batch_again_and_does_not_count(broker):
    client = with_topic(broker)
    fill(client, 2)
    pop(broker, client, attemptId="a1", **ORDER)
    again = pop(broker, client, attemptId="a1", **ORDER)
    assert bodies(messages(again)) == [b"m0", b"m1"]
    assert again.ext["orderCountInfo"] == "0 0 0"
    assert pop(broker, client, attemptId="a2", **ORDER).code == ResponseCode.POLLING_TIMEOUT


def test_an_outdated_handle_acks_nothing(broker):
    client = with_topic(broker)
    fill(client, 1)
    (first,) = popped(broker, client, **ORDER)
    broker.advance(INVISIBLE_MS)
    (second,) = popped(broker, client, **ORDER)
    assert ack(client, first).code == 0
    assert committed(broker) == 0
    assert ack(client, second).code == 0
    assert committed(broker) == 1
    assert ack(client, second).code == 0, "before the committed offset"


def test_an_ack_outside_the_batch_is_refused(broker):
    client = with_topic(broker)
    fill(client, 2)
    (message,) = popped(broker, client, maxMsgNums=1, **ORDER)
    assert ack(client, message, offset=1).code == ResponseCode.MESSAGE_ILLEGAL
    assert committed(broker) == 0


def test_a_batch_ack_in_order(broker):
    client = with_topic(broker)
    fill(client, 3)
    found = popped(broker, client, **ORDER)
    assert batch_ack(client, batch_of(found[:2])).code == 0
    assert committed(broker) == 2
    assert batch_ack(client, batch_of(found[2:], b="//////////8=")).code == 0
    assert committed(broker) == 3


def test_a_changed_invisible_time_moves_the_end_of_the_block(broker):
    client = with_topic(broker)
    fill(client, 1)
    pop_ms = broker.clock.wall_ms
    (message,) = popped(broker, client, **ORDER)
    broker.advance(5_000)
    answer = change(client, message, 2_000)
    assert {key: answer.ext[key] for key in ("popTime", "invisibleTime", "reviveQid")} == {
        "popTime": str(pop_ms),
        "invisibleTime": "7000",
        "reviveQid": "999",
    }
    broker.advance(1_999)
    assert popped(broker, client, **ORDER) == []
    broker.advance(1)
    (again,) = popped(broker, client, **ORDER)
    assert ack(client, again).code == 0
    answer = change(client, again, 2_000)
    assert (answer.code, answer.ext["popTime"]) == (0, "0")


@pytest.mark.parametrize("is_on", [True, False])
def test_a_waiting_pop_is_woken_when_its_queue_is_free(make, is_on):
    broker = make(f"enableNotifyAfterPopOrderLockRelease={'true' if is_on else 'false'}")
    client, other = with_topic(broker), broker.connect()
    fill(client, 1)
    popped(broker, client, invisibleTime=5_000, **ORDER)
    opaque = other.tell(RequestCode.POP_MESSAGE, pop_fields(broker, pollTime=20_000, order="true"))
    broker.advance(6_000)
    answer = other.answer_to(opaque)
    assert (answer is not None) == is_on
    if answer is not None:
        assert bodies(messages(answer)) == [b"m0"]


def test_an_ack_wakes_a_waiting_pop(broker):
    client, other = with_topic(broker), broker.connect()
    fill(client, 2)
    (message,) = popped(broker, client, maxMsgNums=1, **ORDER)
    opaque = other.tell(RequestCode.POP_MESSAGE, pop_fields(broker, pollTime=20_000, **ORDER))
    ack(client, message)
    broker.advance(0)
    assert bodies(messages(other.answer_to(opaque))) == [b"m1"]


def test_an_arrival_does_not_pass_a_block(broker):
    client, other = with_topic(broker), broker.connect()
    fill(client, 1)
    popped(broker, client, **ORDER)
    opaque = other.tell(RequestCode.POP_MESSAGE, pop_fields(broker, pollTime=20_000, **ORDER))
    send(client)
    broker.advance(0)
    assert other.answer_to(opaque) is None


def test_a_notification_knows_blocked_queues(broker):
    client = with_topic(broker)
    fill(client, 2)
    fields = {"consumerGroup": "CG", "topic": "T", "queueId": "0", "pollTime": "0", "bornTime": "0", "order": "true"}
    assert client.ask(RequestCode.NOTIFICATION, fields).ext["hasMsg"] == "true"
    popped(broker, client, maxMsgNums=1, attemptId="a", **ORDER)
    assert client.ask(RequestCode.NOTIFICATION, fields).ext["hasMsg"] == "false"
    assert client.ask(RequestCode.NOTIFICATION, {**fields, "attemptId": "a"}).ext["hasMsg"] == "true"


def test_filtered_messages_are_passed(broker):
    client = with_topic(broker)
    fill(client, 2, tags="A")
    assert popped(broker, client, exp="B", **ORDER) == []
    assert committed(broker) == 2


def test_a_reset_by_the_server_ends_the_block(broker):
    client = with_topic(broker)
    fill(client, 3)
    popped(broker, client, **ORDER)
    broker.node.offsets.reset("CG", "T", 0, 2)
    assert bodies(popped(broker, client, **ORDER)) == [b"m2"]


def test_ordered_messages_in_flight_are_listed(broker):
    client = with_topic(broker)
    fill(client, 2)
    found = popped(broker, client, **ORDER)
    ack(client, found[0])
    result = in_flight(client, topic="T")
    assert result.total == 1
    (row,) = result.messages
    assert (row.offset, row.count, row.invisible_until) == (1, 1, broker.clock.wall_ms + INVISIBLE_MS)
    assert row.client_id


def test_the_file_is_apaches(broker):
    client = with_topic(broker)
    fill(client, 3)
    pop_ms = broker.clock.wall_ms
    found = popped(broker, client, attemptId="a1", **ORDER)
    ack(client, found[0])
    change(client, found[1], 90_000)
    broker.advance(orders_module.SAVE_MS)
    text = bytes(broker.disk.files["config/consumerOrderInfo.json"]).decode()
    assert "".join(text.split()) == (
        f'{{"table":{{"T@CG":{{0:{{"a":"a1","cm":1,"i":60000,"l":{pop_ms},"o":[0,1,2],'
        f'"ot":{{1:{pop_ms + 90_000}}},"popTime":{pop_ms}}}}}}}}}'
    )


def test_apaches_file_is_read():
    text = (
        '{"table":{"T@CG":{0:{"cm":2,"i":60000,"l":7,"o":[5,2,4],"oc":{7:1},"ot":{9:99},"popTime":7}}},"orderInfoCount":1}'
    )
    info = OrderInfoTable.decode(text).table["T@CG"][0]
    assert (info.offsets, info.counts, info.visible, info.next_offset) == ([5, 7, 9], {7: 1}, {9: 99}, 5)
    assert info.invisible_until() == 60_007
    info.acked = 3
    assert (info.next_offset, info.invisible_until()) == (9, 99)


def test_entries_that_nobody_needs_are_cleaned(broker, monkeypatch):
    monkeypatch.setattr(orders_module, "IDLE_MS", 90_000)
    client = with_topic(broker)
    fill(client, 1, queue_id=0)
    fill(client, 1, queue_id=1)
    popped(broker, client, order="true")
    broker.advance(orders_module.SAVE_MS)
    assert set(saved(broker)["T@CG"]) == {0, 1}
    broker.advance(90_001)
    fill(client, 1, queue_id=2)
    popped(broker, client, order="true", queueId=2)
    broker.advance(orders_module.SAVE_MS)
    assert list(saved(broker)["T@CG"]) == [2]
    client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    broker.node.view.pop_orders.clear(("T", "CG", 9))
    broker.node.view.pop_orders._changed()
    broker.advance(orders_module.SAVE_MS)
    assert saved(broker) == {}


def test_too_many_queues_in_order_give_nothing(broker, monkeypatch):
    monkeypatch.setattr(orders_module, "QUEUES_MAX", 1)
    client = with_topic(broker)
    fill(client, 1, queue_id=0)
    fill(client, 1, queue_id=1)
    assert len(popped(broker, client, order="true", queueId=0)) == 1
    assert popped(broker, client, order="true", queueId=1) == []


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_block_survives_the_end_of_the_broker(end):
    life = Life()
    life.fill(1)
    assert life.bodies(life.pop(order="true")) == [b"m0"]
    life.broker.advance(2_000)
    getattr(life.broker, end)()
    life.broker.start()
    life.broker.advance(1_000)
    assert life.bodies(life.pop(order="true")) == []
    life.broker.advance(8_000)
    reply = life.pop(order="true")
    assert (life.bodies(reply), reply.ext["orderCountInfo"]) == ([b"m0"], "0 qo0%0 1;0 0 1")


def test_without_the_file_only_the_next_message_can_be_acked(broker):
    client = with_topic(broker)
    fill(client, 3)
    found = popped(broker, client, **ORDER)
    broker.node.view.pop_orders.clear(("T", "CG", 0))
    ack(client, found[2])
    assert committed(broker) == 0
    ack(client, found[0])
    assert committed(broker) == 1


def test_an_info_without_an_invisible_time_blocks_for_the_callers():
    info = OrderInfo(places=[3], pop_ms=100)
    assert info.invisible_until(50) == 150
