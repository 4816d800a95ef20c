"""The doctor's findings on groups whose settings do not fit together."""

import pytest

from rmqkit.cli.nodes.doctor_groups import CHECKS, GroupSettings

WELL = {
    "enableSlaveActingMaster": "true",
    "totalReplicas": "3",
    "brokerHeartbeatInterval": "1000",
    "brokerNotActiveTimeoutMillis": "10000",
    "lockInStrictMode": "true",
}
NAMESERVER = {"supportActingMaster": "true"}


def seen(*brokers, nameserver=NAMESERVER, registered=None, own=None):
    """Build a cluster of one group; the arguments are differences from `WELL` by broker id."""
    settings = {("broker-a", broker_id): {**WELL, **each} for broker_id, each in enumerate(brokers)}
    return GroupSettings("cluster x", settings, {"127.0.0.1:9876": nameserver}, registered or {}, own or {})


def found(cluster):
    return [(text, advice) for check in CHECKS for _state, text, advice in check(cluster)]


def test_a_group_that_is_well():
    assert found(seen({}, {}, {})) == []


def test_settings_of_apaches_brokers_that_do_not_know_a_key_are_no_difference():
    cluster = seen({}, {})
    brokers = {**cluster.brokers, ("broker-a", 2): {"totalReplicas": "3"}}
    assert found(cluster._replace(brokers=brokers)) == []


@pytest.mark.parametrize(
    ("brokers", "says"),
    [
        ([{"totalReplicas": "2"}] * 2, "broker-a locks queues by a quorum of 2 brokers"),
        ([{"totalReplicas": "2", "lockInStrictMode": "false", "lockMode": "strict"}] * 2, "by a quorum of 2 brokers"),
        ([{}, {"enableSlaveActingMaster": "false"}], "enableSlaveActingMaster is true at broker-a:0, false at broker-a:1"),
        ([{}, {"brokerNotActiveTimeoutMillis": "9000"}], "brokerNotActiveTimeoutMillis is 10000 at broker-a:0, 9000 at"),
        (
            [{"skipPreOnline": "true"}],
            "broker-a:0 goes online without fetching newer metadata from its group: skipPreOnline=true",
        ),
        ([{"totalReplicas": "1", "lockInStrictMode": "false"}] * 2, "its group: totalReplicas=1 in a group of 2"),
        ([{"brokerHeartbeatInterval": "4000"}], "removed after 10000 ms of silence, but sends a heartbeat only every 4000"),
    ],
)
def test_settings_that_contradict_each_other_are_reported_with_advice(brokers, says):
    said = found(seen(*brokers))
    assert said
    assert any(says in text for text, _ in said), said
    assert all(advice for _, advice in said)


def test_a_name_server_that_shows_no_acting_masters():
    for settings in ({"supportActingMaster": "false"}, {}):
        ((text, _),) = found(seen({}, nameserver=settings))
        assert text.startswith("name server 127.0.0.1:9876 has supportActingMaster=false")
    assert found(seen({"enableSlaveActingMaster": "false"}, nameserver={})) == []


def test_two_brokers_with_one_id():
    key = ("broker-a", 1)
    own = {key: "127.0.0.1:10921"}
    ((text, _),) = found(seen({}, registered={"ns": {key: "127.0.0.1:20921"}}, own=own))
    assert text == "broker-a:1 runs at 127.0.0.1:10921, but name server ns has that id at 127.0.0.1:20921"
    assert found(seen({}, registered={"ns": own}, own=own)) == []
    two = {"ns-0": {key: "127.0.0.1:20921"}, "ns-1": {key: "127.0.0.1:10921"}}
    ((text, _),) = found(seen({}, registered=two))
    assert text == "broker-a:1 is registered at 127.0.0.1:20921 (name server ns-0), 127.0.0.1:10921 (name server ns-1)"
