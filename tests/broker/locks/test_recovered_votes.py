"""Votes that a broker learns from its peers after a restart (`broker/locks/recovered_votes.py`)."""

import pytest

from rmqkit.broker.locks import recovered_votes
from rmqkit.broker.locks.lock_table import BEHIND_MAX, LOCK_LIVE_MS, LockTable, chain
from rmqkit.broker.locks.recovered_votes import (
    NOTED_MAX,
    REPORTED_MAX,
    RecoveredVotes,
    RemainingLease,
    VoteReport,
    all_running,
    decode_votes,
    encode_votes,
)
from rmqkit.broker.locks.vote_recovery import ASK_AFTER_MS
from rmqkit.wire import fastjson
from tests.broker.locks.test_strict_locks import QUEUES, SECOND, Group

LIVE = LOCK_LIVE_MS


def vote(client_id, *leases, queue_id=0):
    """Build a vote. `leases` are (remaining ms, attempt): the vote first, then its predecessors."""
    return VoteReport("G", client_id, "T", "broker-a", queue_id, [RemainingLease(*each) for each in leases])


def open_to(votes, client_id, now_ms=0):
    return [queue.queue_id for queue in votes.open_to(client_id, "G", QUEUES, now_ms)]


@pytest.fixture
def votes():
    return RecoveredVotes(LockTable())


# --- votes that block


def test_a_recovered_vote_blocks_other_clients_until_its_reported_end(votes):
    votes.take([vote("c1", (5000, 7))], 100)
    assert open_to(votes, "c1", 100) == [0, 1, 2, 3]
    assert open_to(votes, "c2", 100) == [1, 2, 3]
    assert open_to(votes, "c2", 5100) == [1, 2, 3]
    assert open_to(votes, "c2", 5101) == [0, 1, 2, 3]
    assert votes.open_to("c2", "other", QUEUES, 100) == QUEUES
    votes.sweep(5101)
    assert not votes.leases("G", QUEUES[0])


def test_of_two_reported_clients_neither_gets_a_vote_until_one_vote_has_expired(votes):
    """One of the two clients may hold the queue thanks to a vote of this broker."""
    votes.take([vote("c1", (5000, 7)), vote("c2", (9000, 8))], 0)
    assert open_to(votes, "c1") == open_to(votes, "c2") == [1, 2, 3]
    assert open_to(votes, "c1", 5001) == [1, 2, 3]
    assert open_to(votes, "c2", 5001) == [0, 1, 2, 3]


def test_the_longest_remaining_time_counts_up_to_the_length_of_a_lease(votes):
    votes.take([vote("c1", (9000, 7))], 0)
    votes.take([vote("c1", (5000, 7))], 0)
    assert len(votes.leases("G", QUEUES[0])) == 1
    assert open_to(votes, "c2", 9000) == [1, 2, 3]
    votes.take([vote("c3", (10**9, 7), queue_id=1)], 0)
    assert open_to(votes, "c2", LIVE + 1) == [0, 1, 2, 3]


# --- withdrawals


def test_an_unlock_withdraws_the_votes_of_its_attempt(votes):
    votes.take([vote("c1", (5000, 7)), vote("c1", (5000, 7), queue_id=1)], 0)
    votes.unlock("G", "c2", QUEUES)
    votes.unlock("G", "c1", QUEUES, 6)
    assert open_to(votes, "c2") == [2, 3]
    votes.unlock("G", "c1", QUEUES[:1], 7)
    assert open_to(votes, "c2") == [0, 2, 3]
    votes.unlock("G", "c1", QUEUES)
    assert open_to(votes, "c2") == [0, 1, 2, 3]


def test_an_undo_restores_the_previous_lease(votes):
    """The vote of a renewal was reported before its ballot ended.

    If the ballot fails, the lease before it is still valid.
    """
    votes.take([vote("c1", (60_000, 9), (40_000, 8), (20_000, 7))], 0)
    votes.undo("G", "c1", QUEUES, 9)
    assert [each.attempt for each in chain(votes.leases("G", QUEUES[0])[0])] == [8, 7]
    assert open_to(votes, "c2", 40_000) == [1, 2, 3]
    assert open_to(votes, "c2", 40_001) == [0, 1, 2, 3]
    votes.undo("G", "c1", QUEUES, 8)
    votes.undo("G", "c1", QUEUES, 7)
    assert open_to(votes, "c2") == [0, 1, 2, 3]


@pytest.mark.parametrize("take_back", ["unlock", "undo"])
def test_a_withdrawal_while_peers_are_asked_applies_to_their_answers(votes, take_back):
    votes.note(on=True)
    getattr(votes, take_back)("G", "c1", QUEUES[:1], 7)
    votes.take([vote("c1", (5000, 7)), vote("c1", (5000, 7), queue_id=1)], 0)
    assert open_to(votes, "c2") == [0, 2, 3]
    votes.note(on=True)
    votes.take([vote("c1", (5000, 7))], 0)
    assert open_to(votes, "c2") == [2, 3], "told in a later round: somebody has it again"


def test_noted_withdrawals_are_limited_and_none_is_noted_unless_peers_are_asked(votes):
    votes.note(on=True)
    for attempt in range(1, NOTED_MAX + 2):
        votes.undo("G", "c1", QUEUES, attempt)
    votes.take([vote("c1", (5000, 1))], 0)
    assert open_to(votes, "c2") == [1, 2, 3], "the first was dropped: its vote runs out"
    votes.note(on=False)
    votes.undo("G", "c2", QUEUES, 5)
    votes.take([vote("c2", (5000, 5), queue_id=1)], 0)
    assert open_to(votes, "c3") == [2, 3]


# --- reports to peers


def told_of(table, adopted_, now_ms):
    running = all_running(table, adopted_, now_ms)
    return decode_votes(fastjson.loads(fastjson.dumps(encode_votes(running, table.live_ms, now_ms))))


def test_encoded_votes_are_decoded_unchanged():
    table = LockTable()
    own = RecoveredVotes(table)
    table.lock("G", "c1", QUEUES[:1], 0, attempt=7)
    table.lock("G", "c1", QUEUES[:2], 20_000, attempt=8)
    own.take([vote("c2", (50_000, 9), queue_id=3)], 20_000)
    assert told_of(table, own, 30_000) == [
        vote("c1", (50_000, 8), (30_000, 7)), vote("c1", (50_000, 8), queue_id=1), vote("c2", (40_000, 9), queue_id=3)
    ]  # fmt: skip
    assert told_of(table, own, 61_000) == [
        vote("c1", (19_000, 8)), vote("c1", (19_000, 8), queue_id=1), vote("c2", (9_000, 9), queue_id=3)
    ]  # fmt: skip
    assert told_of(table, own, 90_000) == []


def test_too_many_votes_are_not_sent(monkeypatch):
    table = LockTable()
    table.lock("G", "c1", QUEUES, 0)
    running = all_running(table, RecoveredVotes(table), 0)
    assert len(encode_votes(running, LIVE, 0)) == 4
    monkeypatch.setattr(recovered_votes, "REPORTED_CHARS_MAX", 4 * len("Gc1Tbroker-a") - 1)
    assert encode_votes(running, LIVE, 0) is None
    assert encode_votes(running * REPORTED_MAX, LIVE, 0) is None


@pytest.mark.parametrize(
    "said",
    [
        *(None, 7, {}, [7], [[]], [["G", "c", "T", "b", 0]], [["G", "c", "T", "b", 0, []]]),
        [["G", "c", "T", "b", "0", [[1, 1]]]],
        [["G", "c", "T", "b", 0, [[1.5, 1]]]],
        [["G", "c", "T", "b", 0, [[1, 1]] * (BEHIND_MAX + 2)]],
    ],
)
def test_an_answer_that_is_no_list_of_votes_is_ignored(said):
    assert decode_votes(said) is None


# --- the lock table


def test_several_attempts_that_fail_leave_the_lease_from_before_them():
    table = LockTable()
    for now_ms, attempt in ((0, 1), (20_000, 2), (20_100, 3)):
        table.lock("G", "c1", QUEUES[:1], now_ms, attempt)
    table.undo("G", "c1", QUEUES[:1], 3)
    table.undo("G", "c1", QUEUES[:1], 2)
    assert table.lease("G", QUEUES[0])[:3] == ("c1", 0, 1)
    assert table.lock("G", "c2", QUEUES[:1], LIVE, 4) == []


def test_the_chain_behind_a_lease_is_limited_and_expires():
    table = LockTable()
    for attempt in range(1, 40):
        table.lock("G", "c1", QUEUES[:1], attempt, attempt)
    assert len(chain(table.lease("G", QUEUES[0]))) == 1 + BEHIND_MAX
    table.lock("G", "c1", QUEUES[:1], LIVE + 36, 40)
    assert [each.attempt for each in chain(table.lease("G", QUEUES[0]))] == [40, 39, 38, 37, 36]


# --- in a broker group


def killed_and_back(*ids, lose_disk=()):
    """Build a group in which c1 locks all queues, then kill and restart the brokers `ids`.

    Return it when they have had time to ask their peers for votes.
    """
    group = Group()
    assert group.lock("c1") == [0, 1, 2, 3]
    group.world.run_for(100)
    for at in ids:
        group.world.kill(group.names[at])
    for at in lose_disk:
        group.world.lose_disk(group.names[at])
    group.restart(*ids)
    group.world.run_for(ASK_AFTER_MS + 2 * SECOND)
    return group


def held(group, at):
    return int(group.node(at).view.facts()["lockHeld"])


def test_a_killed_broker_recovers_its_votes_and_votes_again():
    group = killed_and_back(1)
    assert (group.votes_from_ms(1), held(group, 1), group.voted_for(1, "c1")) == (0, 4, [])
    assert group.mode(1).holds_any("G", group.node(1).clock.mono_ms)
    group.world.kill(group.names[2])
    assert group.lock("c2") == []
    assert group.lock("c1") == [0, 1, 2, 3], "by the votes of 0 and 1"
    assert group.voted_for(1, "c1") == [0, 1, 2, 3]
    assert group.lock("c2", at=1) == []


def test_an_unlock_withdraws_a_recovered_vote_too():
    group = killed_and_back(1)
    group.unlock("c1", QUEUES[:2])
    assert held(group, 1) == 2
    assert group.lock("c1", QUEUES[2:]) == [2, 3]
    group.unlock("c1", QUEUES[2:])
    assert [held(group, at) for at in range(3)] == [0, 0, 0], "the recovered votes went with the new ones"
    group.world.kill(group.names[2])
    assert group.lock("c2") == [0, 1, 2, 3]


def test_a_broker_with_recovered_votes_may_coordinate_the_unlock():
    group = killed_and_back(1)
    group.unlock("c1", at=1)
    assert [held(group, at) for at in range(3)] == [0, 0, 0]


def test_recovered_votes_are_sent_and_saved_in_turn():
    group = killed_and_back(1)
    group.stop(0, 1, 2)
    group.restart(0, 1, 2)
    assert held(group, 1) == 4
    group.world.run_for(3 * SECOND)
    group.world.kill(group.names[2])
    group.restart(2)
    group.cut(0)
    group.world.run_for(ASK_AFTER_MS + 2 * SECOND)
    assert group.votes_from_ms(2) > 0, "1 alone is not enough"
    group.world.net.heal()
    group.world.run_for(3 * SECOND)
    assert (group.votes_from_ms(2), held(group, 2)) == (0, 4)
    assert group.lock("c2") == []


def test_a_killed_broker_learns_nothing_from_a_peer_that_lost_its_disk():
    """Brokers 1 and 2 granted the lock. That both have forgotten it does not make it free."""
    group = Group()
    group.stop(0)
    group.world.run_for(3 * SECOND)
    assert group.lock("c1", at=1) == [0, 1, 2, 3]
    for at in (1, 2):
        group.world.kill(group.names[at])
    group.world.lose_disk(group.names[2])
    group.restart(0, 1, 2)
    group.world.run_for(10 * SECOND)
    assert (group.votes_from_ms(0), held(group, 0)) == (0, 0)
    assert group.mode(2).vote_recovery.is_new
    assert group.votes_from_ms(1) > 40 * SECOND
    assert "no quorum" in group.lock("c2")


def test_a_broker_whose_peers_send_no_votes_waits_for_the_lease(monkeypatch):
    monkeypatch.setattr(recovered_votes, "REPORTED_MAX", 3)
    group = killed_and_back(1)
    assert group.votes_from_ms(1) > 50 * SECOND
    group.world.run_for(LIVE)
    assert group.votes_from_ms(1) == 0


def test_a_new_group_recovers_at_once():
    """The last broker to ask its peers finds locks held, and the master dies soon after."""
    group = Group(ready_ms=0)
    world, late = group.world, group.names[1]
    world.kill(late)
    world.lose_disk(late)
    group.restart(1)
    assert world.run_until(lambda: group.votes_from_ms(0) == group.votes_from_ms(2) == 0, 10 * SECOND)
    asked_ms = world.now_ms
    assert group.votes_from_ms(1) > 0
    assert group.lock("c1") == [0, 1, 2, 3]
    world.run_for(3 * SECOND)
    world.kill(group.names[0])
    assert world.run_until(lambda: group.node(1).roles.is_acting, 10 * SECOND)
    assert group.lock("c2", at=1) == []
    assert group.lock("c1", QUEUES[:3], at=1) == [0, 1, 2], "its holder goes on"
    world.run_for(asked_ms + LIVE - SECOND - world.now_ms)
    assert group.lock("c2", at=1) == []
    world.run_for(2 * SECOND)
    assert group.lock("c2", at=1) == [3]
    world.run_for(20 * SECOND)
    assert group.lock("c2", at=1) == [0, 1, 2, 3]
