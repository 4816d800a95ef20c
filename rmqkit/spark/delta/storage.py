"""Where a lake lies: a folder of this machine, or a URI of an object store.

The library `deltalake` opens both, and so do the tasks: `files` gives PyArrow's view of the same
place, with the same options. Object stores need no jar. Their options are those of deltalake
(`AWS_ENDPOINT_URL`, …); they may hold credentials, so they are never logged.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rmqkit.errors import ConfigError, RmqkitError

if TYPE_CHECKING:
    import pyarrow.fs

#: Spark reads a path with one of these characters as a pattern
PATTERN = frozenset("*?[]{}\\")


class LakeError(RmqkitError):
    """Raised when a lake cannot be read or written."""


class LakeMissing(LakeError):
    """Raised when there is no lake at a path."""


class LakeDamaged(LakeError):
    """Raised when a part of a lake or checkpoint is missing or invalid; the message names it."""


class LakeConflict(LakeError):
    """Raised when new rows contradict rows that the lake has; the message names them."""


class LakeStorage:
    """The root folder of a lake; it need not exist yet. Names are relative to it and use `/`."""

    def __init__(self, path: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> None:
        """Raises ConfigError if Spark would read the path as a pattern."""
        text = os.fspath(path)
        if not text or PATTERN.intersection(text):
            raise ConfigError(f"{text!r} cannot be a lake's path: it must not be empty or hold {' '.join(sorted(PATTERN))}")
        parts = urlsplit(text)
        # A single letter is a drive, not a scheme.
        self.is_local = len(parts.scheme) <= 1 or parts.scheme == "file"
        local = parts.path if parts.scheme == "file" else text
        #: an absolute path, or a URI
        self.uri = str(Path(local).absolute()) if self.is_local else text.rstrip("/")
        self.options = {key: str(value) for key, value in (options or {}).items()}

    def files(self) -> pyarrow.fs.FileSystem:
        """Return PyArrow's file system of the folder."""
        from pyarrow import fs

        if self.is_local:
            return fs.SubTreeFileSystem(self.uri, fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self.uri, self.options))

    def full(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def sync(self, names: Iterable[str]) -> None:
        """Make closed files durable across a power loss, and the folders that they are in.

        A write to an object store is durable once it has returned.
        """
        if not self.is_local:
            return
        root = Path(self.uri)
        paths = [root / name for name in names]
        folders = {folder for path in paths for folder in path.parents if folder.is_relative_to(root)}
        for path in [*paths, *sorted(folders, reverse=True)]:
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
