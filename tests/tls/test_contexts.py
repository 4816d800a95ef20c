"""Contexts and the node's TLS: errors name key and file, suites and versions, reload, limits."""

import os
import ssl
from pathlib import Path
from typing import Any

import pytest

from rmqkit import config
from rmqkit.errors import ConfigError
from rmqkit.tls.contexts import client_context, openssl_name, server_context
from rmqkit.tls.node_tls import HANDSHAKE_STEPS_MAX, Handshakes, NodeTls
from rmqkit.tls.transport import TlsError
from tests.helpers.certificates import Certificates
from tests.helpers.script import ScriptLog


def test_a_missing_file_is_named_with_its_key(own_certificates: Certificates):
    made = own_certificates.pair("server")
    with pytest.raises(ConfigError, match=r"tls.server.keyPath = /nowhere/key: No such file"):
        server_context(own_certificates.server(key_path="/nowhere/key"))
    with pytest.raises(ConfigError, match=r"tls.server.certPath = /nowhere"):
        server_context(own_certificates.server(cert_path="/nowhere", key_path=made.key))
    with pytest.raises(ConfigError, match=r"tls.client.trustCertPath = /nowhere"):
        client_context(own_certificates.client(trust_cert_path="/nowhere"))


def test_a_key_of_another_certificate_is_refused(own_certificates: Certificates):
    one, other = own_certificates.pair("one"), own_certificates.pair("other")
    with pytest.raises(ConfigError, match="the key does not belong to the certificate"):
        server_context(own_certificates.server(one, key_path=other.key))


@pytest.mark.parametrize(
    "text", [b"", b"not a certificate", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_file_that_is_no_certificate_is_refused(own_certificates: Certificates, text: bytes):
    bad = own_certificates.folder / "bad.pem"
    bad.write_bytes(text)
    with pytest.raises(ConfigError, match=r"tls.server.certPath = .*bad.pem"):
        server_context(own_certificates.server(cert_path=str(bad)))
    with pytest.raises(ConfigError, match=r"tls.client.trustCertPath = .*bad.pem"):
        client_context(own_certificates.client(trust_cert_path=str(bad)))


def encrypted(path: str, password: bytes) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(Path(path).read_bytes(), None)
    how = serialization.BestAvailableEncryption(password)
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)
    Path(path).write_bytes(text)


def test_a_password_opens_the_key_and_a_wrong_one_is_an_error_not_a_prompt(own_certificates: Certificates):
    made = own_certificates.pair("server")
    encrypted(made.key, b"open sesame")
    server_context(own_certificates.server(made, key_password="open sesame"))
    for password in ("", "wrong"):
        with pytest.raises(ConfigError, match="keyPassword") as caught:
            server_context(own_certificates.server(made, key_password=password))
        assert "wrong" not in str(caught.value).replace("a wrong", "")


@pytest.mark.parametrize(
    ("suite", "name"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384", "ECDHE-ECDSA-AES256-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_suites_have_the_names_of_openssl(suite: str, name: str):
    assert openssl_name(suite) == name


def test_suites_and_versions_limit_a_listener(certificates: Certificates):
    one = server_context(certificates.server(ciphers=("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",)))
    assert one.maximum_version == ssl.TLSVersion.TLSv1_2
    newest = server_context(certificates.server(protocols=("TLSv1.3",)))
    assert newest.minimum_version == ssl.TLSVersion.TLSv1_3
    with pytest.raises(ConfigError, match="no suite for the versions"):
        server_context(certificates.server(protocols=("TLSv1.3",), ciphers=("ECDHE-RSA-AES128-GCM-SHA256",)))
    with pytest.raises(ConfigError, match="does not know NO-SUCH"):
        server_context(certificates.server(ciphers=("ECDHE-RSA-AES128-GCM-SHA256", "NO-SUCH")))
    with pytest.raises(ConfigError, match="OpenSSL knows none"):
        server_context(certificates.server(ciphers=("NO-SUCH",)))


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["tls.server.mode=enforcing"], "set tls.server.certPath and tls.server.keyPath"),
        (["tls.server.mode=permissive", "tls.server.certPath=/a"], "set tls.server.keyPath"),
        (["tls.server.mode=Enforcing"], "must be one of disabled, permissive, enforcing"),
        (["tls.server.mode=strict"], "must be one of"),
        (["tls.server.certPath=/a", "tls.server.keyPath=/b"], "not tls.server.mode: set permissive or enforcing"),
        (["tls.server.need.client.auth=required"], "must be one of none, optional, require"),
        (["tls.server.need.client.auth=require"], "needs tls.server.trustCertPath"),
        (
            ["tls.server.need.client.auth=require", "tls.server.authClient=false", "tls.server.trustCertPath=/a"],
            "it would accept any certificate",
        ),
        (["tls.client.certPath=/a"], "set both or none"),
        (["tls.protocols=TLSv1.1"], "older versions are not secure"),
        (["tls.ciphers=TLS_AES_128_GCM_SHA256"], "Python cannot choose among the suites of TLS 1.3"),
    ],
)
@pytest.mark.parametrize("kind", ["broker", "nameserver"])
def test_settings_that_would_not_protect_end_the_start(kind: Any, overrides: list[str], text: str):
    with pytest.raises(ConfigError) as caught:
        config.load([], overrides, kind)
    assert text in str(caught.value)


def test_the_file_of_tls_keys_wins(tmp_path: Path):
    file = tmp_path / "tls.properties"
    file.write_text("tls.client.trustCertPath = /of/the/file\nother.key = 1\n")
    made = config.load([], ["tls.client.trustCertPath=/given", "useTLS=true", f"tls.config.file={file}"])
    assert made.tls_client.trust_cert_path == "/of/the/file"
    with pytest.raises(ConfigError, match="cannot read"):
        config.load([], ["tls.config.file=/nowhere"])


def test_enforcing_dials_with_tls_and_ha_may_be_left_out(certificates: Certificates):
    tls = certificates.node()
    assert tls.dials("register")
    assert tls.accepts("ha")
    plain_ha = certificates.node(ha_enable=False)
    assert not plain_ha.accepts("ha")
    assert not plain_ha.dials("ha")
    assert plain_ha.accepts("vip")
    permissive = NodeTls(certificates.server(mode="permissive"), certificates.client(use_tls=False))
    assert not permissive.dials("register")


@pytest.mark.parametrize("host", ["", ".example", "a" * 300 + ".example"])
def test_a_host_that_no_certificate_can_name_is_an_error(certificates: Certificates, host: str):
    with pytest.raises(TlsError, match="not a host name"):
        certificates.node().dialled(host)


# --- reload


def polled(tls: NodeTls, log: ScriptLog, times: int = 2) -> list[str]:
    """Poll as the driver does, and return the events that were logged."""
    before = len(log.lines)
    for _ in range(times):
        tls.poll(log)
    return [line[1] for line in log.lines[before:]]


def test_a_changed_certificate_is_used_for_new_connections(own_certificates: Certificates):
    tls, log = own_certificates.node(), ScriptLog()
    before = tls.accepted()._object.context
    assert polled(tls, log, 5) == []
    own_certificates.pair("server")
    assert polled(tls, log) == ["tls certificate reloaded"]
    assert tls.accepted()._object.context is not before
    assert polled(tls, log, 5) == []


def test_files_are_read_once_two_polls_find_them_unchanged(own_certificates: Certificates):
    tls, log = own_certificates.node(), ScriptLog()
    for _ in range(3):
        own_certificates.pair("server")
        assert polled(tls, log, 1) == []
    assert polled(tls, log, 1) == ["tls certificate reloaded"]


@pytest.mark.parametrize("damage", ["vanished", "garbage", "half"])
def test_a_broken_file_is_logged_once_and_the_last_valid_one_stays(own_certificates: Certificates, damage: str):
    tls, log = own_certificates.node(), ScriptLog()
    before = tls.accepted()._object.context
    cert = own_certificates.folder / "server.pem"
    if damage == "vanished":
        cert.unlink()
    elif damage == "garbage":
        cert.write_bytes(b"garbage")
    else:  # the certificate without its key
        old_key = (own_certificates.folder / "server.key").read_bytes()
        own_certificates.pair("server")
        (own_certificates.folder / "server.key").write_bytes(old_key)
    assert polled(tls, log, 10) == ["tls certificate not reloaded"]
    assert tls.accepted()._object.context is before
    own_certificates.pair("server")
    assert polled(tls, log, 10) == ["tls certificate reloaded"]


def test_the_same_key_with_a_renewed_certificate_is_taken(own_certificates: Certificates):
    """Apache waits for both files to change, and never takes this (`FileWatchService`)."""
    tls, log = own_certificates.node(), ScriptLog()
    cert = own_certificates.folder / "server.pem"
    text = cert.read_bytes()
    cert.write_bytes(text + b"\n")
    os.utime(cert, ns=(1, 1))
    assert polled(tls, log) == ["tls certificate reloaded"]


# --- handshakes


class Half:
    def __init__(self, table: Handshakes) -> None:
        self.table = table
        self.reason = ""

    def end_handshake(self, reason: str) -> None:
        self.reason = reason
        self.table.end(self)


def test_one_handshake_too_many_ends_the_oldest():
    table = Handshakes(2)
    halves = [Half(table) for _ in range(4)]
    for half in halves:
        table.begin(half)
    assert [bool(half.reason) for half in halves] == [True, True, False, False]
    assert "tlsHandshakesMax = 2" in halves[0].reason
    assert len(table) == 2


def test_a_turn_has_a_limit_of_handshake_steps():
    table = Handshakes(10)
    assert [table.may_step(1) for _ in range(10)].count(True) == HANDSHAKE_STEPS_MAX
    assert table.may_step(2)


def test_failures_are_logged_once_per_second_with_their_number():
    table, log = Handshakes(10), ScriptLog()
    for now_ms in (0, 1, 2, 1000, 1001):
        table.log_failure(log, now_ms, "1.2.3.4:5", "why")
    assert [line[2]["failed"] for line in log.lines] == [1, 3]
