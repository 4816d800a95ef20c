"""GET_POP_IN_FLIGHT: what a group popped and did not ack."""

from rmqkit.wire.bodies.pop import PopInFlight
from rmqkit.wire.codes import OwnRequestCode, ResponseCode
from tests.broker.handlers.pop_requests import INVISIBLE_MS, ack, changed, fill, popped
from tests.broker.requests import with_topic
from tests.broker.special.test_pop_revive import Life


def in_flight(client, group="CG", topic=None):
    fields = {"consumerGroup": group, **({"topic": topic} if topic else {})}
    answer = client.ask(OwnRequestCode.GET_POP_IN_FLIGHT, fields)
    assert answer.code == 0, answer
    return PopInFlight.decode(answer.body)


def test_nothing_is_in_flight_before_a_pop_and_after_the_acks(broker):
    client = with_topic(broker)
    fill(client, 2)
    assert in_flight(client) == PopInFlight()
    for each in popped(broker, client):
        ack(client, each)
    assert in_flight(client) == PopInFlight()


def test_what_is_invisible_until_when_and_with_whom(broker):
    client, other = with_topic(broker), broker.connect()
    fill(client, 3)
    pop_ms = broker.clock.wall_ms
    first, second = popped(broker, client, maxMsgNums=2)
    broker.advance(5_000)
    popped(broker, other)
    found = in_flight(client)
    assert found.total == 3
    assert [each.offset for each in found.messages] == [0, 1, 2]
    one, two, three = found.messages
    assert (one.topic, one.queue_id, one.pop_time, one.count) == ("T", 0, pop_ms, 1)
    assert one.invisible_until == pop_ms + INVISIBLE_MS
    assert three.invisible_until == pop_ms + 5_000 + INVISIBLE_MS
    assert one.client_id == two.client_id != three.client_id
    assert ":" in three.client_id
    ack(client, first)
    assert [each.offset for each in in_flight(client).messages] == [1, 2]
    changed(other, second, 9_000)
    moved = in_flight(client).messages[-1]
    assert (moved.offset, moved.client_id) == (1, three.client_id)
    assert moved.invisible_until == broker.clock.wall_ms + 9_000


def test_a_redelivery_counts(broker):
    client = with_topic(broker)
    fill(client, 1)
    popped(broker, client)
    broker.advance(INVISIBLE_MS + 1_001)
    popped(broker, client)
    (row,) = in_flight(client, topic="T").messages
    assert (row.topic, row.count) == ("%RETRY%CG_T", 2)


def test_groups_and_topics_are_apart(broker):
    client = with_topic(broker)
    fill(client, 1)
    popped(broker, client)
    assert in_flight(client, group="G2").total == 0
    assert in_flight(client, topic="OTHER").total == 0
    assert in_flight(client, topic="T").total == 1


def test_a_restart_forgets_only_the_clients_that_popped():
    life = Life()
    life.fill(2)
    life.pop()
    life.broker.stop()
    life.broker.start()
    reply = life.broker.ask(OwnRequestCode.GET_POP_IN_FLIGHT, {"consumerGroup": "CG"})
    assert [(each.offset, each.client_id) for each in PopInFlight.decode(reply.body).messages] == [(0, ""), (1, "")]


def test_the_list_is_limited_and_the_total_is_not(broker, monkeypatch):
    monkeypatch.setattr("rmqkit.broker.handlers.pop.in_flight.ROWS_MAX", 2)
    client = with_topic(broker)
    fill(client, 5)
    popped(broker, client, maxMsgNums=1)
    popped(broker, client)
    found = in_flight(client)
    assert (len(found.messages), found.total) == (2, 5)


def test_a_slave_has_no_pops(make):
    broker = make("brokerRole=SLAVE", "brokerId=1")
    answer = broker.connect().ask(OwnRequestCode.GET_POP_IN_FLIGHT, {"consumerGroup": "CG"})
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
