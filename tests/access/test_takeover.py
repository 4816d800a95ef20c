"""Users and rules survive a takeover: a simulated group with access control on every node."""

import json
from typing import Any

import pytest

from rmqkit.access.signature import Credentials
from rmqkit.runtime.calls import CallFailed, Reply
from rmqkit.runtime.connection import Address
from rmqkit.sim.cluster import BROKER_PORT, SimCluster
from rmqkit.sim.world import World
from rmqkit.testing.brokers import _Client
from rmqkit.wire.bodies import TopicRoute
from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.requests import pull_fields, send_fields
from tests.helpers.signing import ROOT, SETTINGS

VALUES = dict(each.split("=", 1) for each in SETTINGS)
ANN = ("ann", "ann-secret")
NO = ResponseCode.NO_PERMISSION
MASTER, SLAVE = "broker-a-0", "broker-a-1"


class SecureGroup:
    """A master, a slave and a name server with access control, and a client that signs."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.cluster = SimCluster(
            self.world, replicas=2, acting=True, fast=True, settings=VALUES, nameserver_settings=VALUES
        )
        self.hosts = {MASTER: "10.0.1.1", SLAVE: "10.0.1.2"}
        self.world.add_node("client", lambda ports: _Client("client", ports), "10.0.9.1")
        self.cluster.ready()
        self.cluster.in_sync()

    def ask(
        self, node: str, user: tuple[str, str] | None, code: int, fields: Any = None, body: bytes = b"", ok: bool = True
    ) -> Reply:
        address = self.cluster.nameservers[0] if node == "ns-0" else Address(self.hosts[node], BROKER_PORT)
        signed = Credentials(*user).sign(fields, body) if user else fields
        found: list[Any] = []

        def call(client: _Client) -> None:
            client.remoting.call(address, int(code), signed, body, timeout_ms=5000, then=found.append)

        self.world.call("client", call)
        assert self.world.run_until(lambda: found, 10_000)
        assert not isinstance(found[0], CallFailed), found
        assert found[0].is_ok or not ok, found
        return found[0]

    def until(self, condition: Any) -> None:
        assert self.world.run_until(condition, 60_000)

    def add_ann(self) -> None:
        self.ask(MASTER, ROOT, RequestCode.AUTH_CREATE_USER, {"username": "ann"}, b'{"password":"ann-secret"}')
        rules = [("Topic:T", ["Pub", "Sub"]), ("Group:CG", ["Sub"])]
        entries = [{"resource": each, "actions": actions, "decision": "Allow"} for each, actions in rules]
        body = json.dumps({"policies": [{"entries": entries}]}).encode()
        self.ask(MASTER, ROOT, RequestCode.AUTH_CREATE_ACL, {"subject": "User:ann"}, body)

    def table(self, node: str) -> bytes:
        return self.cluster.broker(node).view.access.table.snapshot().encode()

    @property
    def is_copied(self) -> bool:
        return self.table(MASTER) == self.table(SLAVE)

    def send(self, user: tuple[str, str], ok: bool = True) -> Reply:
        return self.ask(MASTER, user, RequestCode.SEND_MESSAGE_V2, send_fields(), b"hello", ok)


def test_users_and_rules_survive_a_takeover_and_the_return():
    group = SecureGroup()
    group.add_ann()
    group.until(lambda: group.is_copied)
    group.send(ANN)
    group.until(lambda: group.cluster.is_in_sync() and "T" in group.cluster.broker(SLAVE).topics.by_name)

    group.world.kill(MASTER)
    group.until(lambda: group.cluster.broker(SLAVE).role.is_acting)
    pulled = group.ask(SLAVE, ANN, RequestCode.PULL_MESSAGE, pull_fields())
    assert b"hello" in pulled.body
    for user in (None, ("ann", "wrong"), ("bob", "x")):
        assert group.ask(SLAVE, user, RequestCode.PULL_MESSAGE, pull_fields(), ok=False).code == NO
    change = (RequestCode.AUTH_CREATE_USER, {"username": "eve"}, b'{"password":"x"}')
    assert "at the master" in group.ask(SLAVE, ROOT, *change, ok=False).remark
    route = group.ask("ns-0", ANN, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert TopicRoute.decode(route.body).broker_datas[0].broker_addrs == {0: f"10.0.1.2:{BROKER_PORT}"}

    group.world.restart(MASTER)
    group.cluster.ready()
    group.until(group.cluster.is_in_sync)
    group.send(ANN)
    assert group.is_copied
    group.ask(MASTER, ROOT, RequestCode.AUTH_DELETE_USER, {"username": "ann"})
    assert group.send(ANN, ok=False).remark == "User:ann is not found."
    group.until(lambda: group.is_copied)
    assert group.ask(SLAVE, ANN, RequestCode.PULL_MESSAGE, pull_fields(), ok=False).code == NO


def test_a_name_server_learns_of_changes():
    group = SecureGroup(2)
    route = (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert group.ask("ns-0", ANN, *route, ok=False).remark == "User:ann is not found."
    group.add_ann()
    group.until(lambda: len(group.world.node("ns-0").access.tables["DefaultCluster", "broker-a"].accounts) == 2)
    group.until(lambda: group.world.node("ns-0").access.tables["DefaultCluster", "broker-a"].accounts["ann"].policies)
    group.send(ANN)
    group.ask("ns-0", ANN, *route)
    group.world.kill("ns-0")
    group.world.restart("ns-0")
    group.until(lambda: ("DefaultCluster", "broker-a") in group.world.node("ns-0").access.tables)


def test_a_slave_with_other_credentials_follows_nobody():
    """It is neither registered nor given a byte of the log."""
    world = World(3)
    cluster = SimCluster(world, replicas=2, settings=VALUES, nameserver_settings=VALUES)
    stranger = cluster.broker(SLAVE)
    stranger.remoting.sign = Credentials("node", "other").sign
    assert not world.run_until(cluster.is_in_sync, 20_000)
    master = cluster.broker(MASTER)
    assert master.serving
    assert master.replication.members.bound == {}
    assert stranger.store.offset_written == 0
    assert world.node("ns-0").access.audit.counts["signature"] > 0


@pytest.mark.parametrize("authorization", ["true", "false"])
def test_a_group_works_with_and_without_rules(authorization):
    world = World(4)
    values = {**VALUES, "authorizationEnabled": authorization}
    cluster = SimCluster(world, replicas=2, settings=values, nameserver_settings=values)
    cluster.ready()
    cluster.in_sync()


def test_mqadmin_may_send_a_change_to_every_broker_of_a_group():
    """`CreateUserSubCommand` sends it to masters and slaves, in no order."""
    group = SecureGroup(5)
    user = (RequestCode.AUTH_CREATE_USER, {"username": "ann"}, b'{"password":"ann-secret"}')
    acl = json.dumps({"policies": [{"entries": [{"resource": "*", "actions": ["All"], "decision": "Allow"}]}]}).encode()
    rules = (RequestCode.AUTH_CREATE_ACL, {"subject": "User:ann"}, acl)
    gone = (RequestCode.AUTH_DELETE_ACL, {"subject": "User:ann"}, b"")
    for change in (user, rules, gone):
        for node in (SLAVE, MASTER, SLAVE):
            group.ask(node, ROOT, *change)
        group.until(lambda: group.is_copied)
    accounts = group.cluster.broker(SLAVE).view.access.table.accounts
    assert sorted(accounts) == ["ann", "root"]


def test_a_slave_relays_for_super_users_only():
    """The master sees the slave's credentials, which may do everything."""
    group = SecureGroup(6)
    group.add_ann()
    acl = json.dumps({"policies": [{"entries": [{"resource": "*", "actions": ["All"], "decision": "Allow"}]}]}).encode()
    group.ask(MASTER, ROOT, RequestCode.AUTH_CREATE_ACL, {"subject": "User:ann"}, acl)
    group.until(lambda: group.is_copied)
    change = (RequestCode.AUTH_CREATE_USER, {"username": "eve"}, b'{"password":"x","userType":"Super"}')
    assert "at the master" in group.ask(SLAVE, ANN, *change, ok=False).remark
    assert "super user" in group.ask(MASTER, ANN, *change, ok=False).remark


def test_a_master_that_has_lost_its_disk_gets_users_and_rules_back():
    group = SecureGroup(7)
    group.add_ann()
    group.until(lambda: group.is_copied)
    group.send(ANN)
    group.until(lambda: group.cluster.is_in_sync() and "T" in group.cluster.broker(SLAVE).topics.by_name)
    before = group.table(SLAVE)
    group.world.lose_disk(MASTER)
    group.until(lambda: group.cluster.broker(SLAVE).role.is_acting)
    group.world.restart(MASTER)
    group.until(lambda: group.world.is_alive(MASTER) and group.table(MASTER) == before)
    assert group.table(SLAVE) == before
