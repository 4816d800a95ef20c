"""Raft's claims, one test each, with the section of the paper that makes it.

"In Search of an Understandable Consensus Algorithm (Extended Version)", Ongaro and Ousterhout 2014.
The same 26 claims as in etcd's `raft_paper_test.go`, in the same order.
"""

import pytest

from rmqkit.controller.raft.core import CANDIDATE, FOLLOWER, LEADER, PRE_CANDIDATE
from rmqkit.controller.raft.messages import MessageKind, Position
from tests.controller.raft.script import HEARTBEAT_MS, TIMEOUT_MS, Member, entries_of

APPEND, APPEND_REPLY = MessageKind.APPEND, MessageKind.APPEND_REPLY
HEARTBEAT, VOTE, VOTE_REPLY = MessageKind.HEARTBEAT, MessageKind.VOTE, MessageKind.VOTE_REPLY


# --- 5.1: terms


def test_a_follower_takes_over_a_later_term():
    member = Member(term=1)
    member.receive(APPEND, "b", 2)
    assert (member.raft.state, member.raft.term, member.raft.leader_id) == (FOLLOWER, 2, "b")


def test_a_candidate_takes_over_a_later_term_and_follows():
    member = Member(term=1)
    member.stand()
    assert member.raft.state is CANDIDATE
    member.receive(APPEND, "b", 7)
    assert (member.raft.state, member.raft.term) == (FOLLOWER, 7)


def test_a_leader_takes_over_a_later_term_and_follows():
    member = Member(term=1)
    member.lead()
    assert member.raft.state is LEADER
    member.receive(APPEND, "b", 7)
    assert (member.raft.state, member.raft.term, member.raft.leader_id) == (FOLLOWER, 7, "b")


@pytest.mark.parametrize("kind", [APPEND, HEARTBEAT, MessageKind.SNAPSHOT, VOTE, MessageKind.PRE_VOTE])
def test_a_message_of_an_earlier_term_is_refused(kind):
    member = Member(term=3, entries=[1, 3])
    member.receive(kind, "b", 2, Position(1, 1), entries=[2] if kind is APPEND else ())
    assert member.terms == [1, 3]
    assert member.raft.leader_id == ""
    assert [(each.rejected, each.term) for each in member.sent()] == [(True, 3)]


# --- 5.2: elections


def test_a_member_starts_as_a_follower():
    assert Member().raft.state is FOLLOWER
    assert Member(term=4, vote="a").raft.state is FOLLOWER


def test_a_leader_sends_heartbeats_to_all_peers():
    member = Member(size=5)
    member.lead()
    member.forget()
    member.wait(HEARTBEAT_MS)
    assert [(each.to, each.term) for each in member.sent(HEARTBEAT)] == [(peer, 1) for peer in "bcde"]


def test_a_follower_without_messages_starts_an_election():
    member = Member(term=1)
    member.time_out()
    assert member.raft.state is PRE_CANDIDATE
    member.receive(MessageKind.PRE_VOTE_REPLY, "b", 2)
    assert (member.raft.state, member.raft.term, member.raft.vote) == (CANDIDATE, 2, "a")
    assert [(each.to, each.term) for each in member.sent(VOTE)] == [("b", 2), ("c", 2)]


def test_a_candidate_that_neither_wins_nor_loses_starts_another_election():
    member = Member(term=1)
    member.stand()
    assert member.raft.term == 2
    member.stand()
    assert (member.raft.state, member.raft.term, member.raft.vote) == (CANDIDATE, 3, "a")


@pytest.mark.parametrize(
    ("size", "granted", "refused", "role"),
    [
        (1, "", "", LEADER),
        (3, "bc", "", LEADER),
        (3, "b", "", LEADER),
        (5, "bcde", "", LEADER),
        (5, "bcd", "", LEADER),
        (5, "bc", "", LEADER),
        (3, "", "bc", FOLLOWER),
        (5, "", "bcde", FOLLOWER),
        (5, "b", "cde", FOLLOWER),
        (3, "", "", CANDIDATE),
        (5, "b", "", CANDIDATE),
        (5, "", "bc", CANDIDATE),
        (5, "", "", CANDIDATE),
    ],
)
def test_a_majority_of_votes_in_one_term_elects(size, granted, refused, role):
    member = Member(size=size)
    member.stand()
    for peer in granted:
        if member.raft.state is CANDIDATE:
            member.receive(VOTE_REPLY, peer, 1)
    for peer in refused:
        if member.raft.state is CANDIDATE:
            member.receive(VOTE_REPLY, peer, 1, rejected=True)
    assert member.raft.state is role
    assert member.raft.term == 1


@pytest.mark.parametrize(
    ("vote", "candidate", "is_granted"),
    [("", "b", True), ("", "c", True), ("b", "b", True), ("c", "c", True), ("b", "c", False), ("c", "b", False)],
)
def test_a_member_votes_once_in_a_term_and_repeats_only_that_vote(vote, candidate, is_granted):
    member = Member(term=1, vote=vote)
    member.receive(VOTE, candidate, 1)
    assert [(each.to, each.rejected) for each in member.sent(VOTE_REPLY)] == [(candidate, not is_granted)]
    assert member.raft.vote == (vote or candidate)


@pytest.mark.parametrize("term", [1, 2])
def test_a_candidate_follows_the_leader_of_its_term_or_a_later_one(term):
    member = Member()
    member.stand()
    member.receive(APPEND, "c", term)
    assert (member.raft.state, member.raft.term, member.raft.leader_id) == (FOLLOWER, term, "c")


@pytest.mark.parametrize("role", [FOLLOWER, CANDIDATE])
def test_election_timeouts_are_drawn_from_an_interval(role):
    """Between one and two time-outs, a new draw for each election."""
    dues = set()
    for draw in range(0, TIMEOUT_MS, 100):
        member = Member(draw=draw)
        if role is CANDIDATE:
            member.stand()
        dues.add(member.raft._election_due_ms - member.now_ms)
        assert set(member.draws.stops) == {TIMEOUT_MS}
    assert dues == set(range(TIMEOUT_MS, 2 * TIMEOUT_MS, 100))


@pytest.mark.parametrize("role", [FOLLOWER, CANDIDATE])
def test_with_different_draws_one_member_is_the_first_candidate(role):
    """With different draws, the first one asks for votes before the others' time is up."""
    members = [Member(draw=draw) for draw in (0, 300, 600)]
    if role is CANDIDATE:
        for member in members:
            member.stand()
    due_ms = [member.raft._election_due_ms - member.now_ms for member in members]
    assert sorted(due_ms)[1] - min(due_ms) >= 300


# --- 5.3: replication


def leader(*, size: int = 3, entries: list[int] | None = None, term: int = 1) -> Member:
    """Return a leader whose entries all peers have, up to the first one of its own term."""
    member = Member(size=size, entries=entries or [], term=term - 1)
    member.lead()
    for peer in member.peers:
        member.acknowledge(peer)
    member.forget()
    return member


def test_a_leader_appends_a_proposal_and_sends_it_to_all():
    member = leader()
    assert member.propose(b"data") == Position(1, 2)
    sent = member.sent(APPEND)
    assert [(each.to, each.position, each.commit) for each in sent] == [(peer, (1, 1), 1) for peer in "bc"]
    assert [list(each.entries) for each in sent] == [[(1, 2, b"data")]] * 2
    assert member.raft.log.last == (1, 2)


def test_an_entry_is_committed_and_applied_once_a_majority_has_it():
    member = leader()
    member.propose(b"data")
    assert member.raft.log.commit == 1
    member.forget()
    member.acknowledge("b", 2)
    assert member.raft.log.commit == 2
    assert member.applied[-1] == (1, 2, b"data")
    assert {(each.to, each.commit) for each in member.sent(APPEND)} == {("b", 2), ("c", 2)}


@pytest.mark.parametrize(
    ("size", "acknowledging", "is_committed"),
    [
        (1, "", True),
        (3, "", False),
        (3, "b", True),
        (3, "bc", True),
        (5, "", False),
        (5, "b", False),
        (5, "bc", True),
        (5, "bcd", True),
        (5, "bcde", True),
    ],
)
def test_a_majority_of_copies_commits(size, acknowledging, is_committed):
    member = leader(size=size)
    member.propose()
    for peer in acknowledging:
        member.acknowledge(peer, 2)
    assert (member.raft.log.commit == 2) == is_committed


@pytest.mark.parametrize("entries", [[], [2], [1, 2], [1]])
def test_a_commit_includes_the_entries_before(entries):
    """Also those that earlier leaders left."""
    member = Member(entries=entries, term=2)
    member.lead()
    member.propose(b"data")
    assert member.applied == []
    member.acknowledge("b")
    count = len(entries)
    assert member.applied == [*entries_of(entries), (3, count + 1, b""), (3, count + 2, b"data")]


@pytest.mark.parametrize(("entries", "commit"), [([1], 1), ([1, 1], 2), ([1, 1], 1), ([1, 1, 1], 2)])
def test_a_follower_applies_what_its_leader_says_is_committed(entries, commit):
    member = Member(term=1)
    member.receive(APPEND, "b", 1, entries=entries, commit=commit)
    assert member.raft.log.commit == commit
    assert member.applied == entries_of(entries)[:commit]


@pytest.mark.parametrize(
    ("position", "is_accepted", "hint"),
    [
        (Position(0, 0), True, None),
        (Position(1, 1), True, None),
        (Position(2, 2), True, None),
        (Position(1, 2), False, Position(1, 1)),
        (Position(4, 2), False, Position(2, 2)),
        (Position(3, 3), False, Position(2, 2)),
    ],
)
def test_a_follower_refuses_an_append_after_an_entry_that_it_lacks(position, is_accepted, hint):
    member = Member(term=2, entries=[1, 2])
    member.receive(APPEND, "b", 4, position)
    (reply,) = member.sent(APPEND_REPLY)
    assert reply.rejected is not is_accepted
    assert reply.position == position
    if hint is not None:
        assert reply.hint == hint


@pytest.mark.parametrize(
    ("position", "entries", "log", "written"),
    [
        (Position(2, 2), [3], [1, 2, 3], [3]),
        (Position(1, 1), [3, 4], [1, 3, 4], [3, 4]),
        (Position(0, 0), [1], [1, 2], []),
        (Position(0, 0), [3], [3], [3]),
    ],
)
def test_a_follower_replaces_what_conflicts_and_keeps_what_agrees(position, entries, log, written):
    member = Member(term=4, entries=[1, 2])
    member.receive(APPEND, "b", 4, position, entries=entries)
    assert member.terms == log
    assert [entry.term for batch in member.writes for entry in batch.log.entries] == written


FIGURE_7 = {
    "a": [1, 1, 1, 4, 4, 5, 5, 6, 6],
    "b": [1, 1, 1, 4],
    "c": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],
    "d": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
    "e": [1, 1, 1, 4, 4, 4, 4],
    "f": [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
}


@pytest.mark.parametrize("case", FIGURE_7)
def test_a_leader_makes_every_log_of_figure_7_equal_to_its_own(case):
    lead = Member(entries=[1, 1, 1, 4, 4, 5, 5, 6, 6, 6], term=7)
    follower = Member(entries=FIGURE_7[case], term=7, id="b")
    lead.stand()
    lead.receive(VOTE_REPLY, "c", 8)
    for _ in range(20):
        out, back = lead.sent(APPEND), follower.sent(APPEND_REPLY)
        lead.forget()
        follower.forget()
        for message in out:
            if message.to == "b":
                follower.raft.step(message, follower.now_ms)
                follower._settle()
        for message in back:
            lead.raft.step(message, lead.now_ms)
            lead._settle()
    assert follower.terms == lead.terms == [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 8]
    assert follower.raft.log.commit == lead.raft.log.commit == 11


# --- 5.4: safety


@pytest.mark.parametrize("entries", [[1], [1, 2], []])
def test_a_request_for_votes_says_where_the_log_ends(entries):
    member = Member(entries=entries, term=2)
    member.time_out()
    member.receive(MessageKind.PRE_VOTE_REPLY, "b", 3)
    last = Position(entries[-1] if entries else 0, len(entries))
    sent = member.sent(VOTE)
    assert [(each.to, each.term, each.position) for each in sent] == [("b", 3, last), ("c", 3, last)]


@pytest.mark.parametrize("kind", [VOTE, MessageKind.PRE_VOTE])
@pytest.mark.parametrize(
    ("entries", "position", "is_granted"),
    [
        ([1], Position(1, 1), True),
        ([1], Position(1, 2), True),
        ([1, 1], Position(1, 1), False),
        ([1], Position(2, 1), True),
        ([1], Position(2, 2), True),
        ([1, 1], Position(2, 1), True),
        ([2], Position(1, 1), False),
        ([2], Position(1, 2), False),
        ([2, 1], Position(1, 1), False),
    ],
)
def test_a_member_votes_only_for_a_log_that_is_as_up_to_date_as_its_own(kind, entries, position, is_granted):
    member = Member(entries=sorted(entries), term=2)
    member.receive(kind, "b", 3, position)
    assert [each.rejected for each in member.sent(VOTE_REPLY, MessageKind.PRE_VOTE_REPLY)] == [not is_granted]


def test_a_leader_counts_only_entries_of_its_own_term():
    """5.4.2 and figure 8: entries of earlier terms are committed with the first one of its own."""
    member = Member(entries=[1, 2], term=2)
    member.lead()
    for index in (1, 2):
        member.acknowledge("b", index)
        assert member.raft.log.commit == 0
    member.acknowledge("b", 3)
    assert member.raft.log.commit == 3
