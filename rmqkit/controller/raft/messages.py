"""Messages between members of a group, and positions in a log.

A message is one value with a field for each thing that any kind needs; the table says which kind
uses which. A field that a kind does not use keeps its default.

    kind              position                        other fields
    pre-vote, vote    the candidate's last entry      -
    ... reply         -                               rejected
    append            the entry before `entries`      entries, commit
    append-reply      the last entry that the member  rejected, with the refused position and a hint
                      has for sure
    heartbeat         -                               round
    heartbeat-reply   -                               round (the same), commit (the member's own)
    snapshot          the last entry in it            data
    census            -                               -
    census-reply      the member's last entry         -

`term` is the sender's term, except that a pre-vote and the reply that grants it carry the term of
the election that would follow.

Unlike the paper's empty AppendEntries, a heartbeat carries no commit index. Only an append does,
because it also proves that the logs agree up to there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Position(NamedTuple):
    """Term and index of an entry. The greater of two logs' last positions is more up to date."""

    term: int = 0
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which nobody needs


#: the position before the first entry
ORIGIN = Position()


class LogEntry(NamedTuple):
    """An entry. `data` is empty for the entry with which each leader begins its term."""

    term: int
    index: int  # type: ignore[assignment]  # as above
    data: bytes

    @property
    def position(self) -> Position:
        return Position(self.term, self.index)


class MessageKind(StrEnum):
    """The kinds of messages; the module has the table."""

    PRE_VOTE = "pre-vote"
    PRE_VOTE_REPLY = "pre-vote-reply"
    VOTE = "vote"
    VOTE_REPLY = "vote-reply"
    APPEND = "append"
    APPEND_REPLY = "append-reply"
    HEARTBEAT = "heartbeat"
    HEARTBEAT_REPLY = "heartbeat-reply"
    SNAPSHOT = "snapshot"
    CENSUS = "census"
    CENSUS_REPLY = "census-reply"


#: only the leader of the message's term sends these
OF_LEADERS = frozenset((MessageKind.APPEND, MessageKind.HEARTBEAT, MessageKind.SNAPSHOT))
#: these promise what the sender must not forget, so they wait until it is durable. A request for
#: votes belongs to them: a candidate that forgets unsynced entries must not win with votes that
#: were given for them
PROMISES = frozenset((MessageKind.VOTE, MessageKind.VOTE_REPLY, MessageKind.APPEND_REPLY, MessageKind.CENSUS_REPLY))


@dataclass(frozen=True, slots=True)
class RaftMessage:
    """One message; the module describes the fields. `sender` and `to` are ids of members."""

    kind: MessageKind
    sender: str
    to: str
    term: int
    position: Position = ORIGIN
    #: where the logs may agree, in a refusal of an append
    hint: Position = ORIGIN
    commit: int = 0
    round: int = 0
    rejected: bool = False
    entries: Sequence[LogEntry] = ()
    data: bytes = b""


def quorum(members: int) -> int:
    """Return how many of `members` are a majority."""
    return members // 2 + 1
