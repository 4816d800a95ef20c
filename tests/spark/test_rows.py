"""What a worker does beside reading."""

import gc
import sys
from types import ModuleType, SimpleNamespace

import pytest

from rmqkit.spark import rows


@pytest.mark.parametrize(("name", "is_spared"), [("pyspark.daemon", True), ("pytest.__main__", False)])
def test_collections_leave_out_the_modules_of_a_worker_and_of_nobody_else(monkeypatch, name, is_spared):
    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace(name=name)
    monkeypatch.setitem(sys.modules, "__main__", main)
    rows.spare_the_modules.cache_clear()
    gc.unfreeze()
    try:
        rows.spare_the_modules()
        assert (gc.get_freeze_count() > 0) is is_spared
    finally:
        gc.unfreeze()
        rows.spare_the_modules.cache_clear()
