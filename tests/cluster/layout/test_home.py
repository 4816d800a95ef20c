"""Folders and locks."""

import errno
import os
import threading
from pathlib import Path

import pytest

from rmqkit.cluster.cluster import Cluster, clusters
from rmqkit.cluster.errors import ClusterError, NoSuchCluster
from rmqkit.cluster.layout import home


def test_the_home_is_an_absolute_path(monkeypatch, tmp_path):
    monkeypatch.setenv("RMQKIT_HOME", str(tmp_path))
    assert home.home_folder() == tmp_path
    monkeypatch.setenv("RMQKIT_HOME", "here")
    assert home.home_folder() == Path.cwd() / "here"
    monkeypatch.delenv("RMQKIT_HOME")
    assert home.home_folder() == Path("~/.rmqkit").expanduser()


def test_only_folders_with_a_description_are_clusters(tmp_path, monkeypatch):
    for name in ("b", "a", "not one"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cluster.toml").write_text("")
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("RMQKIT_HOME", str(tmp_path))
    assert [cluster.name for cluster in clusters()] == ["a", "b"]
    monkeypatch.setenv("RMQKIT_HOME", str(tmp_path / "absent"))
    assert clusters() == []


def test_a_file_is_replaced_whole(tmp_path):
    home.write_whole(tmp_path / "f", "one")
    home.write_whole(tmp_path / "f", "two")
    assert (tmp_path / "f").read_text() == "two"
    assert os.listdir(tmp_path) == ["f"]


def test_a_second_command_waits_for_the_first_and_says_for_whom(tmp_path):
    order, notes = [], []
    told = threading.Event()

    def second():
        def note(text):
            notes.append(text)
            told.set()

        with home.locked(tmp_path / "c", note):
            order.append("second")

    with home.locked(tmp_path / "c", lambda text: None):
        thread = threading.Thread(target=second)
        thread.start()
        assert told.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert notes == [f"waiting for another command on cluster c (pid {os.getpid()})"]


def test_a_lock_that_is_never_given_back_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(home, "LOCK_WAIT_S", 0.0)
    with (
        home.locked(tmp_path / "c", lambda text: None),
        pytest.raises(ClusterError, match="another command holds cluster c"),
        home.locked(tmp_path / "c", lambda text: None),
    ):
        pass


def test_the_lock_of_a_folder_that_was_purged_meanwhile_is_taken_anew(tmp_path):
    folder = tmp_path / "c"
    told = threading.Event()
    held = []

    def second():
        with home.locked(folder, lambda text: told.set()):
            held.append((folder / "lock").exists())

    with home.locked(folder, lambda text: None):
        thread = threading.Thread(target=second)
        thread.start()
        assert told.wait(10)
        (folder / "lock").unlink()
        folder.rmdir()
    thread.join(10)
    assert held == [True]


def test_a_home_that_cannot_be_used_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterError, match="RMQKIT_HOME"), home.locked(tmp_path / "file" / "c", lambda text: None):
        pass


def test_asking_for_a_cluster_that_is_not_there_makes_nothing(tmp_path):
    cluster = Cluster("x", home=tmp_path)
    for ask in (lambda: cluster.description, cluster.down, lambda: cluster.stop("all"), cluster.wait):
        with pytest.raises(NoSuchCluster, match="rmqkit cluster up x"):
            ask()
    assert not cluster.is_running
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_one_line_that_says_what_to_do(tmp_path, monkeypatch):
    def full(*_names):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "f").write_text("old")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ClusterError, match=r"/f: No space left on device; make room"):
        home.write_whole(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "old"
    assert os.listdir(tmp_path) == ["f"]
