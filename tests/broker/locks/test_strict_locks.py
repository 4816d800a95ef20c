"""`lockMode=strict`: a quorum of the broker group grants queue locks.

`rmqkit.testing.LockModeContract` tests what every lock mode guarantees.

Source: `AdminBrokerProcessor.{lockBatchMQ,unlockBatchMQ}`.
"""

import json

import pytest

from rmqkit import config
from rmqkit.broker.locks import ballot
from rmqkit.broker.locks.contract import NOTHING_MORE, Loose, lock_mode_of
from rmqkit.broker.locks.lock_table import LOCK_LIVE_MS, LockTable
from rmqkit.broker.locks.strict import Strict
from rmqkit.broker.locks.vote_recovery import ASK_AFTER_MS, FILE
from rmqkit.broker.roles import Online, Role
from rmqkit.sim.cluster import SimCluster
from rmqkit.sim.world import World
from rmqkit.testing import SimBroker, brokers
from rmqkit.wire.bodies import LockBatchAnswer, LockBatchBody
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue

QUEUES = [MessageQueue("T", "broker-a", each) for each in range(4)]
SECOND = 1000


class Group:
    """A group in strict mode. Tests name brokers by id and call their lock modes directly."""

    def __init__(self, replicas=3, *, ready_ms=5 * SECOND, lock_mode=None, **settings):
        self.cluster = SimCluster(
            World(1), replicas=replicas, acting=True, fast=True, settings={"lockMode": "strict", **settings},
            lock_mode=lock_mode,
        )  # fmt: skip
        self.world = self.cluster.world
        self.names = self.cluster.brokers
        self.cluster.ready()
        self.world.run_for(ready_ms)

    def node(self, at):
        return self.cluster.broker(self.names[at])

    def mode(self, at) -> Strict:
        return self.node(at).locks

    def ask(self, client_id, queues=QUEUES, *, at=0, **more):
        answers = []

        def then(outcome, more=NOTHING_MORE):
            answers.append(outcome if isinstance(outcome, str) else sorted(queue.queue_id for queue in outcome))

        def lock(broker):
            now_ms = broker.clock.mono_ms
            broker.locks.lock("G", client_id, queues, only_this_broker=False, now_ms=now_ms, then=then, **more)

        self.world.call(self.names[at], lock)
        return answers

    def lock(self, client_id, queues=QUEUES, *, at=0, within_ms=900):
        answers = self.ask(client_id, queues, at=at)
        assert self.world.run_until(lambda: answers, within_ms)
        return answers[0]

    def unlock(self, client_id, queues=QUEUES, *, at=0):
        def unlock(broker):
            broker.locks.unlock("G", client_id, queues, only_this_broker=False, now_ms=broker.clock.mono_ms)

        self.world.call(self.names[at], unlock)
        self.world.run_for(200)

    def voted_for(self, at, client_id):
        table = self.mode(at).table
        return [queue.queue_id for queue in QUEUES if (lease := table.lease("G", queue)) and lease.client_id == client_id]

    def votes_from_ms(self, at):
        return int(self.node(at).view.facts()["lockVotesFrom"])

    def file(self, at):
        return json.loads(self.world.disk(self.names[at]).read(FILE, 0, 100_000))

    def stop(self, *ids):
        for at in ids:
            self.world.stop(self.names[at])
        assert self.world.run_until(lambda: not any(self.world.is_alive(self.names[at]) for at in ids), 10 * SECOND)

    def restart(self, *ids):
        for at in ids:
            self.world.restart(self.names[at])
        assert self.world.run_until(lambda: all(self.node(at).serving for at in ids), 10 * SECOND)

    def cut(self, *ids):
        others = [name for at, name in enumerate(self.names) if at not in ids]
        self.world.net.partition([self.names[at] for at in ids], others)


# --- the choice


def mode_of(*settings):
    return lock_mode_of(config.load([], list(settings), "broker"))


def test_both_keys_choose():
    assert mode_of() == "loose"
    assert mode_of("lockMode=strict") == "strict"
    assert mode_of("lockInStrictMode=true") == "strict"
    assert mode_of("lockInStrictMode=true", "lockMode=strict") == "strict"
    assert mode_of("lockInStrictMode=true", "lockMode=fencing") == "fencing"
    with pytest.raises(config.ConfigError, match="disagree"):
        mode_of("lockInStrictMode=true", "lockMode=loose")
    assert isinstance(SimBroker("lockInStrictMode=true").node.locks, Strict)
    assert SimBroker("lockInStrictMode=true").node.view.facts()["lockMode"] == "strict"


# --- attempts


def test_an_undo_reverts_the_changes_of_its_attempt_and_nothing_else():
    table = LockTable()
    assert table.lock("G", "c1", QUEUES[:1], 0, attempt=7) == QUEUES[:1]
    assert table.lock("G", "c1", QUEUES[:2], 1000, attempt=8) == QUEUES[:2]
    table.undo("G", "c1", QUEUES, 7)
    assert table.lease("G", QUEUES[0]).since_ms == 1000, "a later attempt stands"
    table.undo("G", "c2", QUEUES, 8)
    assert table.count == 2, "another client's"
    table.undo("G", "c1", QUEUES, 8)
    assert (table.lease("G", QUEUES[0]).since_ms, table.lease("G", QUEUES[0]).attempt) == (0, 7)
    assert (table.lease("G", QUEUES[1]), table.count) == (None, 1)
    table.undo("G", "c1", QUEUES, 8)
    assert table.count == 1, "once"


def test_an_unlock_that_names_another_attempt_frees_nothing():
    table = LockTable()
    table.lock("G", "c1", QUEUES[:1], 0, attempt=7)
    table.unlock("G", "c1", QUEUES, attempt=6)
    assert table.count == 1
    table.unlock("G", "c1", QUEUES, attempt=7)
    assert table.count == 0


# --- ballots


def test_every_member_votes_and_every_member_learns_of_an_unlock():
    group = Group()
    assert group.lock("c1", QUEUES[:2]) == [0, 1]
    group.world.run_for(100)
    assert [group.voted_for(at, "c1") for at in range(3)] == [[0, 1]] * 3
    assert [group.node(at).view.facts()["lockHeld"] for at in range(3)] == ["2"] * 3
    group.unlock("c1", QUEUES[:1])
    assert [group.voted_for(at, "c1") for at in range(3)] == [[1]] * 3


def test_a_majority_is_enough_and_its_answer_does_not_wait_for_the_rest():
    group = Group()
    group.world.pause(group.names[2])
    assert group.lock("c1", within_ms=50) == [0, 1, 2, 3]


def test_too_few_are_an_error_and_no_refusal():
    """A missing quorum is an error, because a queue missing from an answer counts as refused.

    The client would treat it as locked by another client, while its own old lease may still run.
    """
    group = Group()
    assert group.lock("c1") == [0, 1, 2, 3]
    group.world.run_for(10 * SECOND)
    renewed_ms = group.mode(0).table.lease("G", QUEUES[0]).since_ms
    group.world.kill(group.names[1])
    group.world.kill(group.names[2])
    assert group.lock("c1").startswith("no quorum: 1 of 3 brokers voted for the queue, 2 have to")
    assert group.mode(0).table.lease("G", QUEUES[0]).since_ms == renewed_ms, "neither prolonged nor given up"
    assert group.lock("c2") == [], "refused for certain"


def test_votes_without_a_quorum_are_withdrawn_from_absent_members_too():
    group = Group()
    group.cut(0)
    asked_ms = group.world.now_ms
    assert "no quorum" in group.lock("c1")
    assert group.world.now_ms - asked_ms <= ballot.VOTE_TIMEOUT_MS + 10, "the client waits for a second"
    group.world.run_for(10 * SECOND)
    group.world.net.heal()
    group.world.run_for(5 * SECOND)
    assert [group.voted_for(at, "c1") for at in range(3)] == [[]] * 3


def test_votes_that_are_found_after_a_stop_grant_nothing():
    """The coordinator is paused (SIGSTOP) while it waits; it finds the votes when it resumes."""
    group = Group()
    answers = group.ask("c1")
    assert group.world.run_until(lambda: group.mode(0)._ballots, 100)
    group.world.pause(group.names[0])
    assert not answers
    group.world.run_for(70 * SECOND)
    assert group.lock("c2", at=1) == [0, 1, 2, 3]
    group.world.resume(group.names[0])
    group.world.run_for(2 * SECOND)
    assert isinstance(answers[0], str) or answers[0] == []
    assert group.voted_for(1, "c2") == [0, 1, 2, 3]


def test_a_queue_that_is_unlocked_during_the_ballot_is_not_granted():
    group = Group()
    answers = group.ask("c1")
    assert group.world.run_until(lambda: group.mode(0)._ballots, 100)
    group.unlock("c1", QUEUES[1:])
    assert answers == [[0]]
    group.world.run_for(SECOND)
    assert group.lock("c2") == [1, 2, 3]


def test_an_unlock_that_comes_late_frees_nothing_that_was_locked_again_elsewhere():
    group = Group()
    assert group.lock("c1") == [0, 1, 2, 3]
    old = group.mode(0).table.lease("G", QUEUES[0]).attempt
    assert group.lock("c1", at=1) == [0, 1, 2, 3]
    group.world.run_for(100)
    late = LockBatchBody(
        client_id="c1", consumer_group="G", mq_set=QUEUES, only_this_broker=True, rmqkit={"attempt": old}
    ).encode()
    node, member = group.node(0), group.names[0]
    done = []
    to = group.node(2).view.address
    group.world.call(
        member,
        lambda _: node.remoting.call(to, RequestCode.UNLOCK_BATCH_MQ, None, late, timeout_ms=SECOND, then=done.append),
    )
    assert group.world.run_until(lambda: done, SECOND)
    assert done[0].is_ok
    assert group.voted_for(2, "c1") == [0, 1, 2, 3]


def test_a_request_that_comes_after_its_attempt_was_withdrawn_gets_no_vote():
    group = Group()
    mode, now_ms = group.mode(1), group.node(1).clock.mono_ms
    mode.unlock("G", "c1", [], only_this_broker=True, now_ms=now_ms, more={"undo": 77, "queues": [["T", "broker-a", 0]]})
    heard = []
    mode.lock(
        "G", "c1", QUEUES, only_this_broker=True, now_ms=now_ms, then=lambda *told: heard.append(told), more={"attempt": 77}
    )
    assert heard == [([],)]


@pytest.mark.parametrize(
    "queues", [[["T", [1], {}]], [[["T"], "b", 0]], [[{}, {}, {}]], [["T", "b", True]], {}, "TbT", None]
)
def test_malformed_queues_are_left_out(queues):
    """Any peer can send such a list; it must not stop the broker."""
    broker = SimBroker("lockMode=strict")
    sent = body("c1", only_this_broker=True, more={"undo": 5, "queues": queues})
    assert broker.ask(RequestCode.UNLOCK_BATCH_MQ, None, sent).is_ok


def test_a_full_table_says_so():
    group = Group()
    group.mode(0).table._locks_max = 3
    assert group.lock("c1") == "too many queues are locked on this broker"
    assert group.lock("c1", QUEUES[:2]) == [0, 1]


def test_without_acting_masters_the_error_says_why_no_peer_is_known():
    broker = SimBroker("lockMode=strict", "totalReplicas=3")
    broker.advance(LOCK_LIVE_MS + SECOND)
    answer = broker.ask(RequestCode.LOCK_BATCH_MQ, None, body("c1"))
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "no quorum: 1 of 3" in answer.remark
    assert "only with enableSlaveActingMaster" in answer.remark


# --- requests to masters, slaves and isolated brokers


def body(client_id, *, only_this_broker=False, more=None):
    return LockBatchBody(
        client_id=client_id, consumer_group="G", mq_set=QUEUES, only_this_broker=only_this_broker, rmqkit=more
    ).encode()


def wire(group, at, data, code=RequestCode.LOCK_BATCH_MQ):
    """Send a request to broker `at` as a plain peer, from broker 2's machine."""
    done = []
    to = group.node(at).view.address
    group.world.call(
        group.names[2],
        lambda broker: broker.remoting.call(to, code, None, data, timeout_ms=2 * SECOND, then=done.append),
    )
    assert group.world.run_until(lambda: done, 3 * SECOND)
    return done[0]


def test_clients_lock_at_the_master_alone_and_every_member_answers_members():
    group = Group()
    refused = wire(group, 1, body("c1"))
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert refused.remark == "the broker is a slave and locks no queues: ask its master or acting master"
    assert wire(group, 1, body("c1"), RequestCode.UNLOCK_BATCH_MQ).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert LockBatchAnswer.decode(wire(group, 1, body("c1", only_this_broker=True)).body).lock_ok_mq_set == QUEUES
    group.world.kill(group.names[0])
    assert group.world.run_until(lambda: group.node(1).roles.role is Role.ACTING, 10 * SECOND)
    assert LockBatchAnswer.decode(wire(group, 1, body("c1")).body).lock_ok_mq_set == QUEUES


def test_a_broker_that_is_isolated_votes_and_serves_no_client():
    group = Group()
    group.world.call(group.names[0], lambda broker: broker.roles.isolate("a test"))
    assert group.world.run_until(lambda: group.node(0).roles.online is not Online.ONLINE, SECOND)
    assert wire(group, 0, body("c1")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert LockBatchAnswer.decode(wire(group, 0, body("c1", only_this_broker=True)).body).lock_ok_mq_set == QUEUES


# --- what a broker knows after its start


def test_a_new_group_votes_as_soon_as_its_brokers_know_each_other():
    group = Group(ready_ms=0)
    assert all(group.votes_from_ms(at) > LOCK_LIVE_MS - 5 * SECOND for at in range(3))
    group.world.run_for(ASK_AFTER_MS + 2 * SECOND)
    assert [group.votes_from_ms(at) for at in range(3)] == [0, 0, 0]


def test_a_new_group_that_is_not_complete_votes_after_the_lease():
    group = Group(ready_ms=0)
    group.world.kill(group.names[2])
    group.world.run_for(LOCK_LIVE_MS - 10 * SECOND)
    assert "no quorum: 0 of 3" in group.lock("c1")
    group.world.run_for(11 * SECOND)
    assert group.lock("c1") == [0, 1, 2, 3]


def test_a_clean_stop_keeps_the_votes_and_its_file_counts_once():
    group = Group()
    assert group.lock("c1", QUEUES[:2]) == [0, 1]
    group.stop(0, 1, 2)
    votes = [{"group": "G", "clientId": "c1", "queue": ["T", "broker-a", each]} for each in range(2)]
    assert group.file(1) == {"state": "stopped", "votes": votes}
    group.restart(0, 1, 2)
    group.world.run_for(3 * SECOND)
    assert [group.votes_from_ms(at) for at in range(3)] == [0, 0, 0]
    assert group.lock("c2") == [2, 3]
    assert group.lock("c1") == [0, 1]
    assert group.file(1) == {"state": "voting"}
    group.world.kill(group.names[1])
    group.restart(1)
    assert group.votes_from_ms(1) > 50 * SECOND


def test_a_killed_broker_waits_if_no_peer_knows_its_votes():
    """Both brokers were killed, so neither can tell the other its votes."""
    group = Group()
    assert group.lock("c1") == [0, 1, 2, 3]
    for at in (1, 2):
        group.world.kill(group.names[at])
    group.restart(1, 2)
    started_ms = group.world.now_ms
    group.world.run_for(LOCK_LIVE_MS - 10 * SECOND)
    assert group.votes_from_ms(1) > 0
    assert "no quorum: 1 of 3" in group.lock("c1")
    assert group.world.run_until(lambda: group.votes_from_ms(1) == 0, 60 * SECOND)
    assert LOCK_LIVE_MS <= group.world.now_ms - started_ms <= LOCK_LIVE_MS + 2 * SECOND


def test_a_killed_broker_votes_at_once_if_no_queue_is_locked():
    group = Group()
    assert group.lock("c1") == [0, 1, 2, 3]
    group.unlock("c1")
    group.world.kill(group.names[1])
    group.restart(1)
    group.world.run_for(ASK_AFTER_MS + 2 * SECOND)
    assert group.votes_from_ms(1) == 0


def test_a_broker_that_lost_its_disk_recovers_its_votes_from_peers():
    """An empty store looks like a new one, so it must not grant what it may have granted before."""
    group = Group()
    group.stop(2)
    group.world.run_for(3 * SECOND)
    assert group.lock("c1") == [0, 1, 2, 3], "by 0 and 1"
    group.world.kill(group.names[1])
    group.world.lose_disk(group.names[1])
    group.cut(0)
    group.restart(1, 2)
    group.world.run_for(15 * SECOND)
    assert group.mode(1).vote_recovery.is_new
    assert group.lock("c2", at=1).startswith("no quorum: 1 of 3"), "2 alone would have to be enough"
    group.world.net.heal()
    group.world.run_for(5 * SECOND)
    assert group.votes_from_ms(1) == 0
    assert group.lock("c2", at=1) == []


def test_a_broker_that_does_not_vote_may_coordinate():
    group = Group()
    assert group.lock("c1", QUEUES[:1]) == [0]
    group.world.kill(group.names[0])
    group.restart(0)
    group.world.run_for(ASK_AFTER_MS - 1_500)
    assert group.votes_from_ms(0) > 0
    assert group.lock("c1", QUEUES[:1]) == [0]
    assert group.lock("c2") == [1, 2, 3]
    assert group.mode(0).table.count == 0
    assert group.mode(0).holds_any("G", group.node(0).clock.mono_ms), "it consumes in order, whoever has the votes"


@pytest.mark.parametrize("content", [b"", b"nonsense", b'{"state":"stopped"}', b'{"state":7,"votes":[]}', None])
def test_a_file_that_cannot_be_read_says_nothing(content):
    """The backup does not help either: it may be from a clean stop before the last run."""
    broker = SimBroker("lockMode=strict")
    broker.ask(RequestCode.LOCK_BATCH_MQ, None, body("c1"))
    broker.stop()
    folder = broker.world.folder("broker")
    folder.remove(folder.full(FILE))
    if content is not None:
        folder.make_file(folder.full(FILE)).write(0, content)
    broker.start()
    assert int(broker.node.view.facts()["lockVotesFrom"]) > LOCK_LIVE_MS - SECOND


def test_a_store_that_was_in_another_mode_is_not_new():
    broker = SimBroker()
    broker.send("T", b"hello")
    broker.stop()
    broker.config = config.load([], [*brokers.SETTINGS, "lockMode=strict"], "broker", host=config.Host())
    broker.start()
    assert not broker.node.locks.vote_recovery.is_new
    assert int(broker.node.view.facts()["lockVotesFrom"]) > LOCK_LIVE_MS - SECOND


def test_no_vote_is_cast_before_the_file_is_durable():
    broker = SimBroker("lockMode=strict")
    broker.stop()
    broker.start()
    broker.stop()
    broker.world.restart("broker")
    broker.world.disk("broker").fail("replace", FILE, times=3)
    broker._wait_serving()
    broker.advance(1500)
    assert broker.node.view.facts()["lockVotesFrom"] == "1"
    assert broker.log_lines("lock-votes-not-kept")
    broker.advance(5000)
    assert broker.node.view.facts()["lockVotesFrom"] == "0"


def test_a_single_broker_that_is_new_votes_at_once_and_waits_after_a_kill():
    broker = SimBroker("lockMode=strict")
    broker.advance(100)

    def lock(client_id):
        answer = broker.ask(RequestCode.LOCK_BATCH_MQ, None, body(client_id))
        return LockBatchAnswer.decode(answer.body).lock_ok_mq_set if answer.is_ok else answer.remark

    assert lock("c1") == QUEUES
    broker.kill()
    broker.start()
    refused = (
        "no quorum: 0 of 1 brokers voted for the queue, 1 have to; this broker votes in 61 s, when all votes it may have"
    )
    assert lock("c2").startswith(refused)
    broker.advance(LOCK_LIVE_MS + SECOND)
    assert lock("c2") == QUEUES


# --- beside Apache's


def apache_like(broker):
    """Brokers 1 and up vote like an Apache broker in strict mode: no attempts, no extra object."""
    return Strict(broker) if broker.config.identity.broker_id == 0 else Loose()


def test_votes_of_apaches_brokers_count():
    group = Group(lock_mode=apache_like)
    group.world.run_for(LOCK_LIVE_MS)
    assert group.lock("c1") == [0, 1, 2, 3]
    assert group.lock("c2") == []
    group.unlock("c1", QUEUES[:2])
    assert group.lock("c2") == [0, 1]
    group.world.pause(group.names[1])
    assert group.lock("c2") == [0, 1]
    assert group.voted_for(2, "c1") == [2, 3]


def test_beside_apaches_brokers_a_new_one_waits_for_the_lease():
    """Apache's brokers do not report their votes."""
    group = Group(lock_mode=apache_like)
    assert group.votes_from_ms(0) > 0
    assert group.lock("c1") == [0, 1, 2, 3], "two of Apache's are a quorum"
    group.world.run_for(LOCK_LIVE_MS)
    assert group.votes_from_ms(0) == 0


def test_the_request_of_a_vote_is_what_java_reads():
    """fastjson ignores unknown fields of `LockBatchRequestBody`."""
    asked = json.loads(body("c1", only_this_broker=True, more={"attempt": 1}))
    assert {"clientId", "consumerGroup", "mqSet", "onlyThisBroker"} == set(asked) - {"rmqkit"}
    assert b"rmqkit" not in body("c1")


def test_an_unlock_by_a_broker_outside_the_ballot_frees_nothing_at_rmqkit_members():
    """The unlock may arrive late, after the client has locked again elsewhere.

    So our members keep their votes until the lease expires. Apache's members would free the queue.
    """
    group = Group()
    assert group.lock("c1") == [0, 1, 2, 3]
    group.world.kill(group.names[1])
    group.restart(1)
    group.world.run_for(SECOND)
    assert group.votes_from_ms(1) > 0
    group.unlock("c1", at=1)
    assert [group.voted_for(at, "c1") for at in (0, 2)] == [[0, 1, 2, 3]] * 2
    group.unlock("c1", at=0)
    assert [group.voted_for(at, "c1") for at in (0, 2)] == [[], []]
