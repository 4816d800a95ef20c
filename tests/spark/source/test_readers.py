"""A worker process excludes its modules from garbage collections."""

import gc
import sys
from types import ModuleType, SimpleNamespace

import pytest

from rmqkit.spark.source import readers


@pytest.mark.parametrize(("name", "is_spared"), [("pyspark.daemon", True), ("pytest.__main__", False)])
def test_collections_leave_out_the_modules_of_a_worker_and_of_nobody_else(monkeypatch, name, is_spared):
    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace(name=name)
    frozen = []
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(name))
    readers.spare_the_modules.cache_clear()
    try:
        readers.spare_the_modules()
        readers.spare_the_modules()
        assert frozen == [name] * is_spared
    finally:
        readers.spare_the_modules.cache_clear()
