"""Outcomes of transactions: where they go, what they wait for, and when they are sent again."""

import pytest

from rmqkit.client.flow import start
from rmqkit.client.message import SendResult, SendStatus
from rmqkit.client.producers.transaction_ends import deliver_end
from rmqkit.client.producers.transactions import END_TIMEOUT_MS, TransactionState, end_of
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from tests.client.peers import A_SLAVE, ON_A, A, Peers, route

END = RequestCode.END_TRANSACTION
COMMIT, UNKNOWN = TransactionState.COMMIT, TransactionState.UNKNOWN
HALF = SendResult(
    SendStatus.SEND_OK,
    msg_id="A" * 32,
    queue=MessageQueue("T", "broker-a", 1),
    queue_offset=7,
    offset_msg_id="0A000201000029FF0000000000000384",
)


class Ending:
    """The end of one half; `result` is why it was not confirmed."""

    def __init__(self, state=COMMIT):
        self.peers = Peers(routes={"T": ON_A})
        self.peers.do(lambda: self.peers.client.routes.watch("T"))
        self.peers.do(lambda: start(self.peers.client.routes.find("T")))
        self.found = []
        self.state = state

    def begin(self):
        request = end_of("PG", HALF)
        self.peers.do(lambda: self._begin(request))

    def _begin(self, request):
        promise = start(deliver_end(self.peers.client, HALF, request, self.state))
        promise.when_done(lambda: self.found.append(promise.result()))

    def result(self):
        assert len(self.found) == 1, self.found
        return self.found[0]


@pytest.fixture
def ending():
    return Ending()


def test_an_outcome_is_confirmed(ending):
    ending.begin()
    asked = ending.peers.take(END, A)
    named = {name: asked.ext[name] for name in ("tranStateTableOffset", "commitLogOffset", "commitOrRollback")}
    assert named == {"tranStateTableOffset": "7", "commitLogOffset": "900", "commitOrRollback": "8"}
    asked.answer(0)
    assert ending.result() == ""


def test_an_unknown_outcome_is_not_sent():
    ending = Ending(UNKNOWN)
    ending.begin()
    assert ending.result() == ""
    assert ending.peers.times(END) == 0


def test_a_refusal_is_final(ending):
    ending.begin()
    ending.peers.take(END, A).answer(ResponseCode.SYSTEM_ERROR, remark="Find prepared transaction message failed")
    assert "Find prepared" in ending.result()
    ending.peers.advance(END_TIMEOUT_MS)
    assert ending.peers.times(END) == 1


def test_the_slave_that_takes_over_gets_the_outcome(ending):
    """It appears in the route a moment before it acts, and refuses until then."""
    ending.peers.states[A] = "down"
    ending.begin()
    ending.peers.routes["T"] = route(("broker-a", {0: A_SLAVE}), perm=4)
    ending.peers.advance(1_500)
    ending.peers.take(END, A_SLAVE).answer(ResponseCode.SLAVE_NOT_AVAILABLE)
    assert ending.found == []
    ending.peers.advance(400)
    ending.peers.take(END, A_SLAVE).answer(0)
    assert ending.result() == ""


def test_attempts_end_in_time(ending):
    ending.peers.states[A] = "down"
    ending.begin()
    ending.peers.advance(END_TIMEOUT_MS)
    assert "gave no answer" in ending.result()
    assert ending.peers.times(END) == 0


def test_an_outcome_that_may_have_arrived_is_not_repeated(ending):
    ending.begin()
    ending.peers.cut(A)
    assert "gave no answer" in ending.result()
    ending.peers.advance(END_TIMEOUT_MS)
    assert ending.peers.times(END) == 1
