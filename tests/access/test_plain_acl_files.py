"""Files of ACL 1.0 and the table: what a load, a change, and bad files do."""

import pytest

from rmqkit.access.model import PolicyType, Resource, read_policies
from rmqkit.access.plain_acl import PlainAclError, read_plain_acl
from rmqkit.access.plain_acl_files import POLL_MS, PlainAclFiles
from rmqkit.access.table import AccessConflict, AccessTable
from rmqkit.process.acl_files import read_acl_files
from rmqkit.runtime.ports import Clock
from rmqkit.store.heap_disk import HeapDisk
from rmqkit.wire.bodies.access import AccessTableBody, PolicyEntryInfo, PolicyInfo, UserInfo


def account(name="orders-app", secret="12345678", perm="PUB"):
    return f"- {{accessKey: {name}, secretKey: {secret}, topicPerms: [orders={perm}]}}\n"


def accounts(*texts):
    return ("accounts:\n" + "".join(texts)).encode()


RULES = read_policies([PolicyInfo(entries=[PolicyEntryInfo(actions=["Pub"], decision="Allow", resource="Topic:T")])])


class Lines:
    def __init__(self):
        self.events = []

    def _note(self, event, **fields):
        self.events.append((event, fields.get("reason")))

    info = warning = error = _note


class Bench:
    """A table and its files, which are a mapping in memory."""

    def __init__(self):
        self.clock = Clock()
        self.disk = HeapDisk(self.clock, 1 << 20, lambda: None)
        self.table = AccessTable(self.disk, self.clock, "config")
        self.table.ensure_super("root", "secret")
        self.content = {"plain_acl.yml": accounts(account())}
        self.log = Lines()
        self.files = PlainAclFiles(self.read, self.table, self.log)

    def read(self):
        if isinstance(self.content, OSError):
            raise self.content
        return dict(self.content)

    def poll(self, times=2):
        for _ in range(times):
            assert self.files.poll(self.clock.mono_ms) == self.clock.mono_ms + POLL_MS
            self.clock.mono_ms += POLL_MS

    def rules(self, name="orders-app"):
        return [str(each) for each in self.table.accounts[name].policies[PolicyType.CUSTOM]]


@pytest.fixture
def bench():
    bench = Bench()
    bench.files.load()
    return bench


def test_a_load_adds_the_users(bench):
    assert bench.rules() == ["Allow Pub on Topic:orders"]
    assert bench.table.accounts["orders-app"].user.password == "12345678"
    assert bench.table.accounts["root"].user.is_super


def test_a_load_of_the_same_content_is_no_change(bench):
    version = bench.table.version
    bench.files.load()
    bench.poll(5)
    assert bench.table.version == version


def test_a_change_is_used_once_two_polls_read_the_same(bench):
    told = []
    bench.table.on_change.append(lambda: told.append(bench.clock.mono_ms))
    bench.content = {"plain_acl.yml": accounts(account(perm="SUB"), account("other-app"))}
    bench.poll(1)
    assert bench.rules() == ["Allow Pub on Topic:orders"]
    bench.poll(1)
    assert bench.rules() == ["Allow Sub on Topic:orders"]
    assert "other-app" in bench.table.accounts
    assert told == [POLL_MS]


def test_a_file_that_is_still_written_is_not_used(bench):
    whole = accounts(account(perm="SUB"), account("other-app"))
    for end in range(len(whole) - 40, len(whole), 5):
        bench.content = {"plain_acl.yml": whole[:end]}
        bench.poll(1)
    assert bench.log.events == [("acl files loaded", None)]
    assert list(bench.table.accounts) == ["root", "orders-app"]


def test_a_user_that_is_no_longer_in_a_file_goes(bench):
    bench.content = {"plain_acl.yml": accounts(account("other-app"))}
    bench.poll()
    assert list(bench.table.accounts) == ["root", "other-app"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"plain_acl.yml": accounts(account(perm="ALL"))}, "permission 'ALL' is unknown"),
        ({"plain_acl.yml": b"accounts: ["}, "no valid YAML"),
        ({}, "there is no file of ACL 1.0"),
        (PermissionError(13, "Permission denied", "plain_acl.yml"), "plain_acl.yml: Permission denied"),
        ({"plain_acl.yml": accounts(*map(account, ("first-app", "second-app", "third-app")))}, "at most 3 users"),
    ],
)
def test_files_that_cannot_be_used_leave_the_last_good_users(bench, monkeypatch, content, why):
    monkeypatch.setattr("rmqkit.access.table.USERS_MAX", 3)
    bench.content = content
    bench.poll(6)
    ((event, reason),) = bench.log.events[1:]  # one line, not one for each poll
    assert event == "acl files not reloaded"
    assert why in reason
    assert bench.rules() == ["Allow Pub on Topic:orders"]
    bench.content = {"plain_acl.yml": accounts(account(perm="DENY"))}
    bench.poll()
    assert bench.rules() == ["Deny All on Topic:orders"]


def test_the_last_good_content_may_come_back(bench):
    good = bench.content
    bench.content = {"plain_acl.yml": b"accounts: ["}
    bench.poll(3)
    bench.content = good
    bench.poll(3)
    assert bench.rules() == ["Allow Pub on Topic:orders"]
    assert [event for event, _ in bench.log.events] == ["acl files loaded", "acl files not reloaded", "acl files loaded"]


@pytest.mark.parametrize("content", [{}, {"plain_acl.yml": b"accounts: ["}, FileNotFoundError(2, "No such file", "x.yml")])
def test_a_start_with_files_that_cannot_be_used_is_refused(content):
    bench = Bench()
    bench.content = content
    with pytest.raises(PlainAclError):
        bench.files.load()
    assert list(bench.table.accounts) == ["root"]


def test_a_user_that_a_request_has_created_wins(bench):
    bench.table.create_user(UserInfo(username="other-app", password="mine"), by_super=True)
    bench.content = {"plain_acl.yml": accounts(account(), account("other-app"))}
    bench.poll()
    assert bench.table.accounts["other-app"].user.password == "mine"
    assert bench.log.events[-1] == ("acl users skipped", "a request has created these users")


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.update_user(UserInfo(username="orders-app", password="q"), by_super=True),
        lambda table: table.delete_user("orders-app", by_super=True),
        lambda table: table.put_rules("User:orders-app", RULES, by_super=True),
        lambda table: table.delete_rules("User:orders-app", None, None, by_super=True),
        lambda table: table.delete_rules("User:orders-app", None, Resource.parse("Topic:orders"), by_super=True),
    ],
)
def test_requests_do_not_change_a_user_of_a_file(bench, change):
    before = bench.table.snapshot()
    with pytest.raises(
        AccessConflict, match=r"orders-app comes from a file of ACL 1\.0 \(plain_acl\.yml\): change that file"
    ):
        change(bench.table)
    assert bench.table.snapshot() == before


def test_copies_and_restarts_know_which_users_come_from_files(bench):
    body = AccessTableBody.decode(bench.table.snapshot().pretty().encode())
    later = Bench()
    later.table.follow(body)
    assert later.table.accounts["orders-app"].is_from_file
    assert not later.table.accounts["root"].is_from_file
    later.content = {"plain_acl.yml": accounts(account("other-app"))}
    later.files.load()
    assert list(later.table.accounts) == ["root", "other-app"]


def test_users_stay_when_files_are_no_longer_followed(bench):
    bench.table.adopt_files({})
    bench.table.put_rules("User:orders-app", RULES, by_super=True)
    assert bench.rules() == ["Allow Pub on Topic:orders", "Allow Pub on Topic:T"]


def test_a_migration_adds_the_missing_users_once():
    bench = Bench()
    bench.table.create_user(UserInfo(username="other-app", password="mine"), by_super=True)
    bench.content = {"plain_acl.yml": accounts(account(), account("other-app"))}
    bench.table.adopt_files(read_plain_acl(bench.read()))
    assert bench.rules() == ["Allow Pub on Topic:orders"]
    assert bench.table.accounts["other-app"].user.password == "mine"
    bench.table.put_rules("User:orders-app", RULES, by_super=True)
    bench.table.adopt_files(read_plain_acl(bench.read()))
    assert bench.rules() == ["Allow Pub on Topic:orders", "Allow Pub on Topic:T"]


def test_which_files_are_read(tmp_path):
    main = tmp_path / "conf" / "plain_acl.yml"
    below = tmp_path / "conf" / "acl" / "team"
    hidden = tmp_path / "conf" / "acl" / "..data"
    for folder in (below, hidden):
        folder.mkdir(parents=True)
    assert read_acl_files(str(main)) == {}
    main.write_bytes(b"1")
    (below / "b.yaml").write_bytes(b"2")
    (below.parent / "a.yml").write_bytes(b"3")
    for ignored in (below / "tools.txt", below / ".a.yml", hidden / "a.yml"):
        ignored.write_bytes(b"0")
    found = read_acl_files(str(main))
    assert [(path.removeprefix(str(tmp_path)), content) for path, content in found.items()] == [
        ("/conf/plain_acl.yml", b"1"),
        ("/conf/acl/a.yml", b"3"),
        ("/conf/acl/team/b.yaml", b"2"),
    ]


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "plain_acl.yml").mkdir()
    with pytest.raises(IsADirectoryError):
        read_acl_files(str(tmp_path / "plain_acl.yml"))
