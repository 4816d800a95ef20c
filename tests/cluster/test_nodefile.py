"""node.toml: what a node of a cluster is told."""

import tomllib

import pytest

from rmqkit import config
from rmqkit.cluster import nodefile
from rmqkit.cluster.description import Description
from rmqkit.cluster.errors import ClusterError, UsageProblem
from rmqkit.settings.keys import find
from rmqkit.settings.table import Status


def written(tmp_path, description, *, there=None):
    made = {}
    for plan in description.nodes():
        own = (there or {}) if plan.is_broker else {}
        content = nodefile.contents(
            description, plan, tmp_path / plan.node, port=plan.port, namesrv="127.0.0.1:9876", there=own
        )
        nodefile.save(tmp_path / plan.node, content)
        nodefile.check(tmp_path / plan.node, plan.kind)
        made[plan.node] = content
    return made


def test_the_defaults_of_cluster_up_are_written_as_far_as_they_are_built(tmp_path):
    made = written(tmp_path, Description())
    broker = made["broker-a-0"]
    assert broker["brokerRole"] == "SYNC_MASTER"
    assert broker["flushDiskType"] == "ASYNC_FLUSH"
    for node, kind in (("ns-0", "nameserver"), ("broker-a-0", "broker")):
        for key in made[node]:
            assert find(kind, key).status is not Status.LATER, key


def test_a_node_reads_its_file_as_it_was_meant(tmp_path):
    written(tmp_path, Description(name="shop", bind="0.0.0.0", advertise="10.0.0.7"))
    broker = config.load([tmp_path / "broker-a-0" / "node.toml"], (), "broker")
    assert (broker.identity.broker_name, broker.identity.broker_cluster_name) == ("broker-a", "shop")
    network = broker.network
    assert (network.bind_address, network.broker_ip1, network.listen_port) == ("0.0.0.0", "10.0.0.7", 10911)
    assert broker.network.namesrv_addrs == ("127.0.0.1:9876",)
    assert broker.paths.store_path_root_dir == str(tmp_path / "broker-a-0" / "store")
    nameserver = config.load([tmp_path / "ns-0" / "node.toml"], (), "nameserver")
    assert nameserver.nameserver.kv_config_path == str(tmp_path / "ns-0" / "store" / "kvConfig.json")


def test_the_default_cluster_has_the_name_that_apaches_tools_look_for():
    assert nodefile.wire_name("default") == "DefaultCluster"
    assert nodefile.wire_name("shop") == "shop"


def test_a_setting_goes_to_the_nodes_that_know_it(tmp_path):
    made = written(tmp_path, Description(settings={"flushDiskType": "SYNC_FLUSH", "scanNotActiveBrokerInterval": 700}))
    assert made["broker-a-0"]["flushDiskType"] == "SYNC_FLUSH"
    assert "flushDiskType" not in made["ns-0"]
    assert made["ns-0"]["scanNotActiveBrokerInterval"] == 700


def test_an_edit_by_hand_stays_but_ties_are_written_anew(tmp_path):
    there = {"flushDiskType": "SYNC_FLUSH", "fileReservedTime": 5, "brokerName": "other", "listenPort": 1}
    broker = written(tmp_path, Description(), there=there)["broker-a-0"]
    assert (broker["flushDiskType"], broker["fileReservedTime"]) == ("SYNC_FLUSH", 5)
    assert (broker["brokerName"], broker["listenPort"]) == ("broker-a", 10911)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("flushDiskTyp", "did you mean flushDiskType?"),
        ("scanNotActiveBrokerIntervall", "did you mean scanNotActiveBrokerInterval?"),
        ("zzz", "unknown setting 'zzz'"),
        ("listenPort", "each node's own"),
        ("storePathRootDir", "each node's own"),
    ],
)
def test_a_setting_that_cannot_be_is_a_usage_problem(key, says):
    with pytest.raises(UsageProblem) as caught:
        nodefile.check_settings({key: "1"})
    assert says in str(caught.value)


def test_a_wrong_value_is_found_before_anything_starts(tmp_path):
    with pytest.raises(UsageProblem, match="flushDiskType"):
        written(tmp_path, Description(settings={"flushDiskType": "SOMETIMES"}))


def test_a_broken_file_is_named(tmp_path):
    (tmp_path / "node.toml").write_text("a = = 1")
    with pytest.raises(ClusterError, match=r"node\.toml"):
        nodefile.load(tmp_path)
    assert nodefile.load(tmp_path / "absent") == {}


def test_what_is_written_is_toml(tmp_path):
    nodefile.save(tmp_path, {"tls.server.mode": "disabled", "a": True})
    assert tomllib.loads((tmp_path / "node.toml").read_text()) == {"tls.server.mode": "disabled", "a": True}
