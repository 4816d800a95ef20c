"""The built-in engines hold the public contract."""

from rmqkit.store import ENGINES
from rmqkit.testing import StorageEngineContract


class TestMapped(StorageEngineContract):
    make = ENGINES["mapped"]


class TestMemory(StorageEngineContract):
    make = ENGINES["memory"]
    keeps = False
    uses_disk = False
