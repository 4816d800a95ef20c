"""node.toml, the settings of one node of a cluster."""

import tomllib

import pytest

from rmqkit import config
from rmqkit.cluster.errors import ClusterError, UsageProblem
from rmqkit.cluster.layout import nodefile
from rmqkit.cluster.layout.description import Description
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


def test_the_default_cluster_has_the_name_that_apaches_tools_expect():
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


def test_the_first_of_a_group_is_its_master_and_the_others_are_slaves(tmp_path):
    made = written(tmp_path, Description(replicas=3))
    replicas = {"totalReplicas": 3, "inSyncReplicas": 2, "minInSyncReplicas": 1, "enableAutoInSyncReplicas": True}
    own = {"slaveTimeout": 2000, "syncFlushTimeout": 2500, "slaveReadEnable": True, "haAcceptAnonymous": False}
    for broker_id, role in enumerate(("SYNC_MASTER", "SLAVE", "SLAVE")):
        content = made[f"broker-a-{broker_id}"]
        assert {**content, **replicas, **own, "drillFaultsEnable": True} == content
        assert (content["brokerRole"], content["brokerId"], content["brokerName"]) == (role, broker_id, "broker-a")
        read = config.load([tmp_path / f"broker-a-{broker_id}" / "node.toml"], (), "broker")
        assert (read.identity.broker_id, read.network.ha_listen_port) == (broker_id, 10912 + 10 * broker_id)


def test_a_role_that_was_set_is_the_masters_alone(tmp_path):
    made = written(tmp_path, Description(replicas=2, settings={"brokerRole": "ASYNC_MASTER", "slaveTimeout": 9}))
    assert [made[f"broker-a-{each}"]["brokerRole"] for each in (0, 1)] == ["ASYNC_MASTER", "SLAVE"]
    assert [made[f"broker-a-{each}"]["slaveTimeout"] for each in (0, 1)] == [9, 9]


def test_numbers_of_replicas_follow_their_number_unless_they_were_edited(tmp_path):
    one = written(tmp_path, Description(replicas=1))["broker-a-0"]
    assert (one["totalReplicas"], one["inSyncReplicas"]) == (1, 1)
    two = written(tmp_path, Description(replicas=2), there=one)["broker-a-0"]
    assert (two["totalReplicas"], two["inSyncReplicas"]) == (2, 2)
    three = written(tmp_path, Description(replicas=3), there={**two, "inSyncReplicas": 1})["broker-a-0"]
    assert (three["totalReplicas"], three["inSyncReplicas"]) == (3, 1)
    old = {"brokerRole": "SYNC_MASTER", "slaveTimeout": 3000}
    grown = written(tmp_path, Description(replicas=2), there=old)["broker-a-0"]
    assert (grown["totalReplicas"], grown["inSyncReplicas"], grown["slaveTimeout"]) == (2, 2, 3000)


def test_a_group_with_slaves_has_acting_masters(tmp_path):
    for replicas, settings, expected in (
        (1, {}, {}),
        (2, {}, {"enableSlaveActingMaster": True, "escapeStrategy": "auto"}),
        (2, {"enableSlaveActingMaster": "false"}, {"enableSlaveActingMaster": "false", "escapeStrategy": "auto"}),
        (2, {"enableRemoteEscape": "false"}, {"enableSlaveActingMaster": True, "enableRemoteEscape": "false"}),
    ):
        nodefile.check_settings(settings, replicas)
        made = written(tmp_path, Description(replicas=replicas, settings=settings))
        keys = ("enableSlaveActingMaster", "escapeStrategy", "enableRemoteEscape")
        assert {key: made["broker-a-0"][key] for key in keys if key in made["broker-a-0"]} == expected
        assert made["ns-0"]["supportActingMaster"] is True
        assert made["ns-0"]["notifyMinBrokerIdChanged"] is True


def test_acting_masters_come_and_go_with_the_slaves(tmp_path):
    two = written(tmp_path, Description(replicas=2))["broker-a-0"]
    one = written(tmp_path, Description(replicas=1), there=two)["broker-a-0"]
    assert "enableSlaveActingMaster" not in one
    again = written(tmp_path, Description(replicas=2), there=one)["broker-a-0"]
    assert again["enableSlaveActingMaster"] is True
    edited = {**two, "enableSlaveActingMaster": False}
    assert written(tmp_path, Description(replicas=2), there=edited)["broker-a-0"]["enableSlaveActingMaster"] is False


def test_numbers_of_replicas_are_checked_against_the_shape():
    nodefile.check_settings({"minInSyncReplicas": "2"}, replicas=2)
    for settings, replicas, says in (
        ({"minInSyncReplicas": "2"}, 1, "above inSyncReplicas = 1"),
        ({"inSyncReplicas": "3"}, 2, "above totalReplicas = 2"),
        ({"brokerRole": "SLAVE"}, 2, "see --replicas"),
    ):
        with pytest.raises(UsageProblem, match=says):
            nodefile.check_settings(settings, replicas)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("flushDiskTyp", "did you mean flushDiskType?"),
        ("replicas", "replicas is no setting of a node: use --replicas, or write it above"),
        ("base_port", "use --base-port, or"),
        ("controllers", "use --preset, or"),
        ("scanNotActiveBrokerIntervall", "did you mean scanNotActiveBrokerInterval?"),
        ("zzz", "unknown setting 'zzz'"),
        ("listenPort", "differs per node"),
        ("storePathRootDir", "differs per node"),
        ("haListenPort", "differs per node"),
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


def test_a_file_that_is_no_toml_is_named_with_what_to_do(tmp_path):
    (tmp_path / "node.toml").write_text("listenPort = [")
    with pytest.raises(ClusterError, match=r"node\.toml: .*; correct it, or delete it: the next start writes it again"):
        nodefile.load(tmp_path)
