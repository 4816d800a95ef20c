"""The files: reading them after a kill, a power loss or damage; when they are removed."""

import errno
from random import Random

import pytest

from rmqkit.runtime.ports import Clock
from rmqkit.sim.disk import SimDisk
from rmqkit.sim.folder import SimFolder
from rmqkit_spool.segments import FOLDER, HEAD, MAGIC, Segments


class Lab:
    """The files of one machine; each start begins a new life of the spool on them."""

    def __init__(self, segment_size: int = 1000) -> None:
        self.folder = SimFolder("/spool-test")
        self.segment_size = segment_size
        self.random = Random(1)
        self.start()

    def start(self) -> None:
        self.later: list = []
        self.disk = SimDisk(
            self.folder, clock=Clock(), random=self.random, after_us=lambda delay_us, function: self.later.append(function)
        )
        self.segments = Segments(self.disk, segment_size=self.segment_size)
        self.seen: dict[int, bytes] = {}
        for _ in self.segments.load(self.seen.__setitem__):
            pass

    def finish(self) -> list:
        """Complete all pending disk operations. Return their errors."""
        errors = []
        while self.later or self.disk.completed:
            later, self.later = self.later, []
            for function in later:
                function()
            for completion, error in self.disk.take_completed():
                completion(error)
                errors.append(error)
        return errors

    def restart(self) -> None:
        """Kill the process (kill -9) and start again."""
        self.disk.die()
        self.folder.kill()
        self.start()

    def lose_power(self) -> None:
        self.disk.die(self.random)
        self.folder.crash(self.random)
        self.start()

    def files(self) -> list[str]:
        return [info.name for info in self.disk.list(FOLDER)]

    def kept(self) -> dict[int, bytes]:
        return {number: self.segments.read(number) for number in sorted(self.segments.places)}

    def put(self, *payloads: bytes) -> list[int]:
        return [self.segments.append(payload) for payload in payloads]


def test_pending_messages_are_read_again_in_order_and_finished_ones_are_not():
    lab = Lab()
    numbers = lab.put(*[b"%03d" % each for each in range(50)])
    assert numbers == list(range(50))
    for number in (0, 7, 49):
        lab.segments.done(number)
    wanted = {number: b"%03d" % number for number in numbers if number not in (0, 7, 49)}
    assert lab.kept() == wanted
    lab.restart()
    assert lab.kept() == wanted
    assert {number: lab.seen[number] for number in wanted} == wanted
    assert lab.put(b"next") == [50], "no number is reused"
    lab.restart()
    assert lab.kept() == {**wanted, 50: b"next"}
    assert lab.segments.damaged == 0


def test_segments_go_from_the_oldest_on_and_no_name_comes_again():
    lab = Lab(segment_size=200)
    numbers = lab.put(*[bytes(50)] * 12)
    names = lab.files()
    assert len(names) > 3
    for number in numbers[3:]:
        lab.segments.done(number)
    lab.finish()
    assert lab.files()[0] == names[0], "a DONE never goes before its MESSAGE"
    for number in numbers[:3]:
        lab.segments.done(number)
    lab.finish()
    assert lab.files() == []
    assert lab.segments.size == 0
    (number,) = lab.put(b"again")
    lab.finish()
    assert not set(lab.files()) & set(names)
    assert lab.kept() == {number: b"again"}


@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_costs_nothing_that_was_synced(seed):
    lab = Lab(segment_size=5000)
    lab.random = Random(seed)
    synced = {}
    for round_number in range(6):
        payloads = [lab.random.randbytes(lab.random.randrange(1, 3000)) for _ in range(4)]
        for payload in payloads:
            (number,) = lab.put(payload)
            if lab.random.random() < 0.7:
                lab.segments.sync(lambda error, number=number, payload=payload: synced.update({number: payload}))
                lab.finish()
        if round_number % 2:
            lab.lose_power()
            kept = lab.kept()
            assert {number: kept[number] for number in synced} == synced


def test_damage_costs_what_it_hits_and_is_counted():
    lab = Lab(segment_size=1 << 20)
    lab.put(*[b"payload %03d" % each for each in range(20)])
    (name,) = lab.files()
    at = lab.disk.read(f"{FOLDER}/{name}", 0, 10_000).find(b"payload 007")
    lab.disk.write(f"{FOLDER}/{name}", at, [b"PAYLOAD"])
    with pytest.raises(ValueError, match="damaged"):
        lab.segments.read(7)
    lab.restart()
    assert lab.segments.damaged == 1
    assert lab.kept() == {number: b"payload %03d" % number for number in range(20) if number != 7}


@pytest.mark.parametrize("garbage", [b"x", bytes(100), MAGIC, MAGIC * 9, b"\xff" * 500, HEAD.pack(MAGIC, 1 << 31, 0, 1, 0)])
def test_a_torn_end_is_no_message(garbage):
    lab = Lab(segment_size=1 << 20)
    lab.put(b"one", b"two")
    (name,) = lab.files()
    lab.disk.write(f"{FOLDER}/{name}", lab.segments.size, [garbage])
    lab.restart()
    assert lab.kept() == {0: b"one", 1: b"two"}
    lab.put(b"three")
    lab.restart()
    assert lab.kept() == {0: b"one", 1: b"two", 2: b"three"}, "nothing is written after a torn end"


def test_other_files_are_left_alone():
    lab = Lab()
    lab.disk.write(f"{FOLDER}/notes.txt", 0, [b"mine"])
    lab.disk.write(f"{FOLDER}/x.spool", 0, [b"mine"])
    lab.put(b"one")
    lab.restart()
    lab.segments.done(0)
    lab.finish()
    assert lab.files() == ["notes.txt", "x.spool"]


def test_an_old_segment_that_few_messages_hold_is_copied():
    lab = Lab(segment_size=2000)
    numbers = lab.put(*[bytes([each]) * 100 for each in range(40)])
    names = lab.files()
    for number in numbers[1:]:
        lab.segments.done(number)
    lab.finish()
    assert lab.files()[0] == names[0]
    errors = []
    assert lab.segments.compact(errors.append)
    assert lab.files()[0] == names[0], "until the copy is durable"
    lab.segments.done(lab.put(b"meanwhile")[0])
    assert lab.files()[0] == names[0]
    lab.finish()
    assert errors == [None]
    assert names[0] not in lab.files()
    assert lab.kept() == {0: bytes(100)}
    lab.restart()
    assert lab.kept() == {0: bytes(100)}
    lab.segments.done(0)
    lab.restart()
    assert lab.kept() == {}


def test_copies_that_fill_a_segment_are_all_durable_before_the_old_one_goes():
    """With copies in two segments, only the last segment would be synced."""
    lab = Lab(segment_size=3000)
    kept = {number: b"%02d" % number for number in lab.put(*[b"%02d" % each for each in range(40)])}
    for number in lab.put(*[bytes(20)] * 30, bytes(2200), bytes(501)):
        lab.segments.done(number)
    lab.put(bytes(3000 - lab.segments.segments[-1].size - sum(map(len, kept.values())) - HEAD.size - 5))
    errors = []
    lab.segments.sync(errors.append)
    lab.finish()
    name = lab.files()[0]
    assert lab.segments.compact(errors.append)
    lab.finish()
    assert errors == [None, None]
    assert name not in lab.files()
    lab.random = Random(3)
    lab.lose_power()
    assert {number: lab.kept().get(number) for number in kept} == kept


def test_a_full_old_segment_is_not_copied():
    lab = Lab(segment_size=500)
    lab.put(*[bytes(100)] * 20)
    assert not lab.segments.compact(lambda error: None)
    one = Lab()
    one.put(b"one")
    assert not one.segments.compact(lambda error: None), "the newest segment is never compacted"


def test_a_copy_that_cannot_be_written_leaves_all_as_it_is():
    lab = Lab(segment_size=2000)
    numbers = lab.put(*[bytes([each]) * 100 for each in range(40)])
    for number in numbers[2:]:
        lab.segments.done(number)
    lab.finish()
    write = lab.disk.write
    lab.disk.write = _fails_after(write, 1)
    lab.segments.compact(lambda error: None)
    lab.disk.write = write
    lab.finish()
    assert lab.kept() == {0: bytes(100), 1: bytes([1]) * 100}
    lab.restart()
    assert lab.kept() == {0: bytes(100), 1: bytes([1]) * 100}


def _fails_after(write, count):
    left = [count]

    def failing(path, position, buffers):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, position, buffers)

    return failing


def test_a_write_that_fails_keeps_nothing():
    lab = Lab()
    lab.put(b"one")
    write = lab.disk.write
    lab.disk.write = _fails_after(write, 0)
    with pytest.raises(OSError, match="No space left"):
        lab.segments.append(b"two")
    lab.disk.write = write
    assert lab.kept() == {0: b"one"}
    assert lab.put(b"three") == [1]
    lab.restart()
    assert lab.kept() == {0: b"one", 1: b"three"}
