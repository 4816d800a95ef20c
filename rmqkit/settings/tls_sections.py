"""Sections of both kinds of node for TLS: their listeners, and the connections that they open.

The keys are those of Apache's system properties and of its `tls.properties`, whose defaults are in
`TlsSystemConfig`. Three defaults differ. Apache's mode is permissive, with a certificate that its
test mode makes; here it is disabled. Apache accepts any certificate; here `tls.server.authClient`
and `tls.client.authServer` are true.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rmqkit.errors import ConfigError
from rmqkit.settings.declaration import key, parts
from rmqkit.settings.table import Type, Value

#: versions that `tls.protocols` may list
PROTOCOLS = ("TLSv1.2", "TLSv1.3")
#: the suites of TLS 1.3 that OpenSSL has on by default
SUITES_1_3 = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
_PROTOCOL = r"TLSv1\.[23]"


class TlsMode(StrEnum):
    """What a listener accepts."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(StrEnum):
    """Whether a client needs a certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsServerSettings:
    """TLS of a node's listeners."""

    mode: TlsMode = key(
        "tls.server.mode",
        TlsMode.DISABLED,
        "`disabled`: plain text only; `permissive`, Apache's default: the first byte of a connection decides; `enforcing`:"
        " TLS only, and the node dials with TLS. The last two need tls.server.certPath and tls.server.keyPath",
    )
    config_file: str = key(
        "tls.config.file",
        None,
        "file with tls.* keys in Java's property format, which win over those written elsewhere; read only if it is set",
        type=Type.PATH,
        unset="",
    )
    key_path: str = key("tls.server.keyPath", None, "file with the private key, PEM", type=Type.PATH, unset="")
    key_password: str = key(
        "tls.server.keyPassword", None, "password of the private key", type=Type.STR, unset="", secret=True
    )
    cert_path: str = key(
        "tls.server.certPath", None, "file with the certificate and its intermediates, PEM", type=Type.PATH, unset=""
    )
    trust_cert_path: str = key(
        "tls.server.trustCertPath",
        None,
        "file with the certificates of the authorities that client certificates come from, PEM",
        type=Type.PATH,
        unset="",
    )
    need_client_auth: ClientAuth = key(
        "tls.server.need.client.auth",
        ClientAuth.NONE,
        "`optional`: a client may have a certificate, which must be valid; `require`: it must have one",
    )
    auth_client: bool = key(
        "tls.server.authClient",
        True,
        "client certificates are verified; false with tls.server.need.client.auth is refused: it would accept any",
    )
    ciphers: tuple[str, ...] = key(
        "tls.ciphers",
        "",
        "cipher suites of the listeners, by OpenSSL's or the standard names, `a,b`; empty: OpenSSL's defaults. Without a"
        " suite of TLS 1.3 that version is off; with one, list all three, since Python cannot choose among them",
        convert=parts,
        pattern=r"[A-Za-z0-9_-]*(?:[;,]\s*[A-Za-z0-9_-]+)*",
        allowed="names separated by commas",
    )
    protocols: tuple[str, ...] = key(
        "tls.protocols",
        "",
        "protocol versions of the listeners, `TLSv1.2,TLSv1.3`; empty: both",
        convert=parts,
        pattern=rf"(?:{_PROTOCOL}(?:[;,]\s*{_PROTOCOL})*)?",
        allowed="TLSv1.2, TLSv1.3 or both; older versions are not secure",
    )
    ha_enable: bool = key(
        "tls.ha.enable",
        True,
        "the HA port and the connection to a master's HA port use TLS like the others; set false in a group with an"
        " Apache broker, whose HA port has no TLS",
        only="broker",
    )
    handshake_ms: int = key(
        "tlsHandshakeMillis",
        10_000,
        "ms that a TLS handshake may take; then the connection is closed",
        low=10,
        high=3_600_000,
    )
    handshakes_max: int = key(
        "tlsHandshakesMax",
        2000,
        "most accepted connections of a node in their TLS handshake; one more closes the oldest of them",
        low=1,
    )

    @property
    def listens(self) -> bool:
        """Whether listeners accept TLS."""
        return self.mode is not TlsMode.DISABLED


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsClientSettings:
    """TLS of the connections that a node or a client opens. It never falls back to plain text."""

    use_tls: bool = key("useTLS", False, "the node dials name servers, brokers and HA ports with TLS")
    enable: bool = key("tls.enable", False, "the same as useTLS")
    key_path: str = key(
        "tls.client.keyPath", None, "file with the private key of the client certificate, PEM", type=Type.PATH, unset=""
    )
    key_password: str = key(
        "tls.client.keyPassword", None, "password of that private key", type=Type.STR, unset="", secret=True
    )
    cert_path: str = key("tls.client.certPath", None, "file with the client certificate, PEM", type=Type.PATH, unset="")
    auth_server: bool = key(
        "tls.client.authServer",
        True,
        "the server's certificate and its host name are checked; false accepts any server, so anyone between client"
        " and server can read and change everything",
    )
    trust_cert_path: str = key(
        "tls.client.trustCertPath",
        None,
        "file with the certificates of the authorities that servers' certificates come from, PEM; empty: those of the"
        " operating system",
        type=Type.PATH,
        unset="",
    )


def check_tls(written: Mapping[str, tuple[Value, str]]) -> None:
    """Check the TLS keys that are set, each with its value and the place where it is set.

    Raises ConfigError if a listener would have no certificate, or would accept any.
    """
    is_set = {key for key, (value, _) in written.items() if value}
    mode, place = written.get("tls.server.mode", ("", ""))
    if not mode and "tls.server.certPath" in is_set:
        raise ConfigError("config: tls.server.certPath is set, but not tls.server.mode: set permissive or enforcing")
    missing = [key for key in ("tls.server.certPath", "tls.server.keyPath") if key not in is_set]
    if missing and mode in (TlsMode.PERMISSIVE, TlsMode.ENFORCING):
        raise ConfigError(
            f"config: tls.server.mode = {mode}{place} is refused: it needs a certificate and its key, set"
            f" {' and '.join(missing)} (there is no test mode that makes one)"
        )
    auth, auth_place = written.get("tls.server.need.client.auth", (ClientAuth.NONE, ""))
    if auth != ClientAuth.NONE:
        if written.get("tls.server.authClient", (True, ""))[0] is False:
            raise ConfigError(
                f"config: tls.server.need.client.auth = {auth}{auth_place} with tls.server.authClient = false is refused:"
                " it would accept any certificate, which anyone can make"
            )
        if "tls.server.trustCertPath" not in is_set:
            raise ConfigError(
                f"config: tls.server.need.client.auth = {auth}{auth_place} needs tls.server.trustCertPath, the authorities"
                " that client certificates come from"
            )
    if ("tls.client.certPath" in is_set) != ("tls.client.keyPath" in is_set):
        raise ConfigError("config: tls.client.certPath and tls.client.keyPath belong together: set both or none")
    listed = set(parts(written.get("tls.ciphers", ("", ""))[0])) & set(SUITES_1_3)
    if listed and listed != set(SUITES_1_3):
        raise ConfigError(
            f"config: tls.ciphers lists {', '.join(sorted(listed))}: Python cannot choose among the suites of TLS 1.3, so"
            f" list all of {', '.join(SUITES_1_3)}, or none, which turns TLS 1.3 off"
        )
