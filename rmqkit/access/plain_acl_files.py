"""PlainAclFiles: keeps a master's table of users as the files of ACL 1.0 say.

The driver provides the function that reads the files. `load` reads them at the start, which fails
if they cannot be used. `poll` is a duty: it reads them once a second. New content is used at the
next poll that finds it unchanged, because an editor may still be writing. If it cannot be used, the
last good users and rules stay, and one line says why.

Files that vanish all at once are an error too, not an empty set of users.

Source: `acl/.../plain/PlainPermissionManager.java` of 4.9.8 (`watch`); Apache compares hashes
each 500 ms, and takes what it finds.
"""

from collections.abc import Mapping

from rmqkit.access.plain_acl import PlainAclError, read_plain_acl
from rmqkit.access.table import AccessTable
from rmqkit.errors import RmqkitError
from rmqkit.runtime.ports import Log, ReadFiles

POLL_MS = 1000


def read_files(read: ReadFiles) -> Mapping[str, bytes]:
    """Return the files. Raises PlainAclError if there is none, or if one cannot be read."""
    try:
        content = read()
    except OSError as error:
        raise PlainAclError(f"{error.filename}: {error.strerror}") from None
    if not content:
        raise PlainAclError("there is no file of ACL 1.0: neither plain_acl.yml nor one in the folder acl beside it")
    return content


class PlainAclFiles:
    """The files of ACL 1.0 of one master."""

    def __init__(self, read: ReadFiles, table: AccessTable, log: Log) -> None:
        self._read = read
        self._table = table
        self._log = log
        #: the content of the last attempt, and of the last poll; None: it could not be read
        self._tried: Mapping[str, bytes] | None = None
        self._polled: Mapping[str, bytes] | None = None

    def load(self) -> None:
        """Use the files. Raises PlainAclError, AccessConflict."""
        self._tried = self._polled = read_files(self._read)
        self._use(self._tried)

    def poll(self, now_ms: int) -> int:
        """Use the files if they have changed, but not since the last poll. Return the next time."""
        content: Mapping[str, bytes] | None
        why = ""
        try:
            content = read_files(self._read)
        except PlainAclError as error:
            content, why = None, str(error)
        is_still, self._polled = content == self._polled, content
        if is_still and content != self._tried:
            self._tried = content
            try:
                if content is None:
                    raise PlainAclError(why)
                self._use(content)
            except RmqkitError as error:
                self._log.error("acl files not reloaded", reason=str(error))
        return now_ms + POLL_MS

    def _use(self, content: Mapping[str, bytes]) -> None:
        users = read_plain_acl(content)
        skipped = self._table.follow_files(users)
        self._log.info("acl files loaded", files=" ".join(content), users=len(users) - len(skipped))
        if skipped:
            self._log.warning("acl users skipped", users=" ".join(skipped), reason="a request has created these users")
