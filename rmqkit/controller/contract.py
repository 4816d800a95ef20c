"""The contract between a controller and its log: who may decide, and what is decided for good.

A controller keeps one table: the broker sets with their masters, epochs and SyncStateSets. The log
makes every change of it durable, in one order, on all controllers of the group. The table never
knows how. `ControllerLog` is what the controller calls; `LogTarget` is what the log calls.

The path of a change:

    propose(entry, then)              at the leader; the entry is opaque to the log
    target.apply(entry)               on every controller, in log order, once the entry is committed
    then(LogOutcome.COMMITTED)           at the proposer, immediately after its `apply`

- **Committed** means durable on a majority (on this disk, for a log of one controller). A crash of
  all controllers keeps it.
- `apply` gets every committed entry exactly once since the start, or since the last `restore`. A
  log that starts calls `restore` with its snapshot, if it has one, and then `apply` for what is
  known to be committed behind it; before `start` returns or later.
- `then` is called exactly once, never inside `propose` or `barrier`. `LOST` means that this
  controller stopped leading: the entry may still be committed, here or nowhere, so the caller must
  not tell its client that it is done, nor that it is not. `FAILED` means that it never will be.
- `leadership.is_self` is true only while this controller may decide: it leads, it has applied an
  entry of its own term (so everything committed before as well), and a majority answered it within
  the election timeout. The table then equals the committed state plus what is proposed.
- `barrier(then)` confirms that after the call: COMMITTED if this controller was still the only
  leader at some moment after the call. An answer that was read before, and is sent after it, was
  not stale when the call was made.
- `apply`, `then` and `leadership_changed` may call `propose` and `barrier`, also within `settle`.
  The log makes sure that another turn follows if these need one.
- Each change of `leadership` is reported by `target.leadership_changed`. All pending `then`s of a
  controller that stops to lead are called before it.
- When the log wants to drop its prefix it calls `target.snapshot()`: the table after the last
  `apply`, as bytes. A controller that is far behind gets it through `restore`.
- Peers are not trusted. A log calls `target.check` before it keeps the entries of a message, and
  passes its error on. So nothing of a forged message enters the log. A committed entry is never
  skipped: if it cannot be applied, this log is out of service.
- `failed` says why a log is out of service: it could not write, or could not apply a committed
  entry. Such a log never leads, votes or acknowledges again. A failed sync is never retried.

A log is part of one node. It runs in the node's turns: it adds its timers to `LogParts.duties`,
writes with `LogParts.ports.disk` (completions call back), takes time from `ports.clock` and random
numbers from `ports.entropy`. `settle` ends a turn: one write and one sync for all proposals of the
turn, and its messages leave. Nothing is sent that promises what is not yet synced.

Messages to peers go through `LogParts.send`, which may lose, repeat, delay and reorder them, and
never reports. Each arrives whole, at `receive`, with the id of a configured peer as its sender.

The contract suite in `rmqkit.testing.controller_logs` runs against every log.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from rmqkit.errors import CannotStart
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Ports

#: bytes of one entry; `propose` raises ValueError beyond it. The largest event is far below
ENTRY_SIZE_MAX = 256 * 1024
#: bytes of one message to a peer, a snapshot included
MESSAGE_SIZE_MAX = 8 * 1024 * 1024


class ControllerLogFault(CannotStart):
    """The files of a log cannot be read or applied; the text names the file and what to do."""


class LogOutcome(StrEnum):
    """What became of a proposal or a barrier."""

    COMMITTED = "committed"
    LOST = "lost"
    FAILED = "failed"


Settled = Callable[[LogOutcome], None]


class ControllerPeer(NamedTuple):
    """A controller of the group: its id, and the address at which it serves requests."""

    id: str
    address: str


class Leadership(NamedTuple):
    """Who leads, as far as this controller knows. `id` and `address` are "" if it knows nobody."""

    term: int = 0
    id: str = ""
    address: str = ""
    #: this controller may decide; see the module
    is_self: bool = False


class LogTarget(Protocol):
    """What the log calls: the controller's table, and the controller that waits to lead."""

    def apply(self, entry: bytes) -> None:
        """Apply a committed entry to the table.

        Raises ControllerLogFault if it cannot be read, or contradicts the table: a peer's message
        was forged, or the log is damaged. Any other exception is a broken invariant: it ends the
        node.
        """

    def check(self, before: Sequence[bytes], entries: Sequence[bytes]) -> None:
        """Raise RemoteProtocolError if `entries` cannot be read, or cannot follow.

        They are of a peer, whose message may be forged. `before` are the entries between the last
        one that was applied and these. If those contradict the table, `apply` will find that once
        they are committed, and any entries may follow.
        """

    def check_snapshot(self, snapshot: bytes) -> None:
        """As `check`, for a snapshot."""

    def snapshot(self) -> bytes:
        """Return the table after the last `apply`."""

    def restore(self, snapshot: bytes) -> None:
        """Replace the table. Raises ControllerLogFault if the snapshot cannot be read."""

    def leadership_changed(self, leadership: Leadership) -> None:
        """Continue under another leader, or as the leader."""


@dataclass(frozen=True)
class LogParts:
    """What a controller gives to its log."""

    ports: Ports
    duties: Duties
    target: LogTarget
    #: this controller; one of `peers`
    self_id: str
    #: all controllers of the group, in the order of the settings; it never changes
    peers: Sequence[ControllerPeer]
    #: send a message of at most MESSAGE_SIZE_MAX bytes to the peer of that id
    send: Callable[[str, bytes], None]
    #: folder of the log's files on the node's disk; other files of the controller are not there
    folder: str
    #: `controllerElectionTimeoutMillis`: a follower that hears nothing for this time starts an
    #: election
    election_timeout_ms: int
    #: entries behind the snapshot after which the log takes a new one
    snapshot_entries: int


class ControllerLog(Protocol):
    """A log of decisions; the module describes the rules."""

    #: who leads; changes only within calls of the log
    leadership: Leadership
    #: why the log is out of service for good, "" while it works
    failed: str

    @property
    def busy(self) -> bool:
        """Whether writes are in flight; a node that stops waits until there are none."""

    def start(self) -> None:
        """Read the files and begin. Raises ControllerLogFault if they cannot be read."""

    def propose(self, entry: bytes, then: Settled) -> None:
        """Append an entry. `then` gets LOST at once (next `settle`) if this is not the leader.

        Raises ValueError if the entry is longer than ENTRY_SIZE_MAX.
        """

    def barrier(self, then: Settled) -> None:
        """Confirm that this controller still leads; see the module."""

    def receive(self, peer_id: str, message: bytes) -> None:
        """Take a message of a peer. Raises RemoteProtocolError if it is malformed."""

    def settle(self) -> None:
        """End the turn: write, and call what waits for an outcome that is known."""

    def stop(self) -> None:
        """Begin to stop: lead no more, settle what waits. `busy` tells when it is done."""

    def facts(self) -> Mapping[str, str]:
        """Return what `rmqkit controller status` shows of the log: term, entries, bytes, peers."""
