"""KvTable: the small configuration texts that brokers and administrators leave here, by namespace and key.

The table is a file (`kvConfig.json`, `{"configTable":{namespace:{key:value}}}`) that is written as a whole after every
change; a change is answered when the file is durable. A namespace stays when its last key is deleted, as upstream's does.
The only namespace with a meaning here is ORDER_TOPIC_CONFIG: topic -> "broker-a:4;broker-b:4".

Source: `namesrv/.../kvconfig/KVConfigManager.java`.
"""

from collections.abc import Callable, Mapping

import msgspec

from rmqkit.errors import RemoteProtocolError
from rmqkit.nameserver.names import TableLimits, check_name
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.calls import Refused
from rmqkit.runtime.ports import Disk
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.fastjson import dumps, load_as

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class _KvFile(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str | None]] | None = None


class KvTable:
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
        """Why the last change could not be written, or None."""
        return self._file.error

    def load(self) -> None:
        """Raises AtomicFileDamaged when neither the file nor its backup can be read."""
        tables = self._file.load(_parse)
        if tables is not None:
            self.tables = tables
            self._entry_count = sum(map(len, tables.values()))
            self._size = sum(_entry_size(each, *item) for each, table in tables.items() for item in table.items())

    def get(self, namespace: str, key: str) -> str | None:
        return self.tables.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """The keys and values of a namespace; None when nothing was ever put there."""
        return self.tables.get(namespace)

    def check_put(self, namespace: str, key: str, value: str) -> None:
        """Raises Refused when the entry cannot be taken."""
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
        """Enter what `check_put` allowed. `then` is called when it is durable, or when that failed: see `error`."""
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
        """Forget an entry; one that is not there is no error."""
        value = self.tables.get(namespace, {}).pop(key, None)
        if value is not None:
            self._entry_count -= 1
            self._size -= _entry_size(namespace, key, value)
        self._file.save(self._content, then)

    def validate(self) -> None:
        """Raises AssertionError when the counts are not those of the table."""
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
