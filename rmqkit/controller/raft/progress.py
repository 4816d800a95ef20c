"""What a leader knows of one peer's log, and how it sends entries to it.

    probe      ->  probe, replicate, snapshot
    replicate  ->  probe, snapshot
    snapshot   ->  probe

- *probe*: the leader does not know where the logs agree. It sends one append at a time and waits
  for the reply, or for the reply to a heartbeat if that one was lost.
- *replicate*: they agree up to `match`. Appends follow one another without waiting, with at most
  IN_FLIGHT_MAX entries unanswered.
- *snapshot*: the peer needs entries that the leader has dropped. Nothing else is sent until the
  peer has the snapshot, or until `snapshot_due_ms`, when it is sent again.
"""

from enum import StrEnum

from rmqkit.runtime.states import Moves, StateMachine

#: entries sent to a peer and not answered; beyond it the leader waits for replies
IN_FLIGHT_MAX = 1024
#: refusals in a row after which the leader forgets what a peer has acknowledged. A peer whose disk
#: was wiped refuses everything; one or two refusals may also be late ones
REFUSALS_MAX = 3


class ProgressState(StrEnum):
    """The states of a peer's log; the module head describes them."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


PROBE, REPLICATE, SNAPSHOT = ProgressState

MOVES = Moves(
    {
        PROBE: (PROBE, REPLICATE, SNAPSHOT),
        REPLICATE: (PROBE, SNAPSHOT),
        SNAPSHOT: (PROBE,),
    }
)


class Progress(StateMachine[ProgressState]):
    """The log of one peer, as its leader sees it in this term."""

    def __init__(self, next_index: int) -> None:
        super().__init__(MOVES)
        #: the logs agree up to here, and the peer has it for sure; only this counts for commits
        self.match = 0
        #: index of the next entry to send
        self.next = next_index
        #: a probe is in flight; only in state *probe*
        self.waits = False
        #: last index of the snapshot that is in flight; only in state *snapshot*
        self.snapshot_index = 0
        self.snapshot_due_ms = 0
        #: newest heartbeat round that the peer has answered
        self.round = 0
        #: when the peer's last message of this term arrived, None: not yet
        self.heard_ms: int | None = None
        self._refusals = 0

    @property
    def is_paused(self) -> bool:
        """Whether nothing may be sent now."""
        return self.state is SNAPSHOT or (self.state is PROBE and self.waits)

    @property
    def is_full(self) -> bool:
        """Whether no further entry may be sent without an answer."""
        return self.next - 1 - self.match >= IN_FLIGHT_MAX

    def sent(self, entries: int) -> None:
        """Note an append of this many entries, which began at `next`."""
        if self.state is REPLICATE:
            self.next += entries
        else:
            self.waits = True

    def sent_snapshot(self, index: int, due_ms: int) -> None:
        self.move(SNAPSHOT)
        self.waits = False
        self.snapshot_index, self.snapshot_due_ms = index, due_ms
        self.next = index + 1

    def probe(self) -> None:
        """Return to *probe*, one entry behind `match`."""
        self.move(PROBE)
        self.next = self.match + 1
        self.waits, self.snapshot_index, self.snapshot_due_ms = False, 0, 0

    def accepted(self, index: int, start_index: int) -> bool:
        """Take an acknowledgement of all entries up to `index`.

        `start_index` is the last index that the leader's own log has dropped. Return whether
        anything has changed.
        """
        self._refusals = 0
        is_news = index > self.match
        if is_news:
            self.match = index
            self.next = max(self.next, index + 1)
        if self.state is SNAPSHOT and self.match >= start_index:
            self.probe()
        if self.state is PROBE and (is_news or index == self.match):
            self.move(REPLICATE)
            self.next, self.waits = self.match + 1, False
            return True
        return is_news

    def refused(self, index: int, next_index: int) -> bool:
        """Take a refusal of an append after `index`; the logs may agree before `next_index`.

        Return whether the leader has to send again. A refusal that a later acknowledgement
        contradicts is old, unless it comes REFUSALS_MAX times in a row.
        """
        if self.state is SNAPSHOT:
            return False
        if index <= self.match:
            self._refusals += 1
            if self._refusals < REFUSALS_MAX:
                return False
            self.match = 0
        elif self.state is PROBE and index != self.next - 1:
            return False
        self._refusals = 0
        self.probe()
        self.next = max(self.match + 1, min(index, next_index))
        return True

    def validate(self) -> None:
        assert self.match < self.next
        assert self.state is PROBE or not self.waits
        assert (self.snapshot_index > 0) == (self.state is SNAPSHOT)
