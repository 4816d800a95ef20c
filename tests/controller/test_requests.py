"""Requests to a controller as Java sends them, and the codes of the answers.

Rules: `controller/.../impl/manager/ReplicasInfoManager.java`, the methods that each test names.
"""

import json

import pytest

from rmqkit.controller import decision_queue
from rmqkit.controller.sets.table import MEMBERS_MAX
from tests.controller.conftest import CLUSTER, NAME, ControllerScript, Make
from tests.helpers.script import ScriptDisk


def test_a_new_broker_takes_the_next_id(script: ControllerScript) -> None:
    """`getNextBrokerId`, `applyBrokerId`."""
    one, two = script.broker(1), script.broker(2)
    assert one.ask(1012).ext == {"clusterName": CLUSTER, "brokerName": NAME, "nextBrokerId": "1"}
    assert one.ask(1013, appliedBrokerId=2, registerCheckCode="10.0.1.1:10911;1").code == 2014
    assert one.ask(1013, appliedBrokerId=1, registerCheckCode="10.0.1.1:10911;1").code == 0
    assert two.ask(1012).ext["nextBrokerId"] == "2"
    assert two.ask(1013, appliedBrokerId=1, registerCheckCode="10.0.1.2:10911;2").code == 2014
    assert one.ask(1013, appliedBrokerId=1, registerCheckCode="10.0.1.1:10911;1").code == 0, "repeated"
    assert two.ask(1013, appliedBrokerId=2, registerCheckCode="10.0.1.2:10911;2").code == 0
    assert [each["brokerAddress"] for each in script.members()["notInSyncReplicas"]] == [
        "10.0.1.1:10911",
        "10.0.1.2:10911",
    ]


def test_ids_are_not_given_twice(script: ControllerScript) -> None:
    one, two = script.pair()
    two.client.close()
    one.alter([1], 1, 2)
    cleaned = one.ask(1011, brokerControllerIdsToClean="2", isCleanLivingBroker="false")
    assert cleaned.code == 0, cleaned.remark
    assert one.ask(1012).ext["nextBrokerId"] == "3"


def test_a_set_has_a_limit(script: ControllerScript) -> None:
    broker = script.broker(1)
    for number in range(1, MEMBERS_MAX + 1):
        assert broker.ask(1013, appliedBrokerId=number, registerCheckCode=f"h:{number}").code == 0
    refused = broker.ask(1013, appliedBrokerId=MEMBERS_MAX + 1, registerCheckCode="h:1")
    assert refused.code == 2014
    assert f"{MEMBERS_MAX} members" in str(refused.remark)


@pytest.mark.parametrize("fields", [{"brokerName": ""}, {"clusterName": ""}, {"brokerName": "a\nb"}])
def test_names_are_checked(script: ControllerScript, fields: dict[str, str]) -> None:
    broker = script.broker(1)
    given = {"clusterName": CLUSTER, "brokerName": NAME, "appliedBrokerId": "1", "registerCheckCode": "h:1;1", **fields}
    assert broker.client.ask(1013, given).code == 1


def test_registration_needs_an_id_and_names_the_master(script: ControllerScript) -> None:
    """`registerBroker`: unknown ids get 2010; a dead master is not named."""
    assert script.broker(1).register().code == 2010
    one, _ = script.pair()
    three = script.broker(3)
    three.ask(1013, appliedBrokerId=3, registerCheckCode=f"{three.address};1")
    answer = three.register()
    wanted = {"masterBrokerId": "1", "masterAddress": one.address, "masterEpoch": "1", "syncStateSetEpoch": "2"}
    assert answer.ext == {"clusterName": CLUSTER, "brokerName": NAME, **wanted}
    assert answer.json == {"syncStateSet": [1, 2], "syncStateSetEpoch": 2}
    moved = three.ask(1003, brokerId=3, brokerAddress="10.0.1.33:10911")
    assert moved.code == 0
    assert script.members()["notInSyncReplicas"][0]["brokerAddress"] == "10.0.1.33:10911"


def test_a_master_that_registers_again_is_not_named(script: ControllerScript) -> None:
    """Ours: it has restarted, and needs an epoch of its own; Apache's would go on with the old."""
    one, _ = script.pair()
    assert "masterBrokerId" not in one.register().ext
    assert one.elect().code == 0
    assert script.state() == (1, 2, [1], 3)


def test_replica_info(script: ControllerScript) -> None:
    """`getReplicaInfo`."""
    one, two = script.pair()
    assert two.client.ask(1004, {"brokerName": "other"}).code == 2008
    answer = two.ask(1004)
    assert answer.ext == {"masterBrokerId": "1", "masterAddress": one.address, "masterEpoch": "1"}
    assert answer.json == {"syncStateSet": [1, 2], "syncStateSetEpoch": 2}


def test_changes_of_the_sync_state_set_are_fenced(script: ControllerScript) -> None:
    """`alterSyncStateSet`: the checks in their order."""
    one, two = script.pair()
    assert script.broker(3).client.ask(1001, {"brokerName": "other"}, b"{}").code == 2013
    assert one.alter([2, 1], 1, 2).code == 2013, "the same set"
    assert two.alter([2], 1, 2).code == 2002, "not the master"
    assert one.alter([1], 2, 2).code == 2000, "another master epoch"
    assert one.alter([1], 1, 1).code == 2001, "another set epoch"
    assert one.alter([1, 3], 1, 2).code == 2003, "an unknown replica"
    assert one.alter([2], 1, 2).code == 2013, "without the master"
    answer = one.alter([1], 1, 2)
    assert answer.ext == {"newSyncStateSetEpoch": "3"}
    assert answer.json == {"syncStateSet": [1], "syncStateSetEpoch": 3}
    two.client.close()
    assert one.alter([1, 2], 1, 3).code == 2006, "a dead replica"


def test_metadata_names_leader_and_peers(script: ControllerScript) -> None:
    assert script.connect().ask(1005).ext == {
        "group": "controllers",
        "controllerLeaderId": "n0",
        "controllerLeaderAddress": "10.0.0.9:9000",
        "isLeader": "true",
        "peers": "n0:10.0.0.9:9000;",
        "term": "1",
    }


def test_heartbeats(script: ControllerScript) -> None:
    """`handleBrokerHeartbeat`; the fields of the answer are ours."""
    one, _ = script.pair()
    fields = {"clusterName": CLUSTER, "brokerName": NAME, "brokerAddr": one.address}
    assert one.client.ask(904, fields).code == 2005
    assert one.client.ask(904, {**fields, "brokerId": "7"}).code == 2010
    assert one.beat(1, 5).ext == {"isLeader": "true", "masterBrokerId": "1", "masterEpoch": "1", "syncStateSetEpoch": "2"}


def test_cleaning(script: ControllerScript) -> None:
    """`cleanBrokerData`. Ours: with living brokers allowed, the ids still count."""
    one, two = script.pair()
    assert one.ask(1011, isCleanLivingBroker="false").code == 2009, "it has a master"
    assert one.ask(1011, brokerControllerIdsToClean="2", isCleanLivingBroker="false").code == 2009, "it is alive"
    assert one.ask(1011, brokerControllerIdsToClean="x", isCleanLivingBroker="true").code == 2009
    assert one.client.ask(1011, {"brokerName": "other"}).code == 2009
    assert one.ask(1011, brokerControllerIdsToClean="2", isCleanLivingBroker="true").code == 0
    assert script.state() == (1, 1, [1], 3)
    assert two.beat(1, 1).code == 2010, "it has to register anew"
    assert one.ask(1011, isCleanLivingBroker="true").code == 0
    assert script.members() == {}


def test_nothing_is_answered_before_it_is_durable(script: ControllerScript) -> None:
    broker = script.broker(1)
    script.disk.held = True
    fields = {"clusterName": CLUSTER, "brokerName": NAME, "appliedBrokerId": "1", "registerCheckCode": "h:1;1"}
    first = broker.client.tell(1013, fields)
    second = broker.client.tell(1004, {"brokerName": NAME})
    assert broker.client.answer_to(first) is None
    assert broker.client.answer_to(second) is None
    script.disk.held = False
    script.turn()
    assert [broker.client.answer_to(each).code for each in (first, second)] == [0, 0]  # type: ignore[union-attr]


def test_a_change_that_is_not_committed_in_time_is_left_open(script: ControllerScript) -> None:
    """`ControllerRequestProcessor.WAIT_TIMEOUT_OUT`: 5 s, then code 1."""
    broker = script.broker(1)
    script.disk.held = True
    fields = {"clusterName": CLUSTER, "brokerName": NAME, "appliedBrokerId": "1", "registerCheckCode": "h:1;1"}
    asked = broker.client.tell(1013, fields)
    script.advance(decision_queue.ANSWER_TIMEOUT_MS)
    answer = broker.client.answer_to(asked)
    assert answer is not None
    assert (answer.code, "5000 ms" in str(answer.remark)) == (1, True)
    script.disk.held = False
    script.turn()
    assert broker.client.ask(1012, {"brokerName": NAME}).ext["nextBrokerId"] == "2"


def test_too_many_requests_are_refused(script: ControllerScript) -> None:
    client = script.connect()
    script.disk.held = True
    fields = {"clusterName": CLUSTER, "brokerName": NAME, "appliedBrokerId": "1", "registerCheckCode": "h:1;1"}
    client.tell(1013, fields)
    for _ in range(decision_queue.WAITING_MAX):
        client.tell(1004, {"brokerName": NAME})
    assert client.ask(1004, {"brokerName": NAME}).code == 2
    script.disk.held = False
    script.turn()


def test_a_failed_sync_ends_the_service(script: ControllerScript) -> None:
    broker = script.broker(1)
    script.disk.error = OSError(5, "Input/output error")
    assert broker.ask(1013, appliedBrokerId=1, registerCheckCode="h:1;1").code == 1
    assert broker.ask(1012).code == 2007
    told = script.connect().ask(1005).ext
    assert told["isLeader"] == "false"
    assert "Input/output error" in told["problem"]
    assert "controller-log-failed" in script.log.events("error")


def test_a_restart_knows_everything(make: Make) -> None:
    disk = ScriptDisk()
    script = make(disk=disk, controllerSnapshotEntries=10)
    one, _ = script.pair()
    for epoch in range(2, 14):
        one.alter([1] if epoch % 2 == 0 else [1, 2], 1, epoch)
    before = script.state()
    names = [path for path in disk.files if "log-" in path]
    assert "single/snapshot" in disk.files
    assert len(names) == 1
    again = make(disk=disk, controllerSnapshotEntries=10)
    assert again.state() == before
    assert again.connect().ask(1012, {"brokerName": NAME}).ext["nextBrokerId"] == "3"


def test_settings_change_at_run_time(script: ControllerScript) -> None:
    """`handleUpdateControllerConfig`: keys of the black list get NO_PERMISSION."""
    client = script.connect()
    assert client.ask(1009, None, b"enableElectUncleanMaster=true").code == 0
    assert b"enableElectUncleanMaster=true\n" in client.ask(1010).body
    assert b"enableElectUncleanMaster=true\n" in bytes(script.disk.files["/controller/controller.properties"])
    for text in (b"configBlackList=x", b"configStorePath=/etc/x", b"rocketmqHome=/x"):
        assert client.ask(1009, None, text).code == 16
    for text in (b"controllerStorePath=/x", b"unknownKey=1", b"scanInactiveMasterInterval=x", b"\xff"):
        assert client.ask(1009, None, text).code == 1
    assert client.ask(1009).code == 0


def test_bodies_that_fit_no_request_are_refused(script: ControllerScript) -> None:
    client = script.connect()
    assert client.ask(1006, None, b'{"a":1}').code == 1
    assert client.ask(1001, {"brokerName": NAME}, b"[]").code == 1
    assert client.ask(1002, {"clusterName": CLUSTER}, json.dumps({}).encode()).code == 2010
    assert client.ask(60010, {"group": "controllers", "sender": "n7", "receiver": "n0"}, b"x").code == 2005
