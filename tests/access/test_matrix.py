"""Every request code of every listener × nobody, wrong key, no right, the least right, super.

Who is refused must not have changed anything. The user with the least right must get through, and
not without any one of its rules.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from rmqkit.access.listeners import LISTENERS, check_listeners
from rmqkit.access.table import AccessTable
from rmqkit.broker.node import HANDLERS, NOT_ON_VIP
from rmqkit.client.peer_calls import PEER_CALLS
from rmqkit.config import NetworkLimits, from_values, load
from rmqkit.container.node import ChangeResult, ContainerNode, rows
from rmqkit.controller.handlers import HANDLERS as CONTROLLER_HANDLERS
from rmqkit.controller.node import Controller
from rmqkit.controller.single_log import make_single
from rmqkit.errors import ConfigError, RmqkitError
from rmqkit.nameserver.handlers import HANDLERS as NAMESERVER_HANDLERS
from rmqkit.nameserver.node import NameServer
from rmqkit.runtime.calls import Handlers, code_name
from rmqkit.runtime.ports import Clock
from rmqkit.store.heap_disk import HeapDisk
from rmqkit.wire.bodies.access import AccessTableBody
from rmqkit.wire.codes import OwnRequestCode, RequestCode, ResponseCode
from rmqkit.wire.schema import NoFields
from tests.access.matrix import BROKER, CONTAINER, CONTROLLER, NAMESERVER, Case
from tests.broker import requests
from tests.broker.conftest import MakeScript, make  # noqa: F401  # a fixture
from tests.helpers.script import Client, Script
from tests.helpers.signing import INNER, ROOT, SETTINGS, ask, signed

NO = ResponseCode.NO_PERMISSION
ANN = ("ann", "ann-secret")
BOB_RULE = ("Topic:B", "Pub")
#: what no answer may show
SECRETS = ("root-secret", "inner-secret", "ann-secret")
#: super users see the passwords of users
SHOW_PASSWORDS = (RequestCode.AUTH_GET_USER, RequestCode.AUTH_LIST_USER, OwnRequestCode.GET_ACCESS_TABLE)


def ids(table: dict[int, Case]) -> list[Any]:
    return [pytest.param(code, case, id=code_name(code)) for code, case in sorted(table.items())]


def put_rules(client: Client, *rules: tuple[str, str], name: str = "ann") -> None:
    entries = [{"resource": resource, "actions": [action], "decision": "Allow"} for resource, action in rules]
    body = json.dumps({"policies": [{"policyType": "Custom", "entries": entries}]}).encode()
    assert ask(client, ROOT, RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, body).code == 0


def users(client: Client) -> None:
    """Add ann, who has no right, and bob, with whom requests about users deal."""
    for name in ("ann", "bob"):
        body = json.dumps({"password": f"{name}-secret"}).encode()
        assert ask(client, ROOT, RequestCode.AUTH_CREATE_USER, {"username": name}, body).code == 0
    put_rules(client, BOB_RULE, name="bob")


@pytest.fixture
def broker(make: MakeScript) -> Script:  # noqa: F811
    script = make(*SETTINGS, "enablePropertyFilter=true", "recallMessageEnable=true", "authFailuresMax=1000")
    client = script.connect()
    for code in (17, 200):
        case = BROKER[code]
        assert ask(client, ROOT, code, case.fields, case.data).code == 0
    assert ask(client, ROOT, 310, requests.send_fields(), b"x").code == 0
    assert ask(client, ROOT, 15, {**BROKER[15].fields, "queueId": "1"}).code == 0
    users(client)
    return script


def state(script: Script) -> Any:
    """What requests could have changed."""
    node = script.node
    return (
        node.topics.snapshot().encode(),
        node.groups.snapshot().encode(),
        node.offsets.snapshot().encode(),
        node.view.access.table.snapshot().encode(),
        node.replication.request_modes.table.encode(),
        node.store.offset_written,
        node.clients.count,
        node.config.values,
        node.view.locks.facts(0),
    )


def refused_to_all_but_the_least(
    client: Client, code: int, case: Case, grant: Callable[..., None], look: Callable[[], Any]
) -> None:
    """Send the request as everybody who must be refused, then with the least right."""
    strangers = (None, ("ann", "wrong"), ("root", "wrong"), ("node", "wrong"), ("eve", "x"), ANN)
    for user in strangers:
        before = look()
        answer = ask(client, user, code, case.fields, case.data)
        assert answer.code == NO, (user, answer)
        assert answer.body == b""
        assert look() == before, user
    for left_out in case.rules or ():
        grant(*(each for each in case.rules or () if each != left_out))
        before = look()
        answer = ask(client, ANN, code, case.fields, case.data)
        assert answer.code == NO, (left_out, answer)
        assert look() == before, left_out
    if case.rules is None:
        grant(("*", "All"))
        before = look()
        assert ask(client, ANN, code, case.fields, case.data).code == NO
        assert look() == before


def allowed(client: Client, user: tuple[str, str], code: int, case: Case) -> None:
    answer = ask(client, user, code, case.fields, case.data)
    assert answer.code in (0, *case.others), answer
    shown = answer.body.decode("utf-8", "replace") + repr(answer.header)
    if not (user != ANN and code in SHOW_PASSWORDS):
        assert not any(secret in shown for secret in SECRETS)


def only(table: AccessTable, client: Client) -> Callable[..., None]:
    """Return a function that gives ann these rules and no others."""

    def grant(*rules: tuple[str, str]) -> None:
        if table.accounts["ann"].policies:
            assert ask(client, ROOT, RequestCode.AUTH_DELETE_ACL, {"subject": "User:ann"}).code == 0
        if rules:
            put_rules(client, *rules)

    return grant


# --- a broker


@pytest.mark.parametrize(("code", "case"), ids(BROKER))
def test_a_broker_refuses(broker: Script, code: int, case: Case):
    client = broker.connect()
    grant = only(broker.node.view.access.table, client)
    refused_to_all_but_the_least(client, code, case, grant, lambda: state(broker)[:-1])


@pytest.mark.parametrize(("code", "case"), ids(BROKER))
def test_a_broker_allows_the_least(broker: Script, code: int, case: Case):
    client = broker.connect()
    if case.rules is not None:
        only(broker.node.view.access.table, client)(*case.rules)
        allowed(client, ANN, code, case)
    else:
        allowed(client, INNER, code, case)


@pytest.mark.parametrize(("code", "case"), ids(BROKER))
def test_a_broker_allows_super_users(broker: Script, code: int, case: Case):
    allowed(broker.connect(), ROOT, code, case)


def test_the_vip_port_is_checked_like_the_main_port(broker: Script):
    client = broker.connect("vip")
    for code, case in BROKER.items():
        for user in (None, ("root", "wrong"), ANN):
            answer = ask(client, user, code, case.fields, case.data)
            assert answer.code == (3 if code in NOT_ON_VIP else NO), code
    assert ask(client, ROOT, 310, requests.send_fields(), b"x").code == 0


def test_only_this_broker_locks_are_for_nodes(broker: Script):
    client = broker.connect()
    grant = only(broker.node.view.access.table, client)
    grant(("*", "All"))
    body = json.dumps({**json.loads(BROKER[41].data), "onlyThisBroker": True}).encode()
    assert ask(client, ANN, 41, {}, body).code == NO
    assert ask(client, INNER, 41, {}, body).code == 0


# --- a name server


@pytest.fixture
def nameserver() -> Script:
    values: dict[str, Any] = {"kvConfigPath": "/ns/kv.json", "configStorePath": "/ns/ns.properties"}
    values |= dict(each.split("=", 1) for each in SETTINGS)
    config = load([], [f"{key}={value}" for key, value in values.items()], "nameserver")
    script = Script(lambda ports: NameServer("ns", ports, config))
    client = script.connect()
    assert ask(client, INNER, 103, NAMESERVER[103].fields, NAMESERVER[103].data).code == 0
    tell_users(client)
    return script


def tell_users(client: Client, *rules: tuple[str, str]) -> None:
    """Send the table of the broker group, in which ann has these rules."""
    entries = [{"resource": resource, "actions": [action], "decision": "Allow"} for resource, action in rules]
    policies = [{"policyType": "Custom", "entries": entries}]
    body = {
        "users": [{"username": "ann", "password": "ann-secret"}],
        "acls": [{"subject": "User:ann", "policies": policies}] if rules else [],
    }
    assert ask(client, INNER, 60005, NAMESERVER[60005].fields, json.dumps(body).encode()).code == 0


def routes(script: Script) -> Any:
    node = script.node
    return (
        repr(node.routes.groups),
        repr(node.routes.topics),
        repr(node.kv.tables),
        node.config.values,
        len(node.access.tables),
    )


@pytest.mark.parametrize(("code", "case"), ids(NAMESERVER))
def test_a_name_server(nameserver: Script, code: int, case: Case):
    client = nameserver.connect()
    refused_to_all_but_the_least(client, code, case, lambda *rules: tell_users(client, *rules), lambda: routes(nameserver))
    if case.rules is not None:
        tell_users(client, *case.rules)
        allowed(client, ANN, code, case)
    else:
        allowed(client, INNER, code, case)
    allowed(client, ROOT, code, case)


def test_every_producer_gets_the_route_after_which_topics_are_created(nameserver: Script):
    client = nameserver.connect()
    assert ask(client, ANN, 105, {"topic": "TBW102"}).code == 17
    assert ask(client, None, 105, {"topic": "TBW102"}).code == NO


def test_a_list_of_topics_is_filtered(nameserver: Script):
    client = nameserver.connect()
    config = {"topicName": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    table = {"T": config, "U": {**config, "topicName": "U"}}
    body = json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": table}}).encode()
    assert ask(client, INNER, 103, NAMESERVER[103].fields, body).code == 0
    tell_users(client, ("Topic:T", "List"))
    assert ask(client, ANN, 206).json["topicList"] == ["T"]
    tell_users(client, ("Cluster:DefaultCluster", "Get"))
    assert {"T", "U"} <= set(ask(client, ANN, 206).json["topicList"])


def test_a_slave_does_not_bring_back_older_users(nameserver: Script):
    client = nameserver.connect()
    fields, body = dict(NAMESERVER[60005].fields), {"users": [], "acls": [], "dataVersion": {"counter": 5}}
    assert ask(client, INNER, 60005, fields, json.dumps(body).encode()).code == 0
    old = {"users": [{"username": "ann", "password": "ann-secret"}], "acls": [], "dataVersion": {"counter": 4}}
    assert ask(client, INNER, 60005, {**fields, "brokerId": "1"}, json.dumps(old).encode()).code == 0
    assert ask(client, ANN, 105, {"topic": "T"}).remark == "User:ann is not found."


def test_a_name_server_without_authentication_takes_no_users():
    config = from_values("nameserver", {"kvConfigPath": "/ns/kv.json", "configStorePath": "/ns/ns.properties"})
    script = Script(lambda ports: NameServer("ns", ports, config))
    assert script.connect().ask(60005, NAMESERVER[60005].fields, NAMESERVER[60005].data).code == 3


# --- a controller


@pytest.mark.parametrize(("code", "case"), ids(CONTROLLER))
def test_a_controller(code: int, case: Case):
    values = [f"{key}=/c/{key}" for key in ("controllerStorePath", "configStorePath")]
    config = load([], [*values, *SETTINGS], "controller")
    script = Script(lambda ports: Controller("c", ports, config, make_single, 19876))
    client = script.connect()

    def look() -> Any:
        return script.node.sets.snapshot(), script.node.config.values

    refused_to_all_but_the_least(client, code, case, lambda *rules: None, look)
    allowed(client, INNER, code, case)
    allowed(client, ROOT, code, case)


# --- a container


class OneTable:
    """A container's host with one table of users."""

    def __init__(self) -> None:
        self.table = AccessTable(HeapDisk(Clock(), 1 << 20, lambda: None), Clock(), "config")
        self.asked: list[Any] = []

    def tables(self) -> list[AccessTable]:
        return [self.table]

    def remove(self, identity: Any, then: Any) -> None:
        """Take the request, and end the change in a later turn."""
        self.asked.append(then)

    def shown(self) -> list[Any]:
        return []

    def settings(self) -> dict[str, str]:
        return {}


@pytest.mark.parametrize(("code", "case"), ids(CONTAINER))
def test_a_container(code: int, case: Case):
    access = load([], SETTINGS, "broker").access
    host = OneTable()
    host.table.ensure_super(*ROOT)

    def grant(*rules: tuple[str, str]) -> None:
        entries = [{"resource": resource, "actions": [action], "decision": "Allow"} for resource, action in rules]
        acl = {"subject": "User:ann", "policies": [{"entries": entries}]}
        found = [{"username": name, "password": f"{name}-secret"} for name in ("ann", "root")]
        found[1]["userType"] = "Super"
        host.table.follow(AccessTableBody.decode(json.dumps({"users": found, "acls": [acl] if rules else []})))

    grant()
    script = Script(lambda ports: ContainerNode("container", ports, host, limits=NetworkLimits(), access=access))
    client = script.connect()
    refused_to_all_but_the_least(client, code, case, grant, lambda: len(host.asked))
    grant(*case.rules or ())
    for user in (ANN, ROOT):
        if code != RequestCode.REMOVE_BROKER:
            allowed(client, user, code, case)
            continue
        opaque = client.tell(code, signed(user, case.fields))
        script.turn(lambda: host.asked.pop()(ChangeResult()))
        assert client.answer_to(opaque).code == 0


# --- no rule, no start


@pytest.mark.parametrize(
    ("handlers", "table"),
    [(HANDLERS, BROKER), (NAMESERVER_HANDLERS, NAMESERVER), (CONTROLLER_HANDLERS, CONTROLLER), (rows, CONTAINER)],
    ids=["broker", "nameserver", "controller", "container"],
)
def test_the_matrix_has_every_code(handlers: Handlers, table: dict[int, Case]):
    assert handlers.rows.keys() == table.keys()
    assert all(row.access.text for row in handlers.rows.values())


def test_clients_take_requests_from_brokers_that_they_dialled():
    assert {row.access.text for row in PEER_CALLS.rows.values()} == {"a link that the client dialled"}


def test_a_row_without_a_rule_does_not_construct():
    table = Handlers()
    with pytest.raises(TypeError):
        table.handles(RequestCode.SEND_MESSAGE, NoFields)  # type: ignore[call-arg]
    with pytest.raises(RmqkitError, match=r"request code 10 \(SEND_MESSAGE\) has no access rule"):
        table.handles(RequestCode.SEND_MESSAGE, NoFields, access=None)  # type: ignore[arg-type]


def test_a_listener_without_a_rule_ends_the_start():
    check_listeners(LISTENERS)
    with pytest.raises(ConfigError, match="listener http2 has no rule"):
        check_listeners(["remoting", "http2"])
