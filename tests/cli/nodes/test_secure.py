"""`cluster up --preset secure`: TLS on every port, users, and clients that find both."""

import json
import socket
import ssl
import stat
import urllib.request
from contextlib import suppress

import pytest

from rmqkit import Message, Producer
from rmqkit.client_keys import keys_of_file
from rmqkit.cluster import certificates
from rmqkit.cluster.errors import ClusterError
from tests.cli.conftest import free_base, make_shell, purge

#: first byte of a TLS alert
ALERT = b"\x15"


@pytest.fixture(scope="module")
def secure(tmp_path_factory, lifeline):
    shell = make_shell(tmp_path_factory.mktemp("secure"), lifeline)
    base = free_base()
    words = ("--preset", "secure", "--base-port", base, "--replicas", "2", "--set", "metricsExporterType=PROM")
    shell.up = shell.run("cluster", "up", *words, "--set", f"metricsPromExporterPort={int(base) + 105}")
    yield shell
    purge(shell)


def ports(shell):
    for node in shell.json("cluster", "status")["nodes"]:
        port = int(node["address"].rpartition(":")[2])
        yield from (port, port - 2, port + 1) if node["kind"] == "broker" else (port,)


def test_commands_find_the_settings_by_themselves(secure):
    secure.run("send", "hello", "first message")
    status = secure.json("cluster", "status")
    assert [node["state"] for node in status["nodes"]] == ["up"] * 3
    assert status["nodes"][1]["in_sync"] == 2, "the slave follows over TLS"
    assert "hello" in secure.run("topic", "list").stdout
    given = secure.run("topic", "list", "--namesrv", status["namesrv"]).stdout
    assert "hello" in given, "also if the name servers are given"


def test_every_port_accepts_tls_only(secure):
    trust = ssl.create_default_context(cafile=str(secure.home / "default/tls/ca.pem"))
    for port in ports(secure):
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            trust.wrap_socket(plain, server_hostname="localhost") as sock,
        ):
            assert sock.version() == "TLSv1.3"
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(b"\x00\x00\x00\x10 plain text")
            sock.settimeout(20)
            with suppress(ConnectionError):
                assert sock.recv(1) in (b"", ALERT)


def test_metrics_are_served_over_tls(secure):
    trust = ssl.create_default_context(cafile=str(secure.home / "default/tls/ca.pem"))
    for node in secure.json("cluster", "status")["nodes"]:
        assert node["metrics"].startswith("https://")
        with urllib.request.urlopen(node["metrics"], context=trust) as answer:
            assert b"# HELP" in answer.read()


def test_up_prints_what_clients_need(secure):
    path = secure.home / "default/tls/tls.properties"
    assert f"java -Dtls.enable=true -Dtls.config.file={path} ..." in secure.up.stdout
    assert f"export RMQKIT_TLS='{path}'" in secure.run("cluster", "env").stdout
    assert "tls.test.mode.enable=false" in path.read_text()


def test_a_client_takes_the_settings_of_java_from_the_file(secure):
    namesrv = secure.json("cluster", "status")["namesrv"]
    keys = keys_of_file(secure.home / "default/access/app.yml")
    tls = secure.home / "default/tls/tls.properties"
    with Producer(namesrv=namesrv, tls=tls, access_key=keys.access_key, secret_key=keys.secret_key) as producer:
        assert producer.send(Message("hello", b"x")).status == "SEND_OK"


def test_plain_text_is_refused_with_one_line(secure):
    assert "no name server answers" in secure.error("topic", "list", code=3, env={"RMQKIT_TLS": "false"})


def test_keys_are_readable_for_their_owner_only(secure):
    keys = sorted((secure.home / "default/tls").glob("*.key"))
    assert [path.name for path in keys] == ["ca.key", "node.key"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}


def keys_of(shell, user):
    """Return the keys of a file as the environment of a command."""
    keys = keys_of_file(shell.home / f"default/access/{user}.yml")
    return {"RMQKIT_ACCESS_KEY": keys.access_key, "RMQKIT_SECRET_KEY": keys.secret_key}


def test_it_has_users(secure):
    users = {each["user"]: each["type"] for each in secure.json("user", "list")}
    assert users.items() >= {"operator": "Super", "app": "Normal"}.items()
    rules = {each["resource"]: each["actions"] for each in secure.json("acl", "list", "app")}
    assert rules == {"Topic:*": ["Pub", "Sub"], "Group:*": ["Sub"]}
    assert f"app       {secure.home}/default/access/app.yml" in secure.up.stdout
    assert "new AclClientRPCHook(" in secure.up.stdout


def test_files_with_secrets_are_readable_for_their_owner_only(secure):
    folder = secure.home / "default"
    files = [*sorted((folder / "access").glob("*.yml")), *folder.glob("nodes/*/node.toml"), *folder.rglob("access.json*")]
    assert [path.name for path in files[:3]] == ["app.yml", "inner.yml", "operator.yml"]
    assert {path.name for path in files[3:]} >= {"node.toml", "access.json"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_no_command_and_no_log_shows_a_secret(secure):
    """Not even the environment that `cluster env` prints: it names a file."""
    shown = "".join(
        secure.run(*words).stdout
        for words in (
            ("cluster", "env"), ("cluster", "status", "--json"), ("config", "list", "broker-a"), ("user", "list", "--json"),
            ("config", "list", "nameserver"), ("user", "show", "operator"), ("cluster", "logs", "--lines", "100000"),
            ("broker", "status", "broker-a"), ("doctor", "--no-spark"),
        )
    )  # fmt: skip
    assert "RMQKIT_ACCESS_FILE=" in shown
    for user in ("operator", "inner", "app"):
        assert keys_of(secure, user)["RMQKIT_SECRET_KEY"] not in shown + secure.up.stdout + secure.up.stderr


def test_programs_act_as_the_application(secure):
    for words, user in (((), "app"), (("--operator",), "operator")):
        found = secure.json("cluster", "env", *words)["RMQKIT_ACCESS_FILE"]
        assert found == str(secure.home / f"default/access/{user}.yml")
    app = keys_of(secure, "app")
    secure.run("send", "as-app", "x", env=app)
    assert "user app has no right to" in secure.error("topic", "create", "of-app", code=1, env=app)


def test_a_user_may_do_what_its_rules_allow(secure):
    secure.run("topic", "create", "bills", "--queues", "1")
    assert secure.run("user", "add", "billing", input="pass of billing\n").stdout == "added user billing at broker-a\n"
    env = {"RMQKIT_ACCESS_KEY": "billing", "RMQKIT_SECRET_KEY": "pass of billing"}
    assert "user billing has no right to Topic:bills" in secure.error("send", "bills", "x", code=1, env=env)
    secure.run("acl", "allow", "billing", "Pub", "Topic:bills")
    assert "SEND_OK" in secure.run("send", "bills", "x", env=env).stdout
    secure.run("acl", "deny", "billing", "Pub", "Topic:bills", "--from", "127.0.0.0/8")
    verdict = secure.json("acl", "explain", "billing", "Pub", "Topic:bills", "--from", "127.0.0.1")["verdicts"][0]
    assert (verdict["allowed"], verdict["rule"]) == (False, "Deny Pub on Topic:bills from 127.0.0.0/8")
    assert "user billing has no right" in secure.error("send", "bills", "x", code=1, env=env)
    secure.run("acl", "allow", "billing", "Pub", "Topic:bills")
    secure.run("user", "disable", "billing")
    assert "user billing is disabled" in secure.error("send", "bills", "x", code=1, env=env)
    secure.run("user", "enable", "billing")
    secure.run("user", "password", "billing", input="another\n")
    assert "the signature is wrong" in secure.error("send", "bills", "x", code=1, env=env)
    secure.run("acl", "revoke", "billing", "--all")
    assert "user billing has no custom rule for Topic:bills" in secure.error(
        "acl", "revoke", "billing", "Topic:bills", code=1
    )
    secure.run("user", "delete", "billing")
    assert "there is no user billing" in secure.error("user", "show", "billing", code=1)


def test_keys_come_from_mqadmins_file_too(secure, tmp_path):
    namesrv = secure.json("cluster", "status")["namesrv"]
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/tools.yml").write_text((secure.home / "default/access/operator.yml").read_text())
    tls = str(secure.home / "default/tls/tls.properties")
    env = {"RMQKIT_HOME": str(tmp_path), "RMQKIT_TLS": tls, "ROCKETMQ_HOME": str(tmp_path)}
    assert "operator" in secure.run("user", "list", "--namesrv", namesrv, env=env).stdout
    env["ROCKETMQ_HOME"] = ""
    assert "is not signed" in secure.error("user", "list", "--namesrv", namesrv, code=1, env=env)


def test_a_password_is_asked_for_in_a_terminal(secure):
    with secure.terminal("user", "add", "typed") as screen:
        for question in ("Password: ", "Repeat for confirmation: "):
            screen.expect(question)
            screen.sendline("typed secret")
        screen.expect("added user typed at broker-a")
        assert "typed secret" not in (screen.before or "")
    assert "the password is empty" in secure.error("user", "add", "nobody", code=2, input="\n")
    secure.run("user", "delete", "typed")


@pytest.mark.long
def test_a_takeover_keeps_promises_and_users(secure):
    secure.run("user", "add", "kept", input="pass of kept\n")
    secure.run("acl", "allow", "kept", "Sub", "Topic:hello")
    done = secure.run("fail-master", "--seconds", "3", "--json").stdout
    assert {each["finding"]["judgement"] for each in json.loads(done)["promises"]} == {"valid"}
    secure.run("cluster", "kill", "broker-a-0")
    secure.run("cluster", "wait", "--for", "acting")
    assert "user kept may Sub Topic:hello" in secure.run("acl", "explain", "kept", "Sub", "Topic:hello").stdout
    assert "broker-a has no master now" in secure.error("user", "delete", "kept", code=1)
    secure.run("cluster", "start")
    secure.run("cluster", "wait", "--for", "in-sync")
    secure.run("user", "delete", "kept")


@pytest.mark.long
def test_a_restart_keeps_the_certificate(secure):
    path = secure.home / "default/tls/node.pem"
    before = path.read_bytes()
    secure.run("cluster", "restart", "broker-a-0")
    assert path.read_bytes() == before
    secure.run("send", "hello", "after the restart")


@pytest.mark.long
def test_the_port_of_a_container_has_tls_and_users_too(tmp_path, lifeline):
    shell = make_shell(tmp_path, lifeline)
    try:
        shell.run("cluster", "up", "--preset", "secure", "--container", "--any-port", "--base-port", free_base())
        assert "broker-a:1" in shell.run("container", "list").stdout
        denied = shell.error("container", "list", code=1, env=keys_of(shell, "app"))
        assert "User:app has no permission to access Cluster:DefaultCluster" in denied
    finally:
        purge(shell)


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ClusterError, match=r"pip install 'rmqkit\[secure\]'"):
        certificates.check_library()
