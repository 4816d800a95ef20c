"""Certificate files for tests: one authority per test session, and pairs that it issues."""

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rmqkit.cluster.certificates import Certificate, issue, make_authority
from rmqkit.config import TlsClientSettings, TlsServerSettings
from rmqkit.settings.tls_sections import TlsMode
from rmqkit.tls.node_tls import NodeTls

HOSTS = ("localhost", "127.0.0.1", "127.0.0.2")
#: Hosts of the simulator's labs.
SIM_HOSTS = tuple(f"10.0.0.{number}" for number in range(1, 10))


class Pair(NamedTuple):
    """The paths of a certificate and its key."""

    cert: str
    key: str


@cache
def authority(name: str = "test authority", *, is_ed25519: bool = False) -> Certificate:
    return make_authority(name, datetime.now(UTC), is_ed25519=is_ed25519)


class Certificates:
    """Writes certificate files into a folder. `trust` is the file with the authority.

    Simulations need Ed25519 keys: `rmqkit.sim.tls_ends`.
    """

    def __init__(self, folder: Path, authority_name: str = "test authority", *, is_ed25519: bool = False) -> None:
        folder.mkdir(exist_ok=True, parents=True)
        self.folder = folder
        self.authority = authority(authority_name, is_ed25519=is_ed25519)
        self.authority.write(folder / "ca.pem", folder / "ca.key")
        self.trust = str(folder / "ca.pem")

    def pair(self, name: str, hosts: tuple[str, ...] = HOSTS, *, days: tuple[int, int] = (-1, 30)) -> Pair:
        """Write `name`.pem and `name`.key, replacing what is there."""
        valid = (timedelta(days=days[0]), timedelta(days=days[1]))
        made = issue(self.authority, name, hosts, datetime.now(UTC), valid=valid)
        paths = Pair(str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key"))
        made.write(Path(paths.cert), Path(paths.key))
        return paths

    def server(self, pair: Pair | None = None, **given: Any) -> TlsServerSettings:
        pair = pair or self.pair("server")
        settings: dict[str, Any] = {"mode": TlsMode.ENFORCING, "cert_path": pair.cert, "key_path": pair.key, **given}
        return TlsServerSettings(**settings)

    def client(self, **given: Any) -> TlsClientSettings:
        return TlsClientSettings(**{"use_tls": True, "trust_cert_path": self.trust, **given})

    def node(self, pair: Pair | None = None, **given: Any) -> NodeTls:
        """Return the TLS of a node whose dials trust the authority; `given` are server settings."""
        return NodeTls(self.server(pair, **given), self.client())
