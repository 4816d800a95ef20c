"""Bad input of pop: each row is a request, its answer, and nothing has changed afterwards.

In every test two messages are popped: one is redelivered, the other one comes from its own topic.
After the bad request both are still hidden, no record was written, no offset has moved, and both
can be acked with their valid handles.
"""

import base64
import json

import pytest

from rmqkit.broker.handlers.pop import acks
from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.handlers.pop_requests import INVISIBLE_MS, ack_fields, batch_of, fill, pop_fields, popped
from tests.broker.handlers.test_pop import revive_records
from tests.broker.handlers.test_pop_in_flight import in_flight
from tests.broker.requests import with_topic

AGAIN_MS = INVISIBLE_MS + 1_001
TEN_YEARS_MS = 10 * 365 * 86_400_000
S = ResponseCode
ACK, CHANGE = RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME
POP, BATCH = RequestCode.POP_MESSAGE, RequestCode.BATCH_ACK_MESSAGE

#: changes of a valid ack, or of a valid change of the invisible time
HANDLES = [
    ({"topic": "NONE"}, S.TOPIC_NOT_EXIST),
    ({"topic": "other"}, S.NO_MESSAGE),
    ({"queueId": 4}, S.MESSAGE_ILLEGAL),
    ({"queueId": -1}, S.MESSAGE_ILLEGAL),
    ({"queueId": "x"}, S.SYSTEM_ERROR),
    ({"offset": 99}, S.NO_MESSAGE),
    ({"offset": -1}, S.NO_MESSAGE),
    ({"offset": 2**63}, S.SYSTEM_ERROR),
    ({"offset": 0}, S.SUCCESS),
    ({"consumerGroup": "OTHER"}, S.SUCCESS),
    ({"consumerGroup": None}, S.SYSTEM_ERROR),
    ({"extraInfo": None}, S.SYSTEM_ERROR),
    ({"extraInfo": ""}, S.SYSTEM_ERROR),
    ({"extraInfo": "0 1 2 3 0 broker-a"}, S.SYSTEM_ERROR),
    ({"extraInfo": "0 1 2 3 0 broker-a 0 0 0"}, S.SYSTEM_ERROR),
    ({"extraInfo": "0 x 2 3 0 broker-a 0 0"}, S.SYSTEM_ERROR),
    ({"extraInfo": "0 -1 2 3 0 broker-a 0 0"}, S.SYSTEM_ERROR),
    ({"extraInfo": f"0 {10**30} 2 3 0 broker-a 0 0"}, S.SYSTEM_ERROR),
    ({"extraInfo": "0 \u0661 2 3 0 broker-a 0 0"}, S.SYSTEM_ERROR),
    # well-formed handles of no delivery: upstream's answer, and no effect
    ({"extraInfo": "0 1 2 3 0 broker-a 0 0"}, S.SUCCESS),
    ({"extraInfo": "1 1760000000000 60000 1 0 broker-a 0 1"}, S.SUCCESS),
    ({"extraInfo": "0 1 2 77777 0 broker-a 0 0"}, S.SUCCESS),
    ({"extraInfo": "0 1 2 999 0 broker-a 0 0"}, S.SUCCESS),
    ({"extraInfo": "0 1760000000000 60000 1 0 broker-b 0 1"}, S.SUCCESS),
]
INVISIBLE_TIMES = [
    ({"invisibleTime": -1}, S.INVALID_PARAMETER),
    ({"invisibleTime": TEN_YEARS_MS}, S.INVALID_PARAMETER),
    ({"invisibleTime": 2**63}, S.SYSTEM_ERROR),
    ({"invisibleTime": "soon"}, S.SYSTEM_ERROR),
    ({"invisibleTime": None}, S.SYSTEM_ERROR),
]
POPS = [
    *INVISIBLE_TIMES,
    ({"maxMsgNums": 33}, S.INVALID_PARAMETER),
    ({"queueId": 4}, S.INVALID_PARAMETER),
    ({"topic": "NONE"}, S.TOPIC_NOT_EXIST),
    ({"consumerGroup": "a b"}, S.SUBSCRIPTION_GROUP_NOT_EXIST),
    ({"order": "true", "invisibleTime": -1}, S.INVALID_PARAMETER),
    ({"bornTime": 1}, S.POLLING_TIMEOUT),
    ({"attemptId": "x" * 1000, "maxMsgNums": -1}, S.POLLING_TIMEOUT),
]
#: changes of one valid item of a batch ack
ITEMS = [
    ({"b": "AAAA"}, S.SUCCESS),
    ({"b": ""}, S.SUCCESS),
    ({"so": 2, "b": "//////////8="}, S.SUCCESS),
    ({"q": 77}, S.SUCCESS),
    ({"q": -1}, S.SUCCESS),
    ({"so": -5}, S.SUCCESS),
    ({"pt": 1}, S.SUCCESS),
    ({"t": "NONE"}, S.SUCCESS),
    ({"c": "OTHER"}, S.SUCCESS),
    ({"rq": 999}, S.SUCCESS),
    ({"b": "?"}, S.SYSTEM_ERROR),
    ({"r": "7"}, S.SYSTEM_ERROR),
    ({"so": "x"}, S.SYSTEM_ERROR),
    ({"so": 2**63}, S.SYSTEM_ERROR),
    ({"b": base64.b64encode(bytes(acks.BITS_SIZE_MAX + 1)).decode()}, S.INVALID_PARAMETER),
]
BODIES = [
    (b"", S.NO_MESSAGE),
    (b"{}", S.NO_MESSAGE),
    (b'{"acks":[]}', S.NO_MESSAGE),
    (b"[", S.SYSTEM_ERROR),
    (b'{"acks":7}', S.SYSTEM_ERROR),
    (b'{"acks":[1]}', S.SYSTEM_ERROR),
    (b'{"acks":[%s]}' % b",".join([b"{}"] * (acks.BATCH_MAX + 1)), S.INVALID_PARAMETER),
]

ROWS = [
    *((ACK, changes, code) for changes, code in HANDLES),
    *((CHANGE, changes, code) for changes, code in [*HANDLES, *INVISIBLE_TIMES]),
    *((POP, changes, code) for changes, code in POPS),
    *((BATCH, changes, code) for changes, code in [*ITEMS, *BODIES]),
]


class Popped:
    """A broker with two popped messages."""

    def __init__(self, script):
        self.script = script
        self.client = with_topic(script)
        with_topic(script, "other")
        fill(self.client, 1)
        popped(script, self.client)
        script.advance(AGAIN_MS)
        fill(self.client, 1)
        self.again, self.first = sorted(popped(script, self.client), key=lambda each: each.body)
        assert (self.again.real_topic, self.first.real_topic) == ("%RETRY%CG_T", "T")
        script.advance(1_000)

    def ask(self, code, changes):
        if code == POP:
            return self.client.ask(code, pop_fields(self.script, **changes))
        if code == BATCH and isinstance(changes, bytes):
            return self.client.ask(code, None, changes)
        if code == BATCH:
            body = {"acks": [batch_of([self.first], **changes)], "brokerName": "broker-a"}
            return self.client.ask(code, None, json.dumps(body).encode())
        fields = self.change(changes) if code == CHANGE else ack_fields(self.first, **changes)
        return self.client.ask(code, fields)

    def change(self, changes):
        return ack_fields(self.first, **{"invisibleTime": 5_000, **changes})

    def state(self):
        offsets = {key: dict(queues) for key, queues in self.script.node.offsets.table.items() if "REVIVE" not in key}
        return len(revive_records(self.client)), in_flight(self.client), offsets


@pytest.fixture
def made(broker):
    return Popped(broker)


def name(value):
    """Return the id of a parameter: long values are cut."""
    return str(value)[:60]


@pytest.mark.parametrize(("code", "changes", "answer"), ROWS, ids=name)
def test_bad_input_changes_nothing(made, code, changes, answer):
    before = made.state()
    got = made.ask(code, changes)
    assert got.code == answer, got
    assert made.state() == before
    for message in (made.again, made.first):
        assert made.client.ask(ACK, ack_fields(message)).code == 0
    assert in_flight(made.client).total == 0
    assert len(revive_records(made.client)) == before[0] + 2


@pytest.mark.parametrize("code", [ACK, CHANGE])
def test_an_invisible_time_of_zero_is_over_at_once(made, code):
    """Not refused: a client gives a message back that way."""
    if code == CHANGE:
        assert made.client.ask(CHANGE, made.change({"invisibleTime": 0})).code == 0
        body = made.first.body
    else:
        fill(made.client, 1)
        (message,) = popped(made.script, made.client, invisibleTime=0)
        body = message.body
    made.script.advance(1_001)
    assert [each.body for each in popped(made.script, made.client)] == [body]


def test_what_was_never_popped_is_not_acked(broker):
    client = with_topic(broker)
    fill(client, 2)
    fields = {"consumerGroup": "CG", "topic": "T", "queueId": "0", "offset": "1"}
    handle = f"0 {broker.clock.wall_ms} 60000 0 0 broker-a 0 1"
    assert client.ask(ACK, {**fields, "extraInfo": handle}).code == 0
    assert len(popped(broker, client)) == 2
    assert len(revive_records(client)) == 1


@pytest.mark.parametrize("code", [POP, ACK, CHANGE, BATCH, RequestCode.PEEK_MESSAGE, RequestCode.NOTIFICATION])
def test_a_slave_that_does_not_act_refuses_everything(make, code):
    broker = make("brokerRole=SLAVE", "brokerId=1")
    fields = {**pop_fields(broker), "extraInfo": "0 1 2 3 0 broker-a 0 0", "offset": "0", "queueId": "0"}
    answer = broker.connect().ask(code, fields, b'{"acks":[{"c":"CG"}]}')
    assert answer.code == S.SERVICE_NOT_AVAILABLE
    assert "does not act for it" in answer.remark


def test_many_acks_of_one_handle_write_one_record(made):
    item = batch_of([made.first])
    before = len(revive_records(made.client))
    for _ in range(3):
        body = {"acks": [item] * 1_000, "brokerName": "broker-a"}
        assert made.client.ask(BATCH, None, json.dumps(body).encode()).code == 0
    assert len(revive_records(made.client)) == before + 1
