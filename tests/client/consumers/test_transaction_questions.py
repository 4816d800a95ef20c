"""Questions of brokers about transactions.

Source: `ClientRemotingProcessor.checkTransactionState`.
"""

import pytest

from rmqkit.client.message import Message
from rmqkit.client.producers.outgoing_message import Prepare
from rmqkit.client.producers.transactions import half_of
from rmqkit.errors import InvalidMessage
from rmqkit.wire import properties as props
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.record import encode_record
from rmqkit.wire.uniqueids import UniqueIds
from tests.client.consumers.test_push_consumer import ONE_QUEUE, running
from tests.client.peers import A, Peers

HOST = bytes((10, 0, 2, 1, 0, 0, 0x2A, 0x9F))


@pytest.fixture
def peers():
    return Peers(routes={"T": ONE_QUEUE})


def question(group="PG"):
    return encode_record(
        topic="T",
        queue_id=1,
        flag=0,
        queue_offset=7,
        phy_offset=900,
        sys_flag=0,
        born_ms=1,
        born_host=HOST,
        store_ms=2,
        store_host=HOST,
        reconsume_times=0,
        prepared_offset=0,
        body=b"half",
        properties=props.encode({"PGROUP": group, "UNIQ_KEY": "A" * 32}),
    )


def ask(peers, body, **fields):
    offsets = {"tranStateTableOffset": "7", "commitLogOffset": "900", "msgId": "A" * 32, "transactionId": "A" * 32}
    peers.tell(A, RequestCode.CHECK_TRANSACTION_STATE, {**offsets, **fields}, body, flag=0)
    return peers.answer_of_client(A)


def test_the_question_reaches_the_producer_of_its_group(peers):
    running(peers)
    asked = []
    peers.client.checkers["PG"] = asked.append
    assert ask(peers, question()).code == 0
    ((message, address, end),) = [(each.message, each.address, each.end) for each in asked]
    assert (message.body, message.topic, message.msg_id) == (b"half", "T", "A" * 32)
    assert str(address) == str(A)
    assert (end.producer_group, end.tran_state_table_offset, end.commit_log_offset) == ("PG", 7, 900)
    assert (end.msg_id, end.from_transaction_check) == ("A" * 32, True)


@pytest.mark.parametrize("body", [b"", b"no record", question("other")], ids=("empty", "torn", "group"))
def test_a_question_that_nobody_here_can_answer_is_refused(peers, body):
    running(peers)
    peers.client.checkers["PG"] = lambda each: pytest.fail("not for this producer")
    assert ask(peers, body).code == ResponseCode.SYSTEM_ERROR


def test_the_form_of_a_half():
    prepare = Prepare(UniqueIds(bytes(4), 1, 1))
    half = half_of(prepare.message(Message("T", b"x", keys="k"), 0), "PG")
    mapping = props.decode(half.properties.encode())
    assert (mapping["TRAN_MSG"], mapping["PGROUP"], mapping["KEYS"], half.sys_flag) == ("true", "PG", "k", 4)
    with pytest.raises(InvalidMessage, match="delay"):
        half_of(prepare.message(Message("T", b"x", delay_level=3), 0), "PG")
