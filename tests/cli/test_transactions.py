"""`rmqkit transaction` shows half messages without an outcome, and decides them."""

import pytest

from rmqkit import Message, TransactionProducer, TransactionState
from tests.api.until import until

TOPIC = "paid"


def check(message):
    return TransactionState.UNKNOWN


@pytest.fixture
def halves(up):
    """A producer that leaves two half messages, and goes away."""
    namesrv = up.json("cluster", "env")["NAMESRV_ADDR"]
    up.run("topic", "create", TOPIC, "--queues", "1")
    with TransactionProducer("left", check=check, namesrv=namesrv) as producer:
        sent = [producer.send_half(Message(TOPIC, f"order {n}", keys=f"k{n}")).result(10) for n in range(2)]
        one = up.json("transaction", "show", sent[0].msg_id)
        assert one["why"].startswith("its producer has not decided")
        assert (one["producers"], one["checks"], one["topic"], one["group"]) == (1, 0, TOPIC, "left")
        assert one["message"]["keys"] == "k0"
    return [each.msg_id for each in sent]


def listed(up):
    return {each["id"]: each for each in up.json("transaction", "list")}


@pytest.mark.long
def test_an_operator_decides(up, halves):
    first, second = halves
    until(lambda: listed(up)[first]["producers"] == 0)
    assert listed(up)[second]["why"] == "no producer of group left is online to be asked"
    assert first in up.run("transaction", "list").stdout
    assert "order 0" in up.run("transaction", "show", first).stdout
    assert up.json("transaction", "resolve", first, "--commit")["outcome"] == "committed"
    assert up.json("transaction", "resolve", second, "--rollback")["outcome"] == "rolled back"
    consumed = up.run("consume", TOPIC, "--from", "earliest", "--max", "1", "--format", "body").stdout
    assert consumed.strip() == "order 0"
    until(lambda: not {first, second} & set(listed(up)))
    again = up.run("transaction", "resolve", first, "--commit", code=1)
    assert f"no transaction {first} is prepared" in again.stderr


def test_outcomes_that_cannot_be_set(up):
    assert "one of --commit and --rollback" in up.run("transaction", "resolve", "F" * 32, code=2).stderr
    assert "is prepared" in up.run("transaction", "resolve", "F" * 32, "--commit", code=1).stderr
    assert "was given up" in up.run("transaction", "resume", "F" * 32, code=1).stderr
    assert up.json("transaction", "list", "--given-up") == []
