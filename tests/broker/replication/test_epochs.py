"""Epochs: the list, its file, and up to where two logs are the same."""

import pytest

from rmqkit.broker.replication.epochs import EpochError, Epochs, EpochStart, decode, encode
from tests.helpers.script import ScriptDisk


def epochs(*entries: tuple[int, int]) -> Epochs:
    made = Epochs(ScriptDisk(), "epochs")
    made.entries = [EpochStart(*each) for each in entries]
    made.validate()
    return made


def starts(*entries: tuple[int, int]) -> tuple[EpochStart, ...]:
    return tuple(EpochStart(*each) for each in entries)


def test_the_file_is_apaches():
    entries = [EpochStart(1, 0), EpochStart(2, 300)]
    assert encode(entries) == b"2\n1061013654\n1-0\n2-300\n"
    assert decode(encode(entries)) == entries
    assert decode(b"1\n0\n7-9\n") == [EpochStart(7, 9)]


@pytest.mark.parametrize("content", [b"2\n0\n1-0\n", b"1\n5\n1-0\n", b"x\n0\n", b"1\n0\n1:0\n"])
def test_a_damaged_file_is_refused(content: bytes):
    with pytest.raises(ValueError):
        decode(content)


def test_what_apache_keeps_after_a_truncation_is_dropped():
    assert decode(b"3\n0\n1-0\n2-300\n3-100\n") == [EpochStart(1, 0), EpochStart(3, 100)]


def test_the_start_of_an_epoch_never_moves():
    made = epochs((1, 0), (2, 100))
    assert not made.begin(2, 500)
    assert made.entries == [(1, 0), (2, 100)]
    with pytest.raises(EpochError, match="the log ends at 50"):
        made.begin(2, 50)
    with pytest.raises(EpochError, match="older"):
        made.begin(1, 500)


def test_an_epoch_without_bytes_gives_way_to_a_newer_one():
    made = epochs((1, 0), (2, 100))
    assert made.begin(5, 100)
    assert made.entries == [(1, 0), (5, 100)]


def test_an_epoch_that_apaches_master_does_not_name_is_known_from_its_handshake():
    made = epochs((1, 0))
    theirs = starts((1, 0), (3, 100), (5, 200))
    assert made.of_transfer(150, EpochStart(3, 100), theirs) == (3, 100), "named by the transfer"
    assert made.of_transfer(100, EpochStart(5, 200), theirs) == (3, 100), "the last transfer of epoch 3"
    made.begin(3, 100)
    assert made.of_transfer(150, EpochStart(5, 200), theirs) == (0, 0), "already noted"
    assert made.of_transfer(250, EpochStart(6, 300), theirs) == (5, 200)
    made.begin(7, 300)
    assert made.of_transfer(350, EpochStart(8, 400), theirs) == (0, 0), "an epoch of after the handshake goes on"


def test_a_cut_removes_the_epochs_behind_it():
    made = epochs((1, 0), (2, 100), (3, 200))
    made.cut(100)
    assert made.entries == [(1, 0)]


def test_retention_removes_the_epochs_before_the_log():
    made = epochs((1, 0), (2, 100), (3, 200))
    assert not made.prune(99)
    assert made.prune(100)
    assert made.entries == [(2, 100), (3, 200)]
    made.prune(10_000)
    assert made.entries == [(3, 200)]


def test_each_byte_has_one_epoch():
    made = epochs((1, 0), (3, 200))
    assert [made.at(offset).epoch for offset in (0, 199, 200, 900)] == [1, 1, 3, 3]
    assert [made.end_at(offset, 1000) for offset in (0, 199, 200)] == [200, 200, 1000]
    assert [(each.epoch, each.start_offset, each.end_offset) for each in made.bodies(1000)] == [(1, 0, 200), (3, 200, 1000)]


@pytest.mark.parametrize(
    ("ours", "own_end", "theirs", "their_end", "wanted"),
    [
        # the same epochs: the shorter log is the beginning of the longer one
        ([(1, 0)], 100, [(1, 0)], 300, 100),
        ([(1, 0)], 300, [(1, 0)], 100, 100),
        # a new epoch began before this log's end
        ([(1, 0)], 300, [(1, 0), (2, 200)], 500, 200),
        # this log has an epoch that the master never saw
        ([(1, 0), (2, 200)], 300, [(1, 0), (3, 250)], 500, 200),
        ([(1, 0), (2, 200)], 300, [(1, 0), (3, 150)], 500, 150),
        # the same number, another start: two groups of controllers, or a moved start
        ([(1, 0), (2, 200)], 300, [(1, 0), (2, 220)], 500, 200),
        # an epoch without bytes does not count
        ([(1, 0), (2, 300)], 300, [(1, 0), (3, 300)], 500, 300),
        # a log from before controller mode
        ([], 300, [(1, 300)], 500, 300),
        ([], 0, [(4, 900)], 1000, 0),
        # nothing in common
        ([(1, 0)], 300, [(2, 0)], 500, 0),
        ([(1, 0)], 300, [(5, 900)], 1000, None),
        ([(7, 100)], 300, [(5, 0)], 1000, None),
    ],
)
def test_two_logs_are_the_same_up_to_the_end_of_their_newest_common_epoch(ours, own_end, theirs, their_end, wanted):
    assert epochs(*ours).common_end(starts(*theirs), their_end, own_end) == wanted
