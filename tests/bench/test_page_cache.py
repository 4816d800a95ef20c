"""Tests the file that fills the page cache."""

from pathlib import Path

import pytest

from tests.bench import page_cache
from tests.bench.page_cache import PageCache

SIZE = 40 << 20


def test_the_file_is_read_to_its_end_while_memory_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "FREE_SHARE", 0.0)
    cache = PageCache(tmp_path / "holes", SIZE)
    assert cache.fill() == SIZE
    assert cache.fill() == SIZE


def test_nothing_is_read_once_the_memory_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "FREE_SHARE", 1.0)
    assert PageCache(tmp_path / "holes", SIZE).fill() == 0
