"""`cluster up --preset secure`: certificates, nodes that speak TLS only, clients that find it."""

import socket
import ssl
import stat
import urllib.request
from contextlib import suppress

import pytest

from rmqkit import Message, Producer
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


def test_every_port_speaks_tls_and_nothing_else(secure):
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
    with Producer(namesrv=namesrv, tls=secure.home / "default/tls/tls.properties") as producer:
        assert producer.send(Message("hello", b"x")).status == "SEND_OK"


def test_plain_text_is_refused_with_one_line(secure):
    assert "no name server answers" in secure.error("topic", "list", code=3, env={"RMQKIT_TLS": "false"})


def test_keys_are_readable_for_their_owner_only(secure):
    keys = sorted((secure.home / "default/tls").glob("*.key"))
    assert [path.name for path in keys] == ["ca.key", "node.key"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}


@pytest.mark.long
def test_a_restart_keeps_the_certificate(secure):
    path = secure.home / "default/tls/node.pem"
    before = path.read_bytes()
    secure.run("cluster", "restart", "broker-a-0")
    assert path.read_bytes() == before
    secure.run("send", "hello", "after the restart")


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ClusterError, match=r"pip install 'rmqkit\[secure\]'"):
        certificates.check_library()
