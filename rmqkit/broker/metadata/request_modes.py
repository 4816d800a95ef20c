"""RequestModes: whether a group pulls or pops a topic, and messageRequestMode.json.

Nothing here acts by it: a slave of an Apache master keeps its table, so that the brokers of the group can copy it from any
of them (402).

Source: `broker/.../loadbalance/MessageRequestModeManager.java`.
"""

from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.ports import Disk
from rmqkit.wire.bodies import MessageRequestModeTable


class RequestModes:
    def __init__(self, disk: Disk, folder: str) -> None:
        self.table = MessageRequestModeTable()
        self._file = AtomicFile(disk, f"{folder}/messageRequestMode.json")

    def load(self) -> None:
        """Raises AtomicFileDamaged."""
        self.table = self._file.load(MessageRequestModeTable.decode) or self.table

    def follow(self, told: MessageRequestModeTable) -> None:
        """Be a copy of the master's. It has no version; an empty one says nothing."""
        if told.message_request_mode_map and told != self.table:
            self.table = told
            self._file.save(lambda: self.table.pretty().encode())
