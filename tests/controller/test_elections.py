"""Elections: who becomes master, when, and who is told.

Rules: `controller/.../impl/manager/ReplicasInfoManager.electMaster`,
`controller/.../elect/impl/DefaultElectPolicy.java`, `ControllerManager.onBrokerInactive`.
"""

import pytest

from rmqkit.controller.heartbeats import TIMEOUT_MS, UNHEARD_GRACE_MS
from tests.controller.conftest import NAME, ControllerScript, Make
from tests.helpers.script import ScriptDisk


def test_the_first_caller_is_elected(script: ControllerScript) -> None:
    assert script.broker(1).elect().code == 2010, "not registered"
    one = script.broker(1).join()
    answer = one.elect()
    assert answer.ext == {
        "masterBrokerId": "1",
        "masterAddress": one.address,
        "masterEpoch": "1",
        "syncStateSetEpoch": "1",
    }
    assert answer.json == {
        "brokerMemberGroup": {"brokerAddrs": {"1": one.address}, "brokerName": NAME, "cluster": "DefaultCluster"},
        "syncStateSet": [1],
    }
    assert [(each.ext["masterEpoch"], each.json) for each in one.notices()] == [
        ("1", {"syncStateSet": [1], "syncStateSetEpoch": 1})
    ]


def test_another_caller_gets_the_present_master(script: ControllerScript) -> None:
    one, two = script.pair()
    answer = two.elect()
    assert (answer.code, answer.ext["masterBrokerId"], answer.ext["masterEpoch"]) == (2011, "1", "1")
    assert answer.json["syncStateSet"] == [1, 2]
    assert one.notices() == two.notices() == []


def test_a_closed_connection_replaces_the_master_at_once(script: ControllerScript) -> None:
    one, two = script.pair()
    one.client.close()
    assert script.state() == (2, 2, [2], 3)
    assert [each.ext for each in two.notices()] == [
        {"masterBrokerId": "2", "masterAddress": two.address, "masterEpoch": "2", "syncStateSetEpoch": "3"}
    ]
    assert one.notices() == [], "it is dead"


def test_a_silent_master_is_replaced_when_its_timeout_ends(script: ControllerScript) -> None:
    one, two = script.pair()
    one.beat(1, 100, heartbeatTimeoutMills=3000)
    script.advance(2999)
    two.beat(1, 100)
    assert script.state()[0] == 1
    script.advance(1)
    assert script.state() == (2, 2, [2], 3)


@pytest.mark.parametrize(("lease_ms", "silence_ms"), [(400, 500), (800, 1000), (2400, 3000), (9_000_000, 3000), (-1, 100)])
def test_a_silent_master_with_a_lease_is_replaced_soon_after_it(
    script: ControllerScript, lease_ms: int, silence_ms: int
) -> None:
    one, two = script.pair()
    one.beat(1, 100, heartbeatTimeoutMills=3000, leaseMills=lease_ms)
    script.advance(silence_ms - 1)
    two.beat(1, 100)
    assert script.state()[0] == 1
    script.advance(1)
    assert script.state() == (2, 2, [2], 3)


def test_the_newest_heartbeat_says_whether_there_is_a_lease(script: ControllerScript) -> None:
    one, two = script.pair()
    one.beat(1, 100, heartbeatTimeoutMills=3000, leaseMills=400)
    one.beat(1, 100, heartbeatTimeoutMills=3000)
    script.advance(2999)
    two.beat(1, 100)
    assert script.state()[0] == 1


def test_the_close_of_an_earlier_connection_means_nothing(script: ControllerScript) -> None:
    """Ours: liveness is bound to the newest connection. Apache's votes out a healthy master."""
    one, _ = script.pair()
    earlier = one.connect_again()
    one.beat(1, 100)
    earlier.close()
    assert script.state() == (1, 1, [1, 2], 2)


def test_without_a_candidate_there_is_no_master_until_one_returns(script: ControllerScript) -> None:
    one, two = script.pair()
    one.alter([1], 1, 2)
    one.client.close()
    assert script.state() == (None, 2, [1], 3), "2 is alive, but has not everything"
    assert two.elect().code == 2012
    one.connect_again()
    one.beat(1, 100)
    assert one.elect().code == 0
    assert script.state() == (1, 3, [1], 4)


def test_a_returning_candidate_is_elected_without_asking(script: ControllerScript) -> None:
    one, two = script.pair()
    two.client.close()
    one.client.close()
    assert script.state()[:2] == (None, 2)
    two.connect_again()
    two.beat(1, 90)
    script.advance(5000)
    assert script.state()[:3] == (2, 3, [2])


def test_unclean_elections_are_a_setting(make: Make) -> None:
    script = make(enableElectUncleanMaster=True)
    one, _ = script.pair()
    one.alter([1], 1, 2)
    one.client.close()
    assert script.state() == (2, 2, [2], 4)


@pytest.mark.parametrize(
    ("beats", "winner"),
    [
        ({2: (1, 100), 3: (2, 50)}, 3),
        ({2: (1, 100), 3: (1, 101)}, 3),
        ({2: (1, 3 << 31), 3: (1, 1)}, 2),
        ({2: (1, 100, 7), 3: (1, 100, 3)}, 3),
        ({2: (1, 100), 3: (1, 100)}, 2),
    ],
)
def test_the_best_log_wins(script: ControllerScript, beats: dict[int, tuple[int, ...]], winner: int) -> None:
    """`DefaultElectPolicy.COMPARATOR`: epoch, offset, priority. Also for offsets far apart."""
    one, two = script.pair()
    three = script.broker(3).join()
    assert one.alter([1, 2, 3], 1, 2).code == 0
    for broker in (two, three):
        epoch, offset, *priority = beats[broker.id]
        broker.beat(epoch, offset, **({"electionPriority": priority[0]} if priority else {}))
    one.client.close()
    assert script.state()[0] == winner


def test_an_administrator_designates_a_master(script: ControllerScript) -> None:
    one, two = script.pair()
    admin = script.connect()
    fields = {"clusterName": "DefaultCluster", "brokerName": NAME, "designateElect": "true"}
    assert admin.ask(1002, {**fields, "brokerId": "9"}).code == 2010
    answer = admin.ask(1002, {**fields, "brokerId": "2"})
    assert (answer.code, answer.ext["masterBrokerId"]) == (0, "2")
    assert script.state() == (2, 2, [2], 3)
    assert len(one.notices()) == len(two.notices()) == 1
    assert admin.ask(1002, {**fields, "brokerId": "1"}).code == 2012, "1 is not in the SyncStateSet"


def test_a_restarted_master_with_a_shorter_log_is_not_preferred(script: ControllerScript) -> None:
    """Ours: a power cut of all, after which the slave has more of the log."""
    one, two = script.pair()
    one.connect_again()
    two.beat(1, 120)
    one.register()
    one.beat(1, 80)
    answer = one.elect()
    assert (answer.code, answer.ext["masterBrokerId"]) == (0, "2")


def test_a_restarted_controller_does_not_replace_a_master_it_has_not_heard_of(make: Make) -> None:
    disk = ScriptDisk()
    make(disk=disk).pair()
    script = make(disk=disk)
    two = script.broker(2)
    two.beat(1, 100)
    script.advance(6000)
    two.beat(1, 100)
    assert script.state() == (1, 1, [1, 2], 2)
    one = script.broker(1)
    one.beat(1, 100)
    script.advance(6000)
    assert script.state() == (1, 1, [1, 2], 2)


def test_a_master_that_stays_away_is_replaced_after_the_restart(make: Make) -> None:
    disk = ScriptDisk()
    make(disk=disk).pair()
    script = make(disk=disk)
    two = script.broker(2)
    for _ in range(UNHEARD_GRACE_MS // TIMEOUT_MS * 4):
        two.beat(1, 100)
        script.advance(TIMEOUT_MS // 4)
    assert script.state() == (2, 2, [2], 3)


def test_notices_are_a_setting(make: Make) -> None:
    script = make(notifyBrokerRoleChanged=False)
    one, two = script.pair()
    one.client.close()
    assert script.state()[0] == 2
    assert two.notices() == []
