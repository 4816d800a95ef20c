"""RequestModes: whether a consumer group pulls or pops a topic, and messageRequestMode.json.

rmqkit itself does not use this table. A slave of an Apache master stores a copy, so that other
brokers of the group can fetch it from this slave (402).

Source: `broker/.../loadbalance/MessageRequestModeManager.java`.
"""

from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.ports import Disk
from rmqkit.wire.bodies import MessageRequestModeTable


class RequestModes:
    """A copy of the master's table of request modes, and its file."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self.table = MessageRequestModeTable()
        self._file = AtomicFile(disk, f"{folder}/messageRequestMode.json")

    def load(self) -> None:
        """Read the file. Raises AtomicFileDamaged if it cannot be read."""
        self.table = self._file.load(MessageRequestModeTable.decode) or self.table

    def follow(self, told: MessageRequestModeTable) -> None:
        """Replace the table by the master's, unless that is empty.

        The table has no version, so an empty one may mean that the master has none.
        """
        if told.message_request_mode_map and told != self.table:
            self.table = told
            self._file.save(lambda: self.table.pretty().encode())
