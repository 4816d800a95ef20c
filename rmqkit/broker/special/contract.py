"""The contract of a special duty: work that exactly one member of a broker group does.

The master does it; while the master is away, the acting master (a slave) does it. A duty never
asks which of the two this broker is. `start` passes it a `Destination`, which receives due
messages and sets the limits that the duty must respect. Everything else is the same for both.

    progress   how far the duty has come. Slaves copy it from the master. A returning master copies
               it from its slaves. It moves back if the log is truncated.
    snapshot   progress as a value for the wire: `SpecialRow.decode` reads what `encode` returns

`table.py` lists the duties. A new one needs a package and a row there; `rmqkit.testing` has the
tests that each duty must pass (`SpecialDutyContract`).

Source: `broker/.../BrokerController.java` (`changeSpecialServiceStatus`), RIP-32.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from rmqkit.broker.client_calls import ClientCalls
from rmqkit.broker.context import BrokerContext
from rmqkit.broker.tables.clients import Clients
from rmqkit.broker.tables.groups import GroupTable
from rmqkit.broker.tables.offsets import OffsetTable
from rmqkit.broker.tables.topics import TopicTable
from rmqkit.store.contract import Put, PutResult, PutRun, PutStatus, StorageEngine
from rmqkit.wire.codes import OwnRequestCode

Then = Callable[[PutStatus], None]
#: results of an attempt that may have stored the message nevertheless
UNKNOWN = frozenset((PutStatus.UNKNOWN_ERROR, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT))


class Destination(Protocol):
    """Where due messages go."""

    @property
    def in_flight_max(self) -> int | None:
        """The limit of puts in flight per line of work (a delay level); None: the duty's own."""

    @property
    def is_serial(self) -> bool:
        """Whether a queue has at most one put in flight, and a line of work one after a failure."""

    @property
    def retry_max_ms(self) -> int:
        """The longest pause before a failed put is retried."""

    @property
    def save_max_ms(self) -> int | None:
        """The longest time until progress is saved; None: the duty's own interval applies."""

    @property
    def poll_ms(self) -> int | None:
        """The interval at which the duty polls for new work.

        None: no polling, because this broker appends all new work itself.
        """

    @property
    def needs_dedup(self) -> bool:
        """Whether another member may have delivered messages beyond the known progress."""

    @property
    def takes_internal(self) -> bool:
        """Whether it takes messages for internal topics, to which clients may not send."""

    @property
    def why(self) -> str:
        """Why the last put failed, "" if the reason is unknown."""

    def put(self, put: Put, origin: str, then: Then) -> PutResult | None:
        """Try once to put a due message. Call `then` once, possibly before this returns.

        Returns where it is in this broker's own log, None if it goes elsewhere.

        `origin` names where the message waited in this group ("SCHEDULE:3:17"). It is the same in
        each attempt.
        """

    def put_run(self, run: PutRun, then: Then) -> int:
        """Put messages at once, in order; return how many of them.

        If there are any, `then` is called once for all of them, and not before this returns. The
        caller tries the next one with `put`. 0 if the destination takes only single messages, or
        takes none at present.
        """

    def withdraw(self) -> None:
        """End puts that were not tried yet as failed: the duties have stopped."""


class Snapshot(Protocol):
    """The progress of one duty at one point in time."""

    def encode(self) -> bytes: ...


#: snapshots by the name of their duty
Progress = Mapping[str, Any]


S = TypeVar("S", bound=Snapshot)


class SpecialDuty(Protocol[S]):
    """One special duty. It works between `start` and `stop`, and always has its progress."""

    def load(self, *, is_copy: bool) -> None:
        """Read the saved progress.

        `is_copy`: it was copied from a master, and this broker is still a slave. Raises
        AtomicFileDamaged if the file cannot be read.
        """

    def save(self, then: Callable[[], None] | None = None) -> None:
        """Save progress if it has changed, then call `then`, even after a failure.

        The saved progress must never be ahead of what would survive a power loss.
        """

    @property
    def save_interval_ms(self) -> int:
        """How often a slave saves the progress that it copies."""

    def start(self, destination: Destination) -> None:
        """Start to work, from the current progress."""

    def stop(self) -> None:
        """Start no further put. Puts in flight still count as progress when they end."""

    @property
    def is_on(self) -> bool:
        """Whether the duty works: between `start` and `stop`."""

    @property
    def is_moving(self) -> bool:
        """Whether a put is in flight, so that `snapshot` is about to change.

        A handover waits until it is false.
        """

    def snapshot(self) -> S:
        """Return the current progress."""

    def merge(self, snapshot: S) -> None:
        """Take over a peer's progress where it is further; progress only moves forward.

        The caller has made sure that this broker's log holds what the peer delivered into its own.
        """

    def truncate(self, limit: S | None) -> None:
        """Move progress back after the log was truncated.

        It may exceed neither what the log still has, nor `limit`, the master's progress (None if
        that is unknown).
        """

    def due_count(self) -> int:
        """Return the number of messages that are due and not yet put; 0 unless the duty is on."""

    def facts(self) -> Mapping[str, str]:
        """Return the fields that code 28 (GET_BROKER_RUNTIME_INFO) shows."""


class SpecialParts(NamedTuple):
    """The arguments from which a special duty is created."""

    context: BrokerContext
    store: StorageEngine
    #: folder of its progress file
    folder: str
    topics: TopicTable
    groups: GroupTable
    #: a duty whose progress is a consumer offset keeps it here
    offsets: OffsetTable
    #: clients that are online; calls to them
    clients: Clients
    client_calls: ClientCalls


class SpecialRow(NamedTuple):
    """One line of the table of special duties."""

    name: str
    #: name of its progress in messages
    progress: str
    #: request code that fetches the snapshot from a broker; 0: the progress is a consumer offset of
    #: a system group, which is copied, merged and saved with all other consumer offsets
    code: int
    #: field of GetAllConsumerOffsetResponse that carries the snapshot; "": the shared field
    #: `special_progress`
    field: str
    #: raises RemoteProtocolError if the bytes are no snapshot
    decode: Callable[[bytes], Snapshot]
    make: Callable[[SpecialParts], SpecialDuty[Any]]

    @property
    def is_own(self) -> bool:
        """Whether the code is rmqkit's own, so that Apache's brokers are not asked."""
        return isinstance(self.code, OwnRequestCode)
