"""Roles of a group in virtual time, with short timers: takeover, return, stalls, wrong settings.

Source: `broker/.../BrokerController.{onMinBrokerChange,changeSpecialServiceStatus}`,
`BrokerController.startServiceWithoutCondition`, RIP-32.
"""

import json

import pytest

from rmqkit.broker.roles import Duty, Online, Role
from rmqkit.broker.roles.role import DUTIES, does
from rmqkit.runtime.calls import CallFailed
from rmqkit.runtime.connection import Address
from rmqkit.wire.codes import PullSysFlag, RequestCode, ResponseCode
from rmqkit.wire.schemas.nameserver import NotifyMinBrokerIdChangeRequest
from rmqkit.wire.schemas.pull import PullMessageRequest
from rmqkit.wire.schemas.send import SendMessageRequestV2
from tests.broker.replica_group import PORT, Group
from tests.tidy.tree import ROOT

NOT_ACTIVE_MS = 2000
HEARTBEAT_MS = 300
TIMERS = {
    "enableSlaveActingMaster": True,
    "enableAutoInSyncReplicas": True,
    "brokerHeartbeatInterval": HEARTBEAT_MS,
    "brokerNotActiveTimeoutMillis": NOT_ACTIVE_MS,
    "syncBrokerMemberGroupPeriod": 300,
}
NAMESERVER = {"supportActingMaster": True, "notifyMinBrokerIdChanged": True, "scanNotActiveBrokerInterval": 500}


def acting_group(slaves: int = 1, nameservers: int = 1, nameserver: dict | None = None, **settings) -> Group:
    """A group whose members have known each other long enough to notice a member that is gone."""
    values = {**NAMESERVER, **(nameserver or {})}
    settings = {**TIMERS, "totalReplicas": slaves + 1, **settings}
    group = Group(slaves=slaves, nameservers=[values] * nameservers, **settings)
    group.until(lambda: all(len(group.node(name).roles.members) == slaves + 1 for name in group.hosts))
    group.in_sync(slaves + 1)
    group.world.run_for(3000)
    return group


def role_of(group: Group, node: str) -> tuple[Role, Online]:
    roles = group.node(node).roles
    return roles.role, roles.online


def is_whole(group: Group) -> bool:
    """Whether the master serves and every slave is a slave again."""
    alive = all(group.world.is_alive(name) and group.node(name).serving for name in group.hosts)
    roles = [Role.MASTER] + [Role.SLAVE] * (len(group.hosts) - 1)
    return alive and [role_of(group, name) for name in group.hosts] == [(role, Online.ONLINE) for role in roles]


def role_lines(group: Group, node: str) -> list[tuple[str, str, str]]:
    return [
        (str(line.fields["role"]), str(line.fields["online"]), line.fields["why"])
        for line in group.world.log(node).events("role")
    ]


# --- the table


def test_an_acting_master_never_appends_and_an_offline_broker_serves_no_client():
    assert set(DUTIES) == set(Duty)
    assert [role for role in Role if does(Duty.PUT, role, Online.ONLINE)] == [Role.MASTER]
    for_clients = (Duty.PUT, Duty.SPECIAL, Duty.LOCK, Duty.REGISTER, Duty.HEARTBEAT)
    assert not any(does(duty, role, online) for duty in for_clients for role in Role for online in list(Online)[:2])


# --- takeover and return


def test_the_smallest_slave_acts_for_a_killed_master_until_it_is_back():
    group = acting_group(slaves=2)
    group.send()
    group.world.kill("broker-0")
    group.until(lambda: group.slave.roles.is_acting, 500)
    assert role_of(group, "broker-2") == (Role.SLAVE, Online.ONLINE)
    assert group.slave.view.delay.is_on
    assert not group.node("broker-2").view.delay.is_on
    refused = group.send(node="broker-1")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    facts = group.facts("broker-1")
    assert (facts["role"], facts["roleOnline"], facts["roleHead"]) == ("acting", "online", "1")
    assert "the master is gone" in facts["roleWhy"]
    assert json.loads(facts["roleMembers"]) == {"1": "10.0.1.2:10911", "2": "10.0.1.3:10911"}

    group.world.restart("broker-0")
    group.until(lambda: is_whole(group), 10_000)
    assert not group.slave.view.delay.is_on
    assert [why for role, _, why in role_lines(group, "broker-1") if role == "slave"][-1] == "the master is back"
    group.in_sync(3)
    assert group.send().code == ResponseCode.SUCCESS


def test_when_the_acting_slave_dies_too_the_next_one_acts():
    group = acting_group(slaves=2)
    group.world.kill("broker-0")
    group.until(lambda: group.slave.roles.is_acting, 500)
    group.world.kill("broker-1")
    group.until(lambda: group.node("broker-2").roles.is_acting, 500)
    group.world.restart("broker-1")
    group.until(lambda: group.slave.roles.is_acting and not group.node("broker-2").roles.is_acting, 15_000)
    why = role_lines(group, "broker-2")[-1][2]
    assert why == "id 1, which is smaller, is alive"


def test_a_group_that_starts_waits_for_its_master():
    group = acting_group(slaves=1)
    for name in group.hosts:
        group.world.kill(name)
    group.world.restart("broker-1")
    started_ms = group.world.now_ms
    group.until(lambda: group.slave.roles.is_acting, 10_000)
    assert group.world.now_ms - started_ms >= NOT_ACTIVE_MS
    assert "no master has been seen" in group.facts("broker-1")["roleWhy"]


def test_roles_do_not_change_without_enable_slave_acting_master():
    group = Group(totalReplicas=2)
    group.in_sync()
    group.world.kill("broker-0")
    group.world.run_for(20_000)
    facts = group.facts("broker-1")
    assert (facts["role"], facts["roleOnline"], facts["roleMembers"], facts["roleHead"]) == ("slave", "online", "{}", "")
    assert not group.slave.view.delay.is_on
    assert (
        not {RequestCode.GET_BROKER_MEMBER_GROUP, RequestCode.BROKER_HEARTBEAT}
        & set(group.world.node("ns").remoting.counts)
        or not group.slave.roles.is_enabled
    )


# --- away without dying


def test_a_stalled_master_serves_nothing_before_it_is_online_again():
    group = acting_group()
    group.send()
    group.world.pause("broker-0")
    paused_ms = group.world.now_ms
    group.until(lambda: group.slave.roles.is_acting, 5000)
    assert group.world.now_ms - paused_ms <= 3000
    found: list = []
    request = SendMessageRequestV2(
        producer_group="p", topic="T", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=1, flag=0, properties="",
    )  # fmt: skip
    group.world.call(
        "client",
        lambda client: client.remoting.call(
            Address(group.hosts["broker-0"], PORT),
            RequestCode.SEND_MESSAGE_V2,
            request,
            b"late",
            timeout_ms=60_000,
            then=found.append,
        ),
    )
    group.world.run_for(1000)
    end = group.slave.store.offset_written
    group.world.resume("broker-0")
    group.until(lambda: is_whole(group), 10_000)
    assert not isinstance(found[0], CallFailed)
    assert found[0].code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "was stalled" in found[0].remark
    assert group.master.store.offset_written == end, "it was not stored before it was refused"
    assert [online for _, online, _ in role_lines(group, "broker-0")][-3:] == ["isolated", "pre-online", "online"]
    group.in_sync()
    assert group.send().code == ResponseCode.SUCCESS


def test_a_send_that_waited_for_its_topic_is_not_stored_by_a_stalled_master():
    """The send arrived before the stall, and its topic is saved only after it.

    By then the broker is no master any more. A disk that hung can cause this.
    """
    group = acting_group()
    master = group.master
    end = master.store.offset_written
    waiting: list = []
    master.topics.when_saved = waiting.append
    answers: list = []
    request = SendMessageRequestV2(
        producer_group="p", topic="New", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=1, flag=0, properties="",
    )  # fmt: skip
    group.world.call(
        "client",
        lambda client: client.remoting.call(
            master.view.address, RequestCode.SEND_MESSAGE_V2, request, b"x", timeout_ms=9000, then=answers.append
        ),
    )
    group.until(lambda: waiting)
    group.world.pause("broker-0")
    group.world.run_for(3000)
    group.world.resume("broker-0")
    group.until(lambda: master.roles.online is not Online.ONLINE, 1000)
    group.world.call("broker-0", lambda broker: waiting[0]())
    group.until(lambda: answers, 1000)
    assert answers[0].code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert master.store.offset_written == end


def test_fifty_stalls_shorter_than_the_timeout_cause_no_takeover():
    group = acting_group()
    changes = {name: group.node(name).roles.state.change_count for name in group.hosts}
    longest_ms = NOT_ACTIVE_MS - HEARTBEAT_MS - 50
    for number in range(50):
        node = "broker-0" if number % 3 else "ns"
        group.world.pause(node)
        group.world.run_for(longest_ms - 30 * number)
        group.world.resume(node)
        group.world.run_for(700)
    assert {name: group.node(name).roles.state.change_count for name in group.hosts} == changes


def test_a_master_that_lost_all_contact_isolates_itself_once_contact_is_back():
    group = acting_group()
    group.world.net.isolate("broker-0")
    group.until(lambda: group.slave.roles.is_acting, 10_000)
    group.world.run_for(3000)
    assert role_of(group, "broker-0") == (Role.MASTER, Online.ONLINE), "a master does not stop without name servers"
    assert "no name server answers" in group.node("broker-0").roles.facts()["roleWhy"]
    group.world.net.heal()
    group.until(lambda: is_whole(group), 20_000)
    isolated = [why for _, online, why in role_lines(group, "broker-0") if online == "isolated"]
    assert len(isolated) == 1
    assert "cut off" in isolated[0]


def test_clocks_that_are_set_change_nothing():
    group = acting_group()
    changes = {name: group.node(name).roles.state.change_count for name in group.hosts}
    for delta_ms in (3_600_000, -7_200_000, 86_400_000):
        for name in ("ns", *group.hosts):
            group.world.jump_wall(name, delta_ms)
        group.world.run_for(2500)
    assert {name: group.node(name).roles.state.change_count for name in group.hosts} == changes


def test_a_master_that_is_killed_again_and_again():
    group = acting_group(slaves=2)
    for number in range(10):
        group.world.kill("broker-0")
        group.world.run_for(500 + 450 * number)
        group.world.restart("broker-0")
        group.world.run_for(5500 - 450 * number)
    group.until(lambda: is_whole(group), 15_000)
    group.in_sync(3)
    assert group.send().code == ResponseCode.SUCCESS
    assert not [line for line in role_lines(group, "broker-2") if line[0] == "acting"], "only the smallest acts"


def test_master_and_slave_back_at_once():
    group = acting_group()
    group.send()
    for name in group.hosts:
        group.world.kill(name)
    group.world.run_for(5000)
    for name in group.hosts:
        group.world.restart(name)
    group.until(lambda: is_whole(group), 10_000)
    group.in_sync()
    assert group.send().code == ResponseCode.SUCCESS
    assert not [line for line in role_lines(group, "broker-1") if line[0] == "acting"]


# --- clients


def pull_request(**changes) -> PullMessageRequest:
    values = {
        "consumer_group": "g", "topic": "T", "queue_id": 0, "queue_offset": 0, "max_msg_nums": 32, "commit_offset": 0,
        "sys_flag": PullSysFlag.SUBSCRIPTION, "suspend_timeout_millis": 15_000, "sub_version": 0, "subscription": "*",
        "expression_type": "TAG",
    }  # fmt: skip
    return PullMessageRequest(**{**values, **changes})


def test_an_acting_master_serves_reads_without_slave_read_enable():
    group = acting_group(slaveReadEnable=False)
    group.send()
    group.world.run_for(1500)
    assert group.ask("broker-1", RequestCode.PULL_MESSAGE, pull_request()).code == ResponseCode.SYSTEM_BUSY
    group.world.kill("broker-0")
    group.until(lambda: group.slave.roles.is_acting, 500)
    assert group.ask("broker-1", RequestCode.PULL_MESSAGE, pull_request()).code == ResponseCode.SUCCESS


def test_pulls_that_wait_are_answered_when_the_role_changes():
    group = acting_group(slaveReadEnable=True)
    group.send()
    group.world.run_for(1500)
    found: list = []
    request = pull_request(queue_offset=1, sys_flag=PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND)
    address = Address(group.hosts["broker-1"], PORT)
    group.world.call(
        "client",
        lambda client: client.remoting.call(
            address, RequestCode.PULL_MESSAGE, request, timeout_ms=30_000, then=found.append
        ),
    )
    group.world.run_for(1000)
    assert not found
    group.world.kill("broker-0")
    group.until(lambda: found, 500)
    assert group.slave.roles.is_acting
    assert found[0].code == ResponseCode.PULL_NOT_FOUND


# --- name servers, and wrong settings


def test_name_servers_that_disagree():
    group = acting_group(nameservers=2)
    group.world.net.partition(["broker-0"], ["ns-1"])
    group.world.run_for(10_000)
    assert 0 not in group.world.node("ns-1").routes.groups["broker-a"].members
    assert role_of(group, "broker-1") == (Role.SLAVE, Online.ONLINE), "one name server still hears of the master"
    assert role_of(group, "broker-0") == (Role.MASTER, Online.ONLINE)
    group.world.net.partition(["broker-0"], ["ns"])
    group.until(lambda: group.slave.roles.is_acting, 10_000)
    group.world.net.heal()
    group.until(lambda: is_whole(group), 20_000)


def test_a_restarted_name_server_causes_no_takeover():
    group = acting_group(slaves=2)
    changes = {name: group.node(name).roles.state.change_count for name in group.hosts}
    for away_ms in (0, 300, 900):
        group.world.kill("ns")
        group.world.run_for(away_ms)
        group.world.restart("ns")
        group.world.run_for(5000)
        assert len(group.slave.roles.members) == 3
    assert {name: group.node(name).roles.state.change_count for name in group.hosts} == changes


def test_brokers_that_started_before_any_name_server():
    group = acting_group()
    for name in ("ns", *group.hosts):
        group.world.kill(name)
    for name in group.hosts:
        group.world.restart(name)
    group.world.run_for(NOT_ACTIVE_MS // 2)
    assert role_of(group, "broker-0") == (Role.MASTER, Online.ISOLATED)
    group.until(lambda: group.master.roles.online is Online.ONLINE, NOT_ACTIVE_MS)
    assert "no name server answers" in group.facts("broker-0")["roleWhy"]
    assert group.master.replication.in_sync_count() == 2, "they have called each other"
    group.world.restart("ns")
    group.until(lambda: is_whole(group) and len(group.slave.roles.members) == 2, 15_000)
    group.in_sync()
    assert not [line for line in role_lines(group, "broker-1") if line[0] == "acting"]


def test_a_name_server_that_removes_a_live_master():
    group = acting_group()
    routes = group.world.node("ns").routes
    group.world.call("ns", lambda ns: routes.unregister_address("DefaultCluster", "broker-a", "10.0.1.1:10911"))
    group.until(lambda: role_of(group, "broker-0")[1] is not Online.ONLINE, 1000)
    assert "has removed it" in group.master.roles.state.why
    group.until(lambda: is_whole(group), 10_000)


def test_a_name_server_that_shows_no_acting_master_is_reported():
    group = acting_group(nameserver={"supportActingMaster": False})
    group.world.kill("broker-0")
    group.until(lambda: group.slave.roles.is_acting, 500)
    group.world.run_for(3000)
    assert "supportActingMaster is off" in group.facts("broker-1")["roleWhy"]


def test_mixed_settings_in_a_group_are_reported():
    group = acting_group(slaves=2)
    group.world.kill("broker-2")
    group.change("broker-2", enableSlaveActingMaster=False)
    group.world.kill("broker-0")
    group.until(lambda: group.slave.roles.is_acting, 500)
    group.world.restart("broker-2")
    group.world.run_for(15_000)
    assert "enableSlaveActingMaster=false" in group.facts("broker-1")["roleWhy"]


def forget(group: Group, *codes: RequestCode) -> None:
    """Make the name server answer these requests as unknown."""
    tables = group.world.node("ns").remoting.tables
    tables["remoting"] = {code: row for code, row in tables["remoting"].items() if code not in codes}


def test_a_name_server_older_than_5_0_gets_the_requests_that_it_knows():
    group = Group(slaves=1, nameservers=[NAMESERVER], **TIMERS, totalReplicas=2)
    forget(group, RequestCode.GET_BROKER_MEMBER_GROUP, RequestCode.BROKER_HEARTBEAT)
    group.in_sync()
    group.until(lambda: len(group.slave.roles.members) == 2)
    group.world.run_for(10_000)
    assert is_whole(group), "heartbeats reached it"
    counts = group.world.node("ns").remoting.counts
    assert counts[RequestCode.QUERY_DATA_VERSION] > 10_000 // HEARTBEAT_MS
    group.world.pause("broker-0")
    group.until(lambda: group.slave.roles.is_acting, 5000)


def test_a_name_server_that_lists_no_members_stops_no_broker():
    group = Group(slaves=1, nameservers=[NAMESERVER], **TIMERS, totalReplicas=2, compatibleWithOldNameSrv=False)
    forget(group, RequestCode.GET_BROKER_MEMBER_GROUP)
    group.in_sync()
    group.world.run_for(3 * NOT_ACTIVE_MS)
    assert is_whole(group)
    assert not group.slave.roles.is_cut_off


@pytest.mark.parametrize(("name", "is_asked"), [("broker-a", True), (None, True), ("broker-b", False)])
def test_a_notice_makes_its_group_poll_at_once(name, is_asked):
    group = acting_group(syncBrokerMemberGroupPeriod=5000)
    counts = group.world.node("ns").remoting.counts
    before = counts[RequestCode.GET_BROKER_MEMBER_GROUP]
    notice = NotifyMinBrokerIdChangeRequest(min_broker_id=1, broker_name=name, min_broker_addr="10.9.9.9:1")
    assert group.ask("broker-1", RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, notice).is_ok
    group.world.run_for(50)
    assert (counts[RequestCode.GET_BROKER_MEMBER_GROUP] > before) is is_asked
    assert bool(group.world.log("broker-1").events("notice-for-another-group")) is not is_asked
    assert role_of(group, "broker-1") == (Role.SLAVE, Online.ONLINE), "the ids and addresses in a notice are ignored"


def test_two_slaves_with_one_id_are_reported_and_neither_acts():
    group = acting_group()
    group.add(1, name="other-1")
    group.world.run_for(3000)
    group.world.kill("broker-0")
    group.world.run_for(20_000)
    said = [group.facts(node)["roleWhy"] for node in ("broker-1", "other-1")]
    stages = [group.facts(node)["roleStage"] for node in ("broker-1", "other-1")]
    # The slave that the master refused is not registered at all.
    assert any("is registered with its brokerId 1, too" in why for why in said) or any(
        "belongs to" in why for why in stages
    )
    acting = [node for node in ("broker-1", "other-1") if group.node(node).roles.is_acting]
    assert len(acting) <= 1


def test_the_page_about_failover_has_the_table_of_duties():
    page = (ROOT / "docs" / "failover.md").read_text()
    states = {frozenset((Online.ONLINE,)): "online"}
    for duty, (roles, online) in DUTIES.items():
        names = ", ".join(role for role in Role if role in roles)
        assert f"| `{duty}` | {names} | {states[online]} |" in page


def test_a_master_that_stalls_during_its_return_begins_again():
    group = acting_group(slaves=2)
    group.world.pause("broker-0")
    group.until(lambda: group.slave.roles.is_acting, 5000)
    group.world.resume("broker-0")
    group.until(lambda: group.master.roles.online is Online.PRE_ONLINE, 2000)
    group.world.pause("broker-0")
    group.world.run_for(2 * NOT_ACTIVE_MS)
    assert group.slave.roles.is_acting
    group.world.resume("broker-0")
    group.until(lambda: group.master.roles.online is Online.ISOLATED, 2000)
    group.until(lambda: is_whole(group), 10_000)
    assert [online for _, online, _ in role_lines(group, "broker-0")][-5:] == [
        "isolated", "pre-online", "isolated", "pre-online", "online",
    ]  # fmt: skip
