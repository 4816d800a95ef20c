"""RequestModes: whether a consumer group pulls or pops a topic, and messageRequestMode.json.

An administrator sets a mode at the master (401). Slaves copy the table, so that they answer the
same after a takeover, and other brokers of the group can fetch it from them (402).

Source: `broker/.../loadbalance/MessageRequestModeManager.java`.
"""

from collections.abc import Callable

from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.ports import Disk
from rmqkit.wire.bodies import MessageRequestMode, MessageRequestModeTable


class RequestModes:
    """The table of request modes, and its file."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self.table = MessageRequestModeTable()
        self._file = AtomicFile(disk, f"{folder}/messageRequestMode.json")

    def load(self) -> None:
        """Read the file. Raises AtomicFileDamaged if it cannot be read."""
        self.table = self._file.load(MessageRequestModeTable.decode) or self.table

    @property
    def save_error(self) -> OSError | None:
        """The error of the last save; None if it succeeded."""
        return self._file.error

    def save(self, then: Callable[[], None] | None = None) -> None:
        self._file.save(lambda: self.table.pretty().encode(), then)

    def get(self, topic: str, group: str) -> MessageRequestMode | None:
        """Return the mode of a group, None if none was set."""
        return self.table.message_request_mode_map.get(topic, {}).get(group)

    def put(self, mode: MessageRequestMode) -> None:
        """Set the mode of a group."""
        self.table.message_request_mode_map.setdefault(mode.topic, {})[mode.consumer_group] = mode

    def follow(self, told: MessageRequestModeTable) -> None:
        """Replace the table by the master's, unless that is empty.

        The table has no version, so an empty one may mean that the master has none.
        """
        if told.message_request_mode_map and told != self.table:
            self.table = told
            self.save()
