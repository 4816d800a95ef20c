"""Drill sockets that killed nodes left outside of the cluster's folder."""

import socket
import tempfile
from pathlib import Path

import pytest

from rmqkit.cluster import Cluster
from rmqkit.cluster.health import isolated_nodes
from rmqkit.shell.faults.drill_socket import FOLDER_PREFIX, NAME, PATH_FILE


@pytest.fixture
def place():
    """A folder like the one a node makes if the path of its own folder is too long."""
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def test_a_purge_removes_the_sockets_that_killed_nodes_have_left_elsewhere(tmp_path, place):
    node = tmp_path / "c" / "nodes" / "broker-a-0"
    node.mkdir(parents=True)
    (node / PATH_FILE).write_text(f"{place / NAME}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(f"{place / NAME}")
    Cluster("c", home=tmp_path).down(purge=True)
    assert not place.exists()
    assert not (tmp_path / "c").exists()


def test_a_file_that_names_something_else_removes_nothing(tmp_path, place):
    (place / NAME).write_text("no socket")
    other = place / "other.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(other))
    for path in (place / NAME, other):
        (tmp_path / PATH_FILE).write_text(str(path))
        isolated_nodes.remove_left(tmp_path)
        assert path.exists()


def test_a_node_without_a_drill_socket_is_not_cut_off(tmp_path):
    assert not isolated_nodes.is_cut_off(tmp_path)
    assert not isolated_nodes.heal(tmp_path)
