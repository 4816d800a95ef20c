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
    readers.exempt_modules_from_gc.cache_clear()
    try:
        readers.exempt_modules_from_gc()
        readers.exempt_modules_from_gc()
        assert frozen == [name] * is_spared
    finally:
        readers.exempt_modules_from_gc.cache_clear()
