"""The TLS of simulated nodes: an authority for this process, and a certificate for each address.

Keys are Ed25519, so that one seed gives one run (`rmqkit.sim.tls_ends`). Certificates are made once
in a process, for all of its seeds. Their files exist only while a context is made.
"""

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from rmqkit.cluster.certificates import Certificate, issue, make_authority
from rmqkit.config import TlsClientSettings, TlsServerSettings
from rmqkit.settings.tls_sections import TlsMode
from rmqkit.tls.node_tls import NodeTls


@cache
def authority() -> Certificate:
    return make_authority("simulation", datetime.now(UTC), is_ed25519=True)


@cache
def certificate_of(host: str) -> Certificate:
    return issue(authority(), "node", [host], datetime.now(UTC))


def tls_of(host: str) -> NodeTls:
    """Return the TLS of a node at `host`: enforcing, and its dials check the peer's address."""
    with TemporaryDirectory(prefix="rmqkit-simulation-") as folder:
        cert, key, trust = (Path(folder) / name for name in ("node.pem", "node.key", "ca.pem"))
        certificate_of(host).write(cert, key)
        authority().write(trust, Path(folder) / "ca.key")
        server = TlsServerSettings(mode=TlsMode.ENFORCING, cert_path=str(cert), key_path=str(key))
        return NodeTls(server, TlsClientSettings(use_tls=True, trust_cert_path=str(trust)))
