"""Files of ACL 1.0: what they mean, and what is refused in them."""

import subprocess
import sys

import pytest

from rmqkit.access.decision import decide
from rmqkit.access.model import Action, Resource
from rmqkit.access.plain_acl import SIZE_MAX, PlainAclError, read_plain_acl

PATH = "conf/plain_acl.yml"
#: the file that Apache's 4.9.8 ships, without its white lists
SHIPPED = """
globalWhiteRemoteAddresses:

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
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB

  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: ""
    # if it is admin, it could access all resources
    admin: true
"""


def read(text, path=PATH):
    return read_plain_acl({path: text.encode() if isinstance(text, str) else text})


def account(more="", name="orders-app", secret="12345678"):
    return f"accounts:\n  - accessKey: {name}\n    secretKey: {secret}\n    {more}\n"


def rules(text):
    (found,) = read(text).values()
    return {kind.value: [str(each) for each in entries] for kind, entries in found.policies.items()}


def test_the_shipped_file():
    users = read(SHIPPED)
    assert [(each.user.name, each.user.password, each.user.is_super) for each in users.values()] == [
        ("RocketMQ", "12345678", False),
        ("rocketmq2", "12345678", True),
    ]
    policies = users["RocketMQ"].policies
    assert {kind.value: [str(each) for each in entries] for kind, entries in policies.items()} == {
        "Custom": [
            "Deny All on Topic:topicA",
            "Allow Pub,Sub on Topic:topicB",
            "Allow Sub on Topic:topicC",
            "Deny All on Group:groupA",
            "Allow Pub,Sub on Group:groupB",
            "Allow Sub on Group:groupC",
        ],
        "Default": ["Deny All on Topic:*", "Allow Sub on Group:*"],
    }
    assert users["rocketmq2"].policies == {}


@pytest.mark.parametrize(
    ("resource", "action", "is_allowed"),
    [
        ("Topic:topicA", Action.PUB, False),
        ("Topic:topicB", Action.PUB, True),
        ("Topic:topicC", Action.PUB, False),
        ("Topic:topicC", Action.SUB, True),
        ("Topic:other", Action.SUB, False),
        ("Group:other", Action.SUB, True),
        ("Group:groupA", Action.SUB, False),
        ("Cluster:DefaultCluster", Action.GET, False),
    ],
)
def test_what_the_shipped_file_allows(resource, action, is_allowed):
    policies = read(SHIPPED)["RocketMQ"].policies
    assert decide(policies, Resource.parse(resource), frozenset((action,)), None).is_allowed is is_allowed


def test_without_a_default_nothing_else_is_allowed():
    assert rules(account("topicPerms: [orders=PUB]")) == {"Custom": ["Allow Pub on Topic:orders"]}


def test_a_retry_topic_means_its_group():
    assert rules(account('topicPerms: ["%RETRY%billing=SUB"]')) == {"Custom": ["Allow Sub on Group:billing"]}


@pytest.mark.parametrize(
    "secret", ["01234567", "1_000_000", "0x12345678", "1.50000", "true-or-false", "2024-01-01", '"~~~~~~~"']
)
def test_secrets_are_the_text_as_it_is_written(secret):
    (found,) = read(account(secret=secret)).values()
    assert found.user.password == secret.strip('"')


@pytest.mark.parametrize(("word", "is_super"), [("true", True), ("Yes", True), ("on", True), ("false", False), ("", False)])
def test_admin(word, is_super):
    (found,) = read(account(f"admin: {word}")).values()
    assert found.user.is_super is is_super


@pytest.mark.parametrize("text", ["", "# nothing\n", "accounts:\n", "accounts: []\nglobalWhiteRemoteAddresses: []\n"])
def test_a_file_without_accounts(text):
    assert read(text) == {}


def test_several_files():
    users = read_plain_acl({"a.yml": account(name="first-app").encode(), "b.yml": account(name="second-app").encode()})
    assert list(users) == ["first-app", "second-app"]


@pytest.mark.parametrize("word", ["pub", "ALL", "ANY", "PUB|SUB|DENY", "PUB | SUB", "PUBSUB", "ALLOW", "*", ""])
def test_unknown_permissions_name_file_account_and_word(word):
    with pytest.raises(PlainAclError) as caught:
        read(account(f'topicPerms: ["orders={word}"]'))
    text = str(caught.value)
    assert f"{PATH}:2: account orders-app: 'orders={word}': permission {word!r} is unknown" in text
    assert "one of DENY, PUB, SUB, PUB|SUB" in text


@pytest.mark.parametrize("key", ["defaultTopicPerm", "defaultGroupPerm"])
def test_unknown_defaults_name_their_key(key):
    with pytest.raises(PlainAclError, match=rf"account orders-app: {key}: permission 'SUBS' is unknown"):
        read(account(f"{key}: SUBS"))


@pytest.mark.parametrize("address", ["192.168.0.*", "10.0.0.1", "*", "10.0.0.0/8", "::1"])
def test_white_lists_are_refused(address):
    with pytest.raises(PlainAclError, match=r"account orders-app: whiteRemoteAddress is refused: .* without|no signature"):
        read(account(f"whiteRemoteAddress: '{address}'"))
    with pytest.raises(PlainAclError, match=r"plain_acl\.yml:1: globalWhiteRemoteAddresses is refused"):
        read(f"globalWhiteRemoteAddresses: ['{address}']\n" + account())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (account("topicPerms: [orders=PUB, orders=DENY]"), "Topic:orders has two permissions"),
        (account("defaultTopicPerm: DENY\n    defaultTopicPerm: PUB"), "defaultTopicPerm is there twice"),
        (account("topicPerms: ['orders*=PUB']"), "no patterns"),
        (account("topicPerms: [orders]"), "name=PERMISSION"),
        (account("topicPerms: ['=PUB']"), "name=PERMISSION"),
        (account("topicPerms: [a=b=PUB]"), "permission 'b=PUB' is unknown"),
        (account("topicPerms: orders=PUB"), "topicPerms must be a list"),
        (account("topicPerms: [[orders=PUB]]"), "topicPerms must be a text"),
        (account("defaultTopicPerm: [PUB]"), "defaultTopicPerm must be a text"),
        (account("admin: maybe"), "admin must be true or false"),
        (account("topicPerm: [orders=PUB]"), "unknown key"),
        (account("<<: {admin: true}"), "unknown key"),
        (account("[a]: b"), "unknown key"),
        (account() + account().removeprefix("accounts:\n"), "account orders-app is also in"),
        (account(name="short"), "accessKey must have more than 6 characters"),
        (account(secret="~"), "secretKey must have more than 6 characters"),
        ("accounts:\n  - secretKey: 12345678\n", "(without accessKey): accessKey must have"),
        ("accounts: many\n", "accounts must be a list"),
        ("accounts: [many]\n", "must have the keys accessKey"),
        ("- a\n", "must have the keys accounts"),
        ("just text", "must have the keys accounts"),
        ("users: []\n", "unknown key"),
        ("accounts: []\n---\naccounts: []\n", "no valid YAML"),
        ("accounts: [\n", "no valid YAML"),
        ("accounts: *here\n", "no valid YAML"),
        ("accounts: &here [*here]\n", "must have the keys accessKey"),
        ("accounts:\n\t- a\n", "no valid YAML"),
        (b"accounts: \xff\xfe\n", "no valid YAML"),
        ("\0", "no valid YAML"),
        ("accounts: " + "[" * 200_000, "plain_acl.yml"),
        ("accounts: " + "[" * 60 + "]" * 60, "more than 50 levels"),
        (b"#" * (SIZE_MAX + 1), f"more than {SIZE_MAX} bytes"),
        (account('""', name='"a\\u0007bcdefg"'), "no valid YAML"),
        (account(name='"a\\u0007bcdefg"'), "printable characters only"),
        (account("topicPerms: [" + ",".join(f"t{n}=PUB" for n in range(1001)) + "]"), "more than 1000 permissions"),
    ],
)
def test_invalid_files_are_refused_with_a_reason(text, why):
    with pytest.raises(PlainAclError) as caught:
        read(text)
    assert why in str(caught.value)
    assert "plain_acl.yml" in str(caught.value)


def test_accounts_in_two_files():
    with pytest.raises(PlainAclError, match=r"b\.yml:2: account orders-app is also in a\.yml:2"):
        read_plain_acl({"a.yml": account().encode(), "b.yml": account().encode()})


@pytest.mark.parametrize(
    "text",
    [
        account("admin: tr-ue", secret="hidden-1234"),
        account("hidden-1234: x"),
        "accounts:\n  - accessKey: orders-app\n    hidden-1234\n",
        "accounts:\n  - accessKey: orders-app\n    secretKey: *hidden-1234\n",
        'accounts:\n  - accessKey: orders-app\n    secretKey: "hidden-1234\\q"\n',
        account("admin: hidden-1234"),
        account("whiteRemoteAddress: hidden-1234"),
        account(secret='"hidden-1234\\u0007"'),
    ],
)
def test_errors_show_no_secret(text):
    with pytest.raises(PlainAclError) as caught:
        read(text)
    assert "hidden" not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__  # its text quotes the file


def test_without_pyyaml_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['yaml'] = None\n"
        "from rmqkit.access.plain_acl import PlainAclError, read_plain_acl\n"
        "try: read_plain_acl({'plain_acl.yml': b''})\n"
        "except PlainAclError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "plain_acl.yml needs PyYAML: pip install 'rmqkit[acl]'"
