"""The lives of a store that the crash tests end at every point: about 200 disk operations each."""

import errno

from rmqkit.store import ENGINES
from rmqkit.store.contract import EngineFactory
from rmqkit.testing.store_world import store_config
from tests.store.crash.work import MasterWork, SlaveWork

SIZES = (0, 7, 100, 300, 600, 1500, 40, 250)
MAPPED = ENGINES["mapped"]


def config(file_size: int, **flush):
    """Files of `file_size` bytes; flushes are frequent enough to fall between other operations."""
    intervals = {"flush_consume_queue_thorough_interval_ms": 400, "flush_interval_commit_log_ms": 60}
    return store_config(commit_log={"mapped_file_size_commit_log": file_size}, flush={**intervals, **flush})


def mixed(make: EngineFactory = MAPPED, file_size: int = 12_288) -> MasterWork:
    """ASYNC_FLUSH: messages, a batch, rolls, full disk, recreated topic, cut, clean stop."""
    work = MasterWork(make, config(file_size))
    for number in range(24):
        work.put("AB"[number % 3 == 2], number % 2, SIZES[number % 8])
        work.turn()
        if number % 5 == 4:
            work.run(150)
    work.put_batch("A", 0, [20, 300, 50])
    work.turn()
    work.run(700, 50)
    work.fail_put("A", 200, errno.ENOSPC)
    for number in range(10):
        work.put("A", number % 2, SIZES[number % 8])
        if number % 2:
            work.turn(3)
    work.sync()
    work.delete("B")
    for number in range(8):
        work.put("B", 0, SIZES[number])
        work.turn(20)
    work.cut(5)
    for number in range(8):
        work.put("AB"[number % 2], 1, SIZES[-number])
        work.turn(100)
    work.run(1200, 100)
    work.restart()
    for number in range(8):
        work.put("AB"[number % 2], 0, SIZES[number])
        work.turn()
    work.sync()
    return work


def small_files(make: EngineFactory = MAPPED) -> MasterWork:
    """The same in files of one page (4 KiB), which roll with nearly every record."""
    return mixed(make, 4096)


def sync_flush(make: EngineFactory = MAPPED) -> MasterWork:
    """SYNC_FLUSH: several senders wait for each sync; a cut removes acknowledged messages."""
    work = MasterWork(make, config(12_288, flush_interval_commit_log_ms=10_000), seed=2)
    for number in range(40):
        for sender in range(number % 4 + 1):
            work.put("AB"[sender % 2], sender % 2, SIZES[(number + sender) % 8] // 2)
        if number % 4 == 3:
            work.turn()  # nobody waits for these
        else:
            work.sync()
        if number % 10 == 9:
            work.run(500, 100)
        if number == 25:
            work.run(1200, 100)
            work.cut(6)  # the checkpoint had confirmed them as durable
    return work


def slave(make: EngineFactory = MAPPED, file_size: int = 12_288) -> SlaveWork:
    """A replica: the log of `mixed`'s master in pieces of any size; a clean stop, a cut."""
    master = mixed(file_size=file_size)
    work = SlaveWork(make, config(file_size), master, seed=3)
    while work.offset < work.end // 2:
        work.append(work.random.choice([1, 50, 88, 300, 700, 2500]))
        work.turn(work.random.choice([1, 1, 5, 100]))
    work.restart()
    for _ in range(10):
        work.append(work.random.randrange(1, 900))
        work.turn(30)
    work.cut(4)
    while work.offset < work.end:
        work.append(work.random.randrange(1, 1500))
        work.turn(work.random.choice([1, 20, 100]))
    work.run(600, 100)
    return work


def slave_small_files(make: EngineFactory = MAPPED) -> SlaveWork:
    return slave(make, 4096)


def recovering(make: EngineFactory = MAPPED) -> MasterWork:
    """A power loss. Operations of the recovery are recorded too; then the store continues."""
    work = MasterWork(make, config(8192), seed=5)
    for number in range(45):
        work.put("AB"[number % 3 == 2], number % 2, SIZES[number % 8])
        if number % 3:
            work.turn(1 + number % 40)
        if number == 25:
            work.cut(3)
    work.sync()
    work.run(500, 100)
    for number in range(12):
        work.put("A", number % 2, SIZES[number % 8])
        work.turn()
    work.crash()
    for number in range(10):
        work.put("AB"[number % 2], 0, SIZES[number % 8])
        work.turn(20)
    work.sync()
    work.run(1500, 100)
    work.delete("A")
    for number in range(10):
        work.put("AB"[number % 2], 0, SIZES[number % 8])
        work.turn(60)
    return work


def refused(make: EngineFactory = MAPPED) -> MasterWork:
    """Writes that the disk refuses after it has done part or all of them."""
    work = MasterWork(make, config(8192), seed=7)
    for number in range(12):
        work.put("A", number % 2, SIZES[number % 4])
        work.turn(20)
        work.fail_put("A", SIZES[number % 3 + 2], errno.EIO)
        work.turn(20)
    return work


def batches(make: EngineFactory = MAPPED) -> MasterWork:
    """Uniform batches and runs that meet the ends of files; a cut in a batch; a clean stop."""
    work = MasterWork(make, config(4096), seed=11)
    for number in range(12):
        sizes = [SIZES[number % 4] + (each * 9 if number % 2 else 0) for each in range(3 + number % 4)]
        work.put_batch("AB"[number % 3 == 2], number % 2, sizes, is_uniform=number % 6 != 5)
        if number % 3:
            work.put("A", 0, 30)
        if number % 4 == 1:
            work.put_run([SIZES[each % 8] for each in range(3 + number)])
        work.turn(1 + number * 9)
    work.fail_put("A", 100, errno.ENOSPC)
    work.sync()
    work.run(1600, 100)
    work.put_batch("A", 0, [50] * 8, is_uniform=True)
    work.turn()
    work.cut(3)
    work.put_batch("A", 0, [40] * 5, is_uniform=True)
    work.sync()
    work.restart()
    for number in range(4):
        work.put_batch("AB"[number % 2], 0, [70] * 4, is_uniform=True)
        work.turn(30)
    work.sync()
    work.run(700, 100)
    return work


LIVES = {
    life.__name__: life for life in (mixed, small_files, sync_flush, recovering, refused, batches, slave, slave_small_files)
}
