"""Replays the exploits of past CVEs of RocketMQ and checks that *nothing has changed* afterwards.

The code of the answer proves little: the first fix of CVE-2023-33246 in 4.9 set an error code and
then continued. Therefore files and tables are compared byte by byte with their state before the
exploit.
"""

import json
import tracemalloc
import zlib
from dataclasses import replace
from typing import Any

import pytest

from rmqkit.broker.node import HANDLERS as BROKER_HANDLERS
from rmqkit.broker.node import Broker
from rmqkit.config import Host, from_values
from rmqkit.nameserver.handlers import HANDLERS as NAMESERVER_HANDLERS
from rmqkit.nameserver.node import NameServer
from rmqkit.runtime.connection import Address
from rmqkit.settings.keys import KINDS, rows
from rmqkit.settings.table import Row, Status, Type, show
from rmqkit.wire.codes import RequestCode
from tests.broker.conftest import broker_of
from tests.broker.requests import send_fields
from tests.helpers.script import Script, raw_frame
from tests.nameserver.peers import register_body
from tests.tidy.tree import GROUP, modules

NOT_SUPPORTED = 3
NO_PERMISSION = 16
CLIMBING = (
    "../../../../tmp/pwned",
    "..",
    ".",
    "../x",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "\x00",
    "a\x00b",
    "~",
    "%2e%2e/x",
    "a\n../b",
    "C:x",
)
#: the published exploit of CVE-2023-33246: the filter server's command line was built from these
SHELL = "filterServerNums=1\nrocketmqHome=-c $@|sh . echo touch /tmp/pwned;\n"
#: the exploit of CVE-2023-37582: it wrote a file at any path, with the other keys as its content
WRITE_FILE = "configStorePath=/tmp/pwned\nproductEnvName=* * * * * root touch /tmp/pwned\n"
SECRET = "hunter2-and-more"


IDENTITY = {
    "brokerName": "broker-a",
    "brokerAddr": "127.0.0.1:10911",
    "clusterName": "C",
    "haServerAddr": "127.0.0.1:10912",
    "brokerId": "0",
    "compressed": "false",
    "bodyCrc32": "0",
}


def make_broker() -> Script[Broker]:
    """Return a broker with a topic, a group, an offset and a message that could be damaged."""
    script = Script(broker_of())
    script.turn()
    client = script.connect()
    assert client.ask(RequestCode.SEND_MESSAGE_V2, send_fields("Kept"), b"kept").code == 0
    commit = {"consumerGroup": "G", "topic": "Kept", "queueId": "0", "commitOffset": "1"}
    assert client.ask(RequestCode.PULL_MESSAGE, pull_fields("Kept")).code == 0
    assert client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0
    client.close()
    script.advance(10_000)
    return script


def make_nameserver() -> Script[NameServer]:
    values = {"kvConfigPath": "/ns/kvConfig.json", "configStorePath": "/ns/namesrv.properties"}
    script = Script(lambda ports: NameServer("ns-0", ports, from_values("nameserver", values)))
    client = script.connect()
    client.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "N", "key": "k", "value": "v"})
    client.ask(RequestCode.REGISTER_BROKER, IDENTITY, register_body(("T1", "T2")))
    return script


@pytest.fixture
def broker() -> Script[Broker]:
    return make_broker()


@pytest.fixture
def ns() -> Script[NameServer]:
    return make_nameserver()


def state(script: Script[Any]) -> dict[str, Any]:
    """Return everything that outlives a connection: files on disk, tables, settings.

    `.bak` files are left out. They have the previous version, so rewriting a file unchanged changes
    its `.bak`.
    """
    node = script.node
    found: dict[str, Any] = {
        "files": {path: bytes(data) for path, data in script.disk.files.items() if not path.endswith(".bak")},
        "settings": repr(replace(node.config, host=Host())),
    }
    if isinstance(node, Broker):
        found |= {
            "topics": repr(sorted(node.topics.by_name.items())),
            "groups": repr(sorted(node.groups.by_name.items())),
            "offsets": repr(sorted(node.offsets.table.items())),
            "log": node.store.offset_max,
            "queues": sorted((each.topic, each.queue_id, each.offset_max) for each in node.store.queues()),
        }
    else:
        found |= {
            "topics": repr(sorted(node.routes.topics.items())),
            "groups": repr({name: group.addresses() for name, group in node.routes.groups.items()}),
            "kv": repr(node.kv.tables),
        }
    return found


@pytest.fixture(params=["broker", "ns"])
def node(request: pytest.FixtureRequest) -> Script[Any]:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def update_code(script: Script[Any]) -> RequestCode:
    is_broker = isinstance(script.node, Broker)
    return RequestCode.UPDATE_BROKER_CONFIG if is_broker else RequestCode.UPDATE_NAMESRV_CONFIG


def get_code(script: Script[Any]) -> RequestCode:
    return RequestCode.GET_BROKER_CONFIG if isinstance(script.node, Broker) else RequestCode.GET_NAMESRV_CONFIG


def live_line(script: Script[Any]) -> str:
    """Return a change of a setting that would be accepted if sent alone."""
    return "brokerPermission=2\n" if isinstance(script.node, Broker) else "enableTopicList=false\n"


def unchanged(script: Script[Any], before: dict[str, Any]) -> None:
    """Check that nothing changed, now and after a minute, when delayed work is done.

    After the minute the state must equal that of a twin that was not attacked.
    """
    same(state(script), before)
    twin: Script[Any] = make_broker() if isinstance(script.node, Broker) else make_nameserver()
    for each in (script, twin):
        each.advance(60_000)
    same(state(script), state(twin))
    assert not [path for path in script.disk.files if ".." in path or "pwned" in path]


def same(after: dict[str, Any], before: dict[str, Any]) -> None:
    files, files_before = after["files"], before["files"]
    assert sorted(files) == sorted(files_before)
    assert [path for path in files if files[path] != files_before[path]] == []
    for what, told in after.items():
        assert told == before[what], what


# --- CVE-2019-17572: names that become paths


@pytest.mark.parametrize("name", CLIMBING, ids=repr)
def test_2019_17572_no_name_leaves_the_store(broker: Script[Broker], name: str):
    """The topic is created by a send, by an administrator, by a group or by an offset."""
    before = state(broker)
    client = broker.connect()
    tries: list[tuple[RequestCode, dict[str, Any], bytes]] = [
        (RequestCode.SEND_MESSAGE_V2, send_fields(name), b"x"),
        (RequestCode.SEND_MESSAGE_V2, send_fields(f"%RETRY%{name}"), b"x"),
        (RequestCode.SEND_MESSAGE_V2, send_fields(f"%DLQ%{name}"), b"x"),
        (RequestCode.SEND_BATCH_MESSAGE, send_fields(name, m="true"), b"\x00" * 40),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(name), b""),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps({"groupName": name}).encode()),
        (
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "G", "topic": name, "queueId": "0", "commitOffset": "1"},
            b"",
        ),
        (
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": name, "topic": "T", "queueId": "0", "commitOffset": "1"},
            b"",
        ),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}, b""),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": name}, b""),
        (RequestCode.PULL_MESSAGE, pull_fields(name), b""),
    ]
    for code, fields, body in tries:
        answer = client.ask(code, fields, body)
        deletes_nothing = code in (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_SUBSCRIPTIONGROUP)
        assert answer.code != 0 or deletes_nothing, (code.name, name)
    client.close()
    unchanged(broker, before)


def test_2019_17572_names_in_a_heartbeat(broker: Script[Broker]):
    """The broker creates a group's retry topic when the group's first member connects."""
    before = state(broker)
    client = broker.connect()
    for name in CLIMBING:
        subscription = {"topic": name, "subString": "*", "subVersion": 1}
        group = {"groupName": name, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
        group |= {"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [subscription]}
        body = {"clientID": "c", "consumerDataSet": [group], "producerDataSet": [{"groupName": name}]}
        client.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())
    client.close()
    unchanged(broker, before)


# --- CVE-2023-33246, CVE-2023-37582 and the fix that did not return: settings


@pytest.mark.parametrize("exploit", [SHELL, WRITE_FILE], ids=["33246", "37582"])
@pytest.mark.parametrize("order", ["alone", "after a good key", "before a good key"])
def test_2023_33246_2023_37582_settings_reach_no_shell_and_no_path(node: Script[Any], exploit: str, order: str):
    before = state(node)
    good = live_line(node)
    text = {"alone": exploit, "after a good key": good + exploit, "before a good key": exploit + good}[order]
    client = node.connect()
    assert client.ask(update_code(node), {}, text.encode()).code != 0
    client.close()
    unchanged(node, before)


@pytest.mark.parametrize("kind", ["broker", "nameserver"])
def test_no_key_that_is_not_live_can_ride_on_one_that_is(kind: str, broker: Script[Broker], ns: Script[NameServer]):
    """All keys are tried: paths, ports, roles, names, secrets, keys of plug-ins."""
    script: Script[Any] = broker if kind == "broker" else ns
    before = state(script)
    client = script.connect()
    fixed = [row for row in rows(kind).values() if not row.live]  # type: ignore[index]
    assert len(fixed) > 50
    for text in (*(f"{row.key}={value_of(row)}" for row in fixed), "plugin.x.y=1", "plugins=evil", "no.such.key=1"):
        assert client.ask(update_code(script), {}, f"{live_line(script)}{text}\n".encode()).code != 0, text
        assert state(script) == before, text
    client.close()
    unchanged(script, before)


def value_of(row: Row) -> str:
    if row.type in (Type.STR, Type.PATH):
        return "/tmp/pwned"
    return "1" if row.default is None else show(row.default)


def test_no_live_key_is_a_path_or_a_command():
    """The allow-list is typed: live settings are numbers, switches, choices or checked texts."""
    for table in map(rows, KINDS):
        for row in table.values():
            if row.live:
                assert row.status is Status.WORKS, row.key
                assert row.type in (Type.BOOL, Type.INT, Type.LONG, Type.DOUBLE, Type.ENUM) or row.pattern, row.key
                assert row.type is not Type.PATH, row.key


def test_settings_are_not_changed_from_another_machine(node: Script[Any]):
    """Without access control, peers on other machines need permission in the node's file."""
    before = state(node)
    client = node.connect(peer="192.0.2.7:50000")
    client.conn.local = Address("192.0.2.1", 10911)
    answer = client.ask(update_code(node), {}, live_line(node).encode())
    assert answer.code == NO_PERMISSION
    assert "remoteConfigUpdateEnable" in str(answer.remark)
    assert client.ask(get_code(node)).code == 0
    client.close()
    unchanged(node, before)


@pytest.mark.parametrize("peer", ["127.0.0.1:50000", "127.8.8.8:50000", "[::1]:50000", "192.0.2.1:50000"])
def test_settings_are_changed_from_the_own_machine(node: Script[Any], peer: str):
    client = node.connect(peer=peer)
    client.conn.local = Address("192.0.2.1", 10911)
    assert client.ask(update_code(node), {}, live_line(node).encode()).code == 0


def test_remote_config_update_enable_accepts_settings_from_another_machine():
    script = Script(broker_of("remoteConfigUpdateEnable=true"))
    script.turn()
    client = script.connect(peer="192.0.2.7:50000")
    client.conn.local = Address("192.0.2.1", 10911)
    assert client.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=2\n").code == 0
    assert client.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"remoteConfigUpdateEnable=false\n").code != 0


# --- the name server's key-value file


@pytest.mark.parametrize("name", ["../../x", "a\x1b[0m", "", "x" * 300, "a\nb"], ids=repr)
def test_kv_names_are_checked(ns: Script[NameServer], name: str):
    before = state(ns)
    client = ns.connect()
    for fields in ({"namespace": name, "key": "k"}, {"namespace": "N", "key": name}):
        answer = client.ask(RequestCode.PUT_KV_CONFIG, {**fields, "value": "/tmp/pwned"})
        if name == "../../x":  # stored as a plain name; it never becomes a path
            assert answer.code == 0
            client.ask(RequestCode.DELETE_KV_CONFIG, fields)
        else:
            assert answer.code != 0
    client.close()
    assert set(ns.disk.files) - set(before["files"]) <= {"/ns/kvConfig.json", "/ns/kvConfig.json.bak"}
    if name != "../../x":
        unchanged(ns, before)


# --- CVE-2024-23321: secrets


@pytest.mark.parametrize("kind", ["broker", "nameserver"])
def test_2024_23321_no_answer_and_no_log_line_has_a_secret(kind: str):
    secrets = {key: secret_of(key) for key, row in rows(kind).items() if row.secret}  # type: ignore[index]
    assert secrets
    script: Script[Any]
    if kind == "broker":
        script = Script(broker_of(*(f"{key}={value}" for key, value in secrets.items())))
    else:
        values: dict[str, Any] = {"kvConfigPath": "/ns/kv", "configStorePath": "/ns/conf", **secrets}
        script = Script(lambda ports: NameServer("ns-0", ports, from_values("nameserver", values)))
    script.turn()
    client = script.connect()
    answers = [client.ask(get_code(script))]
    answers.append(client.ask(update_code(script), {}, live_line(script).encode()))
    for key in secrets:
        answers.append(client.ask(update_code(script), {}, f"{key}={secrets[key]}".encode()))
        assert answers[-1].code != 0
    assert answers[0].code == 0
    assert SECRET not in repr(answers)
    assert SECRET not in repr(script.log.lines)
    assert SECRET.encode() not in b"".join(map(bytes, script.disk.files.values()))


def secret_of(key: str) -> str:
    """Return a value that a secret setting accepts."""
    names = {
        "initAuthenticationUser": ("username", "password"),
        "innerClientAuthenticationCredentials": ("accessKey", "secretKey"),
    }
    return json.dumps(dict(zip(names[key], ("someone", SECRET), strict=True))) if key in names else SECRET


# --- typed JSON


TYPED = (
    b'{"@type":"java.lang.AutoCloseable","@type":"java.io.FileOutputStream","file":"/tmp/pwned","append":false}',
    b'{"@type":"com.sun.rowset.JdbcRowSetImpl","dataSourceName":"ldap://127.0.0.1/x","autoCommit":true}',
    b'[{"@type":"java.net.Inet4Address","val":"127.0.0.1"}]',
    b'{"x":{"@type":"java.lang.Class","val":"java.lang.Runtime"}}',
)


@pytest.mark.parametrize("body", TYPED, ids=["stream", "jndi", "address", "class"])
def test_type_marks_in_json_make_nothing(node: Script[Any], body: bytes):
    """Every code is sent with a class name in body and header: at most an error, never a change."""
    before = state(node)
    table = BROKER_HANDLERS if isinstance(node.node, Broker) else NAMESERVER_HANDLERS
    for code in sorted(table.rows):
        client = node.connect()
        client.tell(code, {"@type": "java.net.URL", "topic": body.decode()}, body)
        if not client.closed:
            client.close()
    header = b'{"code":25,"@type":"java.net.URL","extFields":%b,"flag":0,"opaque":1}' % body
    client = node.connect()
    client.send(raw_frame(header, body))
    if not client.closed:
        client.close()
    unchanged(node, before)


@GROUP
def test_nothing_here_can_make_objects_or_code_of_data():
    banned = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "jsonpickle"}
    #: reads YAML as nodes, and makes no object of them
    nodes_only = "rmqkit.access.plain_acl"
    for module in modules():
        if module.package == "spark":
            continue
        for name, line in module.imports:
            if (name, module.name) == ("yaml", nodes_only):
                assert "yaml.load" not in module.text
                continue
            assert name.split(".")[0] not in banned, f"{module.path}:{line}"
        for call in (" eval(", " exec(", "os.system(", "shell=True", "os.popen("):
            assert call not in module.text, f"{module.path}: {call}"


# --- default deny


def test_a_code_without_a_decision_is_refused(node: Script[Any]):
    """Apache's access control accepts unannotated codes; here codes in no table are refused."""
    table = BROKER_HANDLERS if isinstance(node.node, Broker) else NAMESERVER_HANDLERS
    codes = sorted(({int(code) for code in RequestCode} | set(range(0, 4000, 7))) - set(table.rows))
    before = state(node)
    client = node.connect()
    for code in codes:
        answer = client.ask(code, {"topic": "T", "brokerName": "broker-a", "groupName": "g"}, b"{}")
        assert answer.code == NOT_SUPPORTED, code
    client.close()
    unchanged(node, before)


# --- decompression bombs, and data that is not a frame


def test_an_inflate_bomb_takes_neither_memory_nor_a_place(ns: Script[NameServer]):
    before = state(ns)
    bomb = zlib.compress(bytes(200 * 1024 * 1024), 1)
    client = ns.connect()
    tracemalloc.start()
    try:
        answer = client.ask(RequestCode.REGISTER_BROKER, {**IDENTITY, "brokerName": "b", "compressed": "true"}, bomb)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.code != 0
    assert peak < 150 * 1024 * 1024
    client.close()
    unchanged(ns, before)


def test_a_compressed_message_is_not_opened_by_the_broker(broker: Script[Broker]):
    """It is stored and returned unchanged; the consumer limits the decompressed size."""
    bomb = zlib.compress(bytes(100 * 1024 * 1024), 9)
    compressed = 1 | 3 << 8
    client = broker.connect()
    tracemalloc.start()
    try:
        assert client.ask(RequestCode.SEND_MESSAGE_V2, send_fields("Kept", f=str(compressed)), bomb).code == 0
        answer = client.ask(RequestCode.PULL_MESSAGE, {**pull_fields("Kept"), "queueOffset": "1"})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert bomb in answer.body
    assert peak < 20 * 1024 * 1024


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY TCP4 127.0.0.1 127.0.0.1 1 10911\r\n",
        b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a\x21\x11\x00\x0c\x7f\x00\x00\x01\x7f\x00\x00\x01\x00\x01\x00\x02",
        (0x7FFFFFFF).to_bytes(4, "big"),
        (-1).to_bytes(4, "big", signed=True) + b"x",
    ],
    ids=["proxy v1", "proxy v2", "huge", "negative"],
)
def test_a_preamble_gives_nobody_another_address(node: Script[Any], data: bytes):
    """Apache accepts a HAProxy preamble from any peer and trusts its address."""
    before = state(node)
    client = node.connect(peer="192.0.2.7:50000")
    client.send(data)
    assert client.closed
    unchanged(node, before)


def topic_fields(name: str) -> dict[str, str]:
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }


def pull_fields(name: str) -> dict[str, str]:
    return {
        "consumerGroup": "G",
        "topic": name,
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "1",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }
