"""The files of a member: saving in order, torn tails, damage, power cuts, failing disks."""

import errno
from random import Random

import pytest

from rmqkit.controller.contract import ControllerLogFault
from rmqkit.controller.raft.core import RaftFiles, RaftWrites, VoteRecord
from rmqkit.controller.raft.entry_log import LogWrites
from rmqkit.controller.raft.messages import LogEntry, Position
from rmqkit.controller.raft.storage import CUT, FAILED, IDLE, RaftStorage
from rmqkit.runtime.ports import Clock
from rmqkit.sim.disk import SimDisk
from rmqkit.sim.folder import SimFolder
from tests.controller.raft.script import entries_of

GROUP = 77
BALLOT = VoteRecord(3, "b", True, Position(2, 4))


class Bench:
    """A storage on a simulated disk, whose jobs end when the test says so."""

    def __init__(self, folder: SimFolder | None = None, *, id: str = "a", group: int = GROUP) -> None:
        self.folder = folder or SimFolder()
        self.jobs = []
        self.disk = SimDisk(
            self.folder, clock=Clock(), random=Random(1), after_us=lambda delay, function: self.jobs.append(function)
        )
        self.storage = RaftStorage(self.disk, "raft", id, group)
        self.failures = 0
        self.saved = 0

    def load(self) -> RaftFiles:
        return self.storage.load(self._failed)

    def save(self, ballot: VoteRecord | None, *entries: LogEntry, run: bool = True) -> None:
        self.give(RaftWrites(ballot, LogWrites(entries)), run=run)

    def replace(self, start: Position, snapshot: bytes, *entries: LogEntry) -> None:
        self.give(RaftWrites(None, LogWrites(entries, snapshot, start)))

    def give(self, writes: RaftWrites, *, run: bool = True) -> None:
        self.storage.save(writes, self._saved)
        self.storage.validate()
        if run:
            self.run()

    def step(self) -> None:
        """End one job of the disk, and report it."""
        self.jobs.pop(0)()
        for completion, error in self.disk.take_completed():
            completion(error)
        self.storage.validate()

    def run(self) -> None:
        while self.jobs:
            self.step()

    def again(self, **changes) -> "Bench":
        """Return another life on the same files, after kill -9."""
        self.disk.die()
        self.folder.kill()
        return Bench(self.folder, **changes)

    def file(self, name: str):
        return self.folder.find(self.folder.full(f"raft/{name}"))

    def _saved(self) -> None:
        self.saved += 1

    def _failed(self) -> None:
        self.failures += 1


def filled() -> Bench:
    """Return files with a ballot and two frames of two entries each."""
    bench = Bench()
    bench.load()
    entries = entries_of([1, 1, 2, 3])
    bench.save(BALLOT, *entries[:2])
    bench.save(None, *entries[2:])
    return bench


def test_an_empty_folder_is_a_member_without_files():
    assert Bench().load() == RaftFiles(VoteRecord(), Position(), b"", [])


def test_what_was_saved_is_read_again():
    bench = filled()
    assert bench.saved == 2
    assert bench.again().load() == RaftFiles(BALLOT, Position(), b"", entries_of([1, 1, 2, 3]))


def test_an_entry_replaces_the_log_from_its_index_on():
    bench = filled()
    bench.save(None, LogEntry(3, 3, b"new"))
    assert [tuple(each) for each in bench.again().load().entries] == [
        (1, 1, b"1/1"), (1, 2, b"1/2"), (3, 3, b"new")
    ]  # fmt: skip


def test_a_snapshot_replaces_the_whole_file_and_entries_follow_it():
    bench = filled()
    bench.replace(Position(2, 3), b"table", LogEntry(3, 4, b"four"))
    bench.save(None, LogEntry(3, 5, b"five"))
    files = bench.again().load()
    assert (files.start, files.snapshot) == ((2, 3), b"table")
    assert [entry.data for entry in files.entries] == [b"four", b"five"]


def test_the_vote_is_durable_before_the_log_is_written():
    bench = Bench()
    bench.load()
    bench.save(BALLOT, *entries_of([3]), run=False)
    assert "log" not in [each.name for each in bench.disk.list("raft")]
    bench.step()
    assert [each.name for each in bench.disk.list("raft")] == ["log", "vote"]
    assert bench.saved == 0
    bench.step()
    assert bench.saved == 1


def test_a_torn_frame_is_cut_at_every_byte():
    whole = filled().file("log").size
    first = filled()
    first.file("log").truncate(whole)
    for end in range(whole - 1, whole // 2, -1):
        bench = filled()
        bench.file("log").truncate(end)
        again = bench.again()
        assert [entry.index for entry in again.load().entries] == [1, 2]
        assert again.storage.state is CUT
        again.save(None, LogEntry(3, 3, b"next"), run=False)
        again.run()
        assert again.storage.state is IDLE
        assert [entry.data for entry in again.again().load().entries][2:] == [b"next"]


def test_zeroes_behind_the_last_frame_are_cut():
    bench = filled()
    end = bench.file("log").size
    bench.file("log").write(end, bytes(5000))
    again = bench.again()
    assert len(again.load().entries) == 4
    again.run()
    assert again.file("log").size == end


def test_every_damaged_byte_of_a_frame_in_the_middle_is_refused():
    size = filled().storage.log_size // 2
    for at in range(size - 20):
        bench = filled()
        file = bench.file("log")
        file.write(at, bytes([file.read(at, 1)[0] ^ 0x10]))
        with pytest.raises(ControllerLogFault, match=r"raft/log: .*damaged.*move the folder raft away"):
            bench.again().load()


def test_every_damaged_byte_of_the_vote_is_refused():
    size = filled().file("vote").size
    for at in range(size):
        bench = filled()
        file = bench.file("vote")
        file.write(at, bytes([file.read(at, 1)[0] ^ 0x10]))
        with pytest.raises(ControllerLogFault, match="raft/vote: "):
            bench.again().load()


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (lambda bench: bench.folder.remove(bench.folder.full("raft/vote")), "it is missing, and the log has entries"),
        (lambda bench: bench.file("vote").truncate(0), "its checksum is wrong"),
    ],
)
def test_a_lost_vote_file_is_refused_and_its_backup_is_not_taken(harm, text):
    bench = filled()
    bench.save(BALLOT._replace(term=4))
    assert bench.disk.size("raft/vote.bak")
    harm(bench)
    with pytest.raises(ControllerLogFault, match=text):
        bench.again().load()


def test_a_vote_file_that_is_older_than_the_log_is_refused():
    bench = filled()
    bench.save(VoteRecord(2, "c", True))
    with pytest.raises(ControllerLogFault, match="it ends at term 2, the log at 3: it is too old"):
        bench.again().load()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"id": "b"}, "it belongs to controller a, and this one is b"),
        ({"group": 78}, "the list of controllers was another one"),
    ],
)
def test_files_of_another_controller_or_group_are_refused(changes, text):
    with pytest.raises(ControllerLogFault, match=text):
        filled().again(**changes).load()


@pytest.mark.parametrize("operation", ["sync", "write", "replace"])
def test_an_error_of_the_disk_ends_it_for_good(operation):
    bench = filled()
    bench.disk.fail(operation, code=errno.EIO)
    saved = bench.saved
    bench.save(BALLOT._replace(term=4), LogEntry(4, 5, b"x"))
    assert bench.storage.state is FAILED
    assert "Input/output error; repair the disk and restart the controller" in bench.storage.failed
    bench.save(None, LogEntry(4, 5, b"x"))
    assert (bench.saved, bench.failures, bench.storage.busy) == (saved, 1, False)


def test_a_torn_tail_that_cannot_be_cut_ends_it():
    bench = filled()
    bench.file("log").truncate(bench.file("log").size - 3)
    again = bench.again()
    again.disk.fail("truncate")
    again.load()
    again.save(None, LogEntry(3, 3, b"x"))
    assert (again.storage.state, again.saved, again.failures) == (FAILED, 0, 1)


@pytest.mark.parametrize("seed", range(60))
def test_a_power_cut_at_any_moment_leaves_all_that_was_confirmed(seed):
    """And of what was not confirmed, each file as a whole or not at all."""
    random = Random(seed)
    bench = Bench()
    bench.load()
    entries: list[LogEntry] = []
    # A member's first batch has its ballot, so that there is no log without a vote file.
    states = [(VoteRecord(), entries)]
    for number in range(random.randrange(1, 20)):
        ballot = BALLOT._replace(term=number + 3) if number == 0 or random.random() < 0.4 else None
        keep = random.randrange(max(0, len(entries) - 2), len(entries) + 1)
        new = LogEntry(3, keep + 1, random.randbytes(random.choice((3, 40, 6000))))
        entries = [*entries[:keep], new]
        states.append((ballot or states[-1][0], entries))
        bench.save(ballot, new)
    # The last batch is somewhere on its way.
    states.append((BALLOT._replace(term=99), [*entries, LogEntry(3, len(entries) + 1, random.randbytes(6000))]))
    bench.save(states[-1][0], states[-1][1][-1], run=False)
    for _ in range(random.randrange(3)):
        bench.step()
    confirmed = bench.saved
    bench.disk.die(random)
    bench.folder.crash(random)
    files = Bench(bench.folder).load()
    assert list(files.entries) in [entries for _, entries in states[confirmed:]]
    assert files.ballot in [ballot for ballot, _ in states[confirmed:]]
