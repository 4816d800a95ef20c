"""A broker with files of ACL 1.0: at its start, while it runs, and on a slave."""

import pytest

from rmqkit.access.plain_acl import PlainAclError
from rmqkit.broker.node import Broker
from rmqkit.config import Host, from_values
from rmqkit.errors import ConfigError
from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker import requests
from tests.broker.conftest import broker_of
from tests.helpers.script import Script
from tests.helpers.signing import INNER, ROOT, SETTINGS, ask, signed

APP = ("orders-app", "12345678")
NO = ResponseCode.NO_PERMISSION
CREDENTIALS = SETTINGS[2:]
ACL = ("aclEnable=true", "rocketmq.acl.plain.file=/conf/plain_acl.yml", "autoCreateTopicEnable=true")


class Files:
    """The files that the broker reads, and the broker's settings."""

    def __init__(self, perm: str = "PUB") -> None:
        self.content = {}
        self.set(perm)

    def set(self, perm: str) -> None:
        text = f"accounts:\n- accessKey: {APP[0]}\n  secretKey: '{APP[1]}'\n  topicPerms: [T={perm}]\n"
        self.content = {"/conf/plain_acl.yml": text.encode()}

    def broker(self, *settings: str) -> Script[Broker]:
        make = broker_of(*CREDENTIALS, *settings)
        script = Script(lambda ports: make(ports._replace(read_acl=lambda: dict(self.content))))
        script.turn()
        return script


def send(script: Script[Broker], user: tuple[str, str] | None) -> int:
    return ask(script.connect(), user, RequestCode.SEND_MESSAGE_V2, requests.send_fields("T"), b"hello").code


def test_acl_enable_checks_every_request():
    script = Files().broker(*ACL)
    assert [send(script, user) for user in (None, APP, ROOT, INNER, (APP[0], "wrong"))] == [NO, 0, 0, 0, NO]


def test_a_permission_changes_with_the_file():
    files = Files()
    script = files.broker(*ACL)
    files.set("SUB")
    script.advance(3000)
    assert send(script, APP) == NO
    files.set("ALL")
    script.advance(3000)
    assert send(script, APP) == NO
    assert script.log.events("error") == ["acl files not reloaded"]
    files.set("PUB|SUB")
    script.advance(3000)
    assert send(script, APP) == 0


def test_a_held_pull_of_a_user_that_loses_its_permission_ends():
    files = Files("PUB|SUB")
    files.content["/conf/plain_acl.yml"] += b"  groupPerms: [CG=SUB]\n"
    script = files.broker(*ACL)
    assert send(script, APP) == 0
    client = script.connect()
    fields = requests.pull_fields("T", offset=1, sysFlag="7", suspendTimeoutMillis="15000")
    whole = {**fields, "queueId": "0"}
    opaque = client.tell(RequestCode.PULL_MESSAGE, signed(APP, whole))
    assert not client.received
    files.set("DENY")
    script.advance(3000)
    assert send(script, ROOT) == 0
    assert client.answer_to(opaque).code == NO


@pytest.mark.parametrize("content", [{}, {"/conf/plain_acl.yml": b"accounts: ["}])
@pytest.mark.parametrize("key", ["aclEnable", "migrateAuthFromV1Enabled"])
def test_a_start_is_refused(content, key):
    files = Files()
    files.content = content
    with pytest.raises(PlainAclError):
        files.broker(f"{key}=true", "authenticationEnabled=true", ACL[1])


def test_a_migration_happens_at_the_start_and_requests_may_change_the_users():
    files = Files()
    script = files.broker("migrateAuthFromV1Enabled=true", *SETTINGS[:2], *ACL[1:])
    assert send(script, APP) == 0
    files.set("DENY")
    script.advance(3000)
    assert send(script, APP) == 0
    answer = ask(script.connect(), ROOT, RequestCode.AUTH_DELETE_USER, {"username": APP[0]})
    assert answer.code == 0
    assert send(script, APP) == NO


def test_requests_do_not_change_users_of_files():
    script = Files().broker(*ACL)
    answer = ask(script.connect(), ROOT, RequestCode.AUTH_DELETE_USER, {"username": APP[0]})
    assert answer.code == NO
    assert "comes from a file of ACL 1.0" in answer.remark
    assert send(script, APP) == 0


def test_a_slave_reads_no_file():
    files = Files()
    files.content = {}
    script = files.broker(*ACL, "brokerRole=SLAVE", "brokerId=1")
    assert list(script.node.view.access.table.accounts) == ["root"]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"aclEnable": "true"}, "aclEnable = true is refused: set innerClientAuthenticationCredentials"),
        (
            {"aclEnable": "true", "innerClientAuthenticationCredentials": '{"accessKey":"node","secretKey":"x"}'},
            "aclEnable = true needs a file: set rocketmq.acl.plain.file, or the variable ROCKETMQ_HOME",
        ),
        ({"migrateAuthFromV1Enabled": "true"}, "migrateAuthFromV1Enabled = true needs a file"),
    ],
)
def test_settings_that_are_refused(settings, why):
    with pytest.raises(ConfigError, match=why):
        from_values("broker", settings)


def test_the_default_file_is_rocketmqs():
    values = {"aclEnable": "true", "innerClientAuthenticationCredentials": '{"accessKey":"node","secretKey":"x"}'}
    access = from_values("broker", values, host=Host(environment={"ROCKETMQ_HOME": "/opt/rocketmq"})).access
    assert access.plain_acl_path == "/opt/rocketmq/conf/plain_acl.yml"
    assert access.is_on
    assert access.has_rules
