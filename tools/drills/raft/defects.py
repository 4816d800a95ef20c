"""Mistakes that are planted on purpose in every member of a simulated group.

    python -m tools.drills.raft --break vote-twice      # or all

A defect replaces methods of one member, or of its files, at each start; the code itself does not
know about it. Each is a mistake that an implementation of Raft has made, or could easily make. One
of the `checks` of the row must find it within FIND_WITHIN seeds: otherwise the simulation would not
notice if the code had it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqkit.controller.raft.core import FOLLOWER, PRE_CANDIDATE, Raft, RaftFiles, VoteRecord
from rmqkit.controller.raft.entry_log import EntryLog, LogWrites
from rmqkit.controller.raft.leader import LeaderTerm, ReadResult
from rmqkit.controller.raft.messages import LogEntry, MessageKind, Position, RaftMessage

if TYPE_CHECKING:
    from tools.drills.raft.machine import Machine

FIND_WITHIN = 200
Plant = Callable[["Machine"], None]

#: an entry that was committed is gone, or another one is in its place
LOST = ("leader-complete", "state-machine", "acknowledged", "log-matching")
VOTES = ("one-vote", "one-leader")


class RaftDefect(NamedTuple):
    """A mistake, and the checks of which one must find it."""

    name: str
    checks: Sequence[str]
    text: str
    plant: Plant | None = None
    plant_storage: Plant | None = None


DEFECTS: dict[str, RaftDefect] = {}


def defect(name: str, checks: Sequence[str], text: str, *, in_files: bool = False) -> Callable[[Plant], Plant]:
    """Return a decorator that adds a planting function to DEFECTS.

    With `in_files` it is called before the member reads its files.
    """

    def add(plant: Plant) -> Plant:
        DEFECTS[name] = RaftDefect(name, checks, text, *((None, plant) if in_files else (plant, None)))
        return plant

    return add


def _put(owner: object, name: str, function: Callable[..., Any]) -> None:
    assert callable(getattr(owner, name)), f"{owner} has no method {name}"
    setattr(owner, name, function)


def _before_step(member: Raft, change: Callable[[RaftMessage], RaftMessage]) -> None:
    """Change each message before the member takes it."""
    step = member.step
    _put(member, "step", lambda message, now_ms: step(change(message), now_ms))


def _when_leading(member: Raft, harm: Callable[[LeaderTerm], None]) -> None:
    """Change what a leader does, from its election on."""
    become_leader = member._become_leader

    def become(now_ms: int) -> None:
        become_leader(now_ms)
        if member.leading is not None:
            harm(member.leading)

    _put(member, "_become_leader", become)


# --- votes


@defect("vote-twice", (*VOTES, *LOST), "a member grants its vote to whoever asks last in a term")
def _vote_twice(machine: Machine) -> None:
    member = machine.member

    def change(message: RaftMessage) -> RaftMessage:
        if message.kind is MessageKind.VOTE and message.term == member.term and member.state is FOLLOWER:
            member.vote = member.leader_id = ""
        return message

    _before_step(member, change)


@defect("lost-vote-file", (*VOTES, *LOST), "a member starts without its vote file as if it had not voted", in_files=True)
def _lost_vote_file(machine: Machine) -> None:
    load = machine.storage.load

    def lost(failed: Callable[[], None]) -> RaftFiles:
        files = load(failed)
        last_term = files.entries[-1].term if files.entries else files.start.term
        return files._replace(ballot=VoteRecord(last_term, "", True))

    _put(machine.storage, "load", lost)


@defect("vote-before-sync", (*VOTES, *LOST), "a vote leaves before it is durable")
def _vote_before_sync(machine: Machine) -> None:
    _release(machine.member, MessageKind.VOTE_REPLY)


def _release(member: Raft, kind: MessageKind) -> None:
    post = member._post

    def at_once(message: RaftMessage) -> None:
        if message.kind is kind:
            member._messages.append(message)
        else:
            post(message)

    _put(member, "_post", at_once)


@defect("repeats-count", (*VOTES, *LOST), "a candidate counts replies, not the members that sent them")
def _repeats_count(machine: Machine) -> None:
    member, numbers = machine.member, count()
    count_vote = member._count_vote

    def counted(peer: str, is_granted: bool, now_ms: int) -> None:
        count_vote(f"{peer}/{next(numbers)}" if is_granted else peer, is_granted, now_ms)

    _put(member, "_count_vote", counted)


@defect("vote-for-any-log", LOST, "a member votes for a candidate whose log lacks entries of its own")
def _vote_for_any_log(machine: Machine) -> None:
    def change(message: RaftMessage) -> RaftMessage:
        is_request = message.kind in (MessageKind.VOTE, MessageKind.PRE_VOTE)
        return replace(message, position=Position(1 << 40, 1 << 40)) if is_request else message

    _before_step(machine.member, change)


@defect("wiped-votes", (*VOTES, *LOST), "a member without files votes without a census")
def _wiped_votes(machine: Machine) -> None:
    machine.member.is_counted = True


@defect("no-pre-vote", ("undisturbed",), "a member that was isolated raises its term without asking first")
def _no_pre_vote(machine: Machine) -> None:
    member = machine.member

    def campaign(now_ms: int) -> None:
        member.move(PRE_CANDIDATE)
        member.leader_id = ""
        member._stand(now_ms)

    _put(member, "_campaign", campaign)


@defect("votes-despite-leader", ("one-lease", "undisturbed"), "a member votes although it has just heard its leader")
def _votes_despite_leader(machine: Machine) -> None:
    _put(machine.member, "_hears_leader", lambda now_ms: machine.member.leading is not None)


@defect("no-check-quorum", ("one-lease",), "a leader without a majority goes on")
def _no_check_quorum(machine: Machine) -> None:
    def harm(leading: LeaderTerm) -> None:
        leading.lease_end_ms = 1 << 60

    _when_leading(machine.member, harm)


# --- commits


@defect("commit-of-older-term", LOST, "a leader commits entries of earlier terms by counting (figure 8)")
def _commit_of_older_term(machine: Machine) -> None:
    log = machine.member.log

    def harm(leading: LeaderTerm) -> None:
        def commit() -> bool:
            matches = sorted([log.saved, *(each.match for each in leading.progress.values())], reverse=True)
            index = matches[leading._quorum - 1]
            is_news = index > log.commit
            log.commit_to(index)
            return is_news

        _put(leading, "_commit_by_count", commit)

    _when_leading(machine.member, harm)


@defect("minority-commits", LOST, "one copy fewer than a majority commits an entry")
def _minority_commits(machine: Machine) -> None:
    def harm(leading: LeaderTerm) -> None:
        leading._quorum = max(1, leading._quorum - 1)

    _when_leading(machine.member, harm)


@defect("own-entries-unsynced", LOST, "a leader counts its own entries before they are durable")
def _own_entries_unsynced(machine: Machine) -> None:
    log = machine.member.log

    def harm(leading: LeaderTerm) -> None:
        commit = leading._commit_by_count

        def early() -> bool:
            saved, log.saved = log.saved, log.last.index
            try:
                return commit()
            finally:
                log.saved = saved

        _put(leading, "_commit_by_count", early)

    _when_leading(machine.member, harm)


@defect("counts-what-was-sent", LOST, "a leader counts entries that it has sent, before the answer")
def _counts_what_was_sent(machine: Machine) -> None:
    def harm(leading: LeaderTerm) -> None:
        reply = leading.heartbeat_reply

        def counted(message: RaftMessage, now_ms: int) -> None:
            progress = leading.progress[message.sender]
            progress.match = progress.next - 1
            reply(message, now_ms)
            leading.saved(now_ms)

        _put(leading, "heartbeat_reply", counted)

    _when_leading(machine.member, harm)


@defect("commit-beyond-agreement", LOST, "a follower commits entries that its leader has not compared")
def _commit_beyond_agreement(machine: Machine) -> None:
    member = machine.member
    step = member.step

    def eager(message: RaftMessage, now_ms: int) -> None:
        step(message, now_ms)
        if message.kind is MessageKind.APPEND and message.term == member.term:
            member.log.commit_to(min(message.commit, member.log.last.index))

    _put(member, "step", eager)


# --- logs


@defect("append-without-check", LOST, "a follower appends without comparing the entry before")
def _append_without_check(machine: Machine) -> None:
    log = machine.member.log
    merge = log.merge

    def unchecked(previous: Position, entries: Sequence[LogEntry]) -> int | None:
        return merge(Position(log.term_at(previous.index) or 0, previous.index), entries)

    _put(log, "merge", unchecked)


@defect("append-cuts-always", (*LOST, "invariants"), "a follower drops what follows an append, even if it agrees")
def _append_cuts_always(machine: Machine) -> None:
    log = machine.member.log
    merge = log.merge

    def cutting(previous: Position, entries: Sequence[LogEntry]) -> int | None:
        index = merge(previous, entries)
        if index is not None and log.commit <= index < log.last.index:
            log._cut(index + 1)
        return index

    _put(log, "merge", cutting)


@defect("snapshot-over-newer", (*LOST, "invariants"), "a late snapshot replaces entries that were committed after it")
def _snapshot_over_newer(machine: Machine) -> None:
    member = machine.member
    step, log = member.step, member.log

    def over(message: RaftMessage, now_ms: int) -> None:
        is_late = message.kind is MessageKind.SNAPSHOT and message.term == member.term
        if is_late and message.position.index <= log.commit:
            log.commit, log.applied, log.entries = message.position.index - 1, 0, []
        step(message, now_ms)

    _put(member, "step", over)


@defect("compaction-drops-tail", (*LOST, "invariants"), "a snapshot drops the entries behind it on disk")
def _compaction_drops_tail(machine: Machine) -> None:
    log = machine.member.log
    take = log.take_unsaved

    def dropped() -> LogWrites:
        writes = take()
        return writes if writes.snapshot is None else writes._replace(entries=())

    _put(log, "take_unsaved", dropped)


# --- durability


@defect("ack-before-sync", LOST, "a follower acknowledges entries before they are durable")
def _ack_before_sync(machine: Machine) -> None:
    _release(machine.member, MessageKind.APPEND_REPLY)


@defect("sync-error-ignored", (*LOST, "invariants"), "a failed sync counts as one that succeeded")
def _sync_error_ignored(machine: Machine) -> None:
    storage = machine.storage
    _put(storage, "_log_saved", lambda error: storage._finish())


@defect("late-sync-confirms", LOST, "the sync of an entry confirms another one that has replaced it")
def _late_sync_confirms(machine: Machine) -> None:
    log: EntryLog = machine.member.log
    confirm = log.confirm

    def all_given() -> None:
        given = min(log._given, log.last.index)
        confirm()
        log.saved = max(log.saved, given)
        log._unsaved = max(log._unsaved, log.saved + 1)

    _put(log, "confirm", all_given)


# --- reads


@defect("read-without-quorum", ("reads-current",), "a leader answers reads without asking a majority")
def _read_without_quorum(machine: Machine) -> None:
    log = machine.member.log

    def harm(leading: LeaderTerm) -> None:
        def read(token: Any) -> bool:
            leading.reads_done.append(ReadResult(token, log.commit))
            return True

        _put(leading, "read", read)

    _when_leading(machine.member, harm)


@defect("read-before-own-entry", ("reads-current",), "a new leader answers reads before it knows what is committed")
def _read_before_own_entry(machine: Machine) -> None:
    def harm(leading: LeaderTerm) -> None:
        leading.first_index = 0

    _when_leading(machine.member, harm)
