"""What the `tls` argument and RMQKIT_TLS mean."""

import select
import socket
import struct
from pathlib import Path

import pytest

from rmqkit import Producer
from rmqkit.config import TlsClientSettings
from rmqkit.errors import ConfigError
from rmqkit.tls.client_choice import TLS_VARIABLE, choose_tls, encrypted


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TLS_VARIABLE, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tls.properties"
    path.write_text("tls.test.mode.enable=false\ntls.server.certPath=/other\ntls.client.trustCertPath=/ca.pem\n")
    return path


def test_without_settings_a_client_uses_plain_text():
    assert choose_tls(None) is None
    assert choose_tls(False) is None


def test_true_checks_servers_against_the_operating_system():
    assert choose_tls(True) == TlsClientSettings(use_tls=True, auth_server=True)


def test_a_file_has_the_keys_of_java(file: Path):
    assert choose_tls(file) == choose_tls(str(file)) == TlsClientSettings(use_tls=True, trust_cert_path="/ca.pem")


def test_a_mapping_has_the_same_keys():
    made = choose_tls({"tls.client.trustCertPath": "/ca.pem", "tls.client.authServer": False})
    assert made == TlsClientSettings(use_tls=True, trust_cert_path="/ca.pem", auth_server=False)


def test_the_variable_counts_unless_the_argument_says_something(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(TLS_VARIABLE, str(file))
    made = choose_tls(None)
    assert made is not None
    assert made.trust_cert_path == "/ca.pem"
    assert choose_tls(False) is None
    for word, is_on in (("TRUE", True), ("false", False), ("", False)):
        monkeypatch.setenv(TLS_VARIABLE, word)
        assert (choose_tls(None) is not None) == is_on


@pytest.mark.parametrize(
    ("tls", "text"),
    [
        ("/nowhere", "cannot read /nowhere"),
        ({"tls.client.trustPath": "/a"}, "unknown key 'tls.client.trustPath'"),
        ({"namesrvAddr": "/a"}, "the keys of a client begin with tls.client."),
        ({"tls.client.authServer": "perhaps"}, "must be true or false"),
        ({"tls.client.certPath": "/a"}, "set both or none"),
    ],
)
def test_bad_values_are_errors_and_never_mean_plain_text(tls: object, text: str):
    with pytest.raises(ConfigError) as caught:
        choose_tls(tls)  # type: ignore[arg-type]
    assert text in str(caught.value)


def test_a_client_whose_file_is_missing_does_not_start():
    with pytest.raises(ConfigError, match=r"tls.client.trustCertPath = /nowhere: No such file"):
        Producer(namesrv="127.0.0.1:1", tls={"tls.client.trustCertPath": "/nowhere"})


def test_a_connection_that_is_reset_before_the_handshake_is_closed():
    """`ssl` leaves a socket open if a reset arrives between the connect and the wrapping."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        plain = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        select.select([plain], [], [], 10)
        with pytest.raises(ConnectionResetError):
            encrypted(plain, "127.0.0.1", TlsClientSettings(use_tls=True, auth_server=False))
    assert plain.fileno() == -1
