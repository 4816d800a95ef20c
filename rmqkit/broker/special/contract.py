"""The contract of a special duty: work that exactly one member of a broker group does.

The master does it; while the master is away the acting slave does it. A duty never asks which of the
two this broker is. `start` hands it a `Destination`, which says where due messages go and what the
duty must respect there. Everything else is the same for both.

    progress   how far the duty is. Slaves copy it from the master, a returning master takes it over
               from its slaves, and a truncated log takes it back.
    snapshot   progress as a value of the wire: `encode` gives what `SpecialRow.decode` reads.

`table.py` lists the duties. A new one needs a package and a row there; `rmqkit.testing` has the tests
that each duty must pass (`SpecialDutyContract`).

Source: `broker/.../BrokerController.java` (`changeSpecialServiceStatus`), RIP-32.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from rmqkit.broker.context import BrokerContext
from rmqkit.store.contract import Put, PutStatus, StorageEngine

Then = Callable[[PutStatus], None]


class Destination(Protocol):
    """Where due messages go."""

    @property
    def in_flight_max(self) -> int | None:
        """Puts in flight for one line of work (a delay level); None: the duty's own limit applies."""

    @property
    def is_serial(self) -> bool:
        """Whether a queue has one put in flight at a time, and a line of work only one after a failure."""

    @property
    def retry_max_ms(self) -> int:
        """The longest pause before a failed put is repeated."""

    @property
    def save_max_ms(self) -> int | None:
        """How soon progress must be saved; None: the duty's own interval applies."""

    @property
    def poll_ms(self) -> int | None:
        """How often the duty looks for new work; None: this broker appends all of it itself."""

    @property
    def needs_dedup(self) -> bool:
        """Whether another member may have delivered messages that the progress does not count yet."""

    @property
    def why(self) -> str:
        """Why the last put failed, "" if that is not known."""

    def put(self, put: Put, origin: str, then: Then) -> None:
        """Try once to put a due message. Call `then` once, perhaps before this returns. `origin` names
        where the message waited in this group ("SCHEDULE:3:17"), the same at each attempt."""


class Snapshot(Protocol):
    """Progress of one duty at one moment."""

    def encode(self) -> bytes: ...


#: snapshots by the name of their duty
Progress = Mapping[str, Any]


S = TypeVar("S", bound=Snapshot)


class SpecialDuty(Protocol[S]):
    def load(self, *, is_copy: bool) -> None:
        """Read the saved progress. `is_copy`: it was copied from a master, and this broker is still a slave.

        Raises AtomicFileDamaged."""

    def save(self, then: Callable[[], None] | None = None) -> None:
        """Save progress if it has changed. `then` is called in any case. The saved progress must never be
        ahead of what would survive a power loss."""

    @property
    def save_interval_ms(self) -> int:
        """How often a slave saves the progress that it copies."""

    def start(self, destination: Destination) -> None:
        """Work from now on, from the current progress."""

    def stop(self) -> None:
        """Put nothing more. Puts in flight still count as progress when they end."""

    @property
    def is_on(self) -> bool:
        """Whether it works, between `start` and `stop`."""

    @property
    def is_moving(self) -> bool:
        """Whether a put is in flight, so that `snapshot` is about to change. A handover waits for its end."""

    def snapshot(self) -> S:
        """The progress now."""

    def merge(self, snapshot: S) -> None:
        """Take over the progress of a peer. Progress only moves forward. The caller has made sure that
        this broker's log holds what the peer delivered into its own."""

    def truncate(self, limit: S | None) -> None:
        """The end of the log was cut off: take progress back to what the log still has, and to `limit`,
        the master's progress, where it is known."""

    def due_count(self) -> int:
        """Messages that are due and not put; 0 unless it is on."""

    def facts(self) -> Mapping[str, str]:
        """What code 28 shows of it."""


class SpecialParts(NamedTuple):
    """What a special duty is made from."""

    context: BrokerContext
    store: StorageEngine
    #: where its file of progress belongs
    folder: str


class SpecialRow(NamedTuple):
    """One line of the table of special duties."""

    name: str
    #: what its progress is called in messages for people
    progress: str
    #: the request that asks a broker for the snapshot
    code: int
    #: the field of GetAllConsumerOffsetResponse with the snapshot, "" for the one that duties share
    field: str
    #: Raises RemoteProtocolError.
    decode: Callable[[bytes], Snapshot]
    make: Callable[[SpecialParts], SpecialDuty[Any]]
