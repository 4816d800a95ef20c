"""The matrix of access control on a real cluster: every request code × nobody, wrong key, no right,
less than the least right, the least right, super.

Two brokers and a name server, with TLS and users, as `cluster up --preset secure` makes them. The
first half sends what must be refused, to every port, and compares what requests can show of the
cluster before and after each code. The second half sends what must be allowed. The requests are
those of the matrix in process (`tests/access/matrix.py`), whose tests compare the state of the
nodes themselves.
"""

import json
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqkit.broker.node import NOT_ON_VIP
from rmqkit.client_keys import keys_of_file
from rmqkit.runtime.calls import code_name
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.remoting.frames import FrameBuffer
from tests.access.matrix import BROKER, CLUSTER, NAMESERVER, Case
from tests.broker.requests import send_fields
from tests.cli.conftest import Shell, free_base, lifeline, make_shell, purge  # noqa: F401  # a fixture
from tests.helpers.script import Command, read_command, write_command
from tests.helpers.signing import signed

pytestmark = pytest.mark.long

NO = 16
#: a pull after an earlier case has reset the offset of the group
OFFSET_RESET = 21
TIMEOUT_S = 30.0
Keys = tuple[str, str]
#: requests from which a broker takes nothing but the advice to ask its name servers or controllers
HINTS = (RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, RequestCode.NOTIFY_BROKER_ROLE_CHANGED)
#: requests of a node that would take a member of the running cluster away, or add one
OF_MEMBERS = (103, 104, 205, 905, 906, 904, 60005)
TABLES = {"broker": BROKER, "vip": BROKER, "nameserver": NAMESERVER}


class Wire:
    """One TLS connection to a port, on which requests are sent as Apache's clients write them."""

    def __init__(self, port: int, trust: ssl.SSLContext) -> None:
        plain = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._sock = trust.wrap_socket(plain, server_hostname="localhost")
        self._frames = FrameBuffer(64 << 20)
        self._opaque = 0

    def ask(self, user: Keys | None, code: int, fields: Any = None, body: bytes = b"") -> Command:
        """Send a request, unsigned without a user, and return its answer."""
        self._opaque += 1
        whole = dict(fields or {}) if user is None else signed(user, fields, body)
        self._sock.sendall(write_command(code, whole, body, opaque=self._opaque))
        while True:
            data = self._sock.recv(65_536)
            assert data, f"the node closed the connection at {code_name(code)}"
            for frame in self._frames.feed(data):
                command = read_command(frame)
                if command.flag & 1 and command.opaque == self._opaque:
                    return command

    def close(self) -> None:
        self._sock.close()


class Secure:
    """A secure cluster, its super user, and connections to its ports."""

    def __init__(self, shell: Shell) -> None:
        folder = Path(shell.home) / "default"
        trust = ssl.create_default_context(cafile=str(folder / "tls/ca.pem"))
        nodes = {node["node"]: int(node["address"].rpartition(":")[2]) for node in shell.json("cluster", "status")["nodes"]}
        master = nodes["broker-a-0"]
        self.wires = {
            "broker": Wire(master, trust),
            "vip": Wire(master - 2, trust),
            "nameserver": Wire(nodes["ns-0"], trust),
        }
        keys = [keys_of_file(folder / "access" / f"{name}.yml") for name in ("operator", "inner")]
        self.root, self.inner = [(each.access_key, each.secret_key) for each in keys]
        self.cluster = next(iter(self.super("nameserver", 106).json["clusterAddrTable"]))
        self.broker_name = "broker-a"
        self.users: set[str] = set()
        for code in (17, 200):
            assert self.super("broker", code, BROKER[code].fields, BROKER[code].data).code == 0
        self.message_id = str(self.super("broker", 310, send_fields(), b"x").ext["msgId"])
        self.add_user("bob", (("Topic:B", "Pub"),))
        self.add_user("ann", ())

    def super(self, port: str, code: int, fields: Any = None, body: bytes = b"") -> Command:
        return self.wires[port].ask(self.root, code, fields, body)

    def add_user(self, name: str, rules: Any) -> Keys:
        """Create a user with these rules, unless this test has."""
        keys = (name, f"{name}-secret")
        if name in self.users:
            return keys
        self.users.add(name)
        body = json.dumps({"password": keys[1]}).encode()
        assert self.super("broker", 3001, {"username": name}, body).code == 0
        entries = [
            {"resource": resource.replace(CLUSTER, f"Cluster:{self.cluster}"), "actions": [action], "decision": "Allow"}
            for resource, action in rules
        ]
        if entries:
            acl = json.dumps({"policies": [{"policyType": "Custom", "entries": entries}]}).encode()
            assert self.super("broker", 3006, {"subject": f"User:{name}"}, acl).code == 0
        return keys

    def restore(self) -> None:
        """Create again what an allowed request may have deleted or changed."""
        for code in (17, 200):
            self.super("broker", code, BROKER[code].fields, BROKER[code].data)
        self.super("broker", 3001, {"username": "bob"}, b'{"password":"bob-secret"}')
        self.super("broker", 3003, {"username": "new"})
        rule = {"resource": "Topic:B", "actions": ["Pub"], "decision": "Allow"}
        acl = json.dumps({"policies": [{"policyType": "Custom", "entries": [rule]}]}).encode()
        self.super("broker", 3006, {"subject": "User:bob"}, acl)

    def state(self) -> Any:
        """What requests show of the cluster: tables, users, settings, offsets, routes."""
        shown = [self.super("broker", code).body for code in (21, 201, 43, 45, 26, 402)]
        shown.append(self.wires["broker"].ask(self.inner, 60004).body)
        shown += [self.super("broker", 30, {"topic": "T", "queueId": str(queue)}).ext for queue in range(4)]
        shown += [self.super("nameserver", code).body for code in (106, 206, 304, 319)]
        shown.append(self.super("nameserver", 105, {"topic": "T"}).body)
        shown.append(self.super("nameserver", 101, {"namespace": "N", "key": "k"}).code)
        return shown

    def case(self, code: int, case: Case) -> Case:
        """Return the request with the names of this cluster, and the place of its message of T."""
        names = {"clusterName": self.cluster, "cluster": self.cluster, "msgId": self.message_id}
        if code in (RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.CONSUMER_SEND_MSG_BACK):
            names["offset"] = str(int(self.message_id[-16:], 16))
        return case._replace(fields={key: names.get(key, value) for key, value in case.fields.items()})


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, lifeline: int) -> Iterator[Secure]:  # noqa: F811
    shell = make_shell(tmp_path_factory.mktemp("matrix"), lifeline)
    base = free_base()
    words = ["--preset", "secure", "--base-port", base, "--replicas", "2"]
    for setting in ("authFailuresMax=1000000", "recallMessageEnable=true"):
        words += ["--set", setting]
    shell.run("cluster", "up", *words)
    found = Secure(shell)
    yield found
    for wire in found.wires.values():
        wire.close()
    purge(shell)


def least(secure: Secure, code: int, case: Case) -> list[Keys]:
    """Return users that have one rule less than the code needs, and last the one that has all."""
    rules = case.rules or ()
    lacking = [secure.add_user(f"u{code}-{at}", rules[:at] + rules[at + 1 :]) for at in range(len(rules)) if len(rules) > 1]
    return [*lacking, secure.add_user(f"u{code}", rules)]


def test_refused_requests_change_nothing(secure: Secure):
    everything = secure.add_user("all", (("*", "All"),))
    tried = 0
    for port, table in TABLES.items():
        users = {code: least(secure, code, case) for code, case in table.items()}
        wire = secure.wires[port]
        before = secure.state()
        for code, given in sorted(table.items()):
            case = secure.case(code, given)
            strangers: list[Keys | None] = [None, ("ann", "wrong"), (secure.root[0], "wrong"), (secure.inner[0], "wrong")]
            strangers += [("eve", "x"), ("ann", "ann-secret"), *users[code][:-1]]
            if case.rules is None:
                strangers.append(everything)
            for user in strangers:
                if user is None and code in HINTS:
                    continue  # the address of a name server or a controller may send it
                answer = wire.ask(user, code, case.fields, case.data)
                refused = 3 if port == "vip" and code in NOT_ON_VIP else NO
                assert (answer.code, answer.body) == (refused, b""), (port, code_name(code), user, answer)
                tried += 1
            assert secure.state() == before, (port, code_name(code))
    assert tried > 1000


@pytest.mark.parametrize("port", TABLES)
def test_the_least_right_and_super_users_get_through(secure: Secure, port: str):
    table = TABLES[port]
    wire = secure.wires[port]
    users = {code: least(secure, code, case)[-1] for code, case in table.items()}
    if port == "nameserver":
        wait_for_users(secure, users[max(code for code, case in table.items() if case.rules)])
    for code, given in sorted(table.items()):
        if code in OF_MEMBERS or (port == "vip" and code in NOT_ON_VIP):
            continue
        case = secure.case(code, given)
        for user in (users[code], secure.root) if case.rules is not None else (secure.root, secure.inner):
            secure.restore()
            answer = wire.ask(user, code, case.fields, case.data)
            assert answer.code in (0, OFFSET_RESET, *case.others), (port, code_name(code), user, answer)
            if code not in (RequestCode.AUTH_GET_USER, RequestCode.AUTH_LIST_USER):
                assert secure.root[1].encode() not in answer.body or code == 60004
            assert secure.inner[1].encode() not in answer.body


def wait_for_users(secure: Secure, keys: Keys) -> None:
    """Wait until the name server has a user: the master sends it its table after a change."""
    deadline = time.monotonic() + TIMEOUT_S
    while secure.wires["nameserver"].ask(keys, 105, {"topic": "TBW102"}).code == NO:
        assert time.monotonic() < deadline
        time.sleep(0.05)
