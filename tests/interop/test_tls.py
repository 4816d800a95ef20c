"""TLS between our nodes and Apache's clients, and between our client and Apache's servers.

Our name server and broker run in a mode, and one JVM with Apache's client, 5.5.0 or 4.9.8, runs
some of the driver's checks there. Its TLS is set by system properties, as users set it. The JDK's
engine is its TLS library; ours is OpenSSL.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqkit import Admin, Message, Producer, PullConsumer
from rmqkit.errors import PeerUnreachable
from tests.helpers.certificates import Certificates
from tests.interop import apache, java
from tests.interop.clusters import rmqkit
from tests.interop.lines import CheckRun

CHECKS = ("send_sync", "send_large", "send_transaction", "push_one_member", "pull_long_poll", "admin_cluster")
#: way to connect -> mode of the servers
WAYS = {
    "permissive": "permissive",
    "permissive in plain text": "permissive",
    "enforcing": "enforcing",
    "client certificate": "enforcing",
}
RUNS = [(way, apache.VERSION) for way in WAYS]
RUNS += [(way, apache.OLDER) for way in ("permissive", "enforcing", "client certificate")]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.pair("server")
    made.pair("client")
    return made


def server_settings(certificates: Certificates, way: str) -> dict[str, str]:
    folder = certificates.folder
    settings = {
        "tls.server.mode": WAYS[way],
        "tls.server.certPath": f"{folder}/server.pem",
        "tls.server.keyPath": f"{folder}/server.key",
        **client_settings(certificates, way),
    }
    if way == "client certificate":
        settings |= {"tls.server.need.client.auth": "require", "tls.server.trustCertPath": certificates.trust}
    return settings


def client_settings(certificates: Certificates, way: str) -> dict[str, str]:
    settings = {"tls.client.trustCertPath": certificates.trust, "tls.client.authServer": "true"}
    if way == "client certificate":
        folder = certificates.folder
        settings |= {"tls.client.certPath": f"{folder}/client.pem", "tls.client.keyPath": f"{folder}/client.key"}
    return settings


@pytest.fixture(scope="module", params=RUNS, ids=" ".join)
def run(
    request: pytest.FixtureRequest, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CheckRun]:
    """A JVM that runs the checks against our cluster, which the way to connect names."""
    (way, version), home = request.param, tmp_path_factory.mktemp("home")
    tls = home / "tls.properties"
    tls.write_text("".join(f"{key}={value}\n" for key, value in client_settings(certificates, way).items()))
    words = [f"--set={key}={value}" for key, value in server_settings(certificates, way).items()]
    used = "false" if WAYS[way] == "permissive" else str(tls)
    up = rmqkit(home, "cluster", "up", "--replicas", "2", "--any-port", *words, "--json", tls=used)
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        plain = way == "permissive in plain text"
        properties = {"tls.enable": "false" if plain else "true", "tls.test.mode.enable": "false"}
        properties |= client_settings(certificates, way)
        driver = tmp_path_factory.mktemp("driver")
        running = java.run(json.loads(up.stdout)["namesrv"], driver, version, CHECKS, properties)
        try:
            yield running
        finally:
            running.close()
    finally:
        rmqkit(home, "cluster", "down", "--purge")


@pytest.mark.parametrize("check", CHECKS)
def test_java_client_with_tls(run: CheckRun, check: str) -> None:
    result = run.result(check)
    assert result["ok"], result.get("trace", result)


@pytest.fixture(scope="module")
def apache_with_tls(certificates: Certificates) -> Iterator[apache.ApacheCluster]:
    properties = {
        "tls.test.mode.enable": "false",
        "tls.server.mode": "permissive",
        "tls.server.certPath": f"{certificates.folder}/server.pem",
        "tls.server.keyPath": f"{certificates.folder}/server.key",
    }
    with apache.ApacheCluster(properties=properties) as cluster:
        yield cluster


def test_our_client_with_tls_at_apaches_servers(
    apache_with_tls: apache.ApacheCluster, certificates: Certificates, tmp_path: Path
) -> None:
    namesrv, tls = apache_with_tls.namesrv, {"tls.client.trustCertPath": certificates.trust}
    bodies = [b"x" * size for size in (1, 1000, 100_000, 1_000_000)]
    with Admin(namesrv, tls=tls) as admin:
        admin.create_topic("OverTls", queue_nums=1)
    with Producer(namesrv=namesrv, tls=tls) as producer:
        for body in bodies:
            producer.send(Message("OverTls", body))
    with PullConsumer(namesrv=namesrv, tls=tls) as reader:
        reader.assign(reader.queues("OverTls"))
        for queue in reader.assignment:
            reader.seek_to_begin(queue)
        got: list[bytes] = []
        while len(got) < len(bodies):
            messages = reader.poll(timeout_ms=10_000)
            assert messages
            got += [message.body for message in messages]
    assert got == bodies


def test_our_client_refuses_apaches_certificate_of_an_unknown_authority(
    apache_with_tls: apache.ApacheCluster, certificates: Certificates
) -> None:
    foreign = Certificates(certificates.folder / "foreign", "another authority")
    with (
        Admin(apache_with_tls.namesrv, tls={"tls.client.trustCertPath": foreign.trust}) as admin,
        pytest.raises(PeerUnreachable, match="certificate is not accepted"),
    ):
        admin.cluster_info()
