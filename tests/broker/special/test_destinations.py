"""The guarded store of a master: which messages wait until contact with the group is proven."""

import pytest

from rmqkit.broker.special.destinations import GuardedStore
from rmqkit.store.contract import Put, PutResult, PutRun, PutStatus
from rmqkit.wire.topic_names import HALF_TOPIC, OP_TOPIC, TIMER_TOPIC


class Lost:
    """Contact that is not proven."""

    is_needed, is_proven, why = True, False, "no member answers"

    def __init__(self):
        self.asked = 0
        self.on_proof = lambda: None

    def ask(self):
        self.asked += 1


@pytest.fixture
def contact():
    return Lost()


@pytest.fixture
def stored():
    return []


@pytest.fixture
def store(contact, stored):
    class Puts:
        def put(self, message, then):
            stored.append(message.topic)
            then(PutStatus.PUT_OK)
            return PutResult(PutStatus.PUT_OK, 0, 0, 1)

        def put_run(self, run, then):
            stored.extend(topic for topic, _ in run.queues)
            return len(run.queues)

    return GuardedStore(Puts(), contact)


def message(topic):
    return Put(topic, 0, 0, 0, 0, bytes(8), bytes(8), 0, 0, b"", b"", 0)


def run_for(*topics):
    count = len(topics)
    queues = [(topic, 0) for topic in topics]
    return PutRun(
        queues, [0] * count, [0] * count, [bytes(16)] * count, [bytes(12)] * count, [0] * count, [b""] * count,
        [b""] * count, [0] * count,
    )  # fmt: skip


@pytest.mark.parametrize("topic", ["orders", HALF_TOPIC, TIMER_TOPIC])
def test_puts_that_release_a_message_wait_for_contact(contact, stored, store, topic):
    ended = []
    assert store.put(message(topic), "o", ended.append) is None
    assert (stored, ended, contact.asked) == ([], [], 1)
    contact.on_proof()
    assert (stored, ended) == ([topic], [PutStatus.PUT_OK])


@pytest.mark.parametrize("topic", [OP_TOPIC, "rmq_sys_REVIVE_LOG_c"])
def test_puts_that_only_record_do_not_wait_for_contact(contact, stored, store, topic):
    assert store.put(message(topic), "o", lambda status: None) is not None
    assert (stored, contact.asked) == ([topic], 0)


def test_many_messages_are_put_together_only_with_contact(contact, stored, store):
    run = run_for("orders", "bills")
    assert store.put_run(run, lambda status: None) == 0
    contact.is_proven = True
    assert store.put_run(run, lambda status: None) == 2
    assert stored == ["orders", "bills"]


def test_many_messages_do_not_overtake_one_that_waits(contact, stored, store):
    store.put(message("orders"), "o", lambda status: None)
    contact.is_proven = True
    assert store.put_run(run_for("orders"), lambda status: None) == 0
    assert stored == []


def test_waiting_puts_end_with_service_not_available_when_the_duty_ends(contact, stored, store):
    ended = []
    store.put(message(HALF_TOPIC), "o", ended.append)
    store.withdraw()
    contact.on_proof()
    assert (stored, ended) == ([], [PutStatus.SERVICE_NOT_AVAILABLE])
