"""The route cache, the rotation of name servers, heartbeats; flows and timers."""

import json
import re

import pytest

from rmqkit.client.flow import Deferred, gather, start
from rmqkit.client.routes import read_route
from rmqkit.errors import ClientError, NoRoute, PeerUnreachable
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies import TopicRoute
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.fastjson import MessageQueue
from tests.client.peers import A_SLAVE, CLIENT_ID, NS_1, NS_2, ON_A, ON_A_AND_B, A, B, Peers, route

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
BEAT = RequestCode.HEART_BEAT


def find(peers, topic="T"):
    box = []
    peers.do(lambda: box.append(start(peers.client.routes.find(topic))))
    return box[0]


def test_a_route_lists_queues_as_topicRouteData2TopicPublishInfo():
    text = (
        '{"brokerDatas":[{"brokerAddrs":{0:"h1:1",1:"h2:2"},"brokerName":"b"},{"brokerAddrs":{1:"h3:3"},"brokerName":"a"},'
        '{"brokerAddrs":{0:"h4:4"},"brokerName":"c"}],"filterServerTable":{},"queueDatas":['
        '{"brokerName":"b","perm":6,"readQueueNums":2,"writeQueueNums":1},'
        '{"brokerName":"a","perm":6,"readQueueNums":1,"writeQueueNums":1},'
        '{"brokerName":"c","perm":4,"readQueueNums":1,"writeQueueNums":1}]}'
    )
    found = read_route("T", TopicRoute.decode(text))
    # a has no master, and c is not writable. Both can be read.
    assert found.publish == (MessageQueue("T", "b", 0),)
    assert [f"{queue.broker_name}{queue.queue_id}" for queue in found.subscribe] == ["a0", "b0", "b1", "c0"]
    assert found.brokers["b"] == {0: Address("h1", 1), 1: Address("h2", 2)}


def test_an_order_setting_replaces_the_queues_to_publish_to():
    data = route(("broker-a", {0: A}), ("broker-b", {0: B}), order="broker-b:1;broker-a:2")
    found = read_route("T", TopicRoute.decode(json.dumps(data)))
    assert [f"{queue.broker_name}{queue.queue_id}" for queue in found.publish] == ["broker-b0", "broker-a0", "broker-a1"]


def test_a_route_is_asked_for_once_and_kept():
    peers = Peers(routes={"T": ON_A})
    assert find(peers).result().publish
    find(peers)
    assert peers.times(ROUTE) == 1


def test_watched_routes_are_refreshed_every_30_seconds():
    peers = Peers(routes={"T": ON_A})
    find(peers)
    peers.client.routes.watch("T")
    peers.advance(29_000, step_ms=1000)
    assert peers.times(ROUTE) == 1
    peers.routes["T"] = ON_A_AND_B
    peers.advance(1000)
    assert len(peers.client.routes.routes["T"].brokers) == 2
    peers.client.routes.unwatch("T")
    peers.advance(60_000, step_ms=5000)
    assert peers.times(ROUTE) == 2


def test_an_answer_that_repeats_the_one_before_is_not_decoded(monkeypatch):
    peers = Peers(routes={"T": ON_A})
    first = find(peers).result()
    peers.client.routes.watch("T")
    decode, bodies = TopicRoute.decode, []
    monkeypatch.setattr(TopicRoute, "decode", lambda body: bodies.append(body) or decode(body))
    peers.advance(61_000, step_ms=1000)
    assert (peers.times(ROUTE), bodies) == (3, [])
    for answer in (ON_A_AND_B, ON_A):
        peers.routes["T"] = answer
        peers.advance(30_000, step_ms=1000)
    assert len(bodies) == 2
    assert peers.client.routes.routes["T"] == first


def test_an_acting_master_is_looked_past_every_3_seconds():
    """Its master may return at any time, and then accepts messages."""
    acting = route(("broker-a", {0: A_SLAVE}), perm=4)
    acting["brokerDatas"][0]["enableActingMaster"] = True
    peers = Peers(routes={"T": acting})
    assert find(peers).result().acting == ("broker-a",)
    peers.client.routes.watch("T")
    peers.routes["T"] = ON_A
    peers.advance(2_900, step_ms=100)
    assert peers.times(ROUTE) == 1
    peers.advance(100)
    assert peers.client.routes.routes["T"].publish
    peers.advance(20_000, step_ms=1000)
    assert peers.times(ROUTE) == 2
    # A topic that is read-only for another reason needs no frequent refresh.
    assert read_route("T", TopicRoute.decode(json.dumps(route(("broker-a", {0: A}), perm=4)))).acting == ()


@pytest.mark.parametrize(("state", "is_over"), [("silent", True), ("up", False)])
def test_a_broker_that_routes_name_no_longer_has_to_say_something(state, is_over):
    """A pull may wait there for half a minute, while another broker is the acting master."""
    peers = Peers(routes={"T": ON_A})
    find(peers)
    asked = []
    pull = RequestCode.PULL_MESSAGE
    peers.do(lambda: asked.append(peers.client.ask(Address.parse(A), pull, timeout_ms=30_000)))
    peers.take(pull)
    peers.states[A] = state
    peers.routes["T"] = route(("broker-a", {0: A_SLAVE}), perm=4)
    peers.do(lambda: peers.client.routes.fetch("T"))
    peers.advance(1_050)
    assert asked[0].done is is_over
    assert peers.times(BEAT, A) == 1
    assert peers.times(BEAT, A_SLAVE) == 0


def test_a_name_server_that_forgot_a_topic_takes_no_route_away():
    peers = Peers(routes={"T": ON_A})
    find(peers)
    peers.client.routes.watch("T")
    del peers.routes["T"]
    peers.advance(60_000, step_ms=5000)
    assert find(peers).result().publish
    assert peers.script.log.events().count("route-kept") == 1


@pytest.mark.parametrize("body", [b"{}x", b"[1]", b'{"brokerDatas":[{"brokerName":"a","brokerAddrs":{"0":"no address"}}]}'])
def test_a_route_that_cannot_be_read_is_no_route(body):
    peers = Peers()
    peers.states[NS_1] = "up"
    box = []
    peers.routes["T"] = "taken away"
    peers._got = lambda asked: peers._reply(asked, 0, body)
    peers.do(lambda: box.append(start(peers.client.routes.find("T"))))
    with pytest.raises(NoRoute):
        box[0].result()


def test_name_servers_are_tried_in_turn_and_the_one_that_answers_is_kept():
    peers = Peers(namesrv=(NS_1, NS_2), routes={"T": ON_A, "U": ON_A})
    first = peers.client.name_servers._chosen
    dead, alive = (NS_1, NS_2) if first == 0 else (NS_2, NS_1)
    peers.states[dead] = "down"
    find(peers)
    find(peers, "U")
    assert peers.times(ROUTE, alive) == 2


def test_a_name_server_that_knows_nothing_yet_is_not_the_last_word():
    peers = Peers(namesrv=(NS_1, NS_2), routes={"T": ON_A})
    empty = (NS_1, NS_2)[peers.client.name_servers._chosen]
    got = peers._got
    peers._got = lambda asked: peers._reply(asked, 17) if asked.address == empty else got(asked)
    assert find(peers).result().publish
    with pytest.raises(NoRoute):
        find(peers, "unknown to all").result()


def test_a_broker_among_the_name_servers_is_skipped_and_named():
    """A user gives the address of a broker or a controller by mistake."""
    peers = Peers(namesrv=(NS_1, NS_2), routes={"T": ON_A})
    brokers = {(NS_1, NS_2)[peers.client.name_servers._chosen]}
    got = peers._got
    peers._got = lambda asked: peers._reply(asked, 3) if asked.address in brokers else got(asked)
    assert find(peers).result().publish
    (broker,) = brokers
    (other,) = {NS_1, NS_2} - brokers
    wrong = (
        f"no name server is at {broker}: the node there does not know GET_ROUTEINFO_BY_TOPIC, "
        "so it may be a broker or a controller"
    )
    peers.states[other] = "down"
    peers.cut(other)
    with pytest.raises(PeerUnreachable, match=re.escape(f"no name server answers ({other}: ")) as caught:
        find(peers, "U").result()
    assert str(caught.value).endswith(f"; {wrong}; start one, or correct --namesrv, namesrv= or NAMESRV_ADDR")


def test_brokers_alone_are_an_error_at_once():
    """A query of Spark waits for name servers that do not answer. Here waiting does not help."""
    peers = Peers(namesrv=(NS_1,))
    peers._got = lambda asked: peers._reply(asked, 3)
    with pytest.raises(ClientError) as caught:
        find(peers).result()
    assert not isinstance(caught.value, PeerUnreachable)
    assert str(caught.value).startswith(f"no name server is at {NS_1}: the node there does not know GET_ROUTEINFO_BY_TOPIC")
    assert str(caught.value).endswith("; correct --namesrv, namesrv= or NAMESRV_ADDR")


def test_a_silent_name_server_costs_its_share_of_the_time():
    peers = Peers(namesrv=(NS_1, NS_2), routes={"T": ON_A})
    first = peers.client.name_servers._chosen
    peers.states[(NS_1, NS_2)[first]] = "silent"
    found = find(peers)
    peers.advance(1450)
    assert not found.done
    peers.advance(100)
    assert found.result().publish


# --- heartbeats


def test_producers_alone_beat_masters_only():
    peers = Peers(routes={"T": route(("broker-a", {0: A, 1: A_SLAVE}))})
    find(peers)
    peers.do(lambda: peers.client.add_producer("PG"))
    assert peers.times(BEAT, A) == 1
    assert peers.times(BEAT, A_SLAVE) == 0
    assert peers.last_body(BEAT) == {
        "clientID": CLIENT_ID,
        "consumerDataSet": [],
        "heartbeatFingerprint": 0,
        "producerDataSet": [{"groupName": "PG"}],
        "withoutSub": False,
    }


def test_heartbeats_go_out_every_30_seconds():
    peers = Peers(routes={"T": ON_A})
    find(peers)
    peers.do(lambda: peers.client.add_producer("PG"))
    peers.advance(60_000, step_ms=1000)
    assert peers.times(BEAT, A) == 3


def test_a_heartbeat_is_sent_at_once_over_a_new_connection():
    peers = Peers(routes={"T": ON_A})
    find(peers)
    peers.do(lambda: peers.client.add_producer("PG"))
    peers.cut(A)
    before = peers.times(BEAT, A)
    peers.do(lambda: peers.client.remoting.link(Address.parse(A)))
    assert peers.times(BEAT, A) == before + 1


def test_a_heartbeat_without_an_answer_has_a_new_route_looked_for():
    """The broker may be stalled while another one acts for it."""
    peers = Peers(routes={"T": ON_A})
    find(peers)
    peers.client.routes.watch("T")
    peers.do(lambda: peers.client.add_producer("PG"))
    peers.states[A] = "silent"
    peers.advance(1_000)
    peers.routes["T"] = route(("broker-a", {0: A_SLAVE}), perm=4)
    peers.do(lambda: start(peers.client.heartbeats.beat_all()))
    peers.advance(3_050, step_ms=50)
    assert peers.client.routes.routes["T"].brokers == {"broker-a": {0: Address.parse(A_SLAVE)}}


def test_a_broker_that_cannot_be_reached_is_said_once():
    peers = Peers(routes={"T": ON_A})
    find(peers)
    peers.states[A] = "down"
    peers.do(lambda: peers.client.add_producer("PG"))
    peers.advance(90_000, step_ms=5000)
    assert peers.script.log.events().count("broker-unreachable") == 1
    peers.states[A] = "up"
    peers.advance(30_000, step_ms=5000)
    assert peers.script.log.events().count("broker-reachable") == 1


def test_a_broker_that_refuses_is_asked_again_after_a_second():
    """A starting broker listens before it has recovered, and returns 14.

    Its consumers must not wait for the next round.
    """
    peers = Peers(routes={"T": ON_A})
    find(peers)
    peers.easy.discard(BEAT)
    peers.do(lambda: peers.client.add_producer("PG"))
    for _ in range(3):
        peers.asked.pop().answer(14, remark="service not available now: the broker is starting")
        peers.advance(950)
        assert peers.asked == []
        peers.advance(50)
    peers.asked.pop().answer()
    peers.advance(20_000, step_ms=1000)
    assert peers.asked == []
    assert peers.times(BEAT, A) == 4


def test_a_client_without_members_is_quiet():
    peers = Peers(routes={"T": ON_A})
    find(peers)
    peers.advance(120_000, step_ms=10_000)
    assert peers.times(BEAT) == 0


def test_stopping_says_goodbye_for_every_group():
    peers = Peers(routes={"T": ON_A})
    find(peers)
    peers.do(lambda: peers.client.add_producer("P1"))
    peers.do(lambda: peers.client.add_producer("P2"))
    peers.do(peers.client.stop)
    assert peers.times(RequestCode.UNREGISTER_CLIENT, A) == 2
    assert peers.client.stopped


# --- flows and timers


def test_a_flow_goes_on_where_its_promise_is_resolved():
    first, second = Deferred(), Deferred()
    steps = []

    async def flow():
        steps.append(await first)
        steps.append(await second)
        return "end"

    end = start(flow())
    first.resolve(1)
    assert (steps, end.done) == ([1], False)
    second.resolve(2)
    assert (steps, end.result()) == ([1, 2], "end")


def test_an_error_reaches_the_awaiting_coroutine_and_the_callback():
    heard = []

    async def inner():
        await promise

    async def outer():
        await start(inner())

    promise = Deferred()
    end = start(outer(), heard.append)
    promise.fail(ClientError("no"))
    with pytest.raises(ClientError, match="no"):
        end.result()
    assert [str(error) for error in heard] == ["no"]


def test_gather_waits_for_all_and_then_raises_the_first_error():
    promises = [Deferred(), Deferred(), Deferred()]
    end = start(gather(promises))
    promises[2].fail(ClientError("third"))
    promises[1].fail(ClientError("second"))
    assert not end.done
    promises[0].resolve(1)
    with pytest.raises(ClientError, match="second"):
        end.result()


def test_any_other_exception_goes_up_to_the_driver():
    async def flow():
        await promise
        raise KeyError("broken")

    promise = Deferred()
    start(flow())
    with pytest.raises(KeyError):
        promise.resolve(None)


def test_timers_run_in_order_and_can_be_cancelled():
    peers = Peers()
    ran = []
    timers = peers.client.timers
    timers.after(200, lambda: ran.append("b"))
    timers.after(100, lambda: ran.append("a"))
    timers.after(200, lambda: ran.append("c"))
    timers.after(150, lambda: ran.append("never")).cancel()
    peers.advance(90, step_ms=10)
    assert ran == []
    peers.advance(10, step_ms=10)
    assert ran == ["a"]
    peers.advance(100, step_ms=10)
    assert ran == ["a", "b", "c"]
