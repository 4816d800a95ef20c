"""KvTable: small configuration texts of brokers and administrators, by namespace and key.

The table is stored in `kvConfig.json` (`{"configTable":{namespace:{key:value}}}`). The whole file
is written after every change, and a change is answered once the file is durable. As in Apache, a
namespace stays when its last key is deleted. The name server itself uses only the namespace
ORDER_TOPIC_CONFIG: topic -> "broker-a:4;broker-b:4".

Source: `namesrv/.../kvconfig/KVConfigManager.java`.
"""

from collections.abc import Callable, Mapping

import msgspec

from rmqkit.errors import RemoteProtocolError
from rmqkit.nameserver.names import TableLimits
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.calls import Refused
from rmqkit.runtime.names import check_name
from rmqkit.runtime.ports import Disk
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.fastjson import dumps, load_as

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class _KvFile(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str | None]] | None = None


class KvTable:
    """The KV table in memory and its file."""

    def __init__(self, disk: Disk, path: str, limits: TableLimits) -> None:
        self.tables: dict[str, dict[str, str]] = {}
        self._limits = limits
        self._file = AtomicFile(disk, path)
        self._entry_count = 0
        self._size = 0

    @property
    def busy(self) -> bool:
        return self._file.busy

    @property
    def error(self) -> OSError | None:
        """Why the last write failed, or None."""
        return self._file.error

    def load(self) -> None:
        """Read the file. Raises AtomicFileDamaged if neither it nor its backup can be read."""
        tables = self._file.load(_parse)
        if tables is not None:
            self.tables = tables
            self._entry_count = sum(map(len, tables.values()))
            self._size = sum(_entry_size(each, *item) for each, table in tables.items() for item in table.items())

    def get(self, namespace: str, key: str) -> str | None:
        return self.tables.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return the keys and values of a namespace, None if nothing was ever put there."""
        return self.tables.get(namespace)

    def check_put(self, namespace: str, key: str, value: str) -> None:
        """Validate an entry. Raises Refused if its names are invalid or a limit is reached."""
        check_name("namespace", namespace)
        check_name("key", key)
        limits = self._limits
        if namespace not in self.tables and len(self.tables) >= limits.kv_namespaces_max:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"there are at most {limits.kv_namespaces_max} namespaces")
        before = self.get(namespace, key)
        if before is None and self._entry_count >= limits.kv_entries_max:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"there are at most {limits.kv_entries_max} entries")
        growth = _entry_size(namespace, key, value) - (0 if before is None else _entry_size(namespace, key, before))
        if growth > 0 and self._size + growth > limits.kv_size_max:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"all entries together have at most {limits.kv_size_max} characters")

    def put(self, namespace: str, key: str, value: str, then: Callable[[], None]) -> None:
        """Enter an entry that passed `check_put`.

        Calls `then` once it is durable, or once the write has failed (see `error`).
        """
        table = self.tables.setdefault(namespace, {})
        before = table.get(key)
        if before is None:
            self._entry_count += 1
        else:
            self._size -= _entry_size(namespace, key, before)
        table[key] = value
        self._size += _entry_size(namespace, key, value)
        self._file.save(self._content, then)

    def delete(self, namespace: str, key: str, then: Callable[[], None]) -> None:
        """Delete an entry, if it exists. Calls `then` as `put` does."""
        value = self.tables.get(namespace, {}).pop(key, None)
        if value is not None:
            self._entry_count -= 1
            self._size -= _entry_size(namespace, key, value)
        self._file.save(self._content, then)

    def validate(self) -> None:
        """Raises AssertionError if the counts do not match the table."""
        entries = [(each, key, value) for each, table in self.tables.items() for key, value in table.items()]
        assert self._entry_count == len(entries)
        assert self._size == sum(_entry_size(*entry) for entry in entries)

    def _content(self) -> bytes:
        return dumps({"configTable": self.tables})


def _parse(content: bytes) -> dict[str, dict[str, str]]:
    try:
        read = load_as(_KvFile, content).config_table or {}
    except RemoteProtocolError as error:
        raise ValueError(str(error)) from None
    return {
        namespace: {key: value for key, value in table.items() if value is not None} for namespace, table in read.items()
    }


def _entry_size(namespace: str, key: str, value: str) -> int:
    return len(namespace) + len(key) + len(value)
