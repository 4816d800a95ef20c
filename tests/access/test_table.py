"""Users and rules: what changes do, which are refused, and the file."""

import json

import pytest

from rmqkit.access.model import BadAccessText, PolicyType, Resource, read_policies
from rmqkit.access.table import AccessConflict, AccessTable
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.atomic_file import AtomicFileDamaged
from rmqkit.runtime.ports import Clock
from rmqkit.store.heap_disk import HeapDisk
from rmqkit.wire.bodies.access import AccessTableBody, PolicyEntryInfo, PolicyInfo, UserInfo


def rule(resource="Topic:T", actions=("Pub",), kind=None):
    info = PolicyEntryInfo(actions=list(actions), decision="Allow", resource=resource)
    return read_policies([PolicyInfo(entries=[info], policy_type=kind)])


def texts(table, name="u"):
    policies = table.accounts[name].policies
    return {kind.value: [str(each) for each in entries] for kind, entries in policies.items()}


def heap():
    return HeapDisk(Clock(), 1 << 20, lambda: None)


def settle(disk):
    """End the replacements in flight, and those that follow."""
    while completed := disk.take_completed():
        for then, error in completed:
            then(error)


@pytest.fixture
def disk():
    return heap()


@pytest.fixture
def table(disk):
    table = AccessTable(disk, Clock(wall_ms=1_700_000_000_000), "config")
    table.load()
    table.ensure_super("root", "secret")
    table.create_user(UserInfo(username="u", password="p"), by_super=True)
    return table


def test_the_first_super_user_keeps_its_password(table):
    assert not table.ensure_super("root", "other")
    assert table.accounts["root"].user.password == "secret"


def test_a_change_raises_the_version_and_tells(table):
    told = []
    table.on_change.append(lambda: told.append(table.version.counter))
    table.update_user(UserInfo(username="u", password="q"), by_super=False)
    table.put_rules("User:u", rule(), by_super=False)
    assert told == [3, 4]


def test_an_update_changes_what_it_names(table):
    table.update_user(UserInfo(username="u", user_status="disable"), by_super=False)
    user = table.accounts["u"].user
    assert (user.password, user.is_enabled) == ("p", False)


def test_an_update_keeps_the_rules_and_changes_the_key(table):
    table.put_rules("User:u", rule(), by_super=False)
    key = table.accounts["u"].key
    table.update_user(UserInfo(username="u", password="q"), by_super=False)
    assert texts(table) == {"Custom": ["Allow Pub on Topic:T"]}
    assert table.accounts["u"].key.sign(b"") != key.sign(b"")


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.create_user(UserInfo(username="u", password="q"), by_super=True),
        lambda table: table.create_user(UserInfo(username="v", password="p", user_type="Super"), by_super=False),
        lambda table: table.update_user(UserInfo(username="nobody"), by_super=True),
        lambda table: table.update_user(UserInfo(username="u", user_type="Super"), by_super=False),
        lambda table: table.update_user(UserInfo(username="root", password="x"), by_super=False),
        lambda table: table.update_user(UserInfo(username="root", user_status="disable"), by_super=True),
        lambda table: table.update_user(UserInfo(username="root", user_type="Normal"), by_super=True),
        lambda table: table.delete_user("root", by_super=True),
        lambda table: table.delete_user("root", by_super=False),
        lambda table: table.put_rules("User:nobody", rule(), by_super=True),
        lambda table: table.put_rules("User:root", rule(), by_super=False),
        lambda table: table.delete_rules("User:nobody", None, None, by_super=True),
        lambda table: table.acl("User:nobody"),
    ],
)
def test_what_the_table_forbids_changes_nothing(table, change):
    before = table.snapshot().encode()
    with pytest.raises(AccessConflict):
        change(table)
    assert table.snapshot().encode() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.create_user(UserInfo(username="v"), by_super=True),
        lambda table: table.update_user(UserInfo(username="u", user_type="Boss"), by_super=True),
        lambda table: table.put_rules("u", rule(), by_super=True),
    ],
)
def test_bad_texts_change_nothing(table, change):
    before = table.snapshot().encode()
    with pytest.raises(BadAccessText):
        change(table)
    assert table.snapshot().encode() == before


def test_a_second_super_user_frees_the_first(table):
    table.create_user(UserInfo(username="root2", password="p", user_type="Super"), by_super=True)
    table.update_user(UserInfo(username="root2", user_status="disable"), by_super=True)
    with pytest.raises(AccessConflict, match="last enabled super user"):
        table.delete_user("root", by_super=True)
    table.update_user(UserInfo(username="root2", user_status="enable"), by_super=True)
    assert table.delete_user("root", by_super=True)
    assert not table.delete_user("root", by_super=True)


def test_a_deleted_user_loses_its_rules(table):
    table.put_rules("User:u", rule(), by_super=False)
    table.delete_user("u", by_super=False)
    table.create_user(UserInfo(username="u", password="p"), by_super=False)
    assert texts(table) == {}


def test_rules_are_merged_by_resource(table):
    table.put_rules("User:u", rule(), by_super=False)
    table.put_rules("User:u", rule("Group:g", ["Sub"]), by_super=False)
    table.put_rules("User:u", rule(actions=["Sub"]), by_super=False)
    assert texts(table) == {"Custom": ["Allow Sub on Topic:T", "Allow Sub on Group:g"]}


def test_deleting_rules(table):
    for kind in (None, "Default"):
        for resource in ("Topic:T", "Topic:U"):
            table.put_rules("User:u", rule(resource, kind=kind), by_super=False)
    table.delete_rules("User:u", None, Resource.parse("Topic:T"), by_super=False)
    assert texts(table) == {
        "Custom": ["Allow Pub on Topic:U"],
        "Default": ["Allow Pub on Topic:T", "Allow Pub on Topic:U"],
    }
    table.delete_rules("User:u", PolicyType.DEFAULT, None, by_super=False)
    assert texts(table) == {"Custom": ["Allow Pub on Topic:U"]}
    table.delete_rules("User:u", None, None, by_super=False)
    assert texts(table) == {}


def test_rules_are_found_by_parts_of_subject_and_resource(table):
    table.create_user(UserInfo(username="v", password="p"), by_super=True)
    table.put_rules("User:u", rule(), by_super=False)
    table.put_rules("User:u", rule("Group:g"), by_super=False)
    table.put_rules("User:v", rule("Topic:V"), by_super=False)
    assert [each.subject for each in table.acls("", "")] == ["User:u", "User:v"]
    (found,) = table.acls("u", "Group")
    assert [each.resource for each in found.policies[0].entries] == ["Group:g"]
    assert table.acls("", "Cluster") == []


def test_limits(table, monkeypatch):
    monkeypatch.setattr("rmqkit.access.table.USERS_MAX", 2)
    monkeypatch.setattr("rmqkit.access.table.RULES_MAX", 2)
    monkeypatch.setattr("rmqkit.access.table.RULES_TOTAL_MAX", 3)
    with pytest.raises(AccessConflict, match="holds 2 users"):
        table.create_user(UserInfo(username="v", password="p"), by_super=True)
    for name in "ab":
        table.put_rules("User:u", rule(f"Topic:{name}"), by_super=True)
    with pytest.raises(AccessConflict, match="at most 2 rules"):
        table.put_rules("User:u", rule("Topic:c"), by_super=True)
    table.put_rules("User:root", rule(), by_super=True)
    with pytest.raises(AccessConflict, match="holds at most 3 rules"):
        table.put_rules("User:root", rule("Topic:c"), by_super=True)


def test_the_table_is_loaded_again(table, disk):
    table.put_rules("User:u", rule(), by_super=False)
    settle(disk)
    again = AccessTable(disk, Clock(), "config")
    again.load()
    assert again.snapshot() == table.snapshot()
    assert again.version == table.version


def test_a_copy_follows_and_keeps_the_version(table, disk):
    copy = AccessTable(heap(), Clock(), "config", is_copy=True)
    copy.ensure_super("root", "local")
    told = []
    copy.on_change.append(lambda: told.append(True))
    copy.follow(AccessTableBody.decode(table.snapshot().encode()))
    assert copy.snapshot() == table.snapshot()
    assert told == [True]


def test_a_bad_table_is_not_followed(table):
    before = table.snapshot().encode()
    body = json.loads(before)
    body["users"][0]["userType"] = "Boss"
    with pytest.raises(RemoteProtocolError, match="user type 'Boss' is unknown"):
        table.follow(AccessTableBody.decode(json.dumps(body)))
    assert table.snapshot().encode() == before


def test_a_damaged_file_ends_the_start(disk):
    disk.write("config/access.json", 0, [b'{"users":[{"username":"u"}]}'])
    with pytest.raises(AtomicFileDamaged, match="password can not be blank"):
        AccessTable(disk, Clock(), "config").load()
