"""SpecialDuties: all special duties of a broker, driven together.

Roles, replication and handlers use this class and name no single duty. `destination` is set while
the duties are on.

On the wire, progress is one snapshot per duty. A broker that needs the progress of another member
(a returning master, a slave that truncated its log) fetches each snapshot with the request code of
its row. A slave gets all of them in the answer to 43 (GET_ALL_CONSUMER_OFFSET): in the field that
the row names, or in `special_progress`, which rows without a field share. Replication saves
snapshots as texts in its file. The progress of a row without a code is a consumer offset and needs
none of this.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from rmqkit.broker.special.contract import Destination, Progress, SpecialDuty, SpecialParts, SpecialRow
from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.schemas.offsets import GetAllConsumerOffsetResponse

T = TypeVar("T")

#: a snapshot may be any bytes; as text, each byte is one character
TEXT = "latin-1"


class SpecialDuties:
    """All special duties of one broker. The methods of `SpecialDuty` apply to each of them."""

    def __init__(self, rows: Sequence[SpecialRow], parts: SpecialParts) -> None:
        #: the duties whose progress has a request code of its own
        self.rows = tuple(row for row in rows if row.code)
        self._by_name: dict[str, SpecialDuty[Any]] = {row.name: row.make(parts) for row in rows}
        #: where due messages go; None while the duties are off
        self.destination: Destination | None = None

    def find(self, kind: type[T]) -> T:
        """Return the duty of this class."""
        return next(duty for duty in self._by_name.values() if isinstance(duty, kind))

    def of(self, name: str) -> SpecialDuty[Any]:
        """Return the duty of the row with this name."""
        return self._by_name[name]

    # --- the methods of SpecialDuty, for all duties -----------------------------------------------

    def load(self, *, is_copy: bool) -> None:
        """Load every duty's progress. Raises AtomicFileDamaged if a file cannot be read."""
        for duty in self._by_name.values():
            duty.load(is_copy=is_copy)

    def save(self, then: Callable[[], None] | None = None) -> None:
        """Save the duties one after the other, then call `then`, even after a failure."""
        left = list(self._by_name.values())

        def saved() -> None:
            if left:
                left.pop(0).save(saved)
            elif then is not None:
                then()

        saved()

    @property
    def save_interval_ms(self) -> int:
        return min(duty.save_interval_ms for duty in self._by_name.values())

    def start(self, destination: Destination) -> None:
        self.destination = destination
        for duty in self._by_name.values():
            duty.start(destination)

    def stop(self) -> None:
        destination, self.destination = self.destination, None
        for duty in self._by_name.values():
            duty.stop()
        if destination is not None:
            destination.withdraw()

    @property
    def is_moving(self) -> bool:
        return any(duty.is_moving for duty in self._by_name.values())

    def merge(self, progress: Progress) -> None:
        for name, snapshot in progress.items():
            self._by_name[name].merge(snapshot)

    def truncate(self, limits: Progress | None) -> None:
        """Move every duty's progress back. `limits` is the master's progress, None if unknown."""
        for name, duty in self._by_name.items():
            duty.truncate(None if limits is None else limits.get(name))

    def due_count(self) -> int:
        return sum(duty.due_count() for duty in self._by_name.values())

    def facts(self) -> dict[str, str]:
        return {name: value for duty in self._by_name.values() for name, value in duty.facts().items()}

    # --- on the wire and in files -----------------------------------------------------------------

    def encode(self, name: str) -> bytes:
        """Return the encoded snapshot of one duty."""
        return bytes(self._by_name[name].snapshot().encode())

    def fill(self, answer: GetAllConsumerOffsetResponse) -> None:
        """Put all snapshots into the answer to a slave's 43."""
        shared = {}
        for row in self.rows:
            text = self.encode(row.name).decode(TEXT)
            if row.field:
                setattr(answer, row.field, text)
            else:
                shared[row.name] = text
        if shared:
            answer.special_progress = msgspec.json.encode(shared).decode()

    def read(self, answer: GetAllConsumerOffsetResponse) -> Progress:
        """Return the progress that `fill` put into the answer. Raises RemoteProtocolError."""
        texts = {row.name: getattr(answer, row.field) for row in self.rows if row.field}
        if answer.special_progress:
            try:
                texts |= msgspec.json.decode(answer.special_progress, type=dict[str, str])
            except msgspec.MsgspecError as error:
                raise RemoteProtocolError(f"special_progress: {error}") from None
        return self.decode(texts)

    def decode(self, texts: Mapping[str, str]) -> Progress:
        """Decode snapshots from texts by name; duties without a text are left out.

        Raises RemoteProtocolError if a text is no snapshot.
        """
        return {row.name: row.decode(_data(texts[row.name])) for row in self.rows if texts.get(row.name)}


def texts(progress: Progress) -> dict[str, str]:
    """Encode snapshots as texts by name, for `SpecialDuties.decode`."""
    return {name: snapshot.encode().decode(TEXT) for name, snapshot in progress.items()}


def _data(text: str) -> bytes:
    """Return the bytes of a snapshot's text. Raises RemoteProtocolError."""
    try:
        return text.encode(TEXT)
    except UnicodeEncodeError as error:
        raise RemoteProtocolError(f"progress of a special duty: {error}") from None
