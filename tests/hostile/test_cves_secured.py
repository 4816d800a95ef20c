"""Replays the exploits of past CVEs of RocketMQ against nodes that enforce access control.

Every exploit is sent by nobody, with a wrong key, by a user without rights, by an application with
all rights on topics and groups, by an operator with rights on the cluster, and by a super user. At
most the super user's rights reach the checks behind access control, which `test_cves.py` tests. As
there, what counts is that *nothing has changed*: files, tables, settings, users and rules.

Secrets (CVE-2024-23321): only a super user sees the password of a user, and nobody the inner
credentials.
"""

import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from rmqkit.broker.node import HANDLERS, Broker
from rmqkit.config import from_values
from rmqkit.nameserver.node import NameServer
from rmqkit.wire.codes import OwnRequestCode, RequestCode
from tests.broker.conftest import broker_of
from tests.broker.requests import pull_fields, send_fields
from tests.helpers.script import Script
from tests.helpers.signing import INNER, ROOT, SETTINGS, ask, signed
from tests.hostile.test_cves import CLIMBING, IDENTITY, SHELL, WRITE_FILE, live_line, state, topic_fields
from tests.nameserver.peers import register_body

NO_PERMISSION = 16
POOR, APP, OPERATOR = ("poor", "poor-secret"), ("app", "app-secret"), ("operator", "operator-secret")
RULES = {
    POOR: (),
    APP: (("Topic:*", "Pub,Sub"), ("Group:*", "Sub")),
    OPERATOR: (("Cluster:*", "Get,Update,Create"), ("Topic:*", "Get,List"), ("Group:*", "Get,List")),
}
ATTACKERS = {
    "nobody": None,
    "wrong key": (ROOT[0], "wrong"),
    "wrong inner key": (INNER[0], "wrong"),
    "unknown": ("stranger", "stranger-secret"),
    "poor": POOR,
    "app": APP,
}
#: files that change with the time alone
CLOCKED = ("/s/checkpoint", "/s/config/consumeQueueEnds.json")
SECRETS = tuple(secret for _, secret in (INNER, ROOT, *RULES))


def make_broker() -> Script[Broker]:
    """Return a broker with users, a topic, an offset and a message that could be damaged."""
    script = Script(broker_of(*SETTINGS, "autoCreateTopicEnable=true", "authFailuresMax=100000"))
    script.turn()
    client = script.connect()
    for (name, secret), rules in RULES.items():
        body = json.dumps({"password": secret}).encode()
        assert ask(client, ROOT, RequestCode.AUTH_CREATE_USER, {"username": name}, body).code == 0
        entries = [{"resource": on, "actions": actions.split(","), "decision": "Allow"} for on, actions in rules]
        if entries:
            acl = json.dumps({"policies": [{"policyType": "Custom", "entries": entries}]}).encode()
            assert ask(client, ROOT, RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, acl).code == 0
    assert ask(client, ROOT, RequestCode.SEND_MESSAGE_V2, send_fields("Kept"), b"kept").code == 0
    assert ask(client, ROOT, RequestCode.PULL_MESSAGE, pull_fields("Kept")).code == 0
    commit = {"consumerGroup": "CG", "topic": "Kept", "queueId": "0", "commitOffset": "1"}
    assert ask(client, ROOT, RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0
    client.close()
    script.advance(10_000)
    return script


@pytest.fixture(scope="module")
def kept() -> Script[Broker]:
    """One broker for all attacks: none of them may change it."""
    return make_broker()


@pytest.fixture
def broker(kept: Script[Broker]) -> Iterator[Script[Broker]]:
    before = whole_state(kept)
    yield kept
    kept.advance(1000)
    after = whole_state(kept)
    assert [path for path, data in after["files"].items() if before["files"].get(path) != data] == []
    assert after == before


def whole_state(script: Script[Broker]) -> dict[str, Any]:
    table = script.node.view.access.table
    assert table is not None
    found = {**state(script), "access": table.snapshot().encode()}
    found["files"] = {path: data for path, data in found["files"].items() if path not in CLOCKED}
    return found


def attack(script: Script[Any], user: Any, code: int, fields: dict[str, Any], body: bytes = b"") -> Any:
    client = script.connect(peer="127.0.0.1:50000")
    answer = ask(client, user, code, fields, body)
    client.close()
    return answer


@pytest.mark.parametrize("attacker", ATTACKERS)
def test_2019_17572_no_name_leaves_the_store(broker: Script[Broker], attacker: str):
    user = ATTACKERS[attacker]
    commit = {"queueId": "0", "commitOffset": "1"}
    for name in CLIMBING:
        tries: list[tuple[int, dict[str, Any], bytes]] = [
            (RequestCode.SEND_MESSAGE_V2, send_fields(name), b"x"),
            (RequestCode.SEND_MESSAGE_V2, send_fields(f"%RETRY%{name}"), b"x"),
            (RequestCode.SEND_BATCH_MESSAGE, send_fields(name, m="true"), b"\x00" * 40),
            (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(name), b""),
            (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps({"groupName": name}).encode()),
            (RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "G", "topic": name, **commit}, b""),
            (RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": name, "topic": "T", **commit}, b""),
            (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}, b""),
            (RequestCode.PULL_MESSAGE, pull_fields(name), b""),
        ]
        for code, fields, body in tries:
            assert attack(broker, user, code, fields, body).code != 0, (code, name)


def test_2019_17572_names_of_users_and_resources_are_no_paths():
    """Users and rules of any name stay in the one file of all of them."""
    script = make_broker()
    files = set(script.disk.files)
    table = script.node.view.access.table
    assert table is not None
    body = json.dumps({"password": "x"}).encode()
    for name in CLIMBING:
        for user in (None, POOR, APP):
            assert attack(script, user, RequestCode.AUTH_CREATE_USER, {"username": name}, body).code == NO_PERMISSION
        attack(script, ROOT, RequestCode.AUTH_CREATE_USER, {"username": name}, body)
        rule = {"resource": f"Topic:{name}", "actions": ["Pub"], "decision": "Allow"}
        acl = json.dumps({"policies": [{"entries": [rule]}]}).encode()
        attack(script, ROOT, RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, acl)
    script.advance(10_000)
    assert len(table.accounts) > 4 + len(CLIMBING) // 2
    assert set(script.disk.files) == files


@pytest.mark.parametrize("exploit", [SHELL, WRITE_FILE], ids=["33246", "37582"])
@pytest.mark.parametrize("attacker", [*ATTACKERS, "operator", "super"])
def test_2023_33246_2023_37582_settings_reach_no_shell_and_no_path(broker: Script[Broker], attacker: str, exploit: str):
    user = {**ATTACKERS, "operator": OPERATOR, "super": ROOT}[attacker]
    for text in (exploit, live_line(broker) + exploit, exploit + live_line(broker)):
        answer = attack(broker, user, RequestCode.UPDATE_BROKER_CONFIG, {}, text.encode())
        assert answer.code != 0
        if attacker in ATTACKERS:
            assert answer.code == NO_PERMISSION
            assert "brokerPermission" not in str(answer.remark)


@pytest.mark.parametrize("attacker", ATTACKERS)
def test_not_even_a_harmless_setting_is_changed(broker: Script[Broker], attacker: str):
    answer = attack(broker, ATTACKERS[attacker], RequestCode.UPDATE_BROKER_CONFIG, {}, live_line(broker).encode())
    assert answer.code == NO_PERMISSION


READS = (
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.AUTH_GET_USER,
    RequestCode.AUTH_LIST_USER,
    RequestCode.AUTH_GET_ACL,
    RequestCode.AUTH_LIST_ACL,
    OwnRequestCode.GET_ACCESS_TABLE,
)


@pytest.mark.parametrize("attacker", ATTACKERS)
@pytest.mark.parametrize("code", READS)
def test_2024_23321_settings_and_users_are_not_shown(broker: Script[Broker], attacker: str, code: int):
    answer = attack(broker, ATTACKERS[attacker], code, {"username": "root", "subject": "User:root"})
    assert answer.code == NO_PERMISSION
    assert answer.body == b""


def test_2024_23321_an_operator_sees_no_secret_in_any_answer(broker: Script[Broker]):
    """Every code of the broker, with fields that most of them take."""
    fields = {
        "username": "root",
        "subject": "User:root",
        "topic": "Kept",
        "consumerGroup": "G",
        "group": "G",
        "offset": "0",
    }
    answers = [attack(broker, OPERATOR, code, fields) for code in (*READS[:-1], RequestCode.GET_ALL_TOPIC_CONFIG)]
    assert [answer.code for answer in answers] == [0] * len(answers)
    assert attack(broker, OPERATOR, OwnRequestCode.GET_ACCESS_TABLE, fields).code == NO_PERMISSION
    seen = repr(answers)
    assert [secret for secret in SECRETS if secret in seen] == []


def test_2024_23321_the_inner_secret_is_in_no_answer_to_anybody():
    """Not even to a super user, who may ask for everything, the passwords of users included."""
    script = make_broker()
    fields = {"username": "root", "subject": "User:root", "topic": "Kept", "consumerGroup": "G", "offset": "0", "a": "G"}
    for code in sorted(HANDLERS.rows):
        client = script.connect(peer="127.0.0.1:50000")
        client.tell(code, signed(ROOT, fields))
        assert INNER[1] not in repr(client.received), code
        if not client.closed:
            client.close()


def test_2024_23321_no_log_line_has_a_secret_or_a_signature():
    script = make_broker()
    client = script.connect(peer="127.0.0.1:50000")
    ask(client, ROOT, RequestCode.AUTH_UPDATE_USER, {"username": "poor"}, b'{"password":"another-secret"}')
    for key in ("innerClientAuthenticationCredentials", "initAuthenticationUser"):
        body = f'{key}={{"accessKey":"node","secretKey":"another-secret"}}'.encode()
        assert ask(client, ROOT, RequestCode.UPDATE_BROKER_CONFIG, {}, body).code != 0
    fields = signed(APP, send_fields("Kept"), b"x")
    client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"y")
    lines = repr(script.log.lines)
    assert "access-refused" in lines
    assert [secret for secret in (*SECRETS, "another-secret", fields["Signature"]) if secret in lines] == []


def test_2023_37582_the_name_server():
    """The first fix left the name server out: there, too, only inner callers get to the check."""
    values: dict[str, Any] = {"kvConfigPath": "/ns/kv", "configStorePath": "/ns/conf"}
    values |= dict(setting.split("=", 1) for setting in SETTINGS)
    values["authFailuresMax"] = "100000"
    script = Script(lambda ports: NameServer("ns-0", ports, from_values("nameserver", values)))
    client = script.connect()
    body = register_body(("T1", "T2"))
    identity = {**IDENTITY, "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF)}
    assert ask(client, INNER, RequestCode.REGISTER_BROKER, identity, body).code == 0
    before = state(script)
    for attacker, user in {**ATTACKERS, "super": INNER}.items():
        for text in (WRITE_FILE, live_line(script) + WRITE_FILE, WRITE_FILE + live_line(script)):
            answer = attack(script, user, RequestCode.UPDATE_NAMESRV_CONFIG, {}, text.encode())
            assert answer.code == NO_PERMISSION or attacker == "super"
            assert answer.code != 0
            assert state(script) == before
        answer = attack(script, user, RequestCode.GET_NAMESRV_CONFIG, {})
        assert (answer.code == 0) == (attacker == "super")
        assert INNER[1] not in repr(answer)
