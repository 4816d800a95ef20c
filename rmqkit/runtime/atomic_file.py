"""Small files of a node: each save replaces the whole content and keeps the previous one as `.bak`.

`AtomicFile.save` takes a function that produces the content, and may be called at any time. Calls
during a replacement are combined into one more replacement after it; its content is produced only
then. So a thousand changes in a row cost two writes.

Loading follows upstream's rule: if the file is missing, empty or unreadable, `.bak` is read. If
both are missing or empty, the node starts empty. If there is content but neither file can be read,
the start fails and both files stay untouched.

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
    """One file at `path`. At most one replacement is in flight."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        #: the error of the last save, None if it succeeded; the next save tries again
        self.error: OSError | None = None
        #: why `load` has read the copy from before the last save; "" if it has not
        self.damage = ""
        self._disk = disk
        self._saving = False
        self._next: Callable[[], bytes] | None = None
        self._waiting: list[Callable[[], None]] = []

    @property
    def busy(self) -> bool:
        return self._saving

    def load(self, parse: Callable[[bytes], T]) -> T | None:
        """Return the parsed content, or None if nothing was ever saved.

        `parse` raises RemoteProtocolError or ValueError for bad content. Raises AtomicFileDamaged
        if no copy can be parsed.
        """
        damage = ""
        for path in (self.path, f"{self.path}.bak"):
            size = self._disk.size(path)
            if not size:
                continue
            try:
                found = parse(self._disk.read(path, 0, size))
                self.damage = damage
                return found
            except (RemoteProtocolError, ValueError) as error:
                damage = f"{path} cannot be read ({error})"
        if damage:
            raise AtomicFileDamaged(f"{damage}, and no other copy can be read; restore it from a backup or move it away")
        return None

    def save(self, make: Callable[[], bytes], then: Callable[[], None] | None = None) -> None:
        """Replace the content.

        `then` is called once this or newer content is durable, or the save has failed (see
        `error`).
        """
        if then is not None:
            self._waiting.append(then)
        if self._saving:
            self._next = make
            return
        self._saving = True
        self._disk.replace(self.path, make(), self._saved)

    def save_if(self, is_changed: bool, make: Callable[[], bytes], then: Callable[[], None] | None = None) -> None:
        """Save if the content changed or the last save did not succeed. Call `then` in any case."""
        if is_changed or self._saving or self.error is not None:
            self.save(make, then)
        elif then is not None:
            then()

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
