"""Cutting the end of the log off, and closing the store: two pieces of work in steps.

A cut must never leave the checkpoint or the saved ends vouching for what is gone, nor bytes behind the new end that a
recovery could take for records. So: vouch for nothing, durably; overwrite with zeroes and remove files, durably; only then
move the end, cut queues and index, and vouch anew.

Closing writes and syncs all there is, then removes `abort`: the sign that all of it was done. It stays when something
failed or when records wait for dispatch.
"""

import errno
from struct import Struct
from typing import TYPE_CHECKING

from rmqkit.store.log.scan import BLANK_SIZE, MAGIC_BLANK, store_ms_of
from rmqkit.store.steps import Steps, Work

if TYPE_CHECKING:
    from rmqkit.store.mapped import MappedEngine

_ZEROES_PER_STEP = 8_388_608
_BLANK = Struct(">II")


def cut(engine: "MappedEngine", steps: Steps, phy_offset: int) -> Work:
    """Let the log end at `phy_offset`, where a record starts or the blank rest of a file. Raises OSError."""
    log = engine.log
    files = log.files
    if not engine.commit():
        raise OSError(errno.EIO, "records before the cut could not be written")
    if not (files.start <= phy_offset <= log.offset_written and _is_boundary(engine, phy_offset)):
        raise OSError(errno.EINVAL, f"no record starts at {phy_offset}")
    old_end = log.offset_written
    # First of all, because it may fail without harm: what the index forgets it can learn again.
    engine.index.cut(phy_offset, steps.told())
    yield from _wait(engine, steps)
    engine.flush.hold(phy_offset)
    engine.checkpoint.lower(phy_offset)
    engine.checkpoint.save(steps.awaiting())
    engine.queue_flush.disclaim(phy_offset, steps.told())
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
        # What comes next is not confirmed by what stood there before (#6665).
        engine.offset_confirmed = min(engine.offset_confirmed, phy_offset)
    last = log.record(max(engine.table.phy_last, 0))
    last_ms = 0 if last is None else store_ms_of(last)
    engine.dispatched = (engine.table.phy_last, min(engine.dispatched[1], phy_offset), last_ms)
    engine.flush.release(last_ms)
    if engine.queue_flush.begin_round(told := steps.told()):
        yield from steps.wait(lambda: engine.is_broken)
    else:
        told()
    engine.checkpoint.save()


def _is_boundary(engine: "MappedEngine", phy_offset: int) -> bool:
    """Whether records end there: the log ends, a record begins, or a file's blank rest, or a part of one of those."""
    log = engine.log
    if phy_offset in (log.offset_written, engine.dispatched[1]) or log.record(phy_offset) is not None:
        return True
    file_size = log.files.file_size
    return bytes(log.view(phy_offset, BLANK_SIZE)) == _BLANK.pack(file_size - phy_offset % file_size, MAGIC_BLANK)


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
        # Units of a topic that was made again wait until the old folder is gone.
        engine.table.on_removed = steps.wake
        yield True
    if engine.is_broken or engine.dispatched[1] < log.offset_written:
        return
    log.clean_stale()
    if not engine.queue_flush.begin_round(steps.told()):
        return
    while engine.index.repair_some():
        yield False
    engine.index.finish(steps.told())
    yield from steps.wait(lambda: engine.is_broken)
    engine.checkpoint.save(steps.awaiting())
    yield from steps.wait(lambda: engine.is_broken)
    if not engine.is_broken and not engine.index.needs_repair:
        engine.disk.remove(f"{engine.root}/abort", steps.awaiting())
        yield from steps.wait()
