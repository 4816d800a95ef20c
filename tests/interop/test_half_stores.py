"""Half messages in a store folder that our broker and Apache's serve in turn.

The first broker is killed while halves wait. The second one reads the half topic, the ops and the
offsets of CID_RMQ_SYS_TRANS that the first one wrote: it asks about the halves without an outcome,
and about no other. Its producer decides them.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqkit import Message, MessageExt, TransactionProducer, TransactionState
from tests.interop.test_delayed_stores import TOPIC, Place, with_topic, works
from tests.interop.until import until

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
#: how old, in ms, a half without an outcome is when its producer is asked: the first broker is
#: killed before that. Apache's broker would also ask about each copy that the first one has put
TIMEOUT_MS = 10_000
#: how often, in ms, a broker looks for them
CHECK_MS = 3_000
PENDING = ("pending 0", "pending 1", "pending 2")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(
        tmp_path,
        transactionTimeOut=str(TIMEOUT_MS),
        transactionCheckInterval=str(CHECK_MS),
        transactionOpBatchInterval="300",
        flushConsumerOffsetInterval="300",
    )
    try:
        yield made
    finally:
        made.end(clean=False)
        made.servers.stop()


@pytest.mark.interop_full
@pytest.mark.parametrize(("first", "second"), [("rmqkit", "apache"), ("apache", "rmqkit")])
def test_undecided_halves_are_checked_by_the_other_broker(place: Place, first: str, second: str) -> None:
    asked: set[str] = set()
    answers: dict[str, TransactionState] = {}

    def check(message: MessageExt) -> TransactionState:
        body = message.body.decode()
        asked.add(body)
        return answers.get(body, UNKNOWN)

    place.start(first)
    with (
        with_topic(place),
        TransactionProducer(
            "half_stores", check=check, namesrv=place.namesrv, topics=[TOPIC], send_msg_timeout_ms=10_000
        ) as producer,
    ):
        for body, state in {"committed": COMMIT, "rolled back": ROLLBACK, **dict.fromkeys(PENDING, UNKNOWN)}.items():
            result = producer.send_in_transaction(Message(TOPIC, body, tags="T", keys="k"), lambda sent, arg: arg, state)
            assert result.send.is_ok
            assert result.end_error == ""
        until("the first one", lambda: [each.body for each in place.found()] == [b"committed"])
        time.sleep(1)  # until the ops and the offsets are written
        place.end(clean=False)
        assert asked == set()
        answers |= {"pending 0": COMMIT, "pending 1": ROLLBACK, "pending 2": COMMIT}
        place.start(second)
        until("the second broker", works(lambda: place.found()), 0.3)
        until("the outcomes", lambda: len(place.found()) >= 3, 0.3)
        until("it asks about all", lambda: asked >= set(PENDING), 0.3)
        time.sleep(2 * CHECK_MS / 1000)
        found = {each.body.decode(): each for each in place.found()}
        assert sorted(each.body for each in place.found()) == [b"committed", b"pending 0", b"pending 2"]
        assert {(each.tags, each.keys) for each in found.values()} == {("T", "k")}
        assert asked == set(PENDING), "nothing that is decided is asked about"
