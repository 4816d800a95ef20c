"""The files of a broker's id, at each point at which the broker may die."""

import pytest

from rmqkit.broker.election.identity import BrokerId, IdentityFiles
from rmqkit.errors import RmqkitError
from tests.helpers.script import ScriptDisk

PATH = "brokerIdentity"


def files(disk: ScriptDisk, *, cluster: str = "c", name: str = "b") -> IdentityFiles:
    return IdentityFiles(disk, PATH, cluster, name)


def save(disk: ScriptDisk, wanted: BrokerId) -> None:
    ended: list[OSError | None] = []
    files(disk).save(wanted, ended.append)
    while completions := disk.take_completions():
        for completion, error in completions:
            completion(error)
    assert ended == [None]


def test_no_file_means_no_id():
    assert files(ScriptDisk()).load() is None


def test_a_temporary_file_keeps_the_check_code():
    disk = ScriptDisk()
    save(disk, BrokerId(3, "10.0.0.1:10911;1700"))
    assert disk.read(f"{PATH}-temp", 0, 99) == b"c#b#3#10.0.0.1:10911;1700"
    assert files(disk).load() == BrokerId(3, "10.0.0.1:10911;1700")


def test_the_final_file_replaces_the_temporary_one():
    disk = ScriptDisk()
    save(disk, BrokerId(3, "x;1"))
    save(disk, BrokerId(3))
    assert disk.read(PATH, 0, 99) == b"c#b#3"
    assert disk.size(f"{PATH}-temp") is None
    assert files(disk).load() == BrokerId(3)


def test_the_final_file_counts_if_both_exist():
    disk = ScriptDisk()
    save(disk, BrokerId(3))
    save(disk, BrokerId(4, "x;1"))
    assert files(disk).load() == BrokerId(3)


def test_apaches_file_is_read():
    disk = ScriptDisk()
    disk.write(PATH, 0, [b"c#b#12\n"])
    assert files(disk).load() == BrokerId(12)


def test_another_brokers_file_stops_the_start():
    disk = ScriptDisk()
    save(disk, BrokerId(3))
    with pytest.raises(RmqkitError, match="correct brokerName or brokerClusterName"):
        files(disk, name="other").load()


@pytest.mark.parametrize("content", [b"c#b", b"c#b#x", b"c#b#1#2#3"])
def test_a_damaged_file_stops_the_start(content: bytes):
    disk = ScriptDisk()
    disk.write(PATH, 0, [content])
    with pytest.raises(RmqkitError, match="cannot be read"):
        files(disk).load()
