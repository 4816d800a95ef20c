"""Tests the crash tests: each planted defect of an engine must be found by the images of a life."""

from dataclasses import replace

import pytest

from rmqkit.store import mapped, recovery
from rmqkit.store.mapped import MappedEngine
from tests.store.crash import lives


def planted(plant):
    """Return a factory of engines with that defect."""

    def make(parts):
        engine = MappedEngine(parts)
        plant(engine)
        return engine

    return make


# --- defects of the running store


def acknowledged_before_the_sync(engine):
    sync = engine.flush.sync

    def sync_early(offset, then):
        sync(offset, lambda durable: None)
        then(True)

    engine.flush.sync = sync_early


def checkpoint_before_the_queues(engine):
    """The checkpoint covers queue units that are not yet synced."""
    begin_round = engine.queue_flush.begin_round

    def begin_early(then=None):
        engine.checkpoint.logics_phy_offset, _, engine.checkpoint.logics_ms = engine.dispatched
        engine.checkpoint.save()
        return begin_round(then)

    engine.queue_flush.begin_round = begin_early


def confirmed_before_the_sync(engine):
    """The checkpoint confirms what was only written, so a torn tail looks like damage."""
    settle = engine.settle

    def settle_early():
        arrivals = settle()
        engine.checkpoint.confirm_phy_offset = engine.log.offset_written
        return arrivals

    engine.settle = settle_early


def cut_in_memory_only(engine):
    """The cut moves the end in memory and leaves the bytes on disk (#10666)."""

    def truncate(phy_offset, then):
        engine.commit()
        engine.log.move_to(phy_offset)
        engine.table.cut(phy_offset)
        engine.flush.hold(phy_offset)
        engine.dispatched = engine.table.phy_last, phy_offset, 0
        engine.flush.release(0)
        then(None)

    engine.truncate = truncate


def cut_without_lowering_the_checkpoint(engine):
    """The cut does not lower the confirmed offset (#6665)."""
    engine.checkpoint.lower = lambda phy_offset: None
    engine.queue_flush.disclaim = lambda log_end, then: then()


def deletion_not_remembered(engine):
    engine.queue_flush.delete = lambda topics, log_end: engine.table.remove(topics)


def index_header_before_the_entries(engine):
    files = engine.index.files
    shorten = files.shorten

    def shorten_at_once(phy_offset):
        changed = shorten(phy_offset)
        if files.files:
            files.disk.write(files.files[-1].path, 0, [files.files[-1].header])
        return changed

    files.shorten = shorten_at_once


def refused_write_left_behind(engine):
    """Bytes that a failed write left behind the end of the log are not overwritten."""
    engine.log.clean_stale = engine.log._stale.clear


#: defect, life, first operation checked, kind of images that show it, part of the check's sentence
RUNNING = [
    (acknowledged_before_the_sync, "sync_flush", 0, "synced", "are lost"),
    (checkpoint_before_the_queues, "mixed", 90, "pages", "differ"),
    (confirmed_before_the_sync, "mixed", 0, "synced", "the start was refused: the commit log is damaged"),
    (cut_in_memory_only, "mixed", 0, "kill", "the log ends at"),
    (cut_without_lowering_the_checkpoint, "sync_flush", 0, "kill", "the start was refused: the commit log is damaged"),
    (deletion_not_remembered, "mixed", 0, "changes", "queue B"),
    (index_header_before_the_entries, "slave", 50, "pages", "is not found by its key"),
    (cut_in_memory_only, "batches", 0, "kill", "they differ"),
    (refused_write_left_behind, "refused", 0, "kill", "nothing was put behind"),
]


@pytest.mark.parametrize(
    ("plant", "life", "begin", "kind", "found"), RUNNING, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_defect_of_the_running_store_is_found(plant, life, begin, kind, found):
    check_finds(lives.LIVES[life](planted(plant)), begin, kind, found, make=lives.MAPPED)


def check_finds(work, begin, kind, found, *, make):
    check = work.enumerate(kinds=[kind], begin=begin, make=make, is_enough=True)
    print(f"\nfound after {check.counts.total()} images: {check.broken}")
    assert check.broken, f"{check.counts.total()} images, nothing found"
    assert found in check.broken[0]


# --- defects of the recovery


class LeavesStaleBytes(recovery.Recovery):
    """Upstream's behaviour: the end of the log moves, the bytes stay."""

    def _end_at(self, start, end):
        self._log.move_to(end)
        files = self._log.files
        files.remove_from(files.floor(end) + files.file_size, self._steps.awaiting)
        for offset in range(files.start, files.end, files.file_size):
            self._disk.sync(files.path(offset), self._steps.awaiting())
        yield from self._steps.wait()


class BelievesUnits(recovery.Recovery):
    """Queue units behind the last one that the checkpoint covers are kept without a check."""

    def _prune(self, start, is_known, is_exact, rejected):
        yield False


class EndsBehindTheRecords(recovery.Recovery):
    """The log of a replica ends behind its last, incomplete record."""

    def _end_at(self, start, end):
        yield from super()._end_at(start, end)
        self._log.move_to(min(end + 200, max(end, self._log.files.end)))


class LooksNotBehind(recovery.Recovery):
    """Records that have their queue units are not checked."""

    def _check_before(self, start):
        yield False


class SyncsNothing(recovery.Recovery):
    """The cleared tail is reported as durable but never synced."""

    def _end_at(self, start, end):
        self._disk = Unsynced(self._disk)
        yield from super()._end_at(start, end)


class Unsynced:
    def __init__(self, disk):
        self._disk = disk

    def __getattr__(self, name):
        return getattr(self._disk, name)

    def sync(self, path, then):
        then(None)


RECOVERING = [
    (LeavesStaleBytes, "mixed", 165, "pages", "came back"),
    (BelievesUnits, "mixed", 30, "pages", "differ"),
    (EndsBehindTheRecords, "slave", 0, "kill", "is not durable"),
    (LooksNotBehind, "mixed", 105, "flip", "was damaged"),
    (SyncsNothing, "mixed", 0, "kill", "a second start"),
]


@pytest.mark.parametrize(
    ("recovery", "life", "begin", "kind", "found"), RECOVERING, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_defect_of_the_recovery_is_found(recovery, life, begin, kind, found, monkeypatch):
    work = lives.LIVES[life]()
    monkeypatch.setattr(mapped, "Recovery", recovery)
    check_finds(work, begin, kind, found, make=None)


def test_a_recovery_that_does_not_check_the_body_is_found():
    def make(parts):
        return MappedEngine(
            parts,
            adapt=lambda config: replace(config, commit_log=replace(config.commit_log, check_crc_on_recover=False)),
        )

    check_finds(lives.mixed(), 0, "flip", "CRC of the record at 0 was damaged", make=make)
