"""PlainAclFile: the users of ACL 1.0 at one broker, and the reload of their file.

The broker reads the file when it starts, and does not start if it cannot. It then compares the
file every `LOOK_MS`. A changed file takes effect at once. If it cannot be read any more, or is
wrong, the last good content stays in effect, and the log says so once.

Each broker reads its own file; the users are not copied to slaves.
"""

from collections.abc import Callable

from rmqkit.access.model import BadAccessText
from rmqkit.access.plain_acl import SIZE_MAX, read_plain_acl
from rmqkit.access.table import Accounts
from rmqkit.errors import ConfigError
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Clock, Disk, Log

DUTY = "plain-acl"
LOOK_MS = 1000


class PlainAclFile:
    """The accounts of a plain_acl.yml, current within `LOOK_MS`."""

    def __init__(self, disk: Disk, clock: Clock, duties: Duties, log: Log, path: str, cluster: str) -> None:
        self.users = Accounts(cluster)
        #: number of reloads that took effect
        self.reload_count = 0
        #: called after each of them
        self.on_change: Callable[[], None] = lambda: None
        self._disk = disk
        self._clock = clock
        self._log = log
        self._path = path
        #: the last content that was read, good or bad
        self._content = b""
        duties.add(DUTY, self._look, None)
        self._duties = duties

    def load(self) -> None:
        """Read the file, and watch it from now on. Raises ConfigError if that fails."""
        try:
            self._content = self._read()
            self.users.accounts = read_plain_acl(self._content)
        except (BadAccessText, OSError) as error:
            raise ConfigError(f"config: aclEnable = true: {self._path}: {error}") from None
        self._duties.wake(DUTY, self._clock.mono_ms + LOOK_MS)

    def _read(self) -> bytes:
        return self._disk.read(self._path, 0, SIZE_MAX + 1)

    def _look(self, now_ms: int) -> int:
        try:
            content = self._read()
        except OSError:
            content = b""
        if content != self._content:
            self._content = content
            try:
                self.users.accounts = read_plain_acl(content)
            except BadAccessText as error:
                self._log.warning("acl-not-reloaded", file=self._path, reason=str(error), kept=len(self.users.accounts))
            else:
                self._log.info("acl-reloaded", file=self._path, accounts=len(self.users.accounts))
                self.reload_count += 1
                self.on_change()
        return now_ms + LOOK_MS
