"""Our client and our commands against Apache's broker 5.5.0 with its ACL 2.0.

Apache's name server has no access control, so only the broker refuses.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqkit import Admin, Message, Producer, PullConsumer
from rmqkit.errors import AccessDenied
from tests.interop import apache
from tests.interop.clusters import rmqkit
from tests.interop.exchange import OurNodes
from tests.interop.store_sample import SMALL
from tests.interop.until import until

ROOT, ROOT_SECRET = "root", "secret-of-root"
NODES, NODES_SECRET = "nodes", "secret-of-nodes"
APP, APP_SECRET = "orders-app", "secret of the app"
TOPIC, GROUP = "AccessOrders", "access-billing"
GET_MAX_OFFSET, GET_TOPICS = 30, 21
PROVIDERS = "org.apache.rocketmq.auth"
SETTINGS = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{PROVIDERS}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{PROVIDERS}.authentication.provider.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": json.dumps({"username": ROOT, "password": ROOT_SECRET}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": NODES, "secretKey": NODES_SECRET}),
    "authorizationEnabled": "true",
    "authorizationProvider": f"{PROVIDERS}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{PROVIDERS}.authorization.provider.LocalAuthorizationMetadataProvider",
}


class Commands:
    """Runs `rmqkit` commands with the keys of a `tools.yml`, as mqadmin finds them."""

    def __init__(self, home: Path, namesrv: str, user: str, secret: str) -> None:
        self._home, self._namesrv = home, namesrv
        (home / "conf").mkdir()
        (home / "conf" / "tools.yml").write_text(f"accessKey: {user}\nsecretKey: {secret}\n")

    def __call__(self, *words: str, stdin: str = "", code: int = 0) -> str:
        env = {"ROCKETMQ_HOME": str(self._home)}
        done = rmqkit(self._home / "state", *words, "--namesrv", self._namesrv, env=env, stdin=stdin)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[apache.ApacheCluster]:
    with apache.ApacheCluster(broker_properties=SETTINGS) as made:
        yield made


@pytest.fixture(scope="module")
def commands(cluster: apache.ApacheCluster, tmp_path_factory: pytest.TempPathFactory) -> Commands:
    commands = Commands(tmp_path_factory.mktemp("mqadmin-home"), cluster.namesrv, ROOT, ROOT_SECRET)
    commands("topic", "create", TOPIC, "--queues", "2")
    commands("group", "create", GROUP)
    commands("user", "add", APP, stdin=f"{APP_SECRET}\n")
    commands("acl", "allow", APP, "Pub,Sub", f"Topic:{TOPIC}")
    commands("acl", "allow", APP, "Sub", f"Group:{GROUP}")
    return commands


def test_users_and_rules_are_those_of_the_broker(commands: Commands) -> None:
    assert {(each["user"], each["type"], each["at"]) for each in commands.json("user", "list")} == {
        (ROOT, "Super", "all"),
        (NODES, "Super", "all"),
        (APP, "Normal", "all"),
    }
    rules = commands.json("acl", "list", APP)
    assert [(each["resource"], sorted(each["actions"]), each["decision"]) for each in rules] == [
        (f"Group:{GROUP}", ["Sub"], "Allow"),
        (f"Topic:{TOPIC}", ["Pub", "Sub"], "Allow"),
    ]
    assert f"user {APP} may Pub Topic:{TOPIC}: the rule" in commands("acl", "explain", APP, "Pub", f"Topic:{TOPIC}")


def test_a_client_with_keys_sends_and_consumes(commands: Commands, cluster: apache.ApacheCluster) -> None:
    keys: dict[str, Any] = {"access_key": APP, "secret_key": APP_SECRET}
    with Producer(namesrv=cluster.namesrv, **keys) as producer:
        for number in range(6):
            assert producer.send(Message(TOPIC, b"%d" % number, keys="k")).is_ok
        producer.send_batch([Message(TOPIC, b"6"), Message(TOPIC, b"7")])
    with PullConsumer(GROUP, namesrv=cluster.namesrv, consume_from="first", **keys) as consumer:
        consumer.subscribe(TOPIC)
        got: set[bytes] = set()
        while len(got) < 8:
            messages = consumer.poll(timeout_ms=20_000)
            assert messages, got
            got |= {message.body for message in messages}
    with Admin(cluster.namesrv, access_key=ROOT, secret_key=ROOT_SECRET) as admin:
        assert sum(each.consumer_offset for each in admin.consume_stats(GROUP).values()) == 8, "commits are signed"


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({}, "the request is not signed"),
        ({"access_key": APP, "secret_key": "wrong"}, "the signature is wrong"),
        ({"access_key": "nobody", "secret_key": "x"}, "user nobody is unknown"),
        ({"access_key": "no-rights", "secret_key": "secret"}, f"user no-rights has no right to Topic:{TOPIC}"),
    ],
)
def test_the_error_says_why(commands: Commands, cluster: apache.ApacheCluster, keys: dict[str, Any], text: str) -> None:
    if keys.get("access_key") == "no-rights":
        commands("user", "add", "no-rights", stdin="secret\n")
    with Producer(namesrv=cluster.namesrv, **keys) as producer, pytest.raises(AccessDenied, match=text) as caught:
        producer.send(Message(TOPIC, b"refused"))
    assert not caught.value.maybe_stored


def test_a_user_is_disabled_changed_and_deleted(commands: Commands, cluster: apache.ApacheCluster) -> None:
    commands("user", "add", "short", stdin="first\n")
    commands("acl", "allow", "short", "Pub", "Topic:Access*")
    commands("acl", "deny", "short", "Pub", "Topic:AccessSecret")
    assert "may not Pub Topic:AccessSecret" in commands("acl", "explain", "short", "Pub", "Topic:AccessSecret")

    def send(secret: str) -> None:
        with Producer(namesrv=cluster.namesrv, access_key="short", secret_key=secret) as producer:
            producer.send(Message(TOPIC, b"x"))

    send("first")
    commands("user", "password", "short", stdin="second\n")
    with pytest.raises(AccessDenied, match="signature is wrong"):
        send("first")
    send("second")
    commands("user", "disable", "short")
    with pytest.raises(AccessDenied, match="user short is disabled"):
        send("second")
    commands("user", "enable", "short")
    send("second")
    commands("acl", "revoke", "short", "Topic:Access*")
    with pytest.raises(AccessDenied, match=f"no right to Topic:{TOPIC}"):
        send("second")
    commands("user", "delete", "short")
    with pytest.raises(AccessDenied, match="user short is unknown"):
        send("second")
    assert "there is no user short" in commands("user", "show", "short", code=1)


def test_what_the_broker_refuses_is_one_line(commands: Commands) -> None:
    assert "exist" in commands("user", "add", APP, stdin="again\n", code=1)
    assert "resource type" in commands("acl", "allow", APP, "Pub", "Topc:x", code=2)
    assert "action 'Pubb' is unknown" in commands("acl", "allow", APP, "Pubb", "Topic:x", code=2)
    assert "there is no user nobody" in commands("acl", "allow", "nobody", "Pub", "Topic:x", code=1)


def test_our_slave_copies_log_and_tables_of_the_master(
    commands: Commands, cluster: apache.ApacheCluster, tmp_path: Path
) -> None:
    """It signs its requests with the inner credentials: a super user at Apache's broker."""
    with Producer(namesrv=cluster.namesrv, access_key=APP, secret_key=APP_SECRET) as producer:
        sent = producer.send(Message(TOPIC, b"for the slave"))
    _, port = apache.free_ports()
    settings = {
        **SMALL,
        "brokerId": "1",
        "brokerRole": "SLAVE",
        "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
        "innerClientAuthenticationCredentials": SETTINGS["innerClientAuthenticationCredentials"],
    }
    slave = OurNodes(home=tmp_path, ports=(cluster.nameserver_port, port), broker_properties=settings)
    try:
        slave.start_broker(wait=False)
        fields = {"topic": TOPIC, "queueId": str(sent.queue.queue_id)}

        def has_copied() -> bool:
            try:
                answer = apache.ask(slave.broker_address, GET_MAX_OFFSET, fields)
                topics = apache.ask_whole(slave.broker_address, GET_TOPICS, {})[1]
            except OSError:
                return False
            end = answer.get("extFields", {}).get("offset", "0")
            return int(end) > sent.queue_offset and f'"{TOPIC}"'.encode() in topics

        until("our slave has the message and the topic", has_copied)
    finally:
        slave.stop()
