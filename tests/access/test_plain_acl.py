"""ACL 1.0: plain_acl.yml as accounts, wrong files, and the reload at a broker."""

import pytest

from rmqkit.access.model import BadAccessText
from rmqkit.access.plain_acl import SIZE_MAX, read_plain_acl
from rmqkit.config import load
from rmqkit.errors import ConfigError
from rmqkit.wire.codes import ResponseCode
from tests.broker import requests
from tests.broker.conftest import MakeScript, broker_of, make  # noqa: F401  # a fixture
from tests.helpers.script import Script, ScriptDisk
from tests.helpers.signing import INNER, SETTINGS, ask

NO = ResponseCode.NO_PERMISSION
PATH = "/acl/plain_acl.yml"
PLAIN = ("aclEnable=true", f"rocketmq.acl.plain.file={PATH}", SETTINGS[2])
FILE = b"""
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  - groupA=DENY
- accessKey: rocketmq2
  secretKey: 12345678
  admin: true
"""
USER, ADMIN = ("RocketMQ", "12345678"), ("rocketmq2", "12345678")


def test_accounts_become_users_with_two_policies():
    accounts = read_plain_acl(FILE)
    assert {name: each.user.is_super for name, each in accounts.items()} == {"RocketMQ": False, "rocketmq2": True}
    policies = accounts["RocketMQ"].policies
    assert {kind.value: [str(each) for each in entries] for kind, entries in policies.items()} == {
        "Custom": [
            "Deny All on Topic:topicA",
            "Allow Pub,Sub on Topic:topicB",
            "Allow Sub on Topic:topicC",
            "Deny All on Group:groupA",
        ],
        "Default": ["Deny All on Topic:*", "Allow Sub on Group:*"],
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "has no list"),
        (b"- a", "has no list"),
        (b"accounts: [", "no YAML in line"),
        (b"accounts: 5", "must be a list"),
        (b"accounts: [5]", "account 1 is no object"),
        (b"accounts: [{accessKey: a}]", "password can not be blank"),
        (b"accounts: [{secretKey: s3cret}]", "username is blank"),
        (b"accounts: [{accessKey: a, secretKey: s3cret, Admin: true}]", "unknown key Admin"),
        (b"accounts: [{accessKey: a, secretKey: s3cret, admin: 'yes'}]", "admin must be true or false"),
        (b"accounts: [{accessKey: a, secretKey: s3cret, topicPerms: [t=ALL]}]", "permission 'ALL' is unknown"),
        (b"accounts: [{accessKey: a, secretKey: s3cret, topicPerms: [t]}]", "not of the form"),
        (b"accounts: [{accessKey: a, secretKey: s3cret, topicPerms: t=PUB}]", "must be a list"),
        (b"accounts: [{accessKey: a, secretKey: s3cret, defaultTopicPerm: ANY}]", "'ANY' is unknown"),
        (b"accounts: [{accessKey: a, secretKey: s3cret, whiteRemoteAddress: 1.2.3.4}]", "no identity"),
        (b"accounts: [{accessKey: a, secretKey: s3cret}, {accessKey: a, secretKey: x}]", "two accounts"),
        (b"globalWhiteRemoteAddresses: [10.0.0.*]\naccounts: []", "no identity"),
        (b"acounts: []", "unknown key acounts"),
        (b"accounts: !!python/object/apply:os.system [ls]", "account 1 is no object"),
        (b"#" * (SIZE_MAX + 1), "more than"),
        (b"\xff\xfe\x00", "no YAML"),
    ],
)
def test_a_wrong_file_is_an_error_that_shows_no_secret(text, why):
    with pytest.raises(BadAccessText, match=why) as error:
        read_plain_acl(text)
    assert "s3cret" not in str(error.value)


def test_scalars_are_texts():
    text = b"accounts: [{accessKey: 007, secretKey: 0123, admin: TRUE, topicPerms: ['1=PUB']}]"
    (account,) = read_plain_acl(text).values()
    assert (account.user.name, account.user.password, account.user.is_super) == ("007", "0123", True)


def disk_with(content: bytes) -> ScriptDisk:
    disk = ScriptDisk()
    disk.write(PATH, 0, [content])
    return disk


def send(client, user, topic="topicB"):
    return ask(client, user, 310, requests.send_fields(topic), b"x").code


@pytest.fixture
def script(make: MakeScript) -> Script:  # noqa: F811
    return make(*PLAIN, disk=disk_with(FILE))


def test_a_broker_admits_the_users_of_the_file(script):
    client = script.connect()
    assert send(client, USER) == 0
    assert send(client, USER, "topicA") == NO
    assert send(client, USER, "topicC") == NO
    assert send(client, ADMIN, "topicA") == 0
    assert send(client, INNER) == 0
    assert send(client, ("RocketMQ", "wrong")) == NO
    assert send(client, None) == NO


def test_a_changed_file_takes_effect(script):
    client = script.connect()
    script.disk.write(PATH, 0, [FILE.replace(b"topicB=PUB|SUB", b"topicB=SUB    ")])
    script.advance(1000)
    assert send(client, USER) == NO
    assert "acl-reloaded" in script.log.events()


def test_a_wrong_file_keeps_the_last_good_one(script):
    client = script.connect()
    script.disk.write(PATH, 0, [FILE.replace(b"topicB=PUB|SUB", b"topicB=PUB|SUP")])
    script.advance(5000)
    assert send(client, USER) == 0
    assert script.log.events("warning").count("acl-not-reloaded") == 1
    assert "12345678" not in repr(script.log.lines)
    script.disk.write(PATH, 0, [FILE])
    script.advance(1000)
    assert "acl-reloaded" in script.log.events()


@pytest.mark.parametrize("content", [b"accounts: [", None], ids=["wrong", "missing"])
def test_a_broker_does_not_start_without_a_good_file(content):
    disk = ScriptDisk() if content is None else disk_with(content)
    with pytest.raises(ConfigError, match=r"aclEnable = true: /acl/plain_acl\.yml: "):
        Script(broker_of(*PLAIN), disk=disk)


def test_a_path_is_needed():
    with pytest.raises(ConfigError, match=r"set rocketmq\.acl\.plain\.file"):
        load([], ["aclEnable=true", SETTINGS[2]], "broker")


def test_inner_credentials_are_needed():
    with pytest.raises(ConfigError, match="aclEnable = true is refused: set innerClientAuthenticationCredentials"):
        load([], ["aclEnable=true"], "broker")
