"""Which cluster a command without a cluster name uses."""

import pytest

from rmqkit.cluster import Cluster, meant_cluster, running_clusters


@pytest.mark.parametrize(
    ("there", "running", "reads", "changes"),
    [
        ("", "", "default", "default"),
        ("default", "", "default", "default"),
        ("default shop", "default shop", "default", "default"),
        ("default shop", "shop", "shop", "default"),
        ("shop", "shop", "shop", "shop"),
        ("shop", "", "shop", "shop"),
        ("lab shop", "shop", "shop", "shop"),
        ("lab shop", "lab shop", "default", "default"),
        ("lab shop", "", "default", "default"),
    ],
)
def test_the_cluster_that_is_meant(there, running, reads, changes, tmp_path, monkeypatch):
    monkeypatch.setenv("RMQKIT_HOME", str(tmp_path))
    monkeypatch.setattr(Cluster, "is_running", property(lambda self: self.name in running.split()))
    for name in there.split():
        (tmp_path / name).mkdir()
        (tmp_path / name / "cluster.toml").touch()
    assert running_clusters() == running.split()
    assert (meant_cluster(), meant_cluster(changes=True)) == (reads, changes)
