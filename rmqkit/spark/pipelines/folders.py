"""File access of a lake: direct for local paths, by Hadoop's FileSystem for all others.

Spark reads and writes the rows. The driver itself only lists files, reads and creates small ones,
and removes old ones.

Only `create` carries a guarantee: the file appears whole or not at all, and only if the name was
free.

- Locally, the content is written and synced under a temporary name, then hard-linked to its name.
- Elsewhere, `create` uses Spark's own `CheckpointFileManager`, so the setting
  `spark.sql.streaming.checkpointFileManagerClass` applies. On HDFS that is a rename.
- An object store's rename checks first and writes later. There, two writers that create the same
  name at the same time may both succeed.
"""

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from rmqkit.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Spark reads a path with one of these characters as a pattern
PATTERN = frozenset("*?[]{}\\")
#: the errors of file systems that do not support hard links
NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class FileEntry(NamedTuple):
    """A file's size in bytes and the time of its last change, in ms by the file system's clock."""

    size: int
    changed_ms: int


class Folder(Protocol):
    """A folder, which need not exist yet. Names are relative to it and use `/`."""

    @property
    def uri(self) -> str:
        """The URI under which Spark finds the folder."""

    def list(self, under: str = "") -> dict[str, FileEntry]:
        """Return all files below `under`, sorted by name; empty if the folder does not exist."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file, None if it does not exist."""

    def create(self, name: str, content: bytes) -> bool:
        """Create the file, whole or not at all. Return False if it exists; it is left unchanged."""

    def remove(self, name: str) -> None:
        """Remove a file, or a folder and its content; do nothing if it does not exist."""

    def sync(self, names: Iterable[str]) -> None:
        """Make these files, which Spark has written, durable across a power loss."""

    def parquet_rows(self, name: str) -> int:
        """Return the number of rows of a Parquet file, from its footer."""


def open_folder(path: str | os.PathLike[str], spark: "SparkSession | None" = None) -> Folder:
    """Return the folder of a path or URI.

    Raises ConfigError if Spark would read the path as a pattern, or if the path is not local and
    there is no session.
    """
    text = os.fspath(path)
    if not text or PATTERN.intersection(text):
        raise ConfigError(f"{text!r} cannot be a lake's path: it must not be empty or hold {' '.join(sorted(PATTERN))}")
    scheme = _scheme(text)
    if not scheme and spark is not None:
        # Spark on a cluster may resolve plain paths in its HDFS.
        default = _hadoop_conf(spark).get("fs.defaultFS") or ""
        if _scheme(default) not in ("", "file"):
            return HadoopFolder(text, spark)
    if scheme in ("", "file"):
        return LocalFolder(Path(urlsplit(text).path if scheme else text))
    if spark is None:
        raise ConfigError(f"{text} is not a local path: a Spark session is needed to read it")
    return HadoopFolder(text, spark)


def _scheme(path: str) -> str:
    scheme = urlsplit(path).scheme
    # A single letter is a drive, not a scheme.
    return scheme if len(scheme) > 1 else ""


class LocalFolder:
    """A folder on this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def uri(self) -> str:
        return f"file://{self.path}"

    def list(self, under: str = "") -> dict[str, FileEntry]:
        found: dict[str, FileEntry] = {}
        for folder, _, names in os.walk(self.path / under):
            for name in names:
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    relative = path.relative_to(self.path).as_posix()
                    found[relative] = FileEntry(status.st_size, status.st_mtime_ns // 1_000_000)
        return dict(sorted(found.items()))

    def read(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, name: str, content: bytes) -> bool:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        writing = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            with writing.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if not self._link(writing, path):
                return False
        finally:
            writing.unlink(missing_ok=True)
        _sync(path.parent)
        return True

    @staticmethod
    def _link(writing: Path, path: Path) -> bool:
        try:
            os.link(writing, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            if path.exists():
                return False
            writing.replace(path)
        return True

    def remove(self, name: str) -> None:
        path = self.path / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        # Spark writes a checksum beside each local file. Folders that became empty are removed too.
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        for parent in path.parents:
            if parent == self.path:
                break
            try:
                parent.rmdir()
            except OSError:
                break

    def sync(self, names: Iterable[str]) -> None:
        folders: dict[Path, None] = {}
        for name in names:
            path = self.path / name
            _sync(path)
            for parent in path.parents:
                folders[parent] = None
                if parent == self.path:
                    break
        for folder in folders:
            _sync(folder)

    def parquet_rows(self, name: str) -> int:
        import pyarrow.parquet as parquet

        return int(parquet.read_metadata(self.path / name).num_rows)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class HadoopFolder:
    """A folder on a file system of Spark's JVM: `hdfs://`, `s3a://`, or one added by `--conf`."""

    def __init__(self, uri: str, spark: "SparkSession") -> None:
        self._jvm: Any = _jvm(spark)
        self._conf = _hadoop_conf(spark)
        root = self._jvm.org.apache.hadoop.fs.Path(uri)
        self._files = root.getFileSystem(self._conf)
        self._root = self._files.makeQualified(root)

    @property
    def uri(self) -> str:
        return str(self._root.toString())

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name) if name else self._root

    def list(self, under: str = "") -> dict[str, FileEntry]:
        path, found = self._path(under), {}
        if not self._files.exists(path):
            return {}
        begin = len(self._root.toUri().getPath().rstrip("/")) + 1
        each = self._files.listFiles(path, True)
        while each.hasNext():
            status = each.next()
            name = status.getPath().toUri().getPath()[begin:]
            found[name] = FileEntry(int(status.getLen()), int(status.getModificationTime()))
        return dict(sorted(found.items()))

    def read(self, name: str) -> bytes | None:
        path = self._path(name)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def create(self, name: str, content: bytes) -> bool:
        path = self._path(name)
        if self._files.exists(path):
            return False
        self._files.mkdirs(path.getParent())
        package = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing
        stream = package.CheckpointFileManager.create(path.getParent(), self._conf).createAtomic(path, False)
        try:
            stream.write(bytearray(content))
            stream.close()
        except Exception:
            stream.cancel()
            # If another writer created the file first, that is no error.
            if self._files.exists(path):
                return False
            raise
        return True

    def remove(self, name: str) -> None:
        path = self._path(name)
        self._files.delete(path, True)
        while (path := path.getParent()) and not path.equals(self._root):
            if not self._files.exists(path) or self._files.listStatus(path):
                break
            self._files.delete(path, False)

    def sync(self, names: Iterable[str]) -> None:
        """Do nothing: a write to these file systems counts as durable once it has returned."""

    def parquet_rows(self, name: str) -> int:
        hadoop = self._jvm.org.apache.parquet.hadoop
        reader = hadoop.ParquetFileReader.open(hadoop.util.HadoopInputFile.fromPath(self._path(name), self._conf))
        try:
            return int(reader.getRecordCount())
        finally:
            reader.close()


def _jvm(spark: "SparkSession") -> Any:
    return spark._jvm


def _hadoop_conf(spark: "SparkSession") -> Any:
    """Return the session's Hadoop configuration, including `spark.hadoop.*`."""
    return spark._jsc.hadoopConfiguration()
