"""A cluster listens beyond this machine only with access control, or if the user accepts that."""

import pytest

from rmqkit.cli.errors import UsageError
from rmqkit.cli.nodes.clusters import check_doors, is_open, warn_of_open_doors
from rmqkit.cluster import Cluster
from rmqkit.cluster.layout.description import Description
from tests.cli.conftest import make_shell

ACCESS = {"authenticationEnabled": "true", "authorizationEnabled": "true"}


@pytest.mark.parametrize(
    ("fields", "opened"),
    [
        ({}, False),
        ({"bind": "localhost"}, False),
        ({"bind": "127.0.0.7"}, False),
        ({"bind": "::1"}, False),
        ({"bind": "0.0.0.0"}, True),
        ({"bind": "10.0.0.1"}, True),
        ({"bind": "db.example"}, True),
        ({"bind": "0.0.0.0", "secure": True}, False),
        ({"bind": "0.0.0.0", "settings": ACCESS}, False),
        ({"bind": "0.0.0.0", "settings": {**ACCESS, "authorizationEnabled": "false"}}, True),
        ({"bind": "0.0.0.0", "settings": {"authorizationEnabled": True}}, True),
    ],
)
def test_a_cluster_on_the_network_without_access_control_is_reported(fields, opened, capsys):
    description = Description(**fields)
    assert is_open(description) == opened
    warn_of_open_doors(description)
    assert ("without access control" in capsys.readouterr().err) == opened


def test_up_asks_for_insecure_before_it_touches_anything(tmp_path, lifeline):
    shell = make_shell(tmp_path / "home", lifeline)
    error = shell.error("cluster", "up", "--bind", "0.0.0.0", code=2)
    assert "use --preset secure, or --insecure" in error
    assert not (tmp_path / "home" / "default").exists()


def test_a_cluster_that_was_opened_before_is_not_asked_about_again(tmp_path):
    cluster = Cluster("default", home=tmp_path)
    cluster.folder.mkdir()
    (cluster.folder / "cluster.toml").write_text(Description(bind="0.0.0.0").toml())
    check_doors(cluster, None, {}, is_accepted=False)
    check_doors(cluster, None, {"replicas": 3, "bind": None}, is_accepted=False)
    with pytest.raises(UsageError, match="opens the cluster"):
        check_doors(cluster, None, {"bind": "10.0.0.1"}, is_accepted=False)
    check_doors(cluster, None, {"bind": "10.0.0.1"}, is_accepted=True)
    check_doors(cluster, None, {"bind": "10.0.0.1", "secure": True}, is_accepted=False)


def test_a_description_file_is_asked_about_too(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(Description(name="mine", bind="0.0.0.0").toml())
    with pytest.raises(UsageError, match="opens the cluster"):
        check_doors(Cluster("mine", home=tmp_path), file, {}, is_accepted=False)
