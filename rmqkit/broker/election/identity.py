"""The files with this broker's id in its group: `brokerIdentity` and `brokerIdentity-temp`.

    brokerIdentity        cluster#name#id
    brokerIdentity-temp   cluster#name#id#check code

A new broker asks a controller for the next id, writes the temporary file, and applies for the id
with the file's check code (`ip:port;ms`). Then it writes the final file and removes the temporary
one. The controller grants an id twice if the check code is the same. So a broker that dies at any
step gets the same id when it starts again, and no id is given to two brokers:

    died before the temporary file   asks for an id again
    died before or after the answer  applies again, with the same code
    refused                          the temporary file is removed, and the next id is asked for
    died before the removal          the final file counts

Both files are replaced as a whole and synced. A file of another cluster or broker name is not this
broker's, and the start is refused. (Apache deletes and writes, without a sync.)

Source: `broker/.../controller/ReplicasManager.java`, `store/.../BrokerMetadata.java`,
`TempBrokerMetadata.java`.
"""

from collections.abc import Callable
from typing import NamedTuple

from rmqkit.errors import RmqkitError
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.ports import Disk


class BrokerId(NamedTuple):
    """An id in the group; `check_code` is "" once a controller has granted it."""

    broker_id: int
    check_code: str = ""


class IdentityFiles:
    """The two files of one broker."""

    def __init__(self, disk: Disk, path: str, cluster: str, name: str) -> None:
        self._disk = disk
        self._path = path
        self._cluster = cluster
        self._name = name
        self._final = AtomicFile(disk, path)
        self._temporary = AtomicFile(disk, f"{path}-temp")

    def load(self) -> BrokerId | None:
        """Return the saved id, None if there is none.

        Raises RmqkitError if a file is damaged or another broker's.
        """
        return self._final.load(self._parse) or self._temporary.load(self._parse)

    def _parse(self, content: bytes) -> BrokerId:
        parts = content.decode().strip().split("#")
        if len(parts) not in (3, 4) or not parts[2].isdecimal():
            raise ValueError("not cluster#name#id")
        if parts[:2] != [self._cluster, self._name]:
            raise RmqkitError(
                f"{self._path} is the identity of {parts[1]} in cluster {parts[0]}, and this broker is {self._name} in "
                f"{self._cluster}: correct brokerName or brokerClusterName, or move the file away to get a new id"
            )
        return BrokerId(int(parts[2]), parts[3] if len(parts) == 4 else "")

    def save(self, wanted: BrokerId, then: Callable[[OSError | None], None]) -> None:
        """Write the file of an id, then call `then` with the error or None.

        With a check code it is the temporary file. The final file replaces the temporary one.
        """
        text = f"{self._cluster}#{self._name}#{wanted.broker_id}"
        if wanted.check_code:
            content = f"{text}#{wanted.check_code}".encode()
            self._temporary.save(lambda: content, lambda: then(self._temporary.error))
            return

        def saved() -> None:
            if self._final.error is not None:
                then(self._final.error)
            else:
                self.forget_temporary(then)

        self._final.save(lambda: text.encode(), saved)

    def forget_temporary(self, then: Callable[[OSError | None], None]) -> None:
        """Remove the temporary file: its id was granted, or refused."""
        path = f"{self._path}-temp"
        self._disk.remove(path, lambda _: self._disk.remove(f"{path}.bak", then))
