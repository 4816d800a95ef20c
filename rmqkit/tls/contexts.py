"""Builds `ssl` contexts from settings.

Both sides speak TLS 1.2 and 1.3 and refuse renegotiation. A server has no session tickets: a
resumed session would outlive its client's certificate, and 500 bytes per handshake are saved.
A file that cannot be used is a ConfigError that names the key and the file.
"""

from __future__ import annotations

import errno
import os
import re
import ssl
from typing import Any

from rmqkit.errors import ConfigError
from rmqkit.settings.tls_sections import (
    PROTOCOLS,
    SUITES_1_3,
    ClientAuth,
    TlsClientSettings,
    TlsServerSettings,
)

VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
REQUIREMENTS = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRE: ssl.CERT_REQUIRED,
}


class ClientSocket(ssl.SSLSocket):
    """A socket that closes itself if its connection was reset before the handshake.

    `wrap_socket` asks for the peer first. With an `SSLSocket` its error would leave the socket
    open, and the caller has none to close. So an unconnected socket cannot be wrapped.
    """

    def getpeername(self) -> Any:
        try:
            return super().getpeername()
        except OSError as error:
            if self.version() is not None:
                raise
            self.close()
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from error


def server_context(settings: TlsServerSettings) -> ssl.SSLContext:
    """Return the context of a node's listeners. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_protocols(context, settings)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    _load_pair(context, "server", settings.cert_path, settings.key_path, settings.key_password)
    if settings.auth_client:  # false is refused with any other need_client_auth than NONE
        context.verify_mode = REQUIREMENTS[settings.need_client_auth]
    if settings.trust_cert_path:
        _load_trust(context, "tls.server.trustCertPath", settings.trust_cert_path)
    return context


def client_context(settings: TlsClientSettings) -> ssl.SSLContext:
    """Return the context of connections that a node or a client opens. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = ClientSocket
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    if not settings.auth_server:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.trust_cert_path:
        _load_trust(context, "tls.client.trustCertPath", settings.trust_cert_path)
    else:
        context.load_default_certs()
    if settings.cert_path:
        _load_pair(context, "client", settings.cert_path, settings.key_path, settings.key_password)
    return context


def server_files(settings: TlsServerSettings) -> tuple[str, ...]:
    """Return the files that `server_context` reads."""
    return tuple(filter(None, (settings.cert_path, settings.key_path, settings.trust_cert_path)))


def client_files(settings: TlsClientSettings) -> tuple[str, ...]:
    """Return the files that `client_context` reads."""
    return tuple(filter(None, (settings.cert_path, settings.key_path, settings.trust_cert_path)))


def openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a suite of TLS 1.2, given that name or the standard's.

    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256.
    """
    if not suite.startswith("TLS_"):
        return suite
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = re.sub(r"_CBC(?=_)", "", re.sub(r"AES_(\d+)", r"AES\1", cipher))
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305")
    prefix = "" if exchange == "RSA" else f"{exchange}_"
    return f"{prefix}{cipher}".replace("_", "-")


def _set_protocols(context: ssl.SSLContext, settings: TlsServerSettings) -> None:
    protocols = [each for each in PROTOCOLS if each in (settings.protocols or PROTOCOLS)]
    older = [openssl_name(each) for each in settings.ciphers if each not in SUITES_1_3]
    if settings.ciphers:
        has_1_3 = len(older) < len(settings.ciphers)
        protocols = [each for each in protocols if (has_1_3 if each == "TLSv1.3" else older)]
    if not protocols:
        raise ConfigError("config: tls.ciphers has no suite for the versions in tls.protocols, so no client could connect")
    context.minimum_version = VERSIONS[protocols[0]]
    context.maximum_version = VERSIONS[protocols[-1]]
    if older:
        try:
            context.set_ciphers(":".join(older))
        except ssl.SSLError:
            raise ConfigError(f"config: tls.ciphers: OpenSSL knows none of {', '.join(settings.ciphers)}") from None
        known = {each["name"] for each in context.get_ciphers()}
        if unknown := [each for each in older if each not in known]:
            raise ConfigError(f"config: tls.ciphers: OpenSSL does not know {', '.join(unknown)}")


def _load_pair(context: ssl.SSLContext, side: str, cert_path: str, key_path: str, password: str) -> None:
    for name, path in (("certPath", cert_path), ("keyPath", key_path)):
        _check_readable(f"tls.{side}.{name}", path)
    try:
        # With an empty password an encrypted key is an error. With None, OpenSSL asks the terminal.
        context.load_cert_chain(cert_path, key_path, password=lambda: password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = "the key does not belong to the certificate"
        elif error.reason:
            why = f"{error.reason.replace('_', ' ').lower()} (is tls.{side}.keyPassword right?)"
        else:
            why = (
                f"not PEM, a wrong tls.{side}.keyPassword, or a key encrypted by an old method (PBE-SHA1-RC4-128), which"
                " `openssl pkcs8 -topk8 -v2 aes256` replaces"
            )
        raise ConfigError(f"config: tls.{side}.certPath = {cert_path}, tls.{side}.keyPath = {key_path}: {why}") from None


def _load_trust(context: ssl.SSLContext, key: str, path: str) -> None:
    _check_readable(key, path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise ConfigError(f"config: {key} = {path}: the file has no certificate in PEM format") from None


def _check_readable(key: str, path: str) -> None:
    """Raises ConfigError that names the key: the errors of `ssl` do not name the file."""
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        raise ConfigError(f"config: {key} = {path}: {error.strerror}") from None
