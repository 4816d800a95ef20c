"""Recall: whether this broker knows every vote of its own that still runs. Only then may it vote.

Votes are leases of 60 s in memory. A process that died has forgotten them, and a second vote for another client would
make two quorums that both count this broker. So a start has to find out first. It is *sure* of its votes when

1. the last life ended with a clean stop: that wrote all votes that ran into `config/lockVotes.json`; they are taken over
   as leases that begin now, which is never too short; or
2. it has been up for 60 s: whatever was voted before has run out (monotonic time; it begins when the broker serves, later
   than its last life ended); or
3. enough others of its group, sure of theirs, have told it all votes of theirs that run, and it has taken them over as its
   own (`recovered_votes`), to the end that each told, counted from when the answer came.

Why (3) is enough: only votes in a grant matter, and only while its lease runs. A grant in which a forgotten vote of ours
counts was made by a quorum q of n brokers, so at least q - 1 others voted for it, and among any n - q + 1 of the n - 1
others there is one of them. Its vote runs as long as the lease, which counts from an earlier moment, when the client asked.
So what those tell contains each such grant, whichever of them is the one; what it contains beyond does nothing but hold a
queue back for a while.

- Nobody tells too early: others are asked from `ASK_AFTER_MS` on. A vote counts for at most a second after the asking, so
  one that was cast together with a vote of ours had been cast by then. What an other votes for after it has told is no vote
  of ours: until we are sure we cast none. For the same reason an answer stays good however long the next one takes.
- A vote in a ballot that is undecided is told like any other, as the ballot may have been decided with ours; with it what
  it would be after an `undo`. An unlock that an other has heard has ended the lease, or another attempt granted it anew.
- A vote that the other has recovered itself is sent too: it may have cast it. Ends are passed on and never prolonged.
- Who is not sure is not counted: of two that were killed neither learns from the other. In a group of three both wait
  for (2), in one of five each asks the other three.
- More votes than one answer has room for (`recovered_votes.TOLD_MAX`) are not sent, and (2) decides. Apache's brokers send
  nothing of this kind, so beside them (2) decides as well.

A store that never voted cannot be told from one whose disk was lost a moment ago: both have no file. That is why a new
store too waits or asks (3). What it tells, that no vote of its own runs, counts with those that are new themselves: a new
group votes two seconds after its brokers know each other, and one disk that is lost is still found out by the others. Only
when two disks of a group are lost within a minute may something be forgotten. A group of one that is new votes at once. A
store without the file that has messages (it was in another lock mode) is not new.

Before the first vote the file says that votes are cast (`voting`), durably: what a clean stop wrote is used once.

    stopped  ->  waiting, sure
    waiting  ->  asking, sure, voting
    asking   ->  sure, voting
    sure     ->  voting
    voting   ->  (end)

A broker that is `sure` knows its votes, and waits for the disk to have `voting` in the file; only a `voting` one votes.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rmqkit.broker.locks.lock_table import LockTable
from rmqkit.broker.locks.recovered_votes import Left, RecoveredVotes, ToldVote, all_running, read_told, tell
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.states import Moves, StateMachine
from rmqkit.wire import fastjson
from rmqkit.wire.bodies import LockBatchAnswer, LockBatchBody
from rmqkit.wire.codes import RequestCode

if TYPE_CHECKING:
    from rmqkit.broker.locks.strict import Strict

FILE = "config/lockVotes.json"
DUTY = "lock-votes"
ASK_AFTER_MS = 2_000
LOOK_MS = 1_000
ASK_TIMEOUT_MS = 900
#: the question (3) is a request for no queue at all: Apache's brokers answer it with no queue
ASKING_GROUP = "rmqkit-lock-votes"


class Knowledge(StrEnum):
    """What a broker knows of its own votes. `stopped` and `voting` are also what the file says."""

    STOPPED = "stopped"
    #: it has started, and members may still vote together with a vote of its last life
    WAITING = "waiting"
    #: it asks the other members for their votes
    ASKING = "asking"
    #: it knows all votes of its own that run
    SURE = "sure"
    #: it knows them, and the file says that it votes
    VOTING = "voting"


STOPPED, WAITING, ASKING, SURE, VOTING = Knowledge

MOVES = Moves(
    {
        STOPPED: (WAITING, SURE),
        WAITING: (ASKING, SURE, VOTING),
        ASKING: (SURE, VOTING),
        SURE: (VOTING,),
        VOTING: (),
    }
)


class Recall(StateMachine[Knowledge]):
    def __init__(self, mode: "Strict", table: LockTable, recovered: RecoveredVotes) -> None:
        super().__init__(MOVES)
        self._mode = mode
        self._broker = mode.broker
        self._table = table
        self._recovered = recovered
        self._disk = mode.broker.ports.disk
        self._file = AtomicFile(self._disk, FILE)
        self._started_ms: int | None = None
        #: the store has no past, as far as it can tell
        self.is_new = False
        #: the file says `voting`, durably
        self._is_marked = False
        #: ids of members that have told their votes
        self._told_by: set[int] = set()

    def start(self) -> None:
        self._started_ms = now_ms = self._broker.clock.mono_ms
        found, votes = self._load()
        self.is_new = not found and self._broker.store.offset_max <= 0
        self._is_marked = found == VOTING
        if found == STOPPED:
            self._take(votes, now_ms)
        is_sure = found == STOPPED or (self.is_new and self._mode.size == 1)
        self.move(SURE if is_sure else WAITING)
        if not self._is_marked:
            self._mark()
        self._broker.duties.add(DUTY, self._look, now_ms)

    @property
    def is_sure(self) -> bool:
        """Whether it knows every vote of its own that runs."""
        return self.state in (SURE, VOTING)

    def validate(self) -> None:
        assert (self.state is STOPPED) == (self._started_ms is None)
        assert self.state is not SURE or not self._is_marked
        assert self.state is not VOTING or self._is_marked
        assert self._recovered.is_noting == (self.state is ASKING)

    def stop(self, then: Callable[[], None]) -> None:
        """A life that never knew what was voted before it leaves the file as it is."""
        if not self.is_sure:
            then()
            return
        running = all_running(self._table, self._recovered, self._broker.clock.mono_ms)
        kept = dict.fromkeys((group, lease.client_id, queue) for group, queue, lease in running)
        votes = [{"group": group, "clientId": client_id, "queue": list(queue)} for group, client_id, queue in kept]
        self._file.save(lambda: fastjson.dumps({"state": STOPPED, "votes": votes}), then)

    def votes_from_ms(self, now_ms: int) -> int:
        """How long until it may vote for certain, 0 when it may."""
        if self.is_sure:
            return 0 if self.state is VOTING else 1
        if self._started_ms is None:
            return self._table.live_ms
        return max(1, self._started_ms + self._table.live_ms + 1 - now_ms)

    def told(self, now_ms: int) -> Mapping[str, Any]:
        """The answer to another broker that asks (3)."""
        running = all_running(self._table, self._recovered, now_ms)
        votes = tell(running, self._table.live_ms, now_ms)
        return {"sure": self.is_sure, "new": self.is_new, "running": len(running), "votes": votes}

    # --- the file

    def _load(self) -> tuple[str, list[Any]]:
        """The state that the last life left, "" without one; what cannot be read is `voting`.

        The backup is never read: it says what was, and that may be a clean stop before the life that died.
        """
        size = self._disk.size(FILE)
        if size is None:
            return ("" if self._disk.size(f"{FILE}.bak") is None else VOTING), []
        try:
            read = fastjson.loads(self._disk.read(FILE, 0, size))
            return (STOPPED, list(read["votes"])) if read["state"] == STOPPED else (VOTING, [])
        except (RemoteProtocolError, KeyError, TypeError) as error:
            self._broker.log.warning("lock-votes-unreadable", file=FILE, error=str(error))
            return VOTING, []

    def _take(self, votes: list[Any], now_ms: int) -> None:
        whole = [Left(self._table.live_ms, 0)]
        taken = []
        for vote in votes:
            topic, broker_name, queue_id = vote["queue"]
            taken.append(ToldVote(vote["group"], vote["clientId"], topic, broker_name, queue_id, whole))
        self._recovered.take(taken, now_ms)

    def _mark(self) -> None:
        def marked() -> None:
            if self._file.error is None:
                self._is_marked = True
                if self.state is SURE:
                    self.move(VOTING)
            else:
                self._broker.log.warning("lock-votes-not-kept", file=FILE, error=str(self._file.error))

        self._file.save(lambda: fastjson.dumps({"state": VOTING}), marked)

    # --- becoming sure

    def _look(self, now_ms: int) -> int | None:
        assert self._started_ms is not None
        if not self._is_marked and not self._file.busy:
            self._mark()
        up_ms = now_ms - self._started_ms
        if not self.is_sure and up_ms > self._table.live_ms:
            self._become_sure("its votes of earlier lives have run out")
        elif not self.is_sure and up_ms >= ASK_AFTER_MS:
            self._ask()
        return None if self.state is VOTING else now_ms + LOOK_MS

    def _become_sure(self, why: str) -> None:
        self.move(VOTING if self._is_marked else SURE)
        self._recovered.note(on=False)
        self._broker.log.info("lock-votes", why=why)

    def _ask(self) -> None:
        broker = self._broker
        identity = broker.config.identity
        body = LockBatchBody(
            client_id=f"{identity.broker_name}:{identity.broker_id}",
            consumer_group=ASKING_GROUP,
            only_this_broker=True,
            rmqkit={"whatRuns": True},
        ).encode()
        if self.state is WAITING:
            self.move(ASKING)
        self._recovered.note(on=True)  # answers come before the next round, or never
        for member, address in self._mode.others():
            if member in self._told_by:
                continue

            def answered(outcome: Outcome, member: int = member) -> None:
                self._heard(member, outcome)

            broker.remoting.call(address, RequestCode.LOCK_BATCH_MQ, None, body, timeout_ms=ASK_TIMEOUT_MS, then=answered)

    def _heard(self, member: int, outcome: Outcome) -> None:
        if self.is_sure or isinstance(outcome, CallFailed) or not outcome.is_ok:
            return
        try:
            said = LockBatchAnswer.decode(outcome.body).rmqkit or {}
        except RemoteProtocolError:
            return
        votes = read_told(said.get("votes"))
        if votes is None or not (said.get("sure") is True or (self.is_new and said.get("new") is True)):
            return
        now_ms = self._broker.clock.mono_ms
        self._recovered.take(votes, now_ms)
        self._told_by.add(member)
        if len(self._told_by) >= self._mode.size - self._mode.quorum + 1:
            taken = sum(1 for _ in self._recovered.running(now_ms))
            self._become_sure(f"{len(self._told_by)} others told theirs, {taken} of them run")
