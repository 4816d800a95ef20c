"""Epochs: for each queue of a group the greatest epoch that this broker has agreed to, and whose it is; kept on disk.

An epoch is agreed to when it is greater than the known one, or when it is the known one of the same client. It is agreed
to only once it is durable, so that no restart agrees to it for somebody else. Entries are never forgotten: epochs have to
grow for ever. `EPOCHS_MAX` bounds them; beyond it nothing new is agreed to.
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
    number: int
    client_id: str
    #: monotonic time at which it was agreed to or confirmed
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
    def __init__(self, disk: Disk) -> None:
        self.known: dict[tuple[str, MessageQueue], Epoch] = {}
        self._file = AtomicFile(disk, FILE)

    def load(self, now_ms: int) -> None:
        """Raises AtomicFileDamaged: without its epochs a broker would agree to what it agreed to before."""
        for entry in self._file.load(_read) or ():
            self.known[entry.group, entry.queue] = Epoch(entry.number, entry.client_id, now_ms)

    def save(self, then: Callable[[], None]) -> None:
        self._file.save(self._encode, then)

    @property
    def is_kept(self) -> bool:
        """Whether everything that was ever agreed to is durable."""
        return self._file.error is None and not self._file.busy

    def number(self, group: str, queue: MessageQueue) -> int:
        known = self.known.get((group, queue))
        return 0 if known is None else known.number

    def of(self, group: str, queue: MessageQueue, client_id: str) -> int:
        """The epoch that the client has, 0 when another one or nobody has one."""
        known = self.known.get((group, queue))
        return known.number if known is not None and known.client_id == client_id else 0

    def agree(
        self, group: str, client_id: str, claims: Sequence[Claim], now_ms: int, then: Callable[[list[bool]], None]
    ) -> None:
        """`then` is told of each claim, when what was agreed to is durable."""
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
