"""What the core does beyond the paper: pre-vote, lease, disk, snapshots, reads, census."""

from random import Random

import pytest

from rmqkit.controller.raft import core, progress, storage
from rmqkit.controller.raft.core import (
    CANDIDATE,
    FOLLOWER,
    LEADER,
    PRE_CANDIDATE,
    UNCOMMITTED_MAX,
    Raft,
    RaftFiles,
    VoteRecord,
)
from rmqkit.controller.raft.entry_log import EntryLog
from rmqkit.controller.raft.leader import READS_MAX, SNAPSHOT_TIMEOUTS
from rmqkit.controller.raft.messages import ORIGIN, LogEntry, MessageKind, Position
from rmqkit.controller.raft.progress import IN_FLIGHT_MAX, PROBE, REFUSALS_MAX, REPLICATE, SNAPSHOT
from tests.controller.raft.script import HEARTBEAT_MS, NAMES, TIMEOUT_MS, Draws, Member
from tests.controller.raft.test_paper import leader
from tests.helpers.flows import is_drawn

APPEND, APPEND_REPLY = MessageKind.APPEND, MessageKind.APPEND_REPLY
HEARTBEAT, HEARTBEAT_REPLY = MessageKind.HEARTBEAT, MessageKind.HEARTBEAT_REPLY
VOTE, VOTE_REPLY = MessageKind.VOTE, MessageKind.VOTE_REPLY
PRE_VOTE, PRE_VOTE_REPLY = MessageKind.PRE_VOTE, MessageKind.PRE_VOTE_REPLY


@pytest.mark.parametrize("module", [core, progress, storage])
def test_the_states_are_drawn_at_the_head_of_the_module(module):
    assert is_drawn(module.MOVES, module)


def test_entries_behind_a_snapshot_wait_until_it_is_restored():
    """Before, there is no state machine that they could be compared with."""
    log = EntryLog(entries=[LogEntry(1, 1, b"1"), LogEntry(1, 2, b"2")])
    assert log.unapplied(Position(1, 1)) == [LogEntry(1, 1, b"1")]
    assert log.unapplied(Position(2, 2)) is None, "the log has another entry there"
    assert log.unapplied(Position(1, 3)) is None, "or none"
    log.commit_to(2)
    assert log.unapplied(Position(1, 1)) is None, "a committed entry follows it"
    log.restore(Position(1, 9), b"nine")
    assert log.unapplied(Position(1, 9)) is None
    log.take_unsaved()
    log.confirm()
    assert log.take_committed() == (b"nine", ())
    assert log.unapplied(Position(1, 9)) == []


@pytest.mark.parametrize("peers", [[], ["b"], ["a", "a"], ["a", "b", "c", "d", "e", "f"]])
def test_a_group_has_one_to_five_different_members(peers):
    with pytest.raises(ValueError, match="1 to 5 different members"):
        Raft(
            "a", peers, RaftFiles(), election_timeout_ms=1000, heartbeat_ms=100, entropy=Random(1), now_ms=0
        )  # fmt: skip


# --- pre-votes and leases


def test_a_member_that_was_isolated_keeps_its_term():
    member = Member(term=3)
    for _ in range(5):
        member.time_out()
    assert (member.raft.state, member.raft.term) == (PRE_CANDIDATE, 3)
    assert {each.term for each in member.sent(PRE_VOTE)} == {4}


def test_a_pre_vote_changes_neither_term_nor_vote():
    member = Member(term=3, vote="c")
    member.receive(PRE_VOTE, "b", 4)
    assert [(each.term, each.rejected) for each in member.sent(PRE_VOTE_REPLY)] == [(4, False)]
    assert (member.raft.term, member.raft.vote) == (3, "c")
    assert not member.writes


def test_a_late_pre_vote_of_an_earlier_election_does_not_count():
    member = Member(term=3)
    member.time_out()
    member.receive(PRE_VOTE_REPLY, "b", 3)
    assert member.raft.state is PRE_CANDIDATE
    member.receive(PRE_VOTE_REPLY, "b", 4)
    assert member.raft.state is CANDIDATE


@pytest.mark.parametrize("kind", [VOTE, PRE_VOTE])
def test_a_member_with_a_live_leader_ignores_requests_for_votes(kind):
    member = Member(term=1)
    member.receive(HEARTBEAT, "b", 1)
    member.forget()
    member.now_ms += TIMEOUT_MS - 1
    member.receive(kind, "c", 2, Position(1, 1))
    assert (member.sent(), member.raft.term) == ([], 1)
    member.now_ms += 1
    member.receive(kind, "c", 2, Position(1, 1))
    assert len(member.sent(VOTE_REPLY, PRE_VOTE_REPLY)) == 1


def test_a_member_that_has_just_started_ignores_requests_for_votes():
    """It may have answered its leader's heartbeat just before."""
    member = Member(term=1, has_just_started=True)
    member.receive(VOTE, "c", 2)
    assert member.sent() == []
    member.now_ms += TIMEOUT_MS
    member.receive(VOTE, "c", 2)
    assert [each.rejected for each in member.sent(VOTE_REPLY)] == [False]


def test_a_leader_without_a_majority_steps_down():
    member = leader(size=5)
    member.hear_all()
    began_ms = member.now_ms
    assert member.raft.may_decide(began_ms)
    member.receive(HEARTBEAT_REPLY, "b", 1, round=1)
    member.wait(TIMEOUT_MS)
    assert (member.raft.state, member.raft.term, member.raft.leader_id) == (FOLLOWER, 1, "")
    assert not member.raft.may_decide(member.now_ms)


def test_a_lease_counts_from_the_time_at_which_the_heartbeat_was_sent():
    member = leader()
    member.hear_all()
    member.wait(HEARTBEAT_MS)
    sent_ms = member.now_ms
    member.now_ms += 70  # the answers take that long
    member.hear_all()
    assert member.raft.leading is not None
    assert member.raft.leading.lease_end_ms == sent_ms + TIMEOUT_MS


def test_a_leader_with_a_majority_stays():
    member = leader()
    for _ in range(50):
        member.wait(HEARTBEAT_MS)
        member.receive(HEARTBEAT_REPLY, "c", 1, round=member.raft.leading.round)
    assert member.raft.state is LEADER


def test_a_member_whose_term_is_ahead_makes_its_leader_step_down():
    """It could not follow otherwise, and nobody would vote for it."""
    member = Member(term=5)
    member.receive(HEARTBEAT, "b", 3)
    (reply,) = member.sent(APPEND_REPLY)
    lead = leader(term=3)
    lead.receive(APPEND_REPLY, "b", reply.term, rejected=True)
    assert (lead.raft.state, lead.raft.term) == (FOLLOWER, 5)


# --- durability


def test_a_vote_leaves_only_after_it_is_durable():
    member = Member(term=1)
    member.is_disk_held = True
    member.receive(VOTE, "b", 2)
    assert member.sent() == []
    assert member.writes[-1].ballot == VoteRecord(2, "b", True)
    member.release_disk()
    assert [each.rejected for each in member.sent(VOTE_REPLY)] == [False]


def test_an_acknowledgement_leaves_only_after_its_entries_are_durable():
    member = Member(term=1)
    member.is_disk_held = True
    member.receive(APPEND, "b", 1, entries=[1, 1])
    member.receive(APPEND, "b", 1, Position(1, 2), entries=[1])
    assert member.sent() == []
    assert member.raft.log.saved == 0
    member.raft.written(member.now_ms)
    member._settle()
    assert [each.position.index for each in member.sent(APPEND_REPLY)] == [2]
    member.release_disk()
    assert [each.position.index for each in member.sent(APPEND_REPLY)] == [2, 3]


def test_a_candidate_asks_for_votes_only_after_its_own_is_durable():
    member = Member()
    member.time_out()
    member.is_disk_held = True
    member.receive(PRE_VOTE_REPLY, "b", 1)
    assert member.raft.state is CANDIDATE
    assert member.sent(VOTE) == []
    member.release_disk()
    assert [each.to for each in member.sent(VOTE)] == ["b", "c"]


def test_a_group_of_one_leads_only_after_its_vote_is_durable():
    member = Member(size=1)
    member.is_disk_held = True
    member.time_out()
    assert member.raft.state is CANDIDATE
    member.release_disk()
    assert member.raft.state is LEADER
    assert member.raft.log.commit == 1


def test_a_leader_does_not_count_its_own_entry_before_it_is_durable():
    member = leader()
    member.is_disk_held = True
    member.propose()
    assert [each.to for each in member.sent(APPEND)] == ["b", "c"]
    assert member.raft.log.commit == 1
    member.acknowledge("b", 2)
    assert member.raft.log.commit == 1
    member.release_disk()
    assert member.raft.log.commit == 2


def test_a_majority_of_peers_commits_without_the_leader_but_it_applies_later():
    member = leader()
    member.is_disk_held = True
    member.propose(b"data")
    member.acknowledge("b", 2)
    member.acknowledge("c", 2)
    assert member.raft.log.commit == 2
    assert b"data" not in [entry.data for entry in member.applied]
    member.release_disk()
    assert member.applied[-1].data == b"data"


def test_the_sync_of_an_entry_does_not_confirm_another_one_that_replaced_it():
    member = Member(term=1)
    member.is_disk_held = True
    member.receive(APPEND, "b", 1, entries=[1, 1])
    member.receive(APPEND, "c", 2, Position(1, 1), entries=[2])
    member.raft.written(member.now_ms)
    assert member.raft.log.saved == 1
    member._settle()
    member.release_disk()
    assert member.raft.log.saved == 2
    assert [entry.term for entry in member.writes[-1].log.entries] == [2]


# --- progress of a peer


def test_a_peer_is_probed_with_one_append_until_it_answers():
    member = Member(entries=[1, 1], term=1)
    member.lead()
    assert len(member.sent(APPEND)) == 2
    member.propose()
    member.propose()
    assert len(member.sent(APPEND)) == 2
    member.forget()
    member.receive(HEARTBEAT_REPLY, "b", 2, round=1)
    assert [each.to for each in member.sent(APPEND)] == ["b"]
    assert member.raft.leading.progress["b"].state is PROBE


def test_a_peer_that_answered_gets_entries_without_waiting():
    member = leader()
    assert member.raft.leading.progress["b"].state is REPLICATE
    for _ in range(3):
        member.propose()
    assert [each.position.index for each in member.sent(APPEND) if each.to == "b"] == [1, 2, 3]


def test_a_lost_append_is_found_by_the_next_heartbeat():
    member = leader()
    member.propose()
    member.forget()
    member.receive(HEARTBEAT_REPLY, "b", 1, round=1, commit=1)
    (message,) = member.sent(APPEND)
    assert (message.to, message.position.index, list(message.entries)) == ("b", 2, [])
    member.forget()
    member.receive(APPEND_REPLY, "b", 1, Position(1, 2), rejected=True, hint=Position(1, 1))
    (message,) = member.sent(APPEND)
    assert (message.position.index, len(message.entries)) == (1, 1)


def test_a_lost_commit_index_is_sent_again_after_a_heartbeat():
    member = leader()
    member.receive(HEARTBEAT_REPLY, "b", 1, round=1, commit=0)
    assert [(each.to, each.commit) for each in member.sent(APPEND)] == [("b", 1)]


def test_a_peer_that_does_not_answer_gets_a_limited_number_of_entries():
    member = leader()
    for _ in range(IN_FLIGHT_MAX + 10):
        member.propose()
    entries = [entry for each in member.sent(APPEND) if each.to == "b" for entry in each.entries]
    assert len(entries) == IN_FLIGHT_MAX
    member.forget()
    member.acknowledge("b", IN_FLIGHT_MAX // 2)
    entries = [entry for each in member.sent(APPEND) if each.to == "b" for entry in each.entries]
    assert len(entries) == 10


def test_a_leader_refuses_proposals_beyond_its_limit():
    member = leader()
    for _ in range(UNCOMMITTED_MAX):
        assert member.propose() is not None
    assert member.propose() is None
    member.acknowledge("b", 2)
    assert member.propose() is not None


def test_an_old_refusal_is_ignored_and_a_repeated_one_is_not():
    """A peer that refuses what it acknowledged has lost its disk."""
    member = leader()
    refusal = (APPEND_REPLY, "b", 1, Position(1, 1))
    for _ in range(REFUSALS_MAX - 1):
        member.receive(*refusal, rejected=True)
    assert member.raft.leading.progress["b"].match == 1
    member.receive(*refusal, rejected=True)
    assert (member.raft.leading.progress["b"].match, member.raft.leading.progress["b"].next) == (0, 1)


def test_an_acknowledgement_beyond_the_log_is_ignored():
    member = leader()
    member.receive(APPEND_REPLY, "b", 1, Position(1, 900))
    assert member.raft.leading.progress["b"].match == 1
    assert member.raft.log.commit == 1


@pytest.mark.parametrize("late", [APPEND, HEARTBEAT, VOTE_REPLY, APPEND_REPLY, HEARTBEAT_REPLY, PRE_VOTE_REPLY])
def test_any_message_may_come_at_any_time(late):
    """In each role, of an earlier, the same and a later term."""
    for term in (1, 2, 3):
        for member in (Member(term=2, entries=[1]), Member(term=1, entries=[1]), Member(term=1, entries=[1])):
            if member.raft.term == 1:
                member.stand()
            if not (late in (APPEND, HEARTBEAT) and term == 2 and member.raft.state is LEADER):
                member.receive(late, "b", term, Position(1, 1))
            assert member.raft.term >= 2


# --- snapshots


def test_compaction_keeps_the_entries_that_are_not_applied():
    member = leader()
    member.propose(b"one")
    member.acknowledge("b", 2)
    member.propose(b"two")
    member.raft.compact(b"table")
    member._settle()
    assert member.raft.log.start == (1, 2)
    assert member.terms == [1]
    batch = member.writes[-1].log
    assert (batch.snapshot, batch.start, [each.index for each in batch.entries]) == (b"table", (1, 2), [3])


def behind() -> Member:
    """Return a leader that has dropped what "c" needs, and has told it so."""
    member = Member(start=Position(1, 5), snapshot=b"table", entries=[1], term=1)
    member.lead()
    member.acknowledge("b")
    member.receive(HEARTBEAT_REPLY, "c", 2, round=1)
    member.forget()
    member.receive(APPEND_REPLY, "c", 2, Position(1, 6), rejected=True, hint=Position(1, 3))
    return member


def test_a_peer_that_needs_dropped_entries_gets_the_snapshot():
    member = behind()
    (message,) = member.sent(MessageKind.SNAPSHOT)
    assert (message.to, message.position, message.data) == ("c", (1, 5), b"table")
    assert member.raft.leading.progress["c"].state is SNAPSHOT
    member.forget()
    member.propose()
    assert [each.to for each in member.sent(APPEND)] == ["b"]
    member.acknowledge("c", 5)
    assert member.raft.leading.progress["c"].state is REPLICATE
    assert [each.position.index for each in member.sent(APPEND) if each.to == "c"] == [5]


def test_a_lost_snapshot_is_sent_again():
    member = behind()
    member.forget()
    for _ in range(SNAPSHOT_TIMEOUTS * TIMEOUT_MS // HEARTBEAT_MS + 2):
        member.wait(HEARTBEAT_MS)
        member.hear_all()
    sent = member.sent(MessageKind.SNAPSHOT)
    assert [each.to for each in sent] == ["c"]


def test_a_peer_that_is_down_gets_no_snapshot():
    member = Member(start=Position(1, 5), snapshot=b"table", term=1)
    member.lead()
    member.raft.leading.progress["c"].next = 3
    member.raft.leading.progress["c"].waits = False
    member.propose()
    assert member.sent(MessageKind.SNAPSHOT) == []


def test_a_follower_takes_a_snapshot_over_and_acknowledges_it_once_it_is_durable():
    member = Member(entries=[1, 1], term=1)
    member.is_disk_held = True
    member.receive(MessageKind.SNAPSHOT, "b", 2, Position(2, 9), data=b"table")
    assert member.sent(APPEND_REPLY) == []
    assert member.restored == []
    member.release_disk()
    assert [each.position for each in member.sent(APPEND_REPLY)] == [(2, 9)]
    assert member.restored == [b"table"]
    assert member.raft.log.last == (2, 9)
    assert member.writes[-1].log.snapshot == b"table"


def test_a_snapshot_of_what_the_log_has_only_commits():
    member = Member(entries=[1, 1, 1], term=1)
    member.receive(MessageKind.SNAPSHOT, "b", 1, Position(1, 2), data=b"table")
    assert member.terms == [1, 1, 1]
    assert member.raft.log.commit == 2
    assert member.restored == []


def test_a_late_snapshot_does_not_replace_what_was_committed_after_it():
    member = Member(term=1)
    member.receive(APPEND, "b", 1, entries=[1, 1, 1], commit=3)
    member.receive(MessageKind.SNAPSHOT, "b", 1, Position(1, 2), data=b"table")
    assert member.raft.log.commit == 3
    assert [each.position.index for each in member.sent(APPEND_REPLY)] == [3, 3]
    assert member.restored == []


def test_a_member_starts_with_its_snapshot():
    member = Member(start=Position(3, 8), snapshot=b"table", entries=[3], term=3)
    assert member.restored == [b"table"]
    assert (member.raft.log.commit, member.applied) == (8, [])


# --- reads


def read(member: Member, token: str = "r") -> bool:
    done = member.raft.read(token)
    member._settle()
    return done


def test_a_read_is_done_once_a_majority_has_answered_a_heartbeat_that_was_sent_after_it():
    member = leader()
    member.wait(HEARTBEAT_MS)
    before = member.raft.leading.round
    assert read(member)
    assert member.raft.leading.round == before + 1
    member.receive(HEARTBEAT_REPLY, "b", 1, round=before)
    assert member.raft.take_reads() == []
    member.receive(HEARTBEAT_REPLY, "b", 1, round=before + 1)
    assert member.raft.take_reads() == [("r", 1)]
    assert member.raft.take_reads() == []


def test_reads_of_one_turn_share_a_heartbeat():
    member = leader()
    for token in range(5):
        member.raft.read(token)
    member._settle()
    assert len(member.sent(HEARTBEAT)) == 2
    member.receive(HEARTBEAT_REPLY, "c", 1, round=member.raft.leading.round)
    assert [done.token for done in member.raft.take_reads()] == [0, 1, 2, 3, 4]


def test_a_new_leader_reads_only_after_it_has_committed_an_entry_of_its_own_term():
    member = Member(entries=[1], term=1)
    member.lead()
    member.hear_all()
    read(member)
    member.hear_all()
    assert member.raft.take_reads() == []
    assert not member.raft.may_decide(member.now_ms)
    member.acknowledge("b")
    member.hear_all()
    assert member.raft.take_reads() == [("r", 2)]
    assert member.raft.may_decide(member.now_ms)


def test_only_a_leader_reads():
    assert not read(Member())
    member = leader()
    read(member)
    member.receive(APPEND, "b", 9)
    assert member.raft.take_reads() == []


def test_a_group_of_one_reads_at_once():
    member = Member(size=1)
    member.time_out()
    read(member)
    assert member.raft.take_reads() == [("r", 1)]


def test_too_many_reads_are_refused():
    member = leader()
    assert all(member.raft.read(number) for number in range(READS_MAX))
    assert not member.raft.read("one more")


# --- the census


def test_a_member_without_files_asks_all_peers_and_does_not_vote_before():
    member = Member(is_counted=False)
    member.wait(1)
    assert [each.to for each in member.sent(MessageKind.CENSUS)] == ["b", "c"]
    member.receive(VOTE, "b", 1)
    member.receive(PRE_VOTE, "b", 1)
    member.time_out()
    assert member.sent(VOTE, VOTE_REPLY, PRE_VOTE, PRE_VOTE_REPLY) == []
    assert member.raft.census_missing == ["b", "c"]


def test_a_census_is_repeated_to_the_peers_that_did_not_answer():
    member = Member(is_counted=False)
    member.wait(1)
    member.receive(MessageKind.CENSUS_REPLY, "b", 0)
    member.forget()
    member.wait(HEARTBEAT_MS)
    assert [each.to for each in member.sent(MessageKind.CENSUS)] == ["c"]


def counted() -> Member:
    """Return a member that lost its files, after the census."""
    member = Member(is_counted=False)
    member.receive(MessageKind.CENSUS_REPLY, "b", 4, Position(3, 7))
    member.receive(MessageKind.CENSUS_REPLY, "c", 5, Position(2, 9))
    member.forget()
    return member


def test_a_census_gives_the_least_term_and_log_for_which_a_member_votes():
    member = counted()
    assert member.writes[-1].ballot == VoteRecord(5, "a", True, Position(3, 7))
    member.receive(VOTE, "c", 5, Position(3, 7))
    member.receive(VOTE, "c", 6, Position(2, 9))
    member.receive(VOTE, "b", 6, Position(3, 7))
    assert [(each.to, each.rejected) for each in member.sent(VOTE_REPLY)] == [("c", True), ("c", True), ("b", False)]


def test_a_member_is_a_candidate_only_with_a_log_as_long_as_its_peers():
    member = counted()
    member.time_out()
    assert member.raft.state is FOLLOWER
    member.receive(MessageKind.SNAPSHOT, "b", 6, Position(3, 7), data=b"table")
    member.time_out()
    assert member.raft.state is PRE_CANDIDATE


def test_a_member_without_files_takes_entries():
    member = Member(is_counted=False)
    member.receive(APPEND, "b", 2, entries=[1, 2])
    assert [each.position for each in member.sent(APPEND_REPLY)] == [(2, 2)]


def test_an_answer_to_a_census_waits_for_the_disk():
    member = Member(term=1)
    member.is_disk_held = True
    member.receive(APPEND, "b", 1, entries=[1, 1])
    member.receive(MessageKind.CENSUS, "c", 0)
    assert member.sent() == []
    member.release_disk()
    assert [each.position for each in member.sent(MessageKind.CENSUS_REPLY)] == [(1, 2)]


def test_a_new_group_of_three_elects_after_its_census():
    members = {id: Member(id=id, is_counted=False, draw=number * 300) for number, id in enumerate(NAMES[:3])}
    now_ms = 50_000
    for _ in range(TIMEOUT_MS * 3):
        now_ms += 1
        for member in members.values():
            member.now_ms = now_ms
            member.raft.tick(now_ms)
            member._settle()
        sent = [message for member in members.values() for message in member.sent()]
        for member in members.values():
            member.forget()
        for message in sent:
            members[message.to].raft.step(message, now_ms)
            members[message.to]._settle()
    assert [id for id, member in members.items() if member.raft.state is LEADER] == ["a"]
    assert {member.raft.log.commit for member in members.values()} == {1}


def test_draws_are_the_only_chance():
    """Two members with the same draws and the same messages do the same."""
    for draw in (0, 7):
        first, second = Member(draw=draw), Member(draw=draw)
        for member in (first, second):
            member.wait(5 * TIMEOUT_MS)
        assert first.sent() == second.sent()
    assert isinstance(first.draws, Draws)
    assert first.raft.floor == ORIGIN


def test_further_terms_without_a_leader_make_elections_longer():
    """Two durable votes may take longer than a time-out: each candidate would end the last one."""
    member = Member()
    waits = []
    for _ in range(7):
        member.stand()
        assert member.raft.state is CANDIDATE
        waits.append(member.draws.stops[-1] // TIMEOUT_MS)
    assert waits == [1, 2, 4, 8, 16, 16, 16]
    member.receive(HEARTBEAT, "b", member.raft.term)
    assert member.draws.stops[-1] == TIMEOUT_MS


def test_a_leader_after_a_long_election_has_time_to_be_confirmed():
    member = Member()
    member.stand()
    member.now_ms += TIMEOUT_MS - 1
    member.raft._restart_election(member.now_ms)
    member.now_ms += TIMEOUT_MS - 1
    member.receive(VOTE_REPLY, "b", member.raft.term)
    member.wait(1)
    assert member.raft.state is LEADER
    assert not member.raft.may_decide(member.now_ms), "no lease before the first answers"
    member.wait(TIMEOUT_MS)
    assert member.raft.state is FOLLOWER
