"""What `cluster status` says about elections: roles, remarks, changes between two polls."""

from rmqkit.cluster.health import elections

FACTS = {
    "electionState": "master",
    "electionEpoch": "3",
    "electionId": "2",
    "electionWhy": "",
    "controllerLeader": "127.0.0.1:19876",
    "syncStateSet": "1;2",
    "confirmOffset": "77",
}


def broker(number, state, *, why="", fenced=False, in_set=True):
    said = elections.BrokerElection(state, 3, number, why)._asdict()
    name = f"broker-a-{number}"
    common = {"kind": "broker", "broker_name": "broker-a", "state": "up"}
    return {**common, "node": name, "address": f"h:{number}", "election": {**said, "fenced": fenced, "in_set": in_set}}


def controller(number, *, leads, term=4):
    name = f"controller-{number}"
    common = {"kind": "controller", "state": "up", "problem": ""}
    return {**common, "node": name, "address": f"c:{number}", "leads": leads, "term": term}


def status(*nodes, master=1, epoch=3, in_sync=(1, 2), leader=0):
    group = {
        "master": master,
        "epoch": epoch,
        "in_sync": list(in_sync),
        "alive": [1, 2],
        "members": {"1": "h:1", "2": "h:2"},
    }
    controllers = [controller(number, leads=number == leader) for number in range(3)]
    return {"nodes": [*controllers, *(nodes or (broker(1, "master"), broker(2, "slave")))], "groups": {"broker-a": group}}


def test_the_report_of_a_broker_is_read():
    said = elections.election_of(FACTS)
    assert said is not None
    assert said.is_master
    assert (said.epoch, said.broker_id, said.in_sync, said.confirm_offset) == (3, 2, (1, 2), 77)
    assert elections.election_of({"role": "master"}) is None


def test_roles_are_shown_with_their_epoch():
    assert elections.shown(broker(1, "master")) == "master, epoch 3"
    assert elections.shown(broker(2, "slave", fenced=True)) == "slave, epoch 3, fenced"
    assert elections.shown(broker(2, "discover", fenced=True)) == "fenced, discover"


def test_all_well_needs_no_remark():
    assert elections.remarks(status()) == []
    assert elections.remarks({"nodes": []}) == [], "a cluster without controllers"


def test_the_remark_of_a_group_without_a_master_names_the_members_that_can_be_elected():
    found = elections.remarks(status(broker(2, "slave", in_set=False), master=None))
    assert ("broker-a", "no master; only members in sync can be elected: 1, 2; alive: 1, 2") in found
    assert ("broker-a-2", "not in the set of in-sync replicas, so it cannot be elected") in found


def test_controllers_without_a_leader_and_a_broker_that_waits():
    found = dict(elections.remarks(status(broker(1, "discover", why="no controller leads"), leader=-1)))
    assert found["controllers"].startswith("no leader: 3 of 3 answer")
    assert found["broker-a-1"] == "no controller leads"


def test_a_controller_that_takes_no_part_says_why():
    found = status()
    found["nodes"][1]["problem"] = "controller-raft/log cannot be written"
    assert elections.remarks(found) == [("controller-1", "controller-raft/log cannot be written")]


def test_changes_between_two_polls():
    before = status()
    assert elections.changes(before, before) == []
    after = status(master=2, epoch=4, in_sync=(2,))
    assert elections.changes(before, after) == ["broker-a: broker-a-2 is master, epoch 4", "broker-a: in sync are 2"]
    assert elections.changes(before, status(master=None, epoch=4)) == ["broker-a: no master, epoch 4"]
    assert elections.changes(before, status(leader=2)) == ["controllers: controller-2 leads, term 4"]
    assert elections.changes(before, status(leader=-1)) == ["controllers: no leader"]
