"""Refusals of access control: an error of their own, no second try, one line in the log."""

import pytest

from rmqkit.access.signature import Credentials, Key
from rmqkit.client.access_denials import LOG_AGAIN_MS, RETRY_AFTER_DENIED_MS, denial_of
from rmqkit.client.client import refused
from rmqkit.client.flow import start
from rmqkit.errors import AccessDenied, BrokerError, SendFailed
from rmqkit.runtime.calls import Reply
from rmqkit.runtime.connection import Address
from rmqkit.wire.codes import RequestCode
from tests.client.group import MEMBERS, PULL, Group
from tests.client.peers import NS_1, ON_A_AND_B, A, Peers, route
from tests.client.producers.test_producer import SEND, Sender

DENIED = 16
NO_RIGHT = "User:app has no permission to access Topic:T from 10.0.0.9, no matched policies."
ONE_QUEUE = route(("broker-a", {0: A}), queues=1)


def reply(remark: str, code: int = DENIED) -> Reply:
    return Reply(code, {}, remark, b"", 479, Address.parse(A))


@pytest.mark.parametrize(
    ("remark", "user", "resource", "text"),
    [
        (NO_RIGHT, "app", "Topic:T", "user app has no right to Topic:T (from 10.0.0.9): no rule allows it"),
        (
            "User:a b has no permission to access Group:g, from here from fe80::1, the decision is deny.",
            "a b",
            "Group:g, from here",
            "a rule denies it",
        ),
        (
            "User:app is neither a node of the cluster nor a super user, which PULL_MESSAGE needs.",
            "app",
            "",
            "user app is neither a node of the cluster nor a super user",
        ),
        ("User:app is not found.", "app", "", "user app is unknown"),
        ("User:app not found.", "app", "", "user app is unknown"),
        ("User:app is disabled.", "app", "", "user app is disabled"),
        ("username cannot be null.", "", "", "set access_key and secret_key"),
        ("check signature failed.", "", "", "is it the right secret_key?"),
        ("parse authorization context error.", "", "", "parse authorization context error."),
        ("Authentication failed. Please verify the credentials and try again.", "", "", "verify the credentials"),
    ],
)
def test_the_error_names_what_the_remark_names(remark, user, resource, text):
    error = refused(reply(remark), RequestCode.SEND_MESSAGE_V2)
    assert isinstance(error, AccessDenied)
    assert (error.user, error.resource, error.action) == (user, resource, "SEND_MESSAGE_V2")
    assert (error.code, error.remark, error.retriable) == (DENIED, remark, False)
    assert f"{A} refused SEND_MESSAGE_V2: " in str(error)
    assert text in str(error)


@pytest.mark.parametrize("remark", ["the broker[10.0.2.1] sending message is forbidden", "", "the topic is forbidden"])
def test_other_reasons_for_16_stay_what_they_were(remark):
    assert denial_of(reply(remark), SEND) is None
    error = refused(reply(remark), SEND)
    assert type(error) is BrokerError
    assert error.retriable
    assert denial_of(reply(NO_RIGHT, code=1), SEND) is None


def test_a_send_is_tried_once():
    peers = Peers(routes={"T": ON_A_AND_B})
    sender = Sender(peers)
    sender.send()
    peers.take(SEND).answer(DENIED, remark=NO_RIGHT)
    assert isinstance(sender.outcome, AccessDenied)
    assert not sender.outcome.maybe_stored
    assert not peers.asked


def test_a_send_that_a_broker_cannot_write_is_tried_elsewhere():
    peers = Peers(routes={"T": ON_A_AND_B})
    sender = Sender(peers)
    sender.send()
    for _ in range(3):
        peers.take(SEND).answer(DENIED, remark="the broker[10.0.2.1] sending message is forbidden")
    assert isinstance(sender.outcome, SendFailed)


def test_what_an_earlier_try_may_have_stored_is_not_forgotten():
    peers = Peers(routes={"T": ON_A_AND_B})
    sender = Sender(peers)
    sender.send()
    peers.take(SEND).answer(1, remark="store failed")
    peers.take(SEND).answer(DENIED, remark=NO_RIGHT)
    assert isinstance(sender.outcome, AccessDenied)
    assert sender.outcome.maybe_stored


def test_a_refused_route_says_so():
    peers = Peers()
    peers.denials[RequestCode.GET_ROUTEINFO_BY_TOPIC] = "User:app is disabled."
    caught = []
    peers.do(lambda: start(peers.client.routes.find("T"), caught.append))
    (error,) = caught
    assert isinstance(error, AccessDenied)
    assert "user app is disabled" in str(error)


def lines(peers: Peers, event: str) -> list[dict]:
    return [fields for _, name, fields in peers.script.log.lines if name == event]


def test_a_consumer_says_it_once_and_tries_slowly():
    peers = Peers(routes={"T": ONE_QUEUE})
    group = Group(peers)
    group.join()
    for _ in range(3):
        group.pull().answer(DENIED, remark=NO_RIGHT)
        peers.advance(RETRY_AFTER_DENIED_MS - 100, step_ms=100)
        assert PULL not in [each.code for each in peers.asked if each.ext.get("topic") == "T"]
        peers.advance(200, step_ms=100)
    group.pull()
    assert [fields["error"] for fields in lines(peers, "access-denied")] == [
        f"{A} refused PULL_MESSAGE: user app has no right to Topic:T (from 10.0.0.9): no rule allows it"
    ]
    assert not lines(peers, "pull-failed")


def test_a_refused_heartbeat_is_logged_once_per_period():
    peers = Peers(routes={"T": ONE_QUEUE})
    peers.denials[RequestCode.HEART_BEAT] = "check signature failed."
    Sender(peers).send(oneway=True)
    peers.advance(150_000, step_ms=1000)
    assert 5 <= peers.times(RequestCode.HEART_BEAT) <= 8
    assert len(lines(peers, "access-denied")) == 1
    peers.advance(LOG_AGAIN_MS, step_ms=1000)
    assert len(lines(peers, "access-denied")) == 2


def test_every_request_of_a_client_is_signed():
    key = Key("secret")
    peers = Peers(routes={"T": ONE_QUEUE}, sign=Credentials("app", "secret").sign)
    Group(peers).join()
    sender = Sender(peers)
    sender.send(oneway=True)
    sender.send()
    signed = {each.code: each.ext["AccessKey"] for each in peers.commands if key.verify(each.ext, each.body)}
    sent = {each.code for each in peers.commands}
    assert signed.keys() == sent
    assert all(key.verify(each.ext, each.body) for each in peers.commands)
    assert {RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.HEART_BEAT, MEMBERS, PULL, SEND} <= sent
    assert set(signed.values()) == {"app"}
    assert NS_1 in {address for address, _ in peers.log}
