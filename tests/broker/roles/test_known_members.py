"""A broker asks its known members if no name server answers at its start, or lists any member."""

import json
from itertools import pairwise

import pytest

from rmqkit.broker.roles import Online
from rmqkit.broker.roles.known_members import ASK_MS
from rmqkit.wire.codes import RequestCode
from tests.broker.metadata.test_metadata import commit, offset
from tests.broker.replica_group import PORT, Group
from tests.broker.roles.test_pre_online import S1, S2, M, acting, group_of, messages, online

FILE = "config/memberGroup.json"
NOT_ACTIVE_MS = 2000


@pytest.fixture
def group() -> Group:
    made = group_of()
    messages(made, 9)
    commit(made, 3)
    made.world.run_for(6000)
    return made


def kept(group: Group, node: str) -> dict:
    return json.loads(group.world.disk(node).read(FILE, 0, 1 << 16))


def write(group: Group, node: str, content: bytes) -> None:
    disk = group.world.disk(node)
    for name in (FILE, f"{FILE}.bak"):
        disk.replace(name, content, lambda error: None)
    group.world.run_for(100)


def table(members: dict, **other) -> bytes:
    return json.dumps({"clusterName": "DefaultCluster", "brokerName": "broker-a", "members": members, **other}).encode()


def moved_on(group: Group) -> Group:
    """The master is gone, consumers have made progress, and then the name server is gone, too."""
    group.world.kill(M)
    acting(group)
    commit(group, 9, node=S1)
    group.world.run_for(1000)
    group.world.kill("ns")
    return group


def events(group: Group, node: str, name: str) -> list:
    return [line.fields for line in group.world.log(node).events(name)]


def test_listed_members_are_saved_when_they_change(group):
    assert kept(group, M) == {
        "clusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "members": {"1": "10.0.1.2:10911", "2": "10.0.1.3:10911"},
    }
    file = group.master.roles.known_members._file
    file.save = lambda *_: pytest.fail("nothing has changed")
    group.world.kill(S1)
    group.world.run_for(5000)
    group.world.restart(S1)
    group.until(lambda: len(group.master.roles.members) == 3)
    assert set(kept(group, M)["members"]) == {"1", "2"}, "members that are gone are remembered"


def test_a_master_that_starts_while_no_name_server_answers_asks_its_known_members(group):
    """Seed 1145 of the family `acting`."""
    moved_on(group).world.restart(M)
    assert online(group) < NOT_ACTIVE_MS + 300
    assert offset(group, M) == 9
    assert events(group, M, "members-asked") == [{"there": {1: "10.0.1.2:10911", 2: "10.0.1.3:10911"}, "silent": []}]
    group.world.restart("ns")
    group.in_sync(3)
    assert "copied the newer metadata" in group.facts(M)["roleWhy"]


def test_a_master_that_starts_while_a_new_name_server_lists_nobody_asks_them_too(group):
    moved_on(group).world.restart("ns")
    group.world.run_for(5)
    group.world.restart(M)
    assert online(group) < 1000
    assert offset(group, M) == 9


def test_a_slave_asks_its_master(group):
    group.world.kill(S1)
    commit(group, 9)
    group.world.run_for(1000)
    group.world.kill("ns")
    group.world.restart(S1)
    assert online(group, S1) < NOT_ACTIVE_MS + 300
    assert offset(group, S1) == 9
    assert group.slave.replication.follow.state == "following"


def test_the_wait_for_absent_members_is_bounded(group):
    for node in (M, S1, S2, "ns"):
        group.world.kill(node)
    group.world.restart(M)
    assert online(group) < NOT_ACTIVE_MS + 300, "no process listens at their addresses"
    for node in (S1, S2):
        group.world.net.isolate(node)
    group.world.kill(M)
    group.world.restart(M)
    assert NOT_ACTIVE_MS + ASK_MS <= online(group) < NOT_ACTIVE_MS + ASK_MS + 300
    why = group.facts(M)["roleWhy"]
    assert "no name server has listed the live members" in why
    assert "member 1 gives no answer; member 2 gives no answer" in why


def test_a_member_that_is_starting_is_asked_again(group):
    moved_on(group)
    served = group.slave.remoting.served

    def shut(broker, unavailable, served) -> None:
        broker.roles.on_refusal = lambda: None
        broker.remoting.unavailable, broker.remoting.served = unavailable, served

    group.world.call(S1, lambda broker: shut(broker, "the broker is starting", frozenset()))
    group.world.after_ms(NOT_ACTIVE_MS + 1000, lambda: group.world.call(S1, lambda broker: shut(broker, "", served)))
    group.world.restart(M)
    assert NOT_ACTIVE_MS + 1000 <= online(group) < NOT_ACTIVE_MS + 1500
    assert offset(group, M) == 9


def test_name_servers_that_answer_meanwhile_end_the_wait(group):
    moved_on(group)
    group.world.net.isolate(S2)
    group.world.restart(M)
    group.world.run_for(NOT_ACTIVE_MS + 500)
    assert group.master.roles.online is Online.ISOLATED
    group.world.restart("ns")
    assert online(group) < ASK_MS // 2
    assert offset(group, M) == 9


def test_a_first_start_asks_nobody():
    group = group_of()
    asked = [group.node(node).remoting.counts.get(RequestCode.GET_BROKER_CONFIG, 0) for node in group.hosts]
    assert asked == [0, 0, 0]
    assert not [node for node in group.hosts if events(group, node, "members-asked")]


@pytest.mark.parametrize(
    "other",
    [{"brokerName": "broker-b"}, {"brokerClusterName": "Other"}, {"brokerId": 2}],
    ids=lambda other: next(iter(other)),
)
def test_an_address_that_belongs_to_another_broker_does_not_count(group, other):
    moved_on(group)
    for node in (S1, S2):
        group.world.kill(node)
    group.change(S1, **other)
    group.world.restart(S1)
    group.world.run_for(NOT_ACTIVE_MS + 500)
    before = group.slave.remoting.counts.get(RequestCode.EXCHANGE_BROKER_HA_INFO, 0)
    group.world.restart(M)
    assert online(group) < NOT_ACTIVE_MS + 300
    assert offset(group, M) == 3
    assert [each["address"] for each in events(group, M, "member-is-another")] == ["10.0.1.2:10911"]
    assert group.slave.remoting.counts.get(RequestCode.EXCHANGE_BROKER_HA_INFO, 0) == before, "it received no announcement"


@pytest.mark.parametrize(
    "content",
    [
        b"{not json",
        b'{"members": 7}',
        table({"1": "no address"}),
        table({"1": "10.0.1.2:10911"}, brokerName="broker-z"),
        table({"0": "10.0.1.2:10911", "7": f"10.0.1.1:{PORT}"}),
    ],
    ids=["no-json", "no-table", "no-address", "of-another-broker", "itself"],
)
def test_an_unusable_file_is_ignored(group, content):
    write(group, M, content)
    moved_on(group).world.restart(M)
    assert online(group) < NOT_ACTIVE_MS + 300
    assert not events(group, M, "members-asked")


def test_an_address_has_one_id_and_the_number_of_members_is_limited(group):
    remembered = group.master.roles.known_members
    first = remembered.by_id[1]
    for number in range(5, 60):
        group.world.call(M, lambda broker, each=number: remembered.note({each: first._replace(port=each)}))
    group.world.run_for(100)
    assert list(remembered.by_id) == list(range(28, 60))
    group.world.call(M, lambda broker: remembered.note({3: first._replace(port=59)}))
    group.world.run_for(100)
    assert [each for each, address in remembered.by_id.items() if address.port == 59] == [3]
    assert all(before < after for before, after in pairwise(list(remembered.by_id)[:-1]))
