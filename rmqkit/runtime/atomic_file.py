"""Small files a node keeps: a whole text, replaced as one, with the last one beside it as `.bak`.

`AtomicFile.save` takes a function that makes the content and may be called at any time: while a replacement is under way
the calls add up to one more replacement after it, whose content is made then. A thousand changes cost two files.

Loading follows upstream's rule: a missing, empty or unreadable file falls back to `.bak`; when neither
exists that is an empty start; when both are there and neither can be read the start fails and both are left alone.

Source: `common/.../ConfigManager.java`, `common/.../MixAll.java`.
"""

from collections.abc import Callable
from typing import TypeVar

from rmqkit.errors import RemoteProtocolError, RmqkitError
from rmqkit.runtime.ports import Disk

T = TypeVar("T")


class AtomicFileDamaged(RmqkitError):
    """Neither the file nor its backup can be read."""


class AtomicFile:
    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        #: the last failed save, or None; the next save tries again
        self.error: OSError | None = None
        self._disk = disk
        self._saving = False
        self._next: Callable[[], bytes] | None = None
        self._waiting: list[Callable[[], None]] = []

    @property
    def busy(self) -> bool:
        return self._saving

    def load(self, parse: Callable[[bytes], T]) -> T | None:
        """The parsed content, or None when nothing was ever saved. `parse` raises RemoteProtocolError or ValueError."""
        damage = ""
        for path in (self.path, f"{self.path}.bak"):
            size = self._disk.size(path)
            if not size:
                continue
            try:
                return parse(self._disk.read(path, 0, size))
            except (RemoteProtocolError, ValueError) as error:
                damage = f"{path} cannot be read ({error})"
        if damage:
            raise AtomicFileDamaged(f"{damage}, and there is no good copy; restore it from a backup or move it away")
        return None

    def save(self, make: Callable[[], bytes], then: Callable[[], None] | None = None) -> None:
        """Replace the content; `then` is called when this or newer content is durable, or the save has failed."""
        if then is not None:
            self._waiting.append(then)
        if self._saving:
            self._next = make
            return
        self._saving = True
        self._disk.replace(self.path, make(), self._saved)

    def _saved(self, error: OSError | None) -> None:
        self.error = error
        self._saving = False
        if self._next is not None:
            make, self._next = self._next, None
            self.save(make)
            return
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()
