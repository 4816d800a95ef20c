"""Epochs: for each queue of a group, the greatest epoch that this broker agreed to, and its owner.

A broker agrees to an epoch if it is greater than the known one, or if it is the known one of the
same client. It answers only once the epoch is durable, so no restart lets it agree to the same
epoch for another client. Entries are never forgotten, because epochs must grow forever.
`EPOCHS_MAX` limits their number: at the limit, a broker agrees to no epoch of another queue.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.ports import Disk
from rmqkit.wire.fastjson import MessageQueue

FILE = "config/lockEpochs.json"
EPOCHS_MAX = 100_000


class Epoch(NamedTuple):
    """An epoch that this broker has agreed to."""

    number: int
    client_id: str
    #: monotonic time in ms of the last agreement to it, or of the load of the file
    since_ms: int


class Claim(NamedTuple):
    """A client's claim to a queue under an epoch."""

    topic: str
    broker_name: str
    queue_id: int
    number: int

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


class _Entry(msgspec.Struct, kw_only=True):
    group: str
    client_id: str
    queue: MessageQueue
    number: int


class _File(msgspec.Struct, kw_only=True):
    epochs: list[_Entry]


class Epochs:
    """The epochs that this broker has agreed to, stored in `FILE`."""

    def __init__(self, disk: Disk) -> None:
        self.known: dict[tuple[str, MessageQueue], Epoch] = {}
        self._file = AtomicFile(disk, FILE)

    def load(self, now_ms: int) -> None:
        """Read the epochs from disk.

        Raises AtomicFileDamaged if the file cannot be read: without its epochs a broker could agree
        to an epoch a second time, for another client.
        """
        for entry in self._file.load(_read) or ():
            self.known[entry.group, entry.queue] = Epoch(entry.number, entry.client_id, now_ms)

    def save(self, then: Callable[[], None]) -> None:
        """Save the epochs, then call `then`."""
        self._file.save(self._encode, then)

    @property
    def is_kept(self) -> bool:
        """Whether every epoch that was agreed to is durable."""
        return self._file.error is None and not self._file.busy

    def number(self, group: str, queue: MessageQueue) -> int:
        """Return the greatest known epoch of the queue, 0 if there is none."""
        known = self.known.get((group, queue))
        return 0 if known is None else known.number

    def of(self, group: str, queue: MessageQueue, client_id: str) -> int:
        """Return the client's epoch, 0 if another client or no client has the greatest epoch."""
        known = self.known.get((group, queue))
        return known.number if known is not None and known.client_id == client_id else 0

    def agree(
        self, group: str, client_id: str, claims: Sequence[Claim], now_ms: int, then: Callable[[list[bool]], None]
    ) -> None:
        """Agree to each claim if possible; call `then` once the result is durable.

        The callback gets one boolean per claim, in order. All are False if the save fails.
        """
        agreed, changed = [], False
        for claim in claims:
            known = self.known.get((group, claim.queue))
            if known is None:
                fits = len(self.known) < EPOCHS_MAX
            else:
                fits = claim.number > known.number or (claim.number, client_id) == (known.number, known.client_id)
            agreed.append(fits)
            if fits:
                changed = changed or known is None or claim.number != known.number
                self.known[group, claim.queue] = Epoch(claim.number, client_id, now_ms)
        if not changed and self.is_kept:
            then(agreed)
        else:
            self.save(lambda: then([each and self._file.error is None for each in agreed]))

    def _encode(self) -> bytes:
        entries = [
            _Entry(group=group, client_id=epoch.client_id, queue=queue, number=epoch.number)
            for (group, queue), epoch in self.known.items()
        ]
        return msgspec.json.encode(_File(epochs=entries))


def _read(data: bytes) -> list[_Entry]:
    try:
        return msgspec.json.decode(data, type=_File).epochs
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
