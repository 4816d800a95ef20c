"""A slave acts for its master while a timer and half messages wait; one of the two is Apache's.

The master is killed. The timer that becomes due, and the half without an outcome, leave for the
other group, whose broker asks the producer. The returning master does not repeat them.

An outcome that reaches the acting slave counts if the slave is ours; Apache's refuses it, and the
other group asks about that half, too.
"""

import time
from collections import Counter
from pathlib import Path

import pytest

from rmqkit import Message, MessageExt, MessageQueue, PullConsumer, TransactionProducer, TransactionState
from tests.interop.acting import BROKEN, OTHER, QUEUES, TOPIC, ActingCluster
from tests.interop.until import until

OURS, APACHE = "ours", "apache"
COMMIT = TransactionState.COMMIT
_OWN = {"transactionTimeOut": "15000", "transactionCheckInterval": "2000"}
#: longer than the takeover takes, and the copy of the records to the slave
DUE_MS = 12_000


def bodies(cluster: ActingCluster, broker: str) -> Counter[str]:
    """Return how often each body is in the topic at a broker."""
    with PullConsumer(namesrv=cluster.namesrv) as reader:
        queues = [MessageQueue(TOPIC, broker, each) for each in range(QUEUES)]
        count = sum(reader.offset_max(queue) for queue in queues)
        reader.assign(queues)
        for queue in queues:
            reader.seek_to_begin(queue)
        found: list[MessageExt] = []
        until(f"{count} messages of {broker}", lambda: len(found.__iadd__(reader.poll(200))) >= count)
        return Counter(each.body.decode() for each in found)


@pytest.mark.interop_full
@pytest.mark.parametrize(("master", "slave"), [(OURS, APACHE), (APACHE, OURS)])
def test_what_waits_is_delivered_while_the_master_is_away(master: str, slave: str, tmp_path: Path) -> None:
    makes = {"ns": OURS, "a0": master, "a1": slave, "b0": OURS}
    cluster = ActingCluster(tmp_path, makes, settings=_OWN, heap_mb=384)
    asked: list[str] = []

    def check(message: MessageExt) -> TransactionState:
        asked.append(message.body.decode())
        return COMMIT

    try:
        cluster.start()
        queue = MessageQueue(TOPIC, BROKEN, 0)
        with TransactionProducer("acting_services", check=check, namesrv=cluster.namesrv, topics=[TOPIC]) as producer:
            ended = producer.send_half(Message(TOPIC, "ended"), queue).result(10)
            open_half = producer.send_half(Message(TOPIC, "open"), queue).result(10)
            timer = producer.send(Message(TOPIC, "timer", delay_ms=DUE_MS), queue)
            assert ended.is_ok
            assert open_half.is_ok
            assert timer.is_ok
            time.sleep(4)  # the slave copies the timer checkpoint every 3 s
            cluster.master.kill()
            until("the slave acts", lambda: cluster.route(TOPIC)[BROKEN][1].get(0) == cluster.slave.address)
            if slave == OURS:
                # The route names the slave a moment before it acts.
                until("an outcome is kept", lambda: producer.end(ended, COMMIT).result(10).end_error == "")
            else:
                assert "answered 11" in producer.end(ended, COMMIT).result(10).end_error
            wanted = {"ended", "open", "timer"}
            until("all are with the other group", lambda: set(bodies(cluster, OTHER)) >= wanted, 0.5)
            assert ("ended" in asked) == (slave == APACHE)
            cluster.master.begin()
            until("the master is back", lambda: cluster.route(TOPIC)[BROKEN][1].get(0) == cluster.master.address)
            time.sleep(8)
            assert bodies(cluster, OTHER) == Counter(wanted), "each once"
            assert set(bodies(cluster, BROKEN)) == set(), "the master repeats none"
    finally:
        cluster.close()
