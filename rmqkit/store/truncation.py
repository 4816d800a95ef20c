"""Truncates the log and closes the store, both in bounded steps.

After a crash at any point of a cut, neither the checkpoint nor the saved queue ends may vouch for
records that are gone, and recovery must not find old records behind the new end. Hence the order:

1. Shorten the index.
2. Withdraw what the checkpoint and the saved ends vouch for, durably.
3. Overwrite the cut bytes with zeroes and remove whole files, durably.
4. Move the end of the log, cut the queues, and vouch for the new state.

Closing writes and syncs everything, then removes `abort`. Its absence tells the next start that all
of this succeeded. `abort` stays if something failed or if records still wait for dispatch.
"""

import errno
from collections.abc import Generator
from itertools import count
from typing import TYPE_CHECKING

from rmqkit.store.log.scan import BLANK_SIZE, store_ms_of
from rmqkit.store.log.walk import LogWalk
from rmqkit.store.steps import Steps, Work
from rmqkit.wire.record import encode_blank

if TYPE_CHECKING:
    from rmqkit.store.mapped import MappedEngine

_ZEROES_PER_STEP = 8_388_608
_RECORDS_PER_STEP = 1_000


def cut(engine: "MappedEngine", steps: Steps, phy_offset: int) -> Work:
    """Truncate the log at `phy_offset`: the start of a record or of the blank rest of a file.

    Raises OSError.
    """
    log = engine.log
    files = log.files
    if not engine.commit():
        raise OSError(errno.EIO, "records before the truncation point could not be written")
    if not files.start <= phy_offset <= log.offset_written or not (yield from _is_boundary(engine, phy_offset)):
        raise OSError(errno.EINVAL, f"no record starts at {phy_offset}")
    old_end = log.offset_written
    # First, because a failure here does no harm: the index can be rebuilt from the log.
    engine.index.cut(phy_offset, steps.awaiting_call())
    yield from _wait(engine, steps)
    engine.flush.hold(phy_offset)
    engine.checkpoint.lower(phy_offset)
    engine.checkpoint.save(steps.awaiting())
    engine.queue_flush.disclaim(phy_offset, steps.awaiting_call())
    yield from _wait(engine, steps)
    keep = files.floor(phy_offset) + files.file_size
    files.remove_from(keep, steps.awaiting)
    position = phy_offset
    end = min(old_end, files.end)
    while position < end:
        size = min(_ZEROES_PER_STEP, end - position)
        engine.disk.write(files.path(position), position % files.file_size, [bytes(size)])
        position += size
        yield False
    if phy_offset < files.end:
        engine.disk.sync(files.path(phy_offset), steps.awaiting())
    yield from steps.wait()
    log.move_to(phy_offset)
    engine.walk.forget()
    engine.table.cut(phy_offset)
    if engine.offset_confirmed is not None:
        # New records at these offsets must not count as confirmed (#6665).
        engine.offset_confirmed = min(engine.offset_confirmed, phy_offset)
    last = log.record(max(engine.table.phy_last, 0))
    last_ms = 0 if last is None else store_ms_of(last)
    engine.dispatched = (engine.table.phy_last, min(engine.dispatched[1], phy_offset), last_ms)
    engine.flush.release(last_ms)
    if engine.queue_flush.begin_round(round_ended := steps.awaiting_call()):
        yield from steps.wait(lambda: engine.is_broken)
    else:
        round_ended()
    engine.checkpoint.save()


def _is_boundary(engine: "MappedEngine", phy_offset: int) -> Generator[bool, None, bool]:
    """Return whether the log can end at `phy_offset`.

    It can at its end, at the start and the end of a record, and at the start of the blank rest of a
    file. A replica's last record may be incomplete, and the records before it may wait for dispatch
    because they are not confirmed: then the records are walked from the end of dispatch on.
    """
    log = engine.log
    if phy_offset in (log.offset_written, engine.dispatched[1]) or log.record(phy_offset) is not None:
        return True
    file_size = log.files.file_size
    if bytes(log.view(phy_offset, BLANK_SIZE)) == encode_blank(file_size - phy_offset % file_size):
        return True
    walk = LogWalk(log, engine.dispatched[1])
    for number in count(1):
        if walk.position >= phy_offset or walk.next() is None:
            break
        if number % _RECORDS_PER_STEP == 0:
            yield False
    return walk.position == phy_offset


def _wait(engine: "MappedEngine", steps: Steps) -> Work:
    yield from steps.wait(lambda: engine.is_broken)
    if engine.is_broken:
        raise OSError(errno.EIO, engine.failed)


def close(engine: "MappedEngine", steps: Steps) -> Work:
    """Make everything durable and remove `abort`."""
    log = engine.log
    if not engine.commit():
        return
    while engine.table.removing and not engine.is_broken:
        # The units of a recreated topic wait until its old folder is removed.
        engine.table.on_removed = steps.wake
        yield True
    if engine.is_broken or engine.dispatched[1] < log.offset_written:
        return
    log.clean_stale()
    if not engine.queue_flush.begin_round(steps.awaiting_call()):
        return
    while engine.index.repair_some():
        yield False
    engine.index.finish(steps.awaiting_call())
    yield from steps.wait(lambda: engine.is_broken)
    engine.checkpoint.save(steps.awaiting())
    yield from steps.wait(lambda: engine.is_broken)
    if not engine.is_broken and not engine.index.needs_repair:
        engine.disk.remove(f"{engine.root}/abort", steps.awaiting())
        yield from steps.wait()
