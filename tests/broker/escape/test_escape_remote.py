"""Escape to a master of another group: target choice, requests, handling of responses.

Source: `EscapeBridge.putMessageToRemoteBroker`, `BrokerOuterAPI.sendMessageToSpecificBroker`.
"""

import json

import pytest

from rmqkit.broker.escape import masters
from rmqkit.store.contract import Put, PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.helpers.script import write_command

NS_1, NS_2 = "10.9.9.1:9876", "10.9.9.2:9876"
HOST = bytes((10, 0, 9, 9, 0, 0, 1, 0))
B, C = "10.0.1.2:10911", "10.0.1.3:10911"
OK, SERVICE_NOT_AVAILABLE, UNKNOWN = PutStatus.PUT_OK, PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.UNKNOWN_ERROR


def message(**changes):
    put = Put(
        topic="T", queue_id=1, flag=7, sys_flag=9, born_ms=1_750_000_000_123, born_host=HOST, store_host=HOST,
        reconsume_times=2, prepared_offset=0, body=b"body", tags_code=0,
        properties=props.encode({"UNIQ_KEY": "u", "DELAY": "3", "REAL_TOPIC": "T", "TRAN_MSG": "true", "KEYS": "k"}),
    )  # fmt: skip
    return put._replace(**changes)


def route(*groups):
    """Build a route of groups: (broker name, address of id 0, permission, write queues)."""
    return {
        "brokerDatas": [
            {"brokerAddrs": {"0": address}, "brokerName": name, "cluster": "c", "enableActingMaster": True}
            for name, address, _, _ in groups
        ],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": name, "perm": perm, "readQueueNums": 4, "writeQueueNums": queues, "topicSysFlag": 0}
            for name, _, perm, queues in groups
        ],
    }


class Lab:
    """A broker, two name servers that answer registrations, and peers that the test plays."""

    def __init__(self, make, *settings):
        self.broker = make(f"namesrvAddr={NS_1};{NS_2}", "escapeStrategy=remote", *settings)
        self.answers = []
        for client in list(self.broker.dialled):
            self.broker.accept(client)
        self.serve_registrations()

    @property
    def escape(self):
        return self.broker.node.escape

    def put(self, put=None, *, level=0):
        then = self.answers.append
        self.broker.turn(lambda: self.escape.put(put or message(), "SCHEDULE:3:17", then, level=level))
        self.serve_registrations()

    def peer(self, address):
        """Return the connection to an address; accept it first if it is only dialled."""
        for client in list(self.broker.dialled):
            if str(client.conn.peer) == address:
                self.broker.accept(client)
        return next(client for client in self.broker.clients if str(client.conn.peer) == address)

    def serve_registrations(self):
        for client in list(self.broker.clients):
            for each in [each for each in client.received if each.code == RequestCode.REGISTER_BROKER]:
                client.received.remove(each)
                client.send(write_command(0, opaque=each.opaque, flag=1))

    def asked(self, address, code):
        """Remove and return the only request with that code."""
        client = self.peer(address)
        (found,) = [each for each in client.received if each.code == code and not each.flag & 1]
        client.received.remove(found)
        return found

    def dials(self):
        return [str(client.conn.peer) for client in self.broker.dialled]

    def answer(self, address, request, code=0, body=b"", remark=None):
        self.peer(address).send(write_command(code, body=body, opaque=request.opaque, flag=1, remark=remark))
        self.serve_registrations()

    def route(self, *groups, nameserver=NS_1):
        request = self.asked(nameserver, RequestCode.GET_ROUTEINFO_BY_TOPIC)
        self.answer(nameserver, request, body=json.dumps(route(*groups)).encode())
        return request

    def no_topic(self, nameserver=NS_1):
        request = self.asked(nameserver, RequestCode.GET_ROUTEINFO_BY_TOPIC)
        self.answer(nameserver, request, ResponseCode.TOPIC_NOT_EXIST, remark="no topic")

    def sent(self, address):
        return self.asked(address, RequestCode.SEND_MESSAGE_V2)

    def sends(self, address, code=0, remark=None):
        self.answer(address, self.sent(address), code, remark=remark)


@pytest.fixture
def lab(make):
    return Lab(make)


def test_it_is_a_send_with_what_the_message_has(lab):
    lab.put()
    assert lab.route(("broker-b", B, 6, 4)).ext["topic"] == "T"
    request = lab.sent(B)
    assert request.body == b"body"
    properties = props.decode(request.ext.pop("i").encode())
    assert request.ext == {
        "a": "InnerProducerGroup_broker-a_0",
        "b": "T",
        "c": "TBW102",
        "d": "8",
        "e": "1",
        "f": "1",
        "g": "1750000000123",
        "h": "7",
        "j": "2",
        "k": "false",
        "m": "false",
        "n": "broker-b",
    }
    assert properties == {
        "UNIQ_KEY": "u",
        "KEYS": "k",
        "REAL_TOPIC": "T",
        "ESCAPED_FROM": "broker-a:SCHEDULE:3:17",
        "ESCAPED_BY": "broker-a:0",
    }, "neither delayed again nor taken for a half message, and WAIT is not false"
    assert lab.answers == []
    lab.answer(B, request)
    assert lab.answers == [OK]
    assert lab.escape.facts()["escapedTo"] == '{"broker-b":1}'


def test_the_route_is_asked_for_once_for_many_and_again_when_it_is_old(lab):
    lab.put()
    lab.put()
    lab.route(("broker-b", B, 6, 4))
    sends = [each for each in lab.peer(B).take() if each.code == RequestCode.SEND_MESSAGE_V2]
    assert len(sends) == 2
    for each in sends:
        lab.answer(B, each)
    lab.put()
    lab.sends(B)
    assert lab.answers == [OK] * 3
    lab.broker.advance(masters.ROUTE_MS)
    lab.put()
    lab.route(("broker-b", B, 6, 4))


@pytest.mark.parametrize(
    "group",
    [
        ("broker-a", "10.0.1.9:10911", 6, 4),  # this broker's own group
        ("broker-b", B, 4, 4),  # an acting slave is shown as id 0, and read-only
        ("broker-b", B, 6, 0),
        ("broker-b", "127.0.0.1:10911", 6, 4),  # this very broker
    ],
)
def test_what_is_no_master_of_another_group_is_not_asked(lab, group):
    lab.put()
    lab.route(group)
    lab.route(group, nameserver=NS_2)
    assert lab.answers == [SERVICE_NOT_AVAILABLE]
    assert lab.dials() == []
    assert lab.escape.why == "no other group with topic T has a live master"


def test_name_servers_are_asked_until_one_names_a_master(lab):
    lab.put()
    lab.no_topic()
    lab.route(("broker-b", B, 6, 4), nameserver=NS_2)
    lab.sends(B)
    assert lab.answers == [OK]
    lab.put(message(topic="U"))
    assert lab.asked(NS_2, RequestCode.GET_ROUTEINFO_BY_TOPIC).ext["topic"] == "U", "the one that knew is asked first"


def test_a_name_server_that_is_silent_is_passed_over(lab):
    lab.put()
    lab.broker.advance(masters.ROUTE_TIMEOUT_MS)
    lab.route(("broker-b", B, 6, 4), nameserver=NS_2)
    lab.sends(B)
    assert lab.answers == [OK]


def test_without_any_name_server(make):
    broker = make("escapeStrategy=remote")
    answers = []
    broker.turn(lambda: broker.node.escape.put(message(), "x", answers.append))
    assert answers == [SERVICE_NOT_AVAILABLE]
    assert "namesrvAddr" in broker.node.escape.why


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"\xff", b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{"0":"nonsense"}}]}']
)
def test_a_route_that_is_none_is_no_route(lab, body):
    lab.put()
    for nameserver in (NS_1, NS_2):
        lab.answer(nameserver, lab.asked(nameserver, RequestCode.GET_ROUTEINFO_BY_TOPIC), body=body)
    assert lab.answers == [SERVICE_NOT_AVAILABLE]


def test_one_that_cannot_be_reached_is_left_alone_and_the_next_is_tried(lab):
    two = ("broker-b", B, 6, 4), ("broker-c", C, 6, 4)
    lab.put(message(queue_id=0))
    lab.route(*two)
    (first,) = lab.dials()
    other = C if first == B else B
    lab.broker.refuse(lab.broker.dialled[0])
    lab.sends(other)
    assert lab.answers == [OK]
    lab.put(message(queue_id=0))
    lab.route(*two)
    lab.sends(other)
    assert lab.answers == [OK, OK]
    assert lab.dials() == [], "it is not dialled while its back-off runs"
    lab.broker.advance(masters.BACK_OFF_MS_MAX)
    lab.put(message(queue_id=0))
    lab.route(*two)
    assert lab.dials() == [first]


def test_the_back_off_grows_and_a_success_ends_it(lab):
    def attempts(ms):
        """Put a message every 100 ms for `ms`; return how often the peer is dialled."""
        dialled = 0
        for _ in range(ms // 100):
            lab.put()
            if RequestCode.GET_ROUTEINFO_BY_TOPIC in [each.code for each in lab.peer(NS_1).received]:
                lab.route(("broker-b", B, 6, 4))
            for client in list(lab.broker.dialled):
                dialled += 1
                lab.broker.refuse(client)
            lab.broker.advance(100)
        return dialled

    assert attempts(10_000) == 5, "at once, after 0.5, 1, 2, 4 s"
    assert attempts(20_000) <= 3
    assert set(lab.answers) == {SERVICE_NOT_AVAILABLE}
    assert "connection refused" in lab.escape.why
    lab.broker.advance(masters.BACK_OFF_MS_MAX)
    lab.put()
    lab.route(("broker-b", B, 6, 4))
    lab.sends(B)
    assert lab.answers[-1] is OK
    assert lab.escape.why == ""


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.SUCCESS, OK),
        (ResponseCode.SLAVE_NOT_AVAILABLE, OK),
        (ResponseCode.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_DISK_TIMEOUT),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT),
        (ResponseCode.SERVICE_NOT_AVAILABLE, SERVICE_NOT_AVAILABLE),
        (ResponseCode.SYSTEM_BUSY, SERVICE_NOT_AVAILABLE),
        (ResponseCode.TOPIC_NOT_EXIST, SERVICE_NOT_AVAILABLE),
        (ResponseCode.MESSAGE_ILLEGAL, SERVICE_NOT_AVAILABLE),
        (4711, SERVICE_NOT_AVAILABLE),
    ],
)
def test_answers(lab, code, status):
    lab.put()
    lab.route(("broker-b", B, 6, 4))
    lab.sends(B, code, "because")
    assert lab.answers == [status]
    assert lab.escape.unknown == (status in (PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT))
    assert lab.escape.escaped == (status is OK)
    assert ("because" in lab.escape.why) == (status is not OK)


def test_one_that_refuses_a_topic_is_asked_for_others(lab):
    lab.put()
    lab.route(("broker-b", B, 6, 4))
    lab.sends(B, ResponseCode.NO_PERMISSION, "forbidden")
    lab.put()
    assert lab.answers == [SERVICE_NOT_AVAILABLE] * 2
    lab.put(message(topic="U"))
    lab.route(("broker-b", B, 6, 4))
    lab.sends(B)
    assert lab.answers[-1] is OK


@pytest.mark.parametrize("how", ["silent", "lost"])
def test_no_answer_is_unknown_and_no_other_master_is_asked(lab, how):
    lab.put()
    lab.route(("broker-b", B, 6, 4), ("broker-c", C, 6, 4))
    (first,) = lab.dials()
    peer = lab.peer(first)
    lab.sent(first)
    if how == "silent":
        lab.broker.advance(3_000)
    else:
        peer.close()
    assert lab.answers == [UNKNOWN]
    assert lab.dials() == []
    assert lab.escape.unknown == 1


def test_messages_of_a_queue_go_to_one_master_and_queues_are_spread(lab):
    def target(queue_id):
        lab.put(message(queue_id=queue_id))
        for address in (B, C):
            if address in [str(client.conn.peer) for client in lab.broker.clients]:
                peer = lab.peer(address)
                found = [each for each in peer.received if each.code == RequestCode.SEND_MESSAGE_V2]
                if found:
                    lab.sends(address)
                    return address
        raise AssertionError("nobody was asked")

    lab.put()
    lab.route(("broker-b", B, 6, 4), ("broker-c", C, 6, 4))
    lab.sends(lab.dials()[0])
    assert [target(0), target(0)] == [target(2), target(2)]
    assert {target(0), target(1)} == {B, C}


def test_a_queue_the_master_does_not_have_becomes_one_that_it_has(lab):
    lab.put(message(queue_id=6))
    lab.route(("broker-b", B, 6, 4))
    assert lab.sent(B).ext["e"] == "2"


def test_a_delay_that_is_left_is_asked_for(lab):
    lab.put(message(topic="%RETRY%G"), level=5)
    lab.route(("broker-b", B, 6, 1))
    request = lab.sent(B)
    assert props.decode(request.ext["i"].encode())["DELAY"] == "5"
    assert (request.ext["b"], request.ext["j"], request.ext["l"]) == ("%RETRY%G", "2", "2"), "it is no dead letter there"


def test_a_dead_letter_is_one_by_the_way_of_its_retry_topic(lab):
    lab.put(message(topic="%DLQ%G", reconsume_times=17))
    assert lab.route(("broker-b", B, 6, 1)).ext["topic"] == "%RETRY%G"
    request = lab.sent(B)
    assert (request.ext["b"], request.ext["j"], request.ext["l"]) == ("%RETRY%G", "17", "0")


def test_the_producer_group_of_a_message_stays(lab):
    lab.put(message(properties=props.encode({"PGROUP": "shop"})))
    lab.route(("broker-b", B, 6, 4))
    assert lab.sent(B).ext["a"] == "shop"


def test_marks_are_left_out_rather_than_the_message(lab):
    long = props.encode({"UNIQ_KEY": "u", "big": "x" * (props.PROPERTIES_SIZE_MAX - 30)})
    lab.put(message(properties=long))
    lab.route(("broker-b", B, 6, 4))
    assert lab.sent(B).ext["i"].encode() == long


def test_routes_that_are_remembered_are_bounded(lab, monkeypatch):
    monkeypatch.setattr(masters, "TOPICS_MAX", 3)
    for number in range(10):
        lab.put(message(topic=f"T{number}"))
        lab.no_topic()
        lab.no_topic(NS_2)
    assert len(lab.escape.strategy._masters._routes) == 3
